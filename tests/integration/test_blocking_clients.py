"""What the blocking classes add: a thread that nobody sees, interrupts, forks, and a `send` that waits for room."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from client_subjects import new_topic
from clymq import Admin, Consumer, Message, Producer, Receipts
from clymq.errors import ClosedError, ClymqError, InvalidRequest
from clymq.testing.waiting import wait_until

SECONDS_MAX = 60.0


def client_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "clymq-client"]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    assert client_threads() == []
    yield
    wait_until(lambda: client_threads() == [], "the client's thread is gone", seconds_max=SECONDS_MAX)


@pytest.fixture
def topic(clymq_bootstrap: str) -> str:
    name = new_topic()
    with Admin(clymq_bootstrap) as admin:
        admin.create_topic(name)
    return name


def run_program(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", program, *arguments], capture_output=True, text=True, timeout=SECONDS_MAX
    )


def test_all_clients_share_one_thread_that_ends_with_the_last(clymq_bootstrap: str) -> None:
    admins = [Admin(clymq_bootstrap) for _ in range(3)]
    assert client_threads() == [], "constructors do nothing"
    for admin in admins:
        admin.start()
    assert len(client_threads()) == 1
    for admin in admins[:2]:
        admin.close()
    assert admins[2].list_topics() is not None
    admins[2].close()
    assert client_threads() == []
    admins[2].close()
    with pytest.raises(ClosedError):
        admins[2].list_topics()
    Admin(clymq_bootstrap).close()


def test_a_client_works_without_start(clymq_bootstrap: str, topic: str) -> None:
    producer = Producer(clymq_bootstrap)
    assert producer.push(topic, b"one").offset == 0
    producer.close()


def test_send_waits_while_the_buffer_is_full_and_loses_nothing(clymq_bootstrap: str, topic: str) -> None:
    buffer_bytes_max = 200_000
    with Producer(clymq_bootstrap, buffer_bytes_max=buffer_bytes_max, batch_bytes=10_000) as producer:
        most = 0
        for number in range(20_000):
            producer.send(topic, b"%06d" % number * 20)
            if number % 50 == 0:
                most = max(most, producer._buffered_bytes())
        producer.flush()
        assert most <= 2 * buffer_bytes_max
    with Consumer(clymq_bootstrap) as consumer:
        consumer.assign(topic, "0")
        for number, message in zip(range(20_000), consumer, strict=False):
            assert message.value == b"%06d" % number * 20


def test_several_threads_send_through_one_producer(clymq_bootstrap: str, topic: str) -> None:
    def send(producer: Producer, who: int) -> None:
        for number in range(2000):
            if number % 3:
                producer.send(topic, b"%d %d" % (who, number))
            else:
                producer.send(topic, b"%d %d" % (who, number), key=b"k")

    with Producer(clymq_bootstrap, batch_bytes=5000) as producer, ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(send, producer, who) for who in range(4)]:
            done.result()
        producer.flush()
    seen: dict[int, list[int]] = {who: [] for who in range(4)}
    with Consumer(clymq_bootstrap) as consumer:
        consumer.assign(topic, "0")
        for _, message in zip(range(8000), consumer, strict=False):
            who, number = map(int, message.value.split())
            seen[who].append(number)
    assert all(numbers == list(range(2000)) for numbers in seen.values()), "each thread's messages are in its order"


def test_on_delivery_may_send_but_must_not_wait(clymq_bootstrap: str, topic: str) -> None:
    told: list[Receipts | ClymqError | str] = []

    def on_delivery(what: Receipts | ClymqError) -> None:
        if not told:
            try:
                producer.push(topic, b"never")
            except InvalidRequest as error:
                told.append(error.code)
            producer.send(topic, b"two")
        told.append(what)

    with Producer(clymq_bootstrap, on_delivery=on_delivery) as producer:
        producer.push(topic, b"one")
        wait_until(lambda: len(told) == 3, "the second is delivered too", seconds_max=SECONDS_MAX)
    assert told[0] == "InvalidRequest"


def test_a_handler_may_call_its_consumer_but_not_close_it(clymq_bootstrap: str, topic: str) -> None:
    problems: list[str] = []
    handled = threading.Event()

    def handle(message: Message) -> None:
        consumer.extend(message, 30)
        try:
            consumer.close()
        except InvalidRequest as error:
            problems.append(error.code)
        handled.set()

    with Producer(clymq_bootstrap) as producer, Consumer(clymq_bootstrap) as consumer:
        producer.push(topic, b"one")
        consumer.subscribe(topic)
        running = threading.Thread(target=consumer.run, args=(handle,))
        running.start()
        assert handled.wait(SECONDS_MAX)
    running.join(SECONDS_MAX)
    assert not running.is_alive()
    assert problems == ["InvalidRequest"]


INTERRUPTED = """
import sys, threading
from clymq import Consumer
with Consumer(sys.argv[1]) as consumer:
    consumer.subscribe(sys.argv[2])
    print("waiting", flush=True)
    try:
        consumer.pull(timeout=1000)
    except KeyboardInterrupt:
        print("interrupted", len(consumer.pull(timeout=0.01)), flush=True)
print([thread.name for thread in threading.enumerate()], flush=True)
"""


def test_an_interrupt_ends_a_call_that_waits_and_the_client_goes_on(clymq_bootstrap: str, topic: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-c", INTERRUPTED, clymq_bootstrap, topic], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        time.sleep(0.3)  # so that it waits; an interrupt that comes sooner is no less welcome
        process.send_signal(signal.SIGINT)
        try:
            rest, _ = process.communicate(timeout=SECONDS_MAX)
        finally:
            process.kill()
        assert rest == "interrupted 0\n['MainThread']\n"
        assert process.returncode == 0


LEFT_OPEN = """
import sys
from clymq import Consumer, Producer
producer = Producer(sys.argv[1])
producer.push(sys.argv[2], b"one")
producer.send(sys.argv[2], b"two")
consumer = Consumer(sys.argv[1])
consumer.subscribe(sys.argv[2])
print(len(consumer.pull(timeout=20)))
"""


def test_what_is_left_open_does_not_keep_the_process_from_ending(clymq_bootstrap: str, topic: str) -> None:
    done = run_program(LEFT_OPEN, clymq_bootstrap, topic)
    assert (done.returncode, done.stdout in {"1\n", "2\n"}, done.stderr) == (0, True, "")


FORKED = """
import os, sys
from clymq import Producer
from clymq.errors import ClosedError
producer = Producer(sys.argv[1])
producer.push(sys.argv[2], b"parent")
producer.send(sys.argv[2], b"parent too")
child = os.fork()
if child == 0:
    try:
        producer.push(sys.argv[2], b"child, with the parent's producer")
    except ClosedError as error:
        with Producer(sys.argv[1]) as own:
            own.push(sys.argv[2], b"child")
        producer.close()
        os._exit(7)
    os._exit(1)
_, status = os.waitpid(child, 0)
producer.close()
print(os.waitstatus_to_exitcode(status))
"""


def test_after_a_fork_the_child_needs_clients_of_its_own(clymq_bootstrap: str, topic: str) -> None:
    done = run_program(FORKED, clymq_bootstrap, topic)
    assert (done.returncode, done.stdout, done.stderr) == (0, "7\n", "")
    with Consumer(clymq_bootstrap) as consumer:
        consumer.assign(topic, "0")
        values = [message.value for _, message in zip(range(3), consumer, strict=False)]
    assert sorted(values) == [b"child", b"parent", b"parent too"]


def test_a_pid_is_all_that_a_name_shares_with_another(clymq_bootstrap: str) -> None:
    one, other = Producer(clymq_bootstrap).name, Producer(clymq_bootstrap).name
    assert one != other
    assert f"-{os.getpid()}-" in one
