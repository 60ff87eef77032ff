"""`scripts/bench NAME... [--quick] [--json FILE]`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks import client, cluster, raft, raft_processes, report, rpc, spark, storage, store

BENCHMARKS: dict[str, tuple[str, Callable[[bool], list[report.Row]]]] = {
    "client": ("one Python client, beside those of Kafka and NATS", client.run),
    "cluster": ("a whole cluster, beside a bare copy, a bare skeleton and NATS", cluster.run),
    "raft": ("the consensus core in memory, three replicas on one core", raft.run),
    "rpc": ("requests over TCP, beside a bare socket with the same bytes", rpc.run),
    "spark": ("Spark's tables and streams, beside Arrow batches from and to memory", spark.run),
    "storage": ("batches and blocks on one disk, beside plain writev and pread", storage.run),
    "store": ("the embedded metadata store and ZooKeeper, beside synced appends", store.run),
}
PROCESSES = ("consensus over three real processes, beside a bare skeleton", raft_processes.run)


def main() -> int:
    """Run what was named and print its tables."""
    names = "\n".join(f"  {name:10} {purpose}" for name, (purpose, _) in BENCHMARKS.items())
    parser = argparse.ArgumentParser(
        prog="scripts/bench",
        description=f"Measure ClyMQ beside the machine's limit.\n\nbenchmarks:\n{names}\n  all        every one",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="what to measure")
    parser.add_argument("--processes", action="store_true", help="raft: over three real processes, not in memory")
    parser.add_argument("--quick", action="store_true", help="small sizes: a look, not a measurement")
    parser.add_argument("--json", metavar="FILE", help="also write the rows to a file")
    arguments = parser.parse_args()
    if not arguments.names:
        parser.print_help()
        return 0
    unknown = set(arguments.names) - {*BENCHMARKS, "all"}
    if unknown:
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}; there are {', '.join(BENCHMARKS)}, all")
    if arguments.json and not Path(arguments.json).parent.is_dir():
        parser.error(f"--json {arguments.json}: there is no such folder")
    chosen = list(BENCHMARKS) if "all" in arguments.names else arguments.names
    rows: list[report.Row] = []
    for name in chosen:
        purpose, run = PROCESSES if name == "raft" and arguments.processes else BENCHMARKS[name]
        measured = run(arguments.quick)
        report.show(f"{name}: {purpose}", measured)
        rows += measured
    if arguments.json:
        report.save(arguments.json, rows)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
