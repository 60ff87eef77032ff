"""One Python process that produces or consumes, beside the clients of other queues that do the same.

Ours talk to one broker, a process of its own that writes to the disk: ack 1, one replica. Kafka's talk to librdkafka's
mock broker in memory (`kafka`), NATS's to a server that writes to the disk (`nats_client`). A turn ends when all is
acknowledged, or read. Then how long a single message takes: ack 1 beside JetStream with one replica, and ack -1 with
three beside JetStream with three that syncs always. A peer that is not installed is said to be missing.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import statistics
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

from benchmarks import contest, jetstream
from benchmarks.contest import Measure, Pair, Turn
from benchmarks.jetstream import Nats
from benchmarks.kafka import Aiokafka, Confluent, mock
from benchmarks.load import Load
from benchmarks.nats_client import NatsClient
from benchmarks.ours import WRITE, Ours
from benchmarks.processes import folder
from benchmarks.report import Row
from clymq.testing import ProcessCluster
from clymq.types import Ack

# On a machine that others use, too: an election in the middle would be measured, and is not what is asked for.
PATIENT = {"election_ms_min": 3000, "election_ms_max": 5000}
LATENCY_BYTES = 100

# The names of a peer's measures begin with the peer's.
PRODUCING = [
    Pair("send", "confluent produce()", 2.0),
    Pair("send, blocking", "confluent produce()", 2.0),
    Pair("push_many", "confluent produce()", 5.0),
    Pair("push_many", "confluent produce_batch()"),
    Pair("send", "aiokafka send()"),
    Pair("send", "nats-py publish_async()"),
]
CONSUMING = [
    Pair("pull to messages", "confluent consume(1000)", 2.0),
    Pair("pull to Arrow", "confluent consume(1000)", 10.0),
    Pair("async for", "confluent poll()", 0.8),
    Pair("pull to messages", "aiokafka getmany()"),
    Pair("async for", "aiokafka async for"),
    Pair("pull to messages", "nats-py fetch(1000)"),
    Pair("async for", "nats-py async for"),
]


def run(quick: bool) -> list[Row]:
    """Measure everything; `quick` for a look."""
    return asyncio.run(_run(quick))


async def _run(quick: bool) -> list[Row]:
    turns, part = (1, 8) if quick else (5, 1)
    loads = [Load(100, 400_000 // part), Load(1000, 48_000 // part)]
    rows: list[Row] = []
    async with _cluster(brokers=1) as bootstrap:
        with _peers() as (kafka, nats):
            ours = Ours(bootstrap)
            await ours.create(WRITE)
            if nats is not None:
                await nats.create("write")
            for load in loads:
                rows += await _produce(load, turns, ours, kafka, nats)
            for load in loads:
                rows += await _consume(load, turns, ours, kafka, nats)
            rows += await _latency_of_one(ours, nats, 2000 // part, turns)
    async with _cluster(brokers=3) as bootstrap:
        rows += await _latency_of_three(Ours(bootstrap), 400 // part, turns)
    return rows


@contextlib.asynccontextmanager
async def _cluster(brokers: int) -> AsyncIterator[str]:
    with folder() as data:
        async with ProcessCluster(
            brokers=brokers, folder=Path(data), network="proxies", config=PATIENT if brokers > 1 else None
        ) as running:
            yield running.bootstrap


@contextlib.contextmanager
def _peers() -> Iterator[tuple[str | None, NatsClient | None]]:
    """Run the servers of the others; yield the mock's address and a client of NATS, None what is missing."""
    program = jetstream.server_program()
    with mock() as kafka, contextlib.ExitStack() as stack:
        if program is None:
            yield kafka, None
        else:
            (address,) = stack.enter_context(jetstream.servers(program, count=1))
            yield kafka, NatsClient(address)


# --- Messages a second ---


def _of(method: Callable[[Load], Awaitable[Turn]], load: Load) -> Measure:
    return functools.partial(method, load)


async def _produce(load: Load, turns: int, ours: Ours, kafka: str | None, nats: NatsClient | None) -> list[Row]:
    measures = {
        "send": _of(ours.send, load),
        "send, blocking": _of(ours.send_blocking, load),
        "push_many": _of(ours.push_many, load),
    }
    if kafka is not None:
        confluent = Confluent(kafka)
        measures["confluent produce()"] = _of(confluent.produce, load)
        measures["confluent produce_batch()"] = _of(confluent.produce_batch, load)
        if Aiokafka.is_installed():
            measures["aiokafka send()"] = _of(Aiokafka(kafka).send, load)
    if nats is not None:
        measures["nats-py publish_async()"] = _of(nats.publish_async, load)
    results = await contest.take_turns(measures, turns)
    return list(contest.rows(str(load), results, PRODUCING))


async def _consume(load: Load, turns: int, ours: Ours, kafka: str | None, nats: NatsClient | None) -> list[Row]:
    measures = {
        "pull to messages": _of(ours.pull, load),
        "pull to Arrow": _of(ours.pull_arrow, load),
        "async for": _of(ours.iterate, load),
    }
    await ours.fill(load)
    if kafka is not None:
        confluent = Confluent(kafka)
        await confluent.fill(load)
        measures["confluent consume(1000)"] = _of(confluent.consume, load)
        measures["confluent poll()"] = _of(confluent.poll, load)
        if Aiokafka.is_installed():
            aiokafka = Aiokafka(kafka)
            measures["aiokafka getmany()"] = _of(aiokafka.getmany, load)
            measures["aiokafka async for"] = _of(aiokafka.iterate, load)
    if nats is not None:
        await nats.fill(load)
        measures["nats-py fetch(1000)"] = _of(nats.fetch, load)
        measures["nats-py async for"] = _of(nats.iterate, load)
    results = await contest.take_turns(measures, turns)
    return list(contest.rows(str(load), results, CONSUMING))


# --- How long one takes ---

OneByOne = Callable[[int], Awaitable[list[float]]]


async def _latency_of_one(ours: Ours, nats: NatsClient | None, count: int, turns: int) -> list[Row]:
    value = bytes(LATENCY_BYTES)
    mine = functools.partial(ours.push_one_by_one, WRITE, value)
    theirs = None if nats is None else functools.partial(nats.publish_one_by_one, "write", value)
    return await _latencies("push, ack 1, one replica", "JetStream R1, file", mine, theirs, count, turns)


async def _latency_of_three(ours: Ours, count: int, turns: int) -> list[Row]:
    await ours.create("three", ack=Ack.QUORUM, replicas=3)
    mine = functools.partial(ours.push_one_by_one, "three", bytes(LATENCY_BYTES))
    what, other = "push, ack -1, three replicas", "JetStream R3, synced always"
    program = jetstream.server_program()
    if program is None:
        return await _latencies(what, other, mine, None, count, turns)
    with jetstream.servers(program) as addresses:
        nats = await Nats.open(addresses)

        async def theirs(count: int) -> list[float]:
            return [1000 * seconds for seconds in (await nats.push(LATENCY_BYTES, 1, count)).taken]

        try:
            return await _latencies(what, other, mine, theirs, count, turns)
        finally:
            await nats.close()


async def _latencies(
    what: str, other: str, ours: OneByOne, theirs: OneByOne | None, count: int, turns: int
) -> list[Row]:
    """Return p50 and p99; the target, with one replica, is for p50: not above the other's."""
    pairs: list[tuple[list[float], list[float]]] = []
    for turn in range(turns + 1):
        order = [ours, theirs] if turn % 2 else [theirs, ours]
        taken = {who: sorted(await who(count)) for who in order if who is not None}
        if turn:  # the first is to warm up
            pairs.append((taken[ours], [] if theirs is None else taken[theirs]))
    rows = []
    for percent in (50, 99):
        at = count * percent // 100
        mine = statistics.median(own[at] for own, _ in pairs)
        if theirs is None:
            rows.append(Row(f"p{percent}: {what} ({other}: missing)", "ms", mine))
            continue
        raw = statistics.median(others[at] for _, others in pairs)
        ratio = statistics.median(own[at] / others[at] for own, others in pairs)
        target = "<= 100% of raw" if percent == 50 and "one replica" in what else None
        rows.append(Row(f"p{percent}: {what}, beside {other}", "ms", mine, raw, ratio, target,
                        None if target is None else ratio <= 1))  # fmt: skip
    return rows
