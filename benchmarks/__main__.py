"""`scripts/bench NAME... [--quick] [--json FILE]`."""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
from pathlib import Path
from typing import Any

from benchmarks import report

# By module: each is loaded when it is asked for, because not all of them need the same packages.
BENCHMARKS = {
    "client": "one Python client, beside those of Kafka and NATS",
    "cluster": "a whole cluster, beside a bare copy, a bare skeleton and NATS",
    "raft": "the consensus core in memory, three replicas on one core",
    "rpc": "requests over TCP, beside a bare socket with the same bytes",
    "spark": "Spark's tables and streams, beside Arrow batches from and to memory",
    "storage": "batches and blocks on one disk, beside plain writev and pread",
    "store": "the embedded metadata store and ZooKeeper, beside synced appends",
}
PROCESSES = "consensus over three real processes, beside a bare skeleton"
ALL = "whole queues: ours beside Kafka, NATS JetStream, RabbitMQ and Redis; a page in docs/benchmarks"


def main() -> int:
    """Run what was named and print its tables."""
    names = "\n".join(f"  {name:10} {purpose}" for name, purpose in [("all", ALL), *BENCHMARKS.items()])
    parser = argparse.ArgumentParser(
        prog="scripts/bench",
        description=f"Measure ClyMQ beside the machine's limit.\n\nbenchmarks:\n{names}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="what to measure")
    parser.add_argument("--processes", action="store_true", help="raft: over three real processes, not in memory")
    parser.add_argument("--quick", action="store_true", help="small sizes: a look, not a measurement")
    parser.add_argument(
        "--install-peers", action="store_true", help="all: install what is missing of the distribution's, as root"
    )
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
    if "all" in arguments.names and len(arguments.names) > 1:
        parser.error("all comes alone: it writes a report of its own")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # whoever is started is ended, here as well
    if arguments.names == ["all"]:
        _all(arguments)
    else:
        _some(arguments)
    return 0


def _all(arguments: argparse.Namespace) -> None:
    module: Any = importlib.import_module("benchmarks.peers.all")
    module.run(is_quick=arguments.quick, json_path=arguments.json, is_to_install=arguments.install_peers)


def _some(arguments: argparse.Namespace) -> None:
    rows: list[report.Row] = []
    for name in arguments.names:
        is_of_processes = name == "raft" and arguments.processes
        module: Any = importlib.import_module(f"benchmarks.{'raft_processes' if is_of_processes else name}")
        measured = module.run(arguments.quick)
        report.show(f"{name}: {PROCESSES if is_of_processes else BENCHMARKS[name]}", measured)
        rows += measured
    if arguments.json:
        report.save(arguments.json, rows)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
