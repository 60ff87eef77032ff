"""Consensus over three real processes: batches on two of three disks before the answer, beside a bare skeleton.

Both run at the same time on the same disk and take turns; the one that does not work sleeps. Ours does everything that
a broker's ack -1 promises (`clymq.testing.raft_node`), the skeleton only what `benchmarks.skeleton` says.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

from benchmarks.processes import Server, folder, python, settle, shares_of_a_core
from benchmarks.pushing import Bare, Ours, latencies, rates, take_turns
from benchmarks.report import Row
from clymq.testing.ports import free_ports

NAMES = ("a", "b", "c")
IDLE_GROUPS = 1000


def run(quick: bool) -> list[Row]:
    """Measure everything; `quick` for a look."""
    return [*asyncio.run(throughput(quick)), *idle(100 if quick else IDLE_GROUPS, 4 if quick else 10)]


async def throughput(quick: bool) -> list[Row]:
    """Let both take turns, size by size."""
    turns = 3 if quick else 7
    rows: list[Row] = []
    with cluster() as servers, skeleton() as bare:
        ours, theirs = await Ours.open([server.address for server in servers]), await Bare.open(bare)
        for size, in_flight, count in ((16, 64, 3000), (64, 32, 1500)):
            pairs = await take_turns(ours, theirs, size * 1024, in_flight, count // (4 if quick else 1), turns)
            name = f"fsynced on a majority: {size} KiB, {in_flight} in flight"
            rows += rates(name, size * 1024, pairs, target=0.6)
        pairs = await take_turns(ours, theirs, 1024, 1, 200 if quick else 800, turns)
        rows += latencies("1 KiB, one at a time", pairs, {50: 1.7})
    return rows


def idle(groups: int, seconds: int) -> list[Row]:
    """What groups that sleep cost three real processes."""
    rows = []
    for number in (10, groups):
        with cluster(groups=number, log="info") as servers:
            processes = [server.pid for server in servers if server.address]
            name = f"{number} idle groups, three processes"
            try:
                settle(processes, share_max=0.06, seconds_max=60)
            except TimeoutError:
                name += ", not at rest after 60 s"  # a row that is missing hides why
            used = shares_of_a_core(processes, seconds)
            rows.append(Row(name, "% of a core per process", 100 * max(used)))
    return rows


@contextlib.contextmanager
def cluster(groups: int = 1, log: str = "warning") -> Iterator[list[Server]]:
    """Run three processes that share groups."""
    ports = dict(zip(NAMES, free_ports(len(NAMES)), strict=True))
    with folder() as data, contextlib.ExitStack() as stack:
        started = []
        for name in NAMES:
            arguments = ["-m", "clymq.testing.raft_node", "--name", name, "--listen", f"127.0.0.1:{ports[name]}"]
            arguments += ["--data", f"{data}/{name}", "--groups", str(groups)]
            for peer in NAMES:
                arguments += [] if peer == name else ["--peer", f"{peer}=127.0.0.1:{ports[peer]}"]
            started.append(stack.enter_context(python(arguments, log)))
        yield started


@contextlib.contextmanager
def skeleton() -> Iterator[str]:
    """Run the skeleton's three processes; yield its leader's address."""
    with folder() as data, contextlib.ExitStack() as stack:
        followers = [stack.enter_context(python(["-m", "benchmarks.skeleton", f"{data}/{n}"])) for n in (1, 2)]
        arguments = ["-m", "benchmarks.skeleton", f"{data}/0", *(follower.address for follower in followers)]
        yield stack.enter_context(python(arguments)).address
