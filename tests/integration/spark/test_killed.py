"""Drivers and leaders are killed in the middle; every row is there once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from spark_queue import SLOW_ELECTIONS, Queue

from clymq.spark.session import start_query
from clymq.testing import ProcessCluster

HERE = Path(__file__).parent
MESSAGES = 6000
SECONDS_MAX = 240


class Driver:
    """A process with a Spark driver in it, and the JVM and workers below it."""

    def __init__(self, *arguments: object) -> None:
        command = [sys.executable, str(HERE / "copying.py"), *map(str, arguments)]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True, text=True
        )

    def until_committed(self, checkpoint: Path, batches: int) -> None:
        until(lambda: commits(checkpoint) >= batches or self.process.poll() is not None)

    def kill(self) -> None:
        """End all of it without a word."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()

    def wait(self) -> str:
        try:
            output, _ = self.process.communicate(timeout=SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        assert self.process.returncode == 0, output
        return output


def commits(checkpoint: Path) -> int:
    return len(list((checkpoint / "commits").glob("[0-9]*")))


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.02)


def values_of(queue: Queue, topic: str) -> list[int]:
    return sorted(int(message.value) for message in queue.pull(topic))


@pytest.fixture(scope="module", autouse=True)
def needs_spark(spark: Any) -> None:
    """Skip where there is none."""


def test_a_killed_driver_that_starts_again_loses_and_doubles_nothing(queue: Queue, tmp_path: Path) -> None:
    source, target, checkpoint = queue.topic(2), queue.topic(2), tmp_path / "checkpoint"
    queue.push(source, [b"%d" % number for number in range(MESSAGES)])
    arguments = (queue.bootstrap, source, target, checkpoint, "local[2]", MESSAGES // 20)
    for batches in (3, 9):
        driver = Driver(*arguments)
        try:
            driver.until_committed(checkpoint, batches)
        finally:
            driver.kill()
    assert commits(checkpoint) < 20, "it was killed too late to prove anything"
    assert "done" in Driver(*arguments).wait()
    assert values_of(queue, target) == list(range(MESSAGES))


def test_executors_of_their_own_write_each_row_once(queue: Queue, tmp_path: Path) -> None:
    source, target = queue.topic(2), queue.topic(2)
    queue.push(source, [b"%d" % number for number in range(2000)])
    master = "local-cluster[2,1,1024]"
    output = Driver(queue.bootstrap, source, target, tmp_path / "checkpoint", master, 1000).wait()
    assert "done" in output
    assert values_of(queue, target) == list(range(2000))


@pytest.fixture(scope="module")
def three_brokers() -> Iterator[ProcessCluster]:
    with ProcessCluster(brokers=3, network="proxies", config=SLOW_ELECTIONS) as cluster:
        yield cluster


def test_a_query_goes_on_when_leaders_of_what_it_reads_and_writes_are_killed(
    spark: Any, three_brokers: ProcessCluster, tmp_path: Path
) -> None:
    cluster, queue = three_brokers, Queue(three_brokers.bootstrap)
    source, target = queue.topic(["a", "b"]), queue.topic(["a", "b"])
    rows = spark.readStream.format("clymq").option("bootstrap.servers", cluster.bootstrap)
    rows = rows.option("subscribe", source).option("startingOffsets", "earliest").load().select("key", "value")
    writer = rows.writeStream.format("clymq").option("bootstrap.servers", cluster.bootstrap).option("topic", target)
    writer = writer.option("checkpointLocation", str(tmp_path)).trigger(processingTime="100 milliseconds")
    query = start_query(writer)
    pusher = Pusher(queue, source)
    pusher.start()
    try:
        for topic in (source, target):
            until_it_grows(queue, target)
            name = cluster.leader(topic, "a")
            cluster.kill(name)
            until_it_grows(queue, target)
            cluster.start(name)
        sent = pusher.finish()
        until(lambda: end_of(queue, target) >= sent or not query.isActive)
        assert query.exception() is None
    finally:
        pusher.finish()
        query.stop()
    assert values_of(queue, target) == list(range(sent))


class Pusher(threading.Thread):
    """Pushes numbers, a few at a time and through whatever happens, until it is told to finish."""

    def __init__(self, queue: Queue, topic: str) -> None:
        super().__init__(daemon=True)
        self._queue, self._topic = queue, topic
        self._finish = threading.Event()
        self._sent = 0
        self._error: Exception | None = None

    def run(self) -> None:
        try:
            while not self._finish.wait(0.3):
                numbers = range(self._sent, self._sent + 100)
                self._queue.push(self._topic, [b"%d" % number for number in numbers])
                self._sent += 100
        except Exception as error:  # noqa: BLE001 it is raised where somebody looks
            self._error = error

    def finish(self) -> int:
        """Return how many were pushed."""
        self._finish.set()
        self.join(SECONDS_MAX)
        if self._error is not None:
            raise self._error
        assert not self.is_alive()
        return self._sent


def until_it_grows(queue: Queue, topic: str) -> None:
    seen = end_of(queue, topic)
    until(lambda: end_of(queue, topic) > seen)


def end_of(queue: Queue, topic: str) -> int:
    return sum(queue.ends(topic).values())
