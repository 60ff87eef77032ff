"""Kafka in KRaft mode: the broker's jars from Maven Central, client `confluent-kafka` (librdkafka).

`scripts/bench all` gets the jars once, by Maven, into a folder that git does not look at. Three replicas are three
processes that are brokers and controllers at once. `log.flush.interval.messages = 1` syncs each batch before it is
acknowledged; without it Kafka leaves syncing to the operating system, by default.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import shutil
import subprocess
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks import maven
from benchmarks.contest import Turn, Watch
from benchmarks.peers.system import FIRST, Client, Pace, Programs, Promise, ServerFailed, System, Task, wait_until
from clymq.testing.ports import free_ports

VERSION = "4.3.1"
JARS = maven.KEPT / f"kafka-{VERSION}"
FORMAT_SECONDS_MAX = 60
# What kafka-server-start.sh gives it.
JAVA = ("java", "-Xmx1G", "-Xms1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-Djava.awt.headless=true")
LINGER_MS = 5
BUFFER_KIB = 64 * 1024
QUEUED_MESSAGES_MAX = 1_000_000
WAIT_SECONDS = 60.0


def get() -> None:
    """Get the jars from Maven Central, if they are not here and Maven is."""
    maven.get([f"org.apache.kafka:kafka_2.13:{VERSION}"], JARS, with_what_they_need=True)


class Kafka(System):
    """See the module."""

    name, key = "Kafka", "kafka"

    def __init__(self, promise: Promise, folder: Path) -> None:
        super().__init__(promise, folder)
        self._ports, self._controllers = free_ports(promise.replicas), free_ports(promise.replicas)
        self._programs = Programs(folder / "log")

    @classmethod
    def missing(cls) -> str | None:
        """Without Java 17, Maven (once) or the client."""
        if shutil.which("java") is None:
            return "Java is not installed: apt-get install openjdk-17-jre-headless"
        if not JARS.is_dir():
            return (
                f"org.apache.kafka:kafka_2.13:{VERSION} is not here: apt-get install maven, and Maven Central must be"
                " reachable; scripts/bench all then gets it"
            )
        if importlib.util.find_spec("confluent_kafka") is None:
            return "confluent-kafka is not installed: scripts/setup --bench"
        return None

    @classmethod
    def version(cls) -> str:
        """Of broker and client."""
        return f"Kafka {VERSION} (KRaft), confluent-kafka {importlib.metadata.version('confluent-kafka')}"

    @classmethod
    def settings(cls, promise: Promise) -> str | None:
        """Acks and flushing."""
        if not promise.acknowledged:
            return "acks=0"
        acks = "acks=all, min.insync.replicas=2" if promise.synced and promise.replicas > 1 else "acks=1"
        return f"{acks}, {'log.flush.interval.messages=1' if promise.synced else 'no flush, the default'}"

    def prepare(self) -> None:
        """Format the folders, by a program of Kafka's."""
        cluster = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "x")
        for number in range(self.promise.replicas):
            Path(self._path(number)).write_text(self._properties(number))
            command = ["java", "-cp", f"{JARS}/*", "kafka.tools.StorageTool", "format", "-t", cluster]
            done = subprocess.run(
                [*command, "-c", self._path(number)], capture_output=True, text=True, timeout=FORMAT_SECONDS_MAX,
                check=False,
            )  # fmt: skip
            if done.returncode:
                raise ServerFailed(f"formatting: {(done.stderr or done.stdout).strip()[-300:]}")

    def start(self) -> None:
        """Start what is not running, and wait until all brokers are known."""
        for number in range(self.promise.replicas):
            self._programs.start(number, [*JAVA, "-cp", f"{JARS}/*", "kafka.Kafka", self._path(number)])
        wait_until(self._serves, self._programs)

    def _path(self, number: int) -> str:
        return str(self.folder / f"{number}.properties")

    def _properties(self, number: int) -> str:
        count = self.promise.replicas
        voters = ",".join(f"{each}@127.0.0.1:{port}" for each, port in enumerate(self._controllers))
        client, controller = self._ports[number], self._controllers[number]
        lines = [
            "process.roles=broker,controller", f"node.id={number}", f"controller.quorum.voters={voters}",
            f"listeners=PLAINTEXT://127.0.0.1:{client},CONTROLLER://127.0.0.1:{controller}",
            f"advertised.listeners=PLAINTEXT://127.0.0.1:{client}", "controller.listener.names=CONTROLLER",
            f"log.dirs={self.folder / str(number)}", "auto.create.topics.enable=false",
            f"offsets.topic.replication.factor={count}", f"default.replication.factor={count}",
            f"min.insync.replicas={(count + 1) // 2}", "message.max.bytes=2000000",
            "log.segment.delete.delay.ms=1000",
        ]  # fmt: skip
        if self.promise.synced:
            lines.append("log.flush.interval.messages=1")
        return "\n".join(lines) + "\n"

    def _serves(self) -> bool:
        return len(_admin(self.address).list_topics(timeout=2).brokers) == self.promise.replicas

    def kill(self, *numbers: int) -> None:
        """Kill brokers."""
        self._programs.kill(*numbers)

    def leader(self, topic: str) -> int:
        """By the word of the brokers."""
        return int(_admin(self.address).list_topics(topic, timeout=10).topics[topic].partitions[0].leader)

    def is_whole(self, topic: str) -> bool:
        """When all replicas are in sync."""
        found = _admin(self.address).list_topics(topic, timeout=10).topics[topic].partitions[0]
        return bool(len(found.isrs) == self.promise.replicas)

    @property
    def address(self) -> str:
        """All brokers."""
        return ",".join(f"127.0.0.1:{port}" for port in self._ports)

    @property
    def pids(self) -> list[int]:
        """The brokers."""
        return self._programs.pids


def _admin(address: str) -> Any:
    """Return a client that must be kept until its answers are there."""
    admin: Any = importlib.import_module("confluent_kafka.admin")
    return admin.AdminClient({"bootstrap.servers": address, "log_level": 0})


class KafkaClient(Client):
    """`produce` for each message, and `consume(1000)`."""

    def __init__(self, address: str, promise: Promise) -> None:
        super().__init__(address, promise)
        self._library: Any = importlib.import_module("confluent_kafka")

    def create(self, topic: str, partitions: int = 1, readers: int = 1) -> None:
        """Make a topic, and wait until each partition has a leader."""
        del readers
        admin: Any = importlib.import_module("confluent_kafka.admin")
        wanted = admin.NewTopic(topic, num_partitions=partitions, replication_factor=self.promise.replicas)
        client = _admin(self.address)
        client.create_topics([wanted], operation_timeout=WAIT_SECONDS)[topic].result(WAIT_SECONDS)

        def is_led() -> bool:
            found = client.list_topics(topic, timeout=5).topics[topic].partitions.values()
            return sum(int(partition.leader >= 0) for partition in found) == partitions

        wait_until(is_led)

    def drop(self, topic: str, partitions: int = 1, readers: int = 1) -> None:
        """Delete the topic."""
        del partitions, readers
        client = _admin(self.address)
        client.delete_topics([topic])[topic].result(WAIT_SECONDS)

    def _producer(self, topic: str, partitions: int, linger_ms: float) -> Any:
        acks = ("all" if self.promise.synced else "1") if self.promise.acknowledged else "0"
        producer = self._library.Producer({
            "bootstrap.servers": self.address, "acks": acks, "linger.ms": linger_ms, "log_level": 0,
            "queue.buffering.max.kbytes": BUFFER_KIB, "queue.buffering.max.messages": QUEUED_MESSAGES_MAX,
        })  # fmt: skip
        for partition in range(partitions):
            producer.produce(topic, FIRST, partition=partition)
        producer.flush(WAIT_SECONDS)
        return producer

    def produce(self, task: Task) -> Turn:
        """`produce`, `poll` when the buffer is full, then `flush`."""
        producer = self._producer(task.topic, task.partitions, LINGER_MS)
        produce, watch, count = producer.produce, Watch(), 0
        for partition, values in task.runs():
            for value in values:
                while True:
                    try:
                        produce(task.topic, value, partition=partition)
                        break
                    except BufferError:
                        producer.poll(0.01)
            count += len(values)
        left = producer.flush(WAIT_SECONDS)
        return watch.stop(count - left)

    def _consumer(self, topic: str, partitions: int, offset: int) -> Any:
        consumer = self._library.Consumer({
            "bootstrap.servers": self.address, "group.id": "bench", "enable.auto.commit": False, "log_level": 0,
            "queued.min.messages": QUEUED_MESSAGES_MAX, "queued.max.messages.kbytes": 2 * BUFFER_KIB,
        })  # fmt: skip
        consumer.list_topics(topic, timeout=WAIT_SECONDS)
        place = self._library.TopicPartition
        consumer.assign([place(topic, number, offset) for number in range(partitions)])
        return consumer

    def consume(self, task: Task, reader: int = 0) -> Turn:
        """`consume(1000)`, and the value of each message."""
        del reader
        watch, count, deadline = Watch(), 0, time.perf_counter() + task.seconds
        consumer = self._consumer(task.topic, task.partitions, self._library.OFFSET_BEGINNING)
        while count < task.count and time.perf_counter() < deadline:
            count += len([message.value() for message in consumer.consume(1000, 0.1)])
        turn = watch.stop(count)
        consumer.close()
        return turn

    def write_paced(self, topic: str, pace: Pace) -> None:
        """`produce` without linger."""
        producer = self._producer(topic, 1, 0)
        for value in pace:
            producer.produce(topic, value, partition=0)
            producer.poll(0)
        producer.flush(WAIT_SECONDS)

    def follow(self, topic: str, ready: Callable[[], None], taken: Callable[[bytes], bool]) -> None:
        """`consume`, as soon as there is anything."""
        consumer = self._consumer(topic, 1, self._library.OFFSET_BEGINNING)
        consumer.poll(0.5)
        ready()
        while True:
            for message in self._some(consumer):
                if taken(message):
                    consumer.close()
                    return

    def _some(self, consumer: Any) -> Iterator[bytes]:
        first = consumer.poll(1.0)
        for message in [first, *consumer.consume(1000, 0)] if first is not None else []:
            yield message.value()

    def write_on(self, topic: str, acknowledged: Callable[[], bool]) -> None:
        """`produce` and `flush` one message after the other; librdkafka finds the new leader."""
        producer = self._producer(topic, 0, 0)
        problems: list[object] = []
        while True:
            producer.produce(topic, FIRST, partition=0, on_delivery=lambda error, _: problems.append(error))
            producer.flush(WAIT_SECONDS)
            if problems.pop() is None and acknowledged():
                return
            problems.clear()
