"""A whole cluster of real processes on the loopback interface: what a user gets, beside what the machine allows.

One zkserver and three brokers (`clymq.testing.ProcessCluster`). Whoever is compared takes turns in the same run:

* ack 1, one replica: a bare copy from a socket to a file (`copier`);
* ack -1, three replicas, synced: the least that three processes can do (`skeleton`);
* the product's own producer, ack -1, three replicas: NATS JetStream with the same promise (`jetstream`).

Then what costs when nothing happens, and whether memory stays where it is when much does.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path

from benchmarks import jetstream
from benchmarks.copier import Copy
from benchmarks.jetstream import Nats
from benchmarks.processes import folder, own_memory_bytes, python, settle, shares_of_a_core
from benchmarks.pushing import MEGA, Bare, Ours, Run, latencies, rates, take_turns, values_for
from benchmarks.raft_processes import skeleton
from benchmarks.report import Row
from clymq.client.admin import AsyncAdmin
from clymq.client.producer import AsyncProducer
from clymq.clock import SystemClock
from clymq.config import DAY_MS, Config, GiB, KiB, MiB
from clymq.protocol.controller import ProGetBroker
from clymq.rpc.client import connect
from clymq.rpc.endpoint import Endpoint
from clymq.rpc.transport import TcpTransport
from clymq.testing import ProcessCluster
from clymq.types import Ack

IDLE_PARTITIONS = 1000
IDLE_SHARE_MAX = 0.05
CREATED_AT_ONCE = 8
SETTLE_SECONDS_MAX = 120.0
# Of the bytes that are pushed, so many go first: buffers and tables have their size by then.
WARM_SHARE = 0.1
# On a machine that others use, too: an election in the middle would be measured, and is not what is asked for.
PATIENT = {"election_ms_min": 3000, "election_ms_max": 5000}
MEMORY_GROWTH_MAX = 1.25
BLOCK_BYTES = 16 * GiB


def run(quick: bool) -> list[Row]:
    """Measure everything; `quick` for a look."""
    return [
        *asyncio.run(throughput(quick)),
        *asyncio.run(idle(100 if quick else IDLE_PARTITIONS, seconds=5 if quick else 20)),
        *asyncio.run(memory(1 if quick else 10)),
    ]


@contextlib.asynccontextmanager
async def cluster(**config: object) -> AsyncIterator[ProcessCluster]:
    """Run a cluster with its data where that of the other benchmarks is."""
    with folder() as data:
        async with ProcessCluster(brokers=3, folder=Path(data), network="proxies", config=config) as running:
            yield running


# --- How much, and how long ---


async def throughput(quick: bool) -> list[Row]:
    """Let ours and the others take turns."""
    turns, part = (3, 4) if quick else (7, 1)
    async with cluster(**PATIENT) as ours:
        async with AsyncAdmin(ours.bootstrap) as admin:
            one_block = {"block_bytes_max": BLOCK_BYTES}  # the bare pusher follows nobody to the next one
            await admin.create_topic("one", ack=Ack.LEADER, replicas=1, settings=one_block)
            await admin.create_topic("three", ack=Ack.QUORUM, replicas=3, settings=one_block)
        rows = await beside_copy(await pusher(ours, "one", Ack.LEADER), 3000 // part, turns)
        rows += await beside_skeleton(await pusher(ours, "three", Ack.QUORUM), part, turns)
        return rows + await beside_nats(ours.bootstrap, part, turns)


async def pusher(running: ProcessCluster, topic: str, ack: Ack) -> Ours:
    """Return a bare pusher to the leader of a topic's only partition."""
    endpoint = Endpoint(SystemClock(), Config(), name="bench", role="client")
    controller = await connect(TcpTransport(), running.addresses[running.zkservers[0]], endpoint)
    route = (await controller.ask(ProGetBroker(topic, "0"), timeout_ms=10_000)).reply
    controller.close()
    return await Ours.open([running.addresses[name] for name in running.brokers], place=(topic, "0", route.uid),
                           ack=ack)  # fmt: skip


async def beside_copy(ours: Ours, count: int, turns: int) -> list[Row]:
    """Ack 1 on one replica."""
    with folder() as data, python(["-m", "benchmarks.copier", f"{data}/copy"]) as bare:
        pairs = await take_turns(ours, Copy(bare.address), 64 * KiB, 32, count, turns)
    return rates("ack 1, one replica: 64 KiB, 32 in flight", 64 * KiB, pairs, target=0.5)


async def beside_skeleton(ours: Ours, part: int, turns: int) -> list[Row]:
    """Ack -1 on three replicas."""
    rows: list[Row] = []
    with skeleton() as address:
        bare = await Bare.open(address)
        for size, in_flight, count in ((16 * KiB, 64, 3000), (64 * KiB, 32, 1500)):
            pairs = await take_turns(ours, bare, size, in_flight, count // part, turns)
            name = f"ack -1, three replicas: {size // KiB} KiB, {in_flight} in flight"
            rows += rates(name, size, pairs, target=0.5)
        pairs = await take_turns(ours, bare, KiB, 1, 800 // part, turns)
        rows += latencies("ack -1, three replicas: 1 KiB, one at a time", pairs, {50: 2.0, 99: 2.0})
    return rows


class Product:
    """The producer that users have. A batch is what one `push_many` brings; so many calls are under way."""

    def __init__(self, producer: AsyncProducer, topic: str) -> None:
        self._producer = producer
        self._topic = topic

    async def push(self, size: int, in_flight: int, count: int) -> Run:
        """Push so many batches of about this size."""
        values = values_for(size)
        work, numbers = Run(count), iter(range(count))

        async def push() -> None:
            for number in numbers:
                work.sent[number] = time.perf_counter()
                await self._producer.push_many(self._topic, values)
                work.answered(number)

        await asyncio.gather(*(push() for _ in range(in_flight)))
        return work


async def beside_nats(bootstrap: str, part: int, turns: int) -> list[Row]:
    """The producer, beside a client of NATS; alone if NATS is missing, and the rows say so."""
    program = jetstream.server_program()
    async with AsyncProducer(bootstrap, linger_ms=0) as producer:
        ours = Product(producer, "three")
        if program is None:
            run = await ours.push(64 * KiB, 32, 1000 // part)
            name = "AsyncProducer (NATS R3 to compare with is missing): 64 KiB, 32 in flight"
            return [Row(name, "MB/s", len(run.sent) / run.seconds * 64 * KiB / MEGA)]
        with jetstream.servers(program) as addresses:
            theirs = await Nats.open(addresses)
            large = await take_turns(ours, theirs, 64 * KiB, 32, 1000 // part, turns)
            small = await take_turns(ours, theirs, KiB, 1, 800 // part, turns)
            await theirs.close()
    return [
        *rates("AsyncProducer beside NATS R3: 64 KiB, 32 in flight", 64 * KiB, large, target=2.0),
        *latencies("AsyncProducer beside NATS R3: 1 KiB, one at a time", small),
    ]


# --- Nothing to do ---


async def idle(partitions: int, seconds: int) -> list[Row]:
    """What partitions that sleep cost three brokers, once nothing is moved any more to spread their leaders."""
    async with cluster(balance_ms=DAY_MS) as running:
        began = time.monotonic()
        async with AsyncAdmin(running.bootstrap, timeout=300) as admin:
            await admin.create_topic("idle", partitions=[], ack=Ack.UNSET)
            names = iter(range(partitions))

            async def create() -> None:
                for name in map(str, names):
                    await admin.create_partition("idle", name)
                    await admin.set_partition_state("idle", name, ack=Ack.QUORUM, replicas=3)

            await asyncio.gather(*(create() for _ in range(CREATED_AT_ONCE)))
        took = time.monotonic() - began
        brokers = [running.processes.pid(name) for name in running.brokers]
        await asyncio.to_thread(settle, brokers, share_max=0.3, seconds_max=SETTLE_SECONDS_MAX)
        used = max(await asyncio.to_thread(shares_of_a_core, brokers, seconds))
        target = f"<= {IDLE_SHARE_MAX:.0%}"
    return [
        Row(f"{partitions} idle partitions: the busiest of three brokers", "% of a core", 100 * used, target=target,
            met=used <= IDLE_SHARE_MAX),
        Row(f"{partitions} partitions of three replicas made", "partitions/s", partitions / took),
    ]  # fmt: skip


# --- Much to do ---


async def memory(gigabytes: int) -> list[Row]:
    """Push much, and look at the brokers' own memory before and after; retention keeps the disk from filling."""
    async with (
        cluster(retention_check_ms=1000, delete_delay_ms=1000, **PATIENT) as running,
        AsyncProducer(running.bootstrap) as producer,
    ):
        settings = {"retention_bytes": GiB, "block_bytes_max": GiB // 4}
        await producer.create_topic("much", ack=Ack.QUORUM, replicas=3, settings=settings)
        pids = [running.processes.pid(name) for name in running.brokers]
        product, count = Product(producer, "much"), int(gigabytes * 1e9 / (64 * KiB))
        await product.push(64 * KiB, 32, int(count * WARM_SHARE))
        before = max(map(own_memory_bytes, pids))
        work = await product.push(64 * KiB, 32, count - int(count * WARM_SHARE))
        after = max(map(own_memory_bytes, pids))
    ratio = after / before
    name = f"a broker's own memory after {gigabytes} GB, beside after the first tenth"
    target = f"<= {MEMORY_GROWTH_MAX:.0%} of raw"
    return [
        Row(name, "MiB", after / MiB, before / MiB, ratio, target, ratio <= MEMORY_GROWTH_MAX),
        Row(f"AsyncProducer, {gigabytes} GB, ack -1", "MB/s", len(work.sent) * 64 * KiB / MEGA / work.seconds),
    ]
