"""SPEC 7's rows about consumers, on a cluster of processes, through the public client, asynchronous and blocking."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from client_subjects import KINDS, Clients, Kind, Subject, eventually, new_topic, pulled, run
from clymq import AsyncConsumer, AsyncProducer, Message, Mode, Producer
from clymq.client.lessee import PartitionLessee
from clymq.client.reader import PartitionReader
from clymq.errors import ClymqError
from clymq.testing.process_cluster import ProcessCluster
from rows import CONFIG, Asking, roll

SHARING = (Mode.PTP_PULL, Mode.PTP_PUSH)
PROGRAM = Path(__file__).parents[1] / "consuming_process.py"
CLYMQ = str(Path(sys.executable).parent / "clymq")
LONG_SECONDS = 120.0
# What consumers that are gone, and all that went through them, may leave behind.
CLIENT_BYTES_MAX = 256 << 20

Place = tuple[str, int]
"""A partition and an offset."""


# A machine that stands still for half a second elects, and what the leader before had out is given out again, as after
# every crash: here leaders change when a test says so.
STEADY = {**CONFIG, "election_ms_min": 2000, "election_ms_max": 3000}


@pytest.fixture(scope="module")
def cluster() -> Iterator[ProcessCluster]:
    with ProcessCluster(brokers=3, config=STEADY) as started:
        yield started


@pytest.fixture(params=KINDS)
def clients(request: pytest.FixtureRequest, cluster: ProcessCluster) -> Clients:
    return Clients(request.param, cluster.bootstrap)


# What takes long is tried in each form and each mode once, not in all combinations.
EACH_ONCE = [("async", Mode.PTP_PUSH), ("sync", Mode.PTP_PULL)]


def numbers(count: int, *, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


async def made(clients: Clients, partitions: Any = 1, **options: Any) -> str:
    topic = new_topic()
    async with clients.admin() as admin:
        await admin.create_topic(topic, partitions=partitions, **options)
    return topic


def resident_bytes() -> int:
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


class Process:
    """A consumer in another process."""

    def __init__(self, clients: Clients, topic: str, mode: Mode, group: str, end: str) -> None:
        arguments = [clients.bootstrap, topic, clients.kind, mode.name, group, end]
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM), *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    async def line(self, seconds: float = 30.0) -> str:
        assert self.process.stdout is not None
        async with asyncio.timeout(seconds):
            return (await asyncio.to_thread(self.process.stdout.readline)).strip()

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.communicate()


@contextmanager
def process(clients: Clients, topic: str, mode: Mode, group: str, end: str) -> Iterator[Process]:
    started = Process(clients, topic, mode, group, end)
    try:
        yield started
    finally:
        started.kill()


# --- Sharing ---


def test_row_55_subscriptions_survive_a_restart_and_what_one_leaves_is_the_others(
    cluster: ProcessCluster, clients: Clients
) -> None:
    async def main() -> None:
        places = ["beijing", "shanghai", "xian"]
        topic = await made(clients, places)
        async with (
            clients.producer() as producer,
            clients.admin() as admin,
            clients.consumer(name="consumer1") as one,
            clients.consumer(name="consumer2") as two,
        ):
            for consumer in (one, two):
                await consumer.subscribe(topic, group="g")
            await asyncio.to_thread(cluster.stop, "ZkServer0")
            await asyncio.to_thread(cluster.start, "ZkServer0")
            (found,) = await admin.subscriptions(topic)
            assert found["groups"] == {"g": {"consumer1": True, "consumer2": True}}
            await two.unsubscribe(topic)
            (found,) = await admin.subscriptions(topic)
            assert found["groups"] == {"g": {"consumer1": True}}
            for place in places:
                await producer.push_many(topic, numbers(10), partition=place)
            messages = await pulled(one, 30)
            assert Counter(message.partition for message in messages) == dict.fromkeys(places, 10)
            assert {message.delivery_count for message in messages} == {1}
            with pytest.raises(ClymqError):
                await two.ack(messages[0])

    run(main(), LONG_SECONDS)


@pytest.mark.parametrize("mode", SHARING)
def test_row_57_a_restarted_consumer_goes_on_at_the_cursor(clients: Clients, mode: Mode) -> None:
    async def main() -> None:
        topic = await made(clients)
        async with clients.producer() as producer:
            await producer.push_many(topic, numbers(20))
            with process(clients, topic, mode, "g", "ack") as killed:
                assert await killed.line() == "subscribed"
                assert [await killed.line() for _ in range(20)] == [f"0 {offset} 1" for offset in range(20)]
            await producer.push_many(topic, numbers(30))
            with process(clients, topic, mode, "g", "ack") as restarted:
                assert await restarted.line() == "subscribed"
                assert [await restarted.line() for _ in range(30)] == [f"0 {offset} 1" for offset in range(20, 50)]

    run(main())


@pytest.mark.parametrize("mode", SHARING)
def test_row_58_three_consumers_share_three_partitions_and_nothing_comes_twice(
    clients: Clients, mode: Mode, size: str
) -> None:
    count = {"quick": 9_000, "normal": 100_000, "long": 100_000}[size]

    async def consume(consumer: Subject, seen: Counter[tuple[str, int]], ended: asyncio.Event) -> None:
        while not ended.is_set():
            messages = await consumer.pull(5000, timeout=0.5)
            for message in messages:
                assert message.delivery_count == 1
                seen[message.partition, message.offset] += 1
            if len(messages):
                await consumer.ack(messages)
            if sum(seen.values()) >= count:
                ended.set()

    async def main() -> None:
        topic = await made(clients, ["beijing", "shanghai", "xian"])
        seen: Counter[tuple[str, int]] = Counter()
        ended = asyncio.Event()
        async with AsyncExitStack() as stack:
            producer = await stack.enter_async_context(clients.producer())
            consumers = [await stack.enter_async_context(clients.consumer(name=f"consumer{n}")) for n in (1, 2, 3)]
            for consumer in consumers:
                await consumer.subscribe(topic, mode=mode, group="g")
            consuming = [asyncio.create_task(consume(consumer, seen, ended)) for consumer in consumers]
            for start in range(0, count, 10_000):
                await producer.push_many(topic, numbers(min(10_000, count - start), start=start))
            await asyncio.gather(*consuming)
        assert len(seen) == sum(seen.values()) == count

    run(main(), LONG_SECONDS)


def test_row_60_partitions_are_assigned_as_the_table_says_when_consumers_come_and_go(clients: Clients) -> None:
    table = {
        1: {"consumer1": ["beijing", "shanghai", "xian"]},
        2: {"consumer1": ["shanghai", "xian"], "consumer2": ["beijing"]},
        3: {"consumer1": ["shanghai"], "consumer2": ["beijing"], "consumer3": ["xian"]},
        4: {"consumer1": ["shanghai"], "consumer2": ["beijing"], "consumer3": ["xian"], "consumer4": ["beijing"]},
        5: {
            "consumer1": ["shanghai"],
            "consumer2": ["beijing"],
            "consumer3": ["xian"],
            "consumer4": ["shanghai"],
            "consumer5": ["beijing"],
        },
    }

    def assigned(consumer: Subject) -> list[str]:
        twin: AsyncConsumer = getattr(consumer.client, "_twin", consumer.client)
        lessees = [each for each in twin._sources.values() if isinstance(each, PartitionLessee)]
        return sorted(each.partition for each in lessees if each.assigned)

    async def main() -> None:
        topic = await made(clients, ["beijing", "shanghai", "xian"])
        async with AsyncExitStack() as stack:
            consumers: list[Subject] = []

            async def as_the_table_says() -> bool:
                return {each.client.name: assigned(each) for each in consumers} == table[len(consumers)]

            for number in range(1, 6):
                consumer = await stack.enter_async_context(clients.consumer(name=f"consumer{number}"))
                consumers.append(consumer)
                await consumer.subscribe(topic, group="g")
                await eventually(as_the_table_says, f"{number} consumers share as the table says")
            while len(consumers) > 1:
                await consumers.pop().unsubscribe(topic)
                await eventually(as_the_table_says, f"{len(consumers)} consumers are left and share it all")

    run(main(), LONG_SECONDS)


@pytest.mark.parametrize(("clients", "mode"), EACH_ONCE, indirect=["clients"])
def test_row_63_a_frozen_consumer_is_out_in_four_seconds_and_comes_back(clients: Clients, mode: Mode) -> None:
    async def main() -> None:
        topic = await made(clients)
        async with clients.producer() as producer, clients.consumer() as other:
            await producer.push_many(topic, numbers(10))
            with process(clients, topic, mode, "g", "none") as frozen:
                assert await frozen.line() == "subscribed"
                assert [await frozen.line() for _ in range(10)] == [f"0 {offset} 1" for offset in range(10)]
                frozen.send(signal.SIGSTOP)
                began = time.monotonic()
                await other.subscribe(topic, mode=mode, group="g")
                again = await pulled(other, 10)
                assert sorted((each.offset, each.delivery_count) for each in again) == [(n, 2) for n in range(10)]
                assert time.monotonic() - began < 10, "a lease is 30 s; silence is noticed after 3"
                for message in again:
                    await other.ack(message)
                await other.unsubscribe(topic)
                frozen.send(signal.SIGCONT)
                await producer.push(topic, b"new")
                assert await frozen.line() == "0 10 1"

    run(main())


@pytest.mark.parametrize(("clients", "mode"), EACH_ONCE, indirect=["clients"])
def test_row_82_rolls_under_load_deliver_nothing_twice(
    cluster: ProcessCluster, clients: Clients, mode: Mode, size: str
) -> None:
    rolls = {"quick": 3, "normal": 10, "long": 50}[size]

    async def consume(consumer: Subject, seen: Counter[int], ended: asyncio.Event) -> None:
        while not ended.is_set():
            messages = await consumer.pull(100, timeout=0.5)
            for message in messages:
                assert message.delivery_count == 1, message
                seen[message.offset] += 1
            await asyncio.sleep(0.02)  # leases are held across rolls
            if len(messages):
                await consumer.ack(messages)

    async def main() -> None:
        topic = await made(clients)
        seen: Counter[int] = Counter()
        ended = asyncio.Event()
        pushed = 0
        async with clients.producer() as producer, clients.consumer() as consumer, Asking(cluster) as asking:
            await consumer.subscribe(topic, mode=mode, group="g")
            consuming = asyncio.create_task(consume(consumer, seen, ended))
            for _ in range(rolls):
                rolling = asyncio.create_task(roll(asking, topic))
                while not rolling.done():
                    await producer.push_many(topic, numbers(50))
                    pushed += 50
                await rolling

            async def all_seen() -> bool:
                return len(seen) == pushed or consuming.done()

            await eventually(all_seen, "everything is delivered", seconds=60)
            ended.set()
            await consuming
        assert seen == Counter(range(pushed))

    run(main(), LONG_SECONDS)


# --- Reading ---


def test_row_62_two_are_pushed_everything_and_a_slow_one_holds_up_only_itself(clients: Clients) -> None:
    credit = 256 * 1024
    count = 20_000

    def kept_bytes(consumer: Subject) -> int:
        twin: AsyncConsumer = getattr(consumer.client, "_twin", consumer.client)
        return sum(each._kept_bytes for each in twin._sources.values() if isinstance(each, PartitionReader))

    async def main() -> None:
        topic = await made(clients)
        async with AsyncExitStack() as stack:
            producer = await stack.enter_async_context(clients.producer())
            slow = await stack.enter_async_context(clients.consumer(credit_bytes=credit))
            quick = await stack.enter_async_context(clients.consumer())
            for consumer in (slow, quick):
                await consumer.subscribe(topic, mode=Mode.PSB_PUSH)
            await producer.push_many(topic, [bytes(500)] * count)
            assert [each.offset for each in await pulled(quick, count)] == list(range(count))
            assert 0 < kept_bytes(slow) <= 2 * credit, "of 10 MB"
            assert [each.offset for each in await pulled(slow, count)] == list(range(count))

    run(main())


@pytest.mark.parametrize("mode", list(Mode))
def test_a_message_wakes_whoever_waits_for_it(clients: Clients, mode: Mode) -> None:
    async def main() -> None:
        topic = await made(clients)
        async with clients.producer() as producer, clients.consumer() as consumer:
            await consumer.subscribe(topic, mode=mode, group="g")
            for number in range(3):
                waiting = asyncio.create_task(consumer.pull(timeout=LONG_SECONDS))
                await producer.push(topic, b"%d" % number)
                messages = await asyncio.wait_for(waiting, LONG_SECONDS / 4)
                assert [message.value for message in messages] == [b"%d" % number]
                if mode in SHARING:
                    await consumer.ack(messages)

    run(main(), LONG_SECONDS)


@pytest.mark.parametrize("mode", [Mode.PSB_PULL, Mode.PSB_PUSH])
def test_row_77_a_stored_position_outlives_its_consumer_and_lag_is_right(clients: Clients, mode: Mode) -> None:
    async def main() -> None:
        topic = await made(clients)
        async with clients.producer() as producer, clients.admin() as admin:
            await producer.push_many(topic, numbers(20))
            with process(clients, topic, mode, "g", "commit") as killed:
                assert await killed.line() == "subscribed"
                assert [await killed.line() for _ in range(20)] == [f"0 {offset} 1" for offset in range(20)]
            await producer.push_many(topic, numbers(30))
            with process(clients, topic, mode, "g", "commit") as restarted:
                assert await restarted.line() == "subscribed"
                assert [await restarted.line() for _ in range(30)] == [f"0 {offset} 1" for offset in range(20, 50)]

            async def lag_is(lag: int) -> bool:
                found = [each for each in (await admin.status())["groups"] if each["topic"] == topic]
                return [(each["group"], each["lag"]) for each in found] == [("g", lag)]

            await eventually(lambda: lag_is(0), "nothing is left")
            await admin.reset_group(topic, "g", 30)
            await eventually(lambda: lag_is(20), "20 are left again")
            async with clients.consumer() as consumer:
                await consumer.subscribe(topic, mode=mode, group="g")
                assert [each.offset for each in await pulled(consumer, 20)] == list(range(30, 50))

    run(main(), LONG_SECONDS)


# --- Many, and bad ones ---


@asynccontextmanager
async def coming_and_going(
    clients: Clients, topic: str, number: int, seen: Counter[Place], counts: Counter[Place], ended: asyncio.Event
) -> AsyncIterator[None]:
    """Consumers that join, handle some messages, and leave, over and over."""

    async def come_and_go(who: int) -> None:
        while not ended.is_set():
            async with clients.consumer(name=f"c{who}") as consumer:
                await consumer.subscribe(topic, mode=SHARING[who % 2], group="g")
                for _ in range(3 + who % 4):
                    messages = await consumer.pull(20, timeout=0.3)
                    for message in messages:
                        place = message.partition, message.offset
                        seen[place] += 1
                        counts[place] = max(counts[place], message.delivery_count)
                    if len(messages):
                        await consumer.ack(messages)
                    if ended.is_set():
                        break

    tasks = [asyncio.create_task(come_and_go(who)) for who in range(number)]
    try:
        yield
    finally:
        ended.set()
        await asyncio.gather(*tasks)


# A machine that is busy with hundreds of consumers changes no leader and takes nobody for gone: that is another test.
PATIENT = {**CONFIG, "election_ms_min": 5000, "election_ms_max": 8000, "consumer_heartbeat_ms": 10_000}


@pytest.mark.parametrize("kind", KINDS)
def test_consumers_that_come_and_go_lose_nothing_and_repeat_nothing_without_a_reason(kind: Kind, size: str) -> None:
    number = {"quick": 6, "normal": 20, "long": 200}[size]
    count = {"quick": 2000, "normal": 4000, "long": 40_000}[size]
    seconds = {"quick": 60, "normal": 100, "long": 600}[size]

    async def main(clients: Clients) -> None:
        topic = await made(clients, 4)
        seen: Counter[Place] = Counter()
        counts: Counter[Place] = Counter()
        ended = asyncio.Event()

        async with clients.producer() as producer, clients.admin() as admin:
            partitions = [str(each) for each in range(4)]
            async with coming_and_going(clients, topic, number, seen, counts, ended):
                for start in range(0, count, 500):
                    await producer.push_many(topic, numbers(500), partition=partitions[start // 500 % 4])

                async def finished() -> bool:
                    groups = await admin.groups(topic)
                    return len(groups) == 4 and all(each["cursor"] * 4 == count for each in groups)

                await eventually(finished, "everything is acked", seconds=seconds)
        assert len(seen) == count
        unexplained = {place: times for place, times in seen.items() if times > counts[place]}
        assert not unexplained, "delivered more often than the count says"

    before = resident_bytes()
    with ProcessCluster(brokers=3, config=PATIENT) as cluster:
        run(main(Clients(kind, cluster.bootstrap)), 1.5 * seconds)
    assert resident_bytes() - before < CLIENT_BYTES_MAX


def test_a_consumer_that_always_raises_takes_nothing_from_the_others(
    clients: Clients, caplog: pytest.LogCaptureFixture
) -> None:
    handled: Counter[tuple[str, int, int]] = Counter()

    async def main() -> None:
        topic = await made(clients, 2)

        def raise_always(message: Message) -> None:
            if int(message.value) % 10 == 0:
                raise ValueError("bad")
            handled[message.partition, int(message.value), message.delivery_count] += 1

        async with AsyncExitStack() as stack:
            producer = await stack.enter_async_context(clients.producer())
            dead = await stack.enter_async_context(clients.consumer())
            runs = []
            for _ in range(2):
                consumer = await stack.enter_async_context(clients.consumer())
                await consumer.subscribe(topic, group="g")
                runs.append(asyncio.create_task(consumer.run(raise_always, concurrency=4)))
            for partition in ("0", "1"):
                await producer.push_many(topic, numbers(100), partition=partition)
            await dead.subscribe(re.compile(re.escape(topic) + r"\.dlq"), mode=Mode.PSB_PULL)
            bad = await pulled(dead, 20, seconds=60)
            assert sorted(int(each.value) for each in bad) == sorted(2 * list(range(0, 100, 10)))
        await asyncio.gather(*runs)
        good = {(partition, number) for partition in ("0", "1") for number in range(100) if number % 10}
        assert {(partition, number) for partition, number, _ in handled} == good
        # On a busy machine another may be elected, and nobody is left to mark what the one before had leased.
        elected_anew = "UnknownLease" in caplog.text
        assert set(handled.values()) == {1} or elected_anew, "what came twice says so"

    run(main(), LONG_SECONDS)


def test_a_leader_killed_under_sharing_loses_nothing(clients: Clients) -> None:
    """What was acked is not delivered again, what was not is, and says so."""

    async def main(cluster: ProcessCluster, mine: Clients) -> None:
        topic = await made(mine)
        acked: list[int] = []
        seen: Counter[int] = Counter()
        async with mine.producer() as producer, mine.consumer() as consumer:
            await consumer.subscribe(topic, group="g")
            await producer.push_many(topic, numbers(300))

            async def consume(until: int) -> None:
                while len(set(acked)) < until:
                    messages = await consumer.pull(20, timeout=1.0)
                    for message in messages:
                        seen[message.offset] += 1
                        assert message.offset not in acked, "it was acked"
                    if len(messages):
                        try:
                            await consumer.ack(messages)
                        except ClymqError:
                            continue  # delivered again
                        acked.extend(message.offset for message in messages)

            await consume(100)
            leader = await asyncio.to_thread(cluster.leader, topic, "0")
            cluster.kill(leader)
            await producer.push_many(topic, numbers(100))
            await consume(400)
        assert set(acked) == set(range(400))

    with ProcessCluster(brokers=3, config=CONFIG) as cluster:
        run(main(cluster, Clients(clients.kind, cluster.bootstrap)), LONG_SECONDS)


# --- The process around it ---


def test_row_67_the_log_level_comes_from_the_environment_and_a_wrong_one_is_said(cluster: ProcessCluster) -> None:
    def status(**environment: str) -> subprocess.CompletedProcess[str]:
        clean = {name: value for name, value in os.environ.items() if name not in {"CLYMQ_LOG", "VERBOSE"}}
        command = [CLYMQ, "push", topic, "x", "--json", "--bootstrap", cluster.bootstrap]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, env={**clean, **environment})

    topic = new_topic()
    with Producer(cluster.bootstrap) as producer:
        producer.create_topic(topic)
    quiet, loud = status(CLYMQ_LOG="error"), status(CLYMQ_LOG="debug")
    assert (quiet.returncode, quiet.stderr) == (0, "")
    assert loud.returncode == 0
    assert " DEBUG " in loud.stderr
    assert " DEBUG " in status(VERBOSE="3").stderr
    wrong = status(CLYMQ_LOG="loud")
    assert wrong.returncode == 2
    assert re.fullmatch(r"error: .*loud.*error.*debug.* \[ConfigError\]\n", wrong.stderr)


def test_memory_stays_flat_while_much_is_shared_and_read(cluster: ProcessCluster, size: str) -> None:
    """A consumer holds what is under way, however much has gone through it."""
    rounds = {"quick": 2, "normal": 6, "long": 40}[size]
    batch = [bytes(1000)] * 5000

    async def main() -> None:
        topic = new_topic()
        async with (
            AsyncProducer(cluster.bootstrap) as producer,
            AsyncConsumer(cluster.bootstrap, credit_bytes=1 << 20) as sharing,
            AsyncConsumer(cluster.bootstrap, credit_bytes=1 << 20) as reading,
        ):
            await producer.create_topic(topic, replicas=1)
            await sharing.subscribe(topic, group="g")
            await reading.subscribe(topic, mode=Mode.PSB_PUSH)
            after: list[int] = []
            for _ in range(rounds):
                await producer.push_many(topic, batch)
                got = read = 0
                while got < len(batch):
                    messages = await sharing.pull(2000, timeout=5.0)
                    got += len(messages)
                    await sharing.ack(messages)
                while read < len(batch):
                    read += len(await reading.pull(2000, timeout=5.0))
                after.append(resident_bytes())
            (lessee,) = [each for each in sharing._sources.values() if isinstance(each, PartitionLessee)]
            assert len(lessee.settler.held) == 0
            assert after[-1] - after[0] < 64 << 20

    run(main(), LONG_SECONDS)
