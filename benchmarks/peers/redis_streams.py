"""Redis Streams: `redis-server` of the distribution, client `redis-py` with pipelines. A partition is a stream.

`appendfsync always` syncs before each reply, `everysec` once a second. Three replicas are one master and two that
follow it; the master answers by itself, and its `WAIT` knows nothing of their disks, so there is no promise of three
replicas that are synced. Nothing makes a replica the master but Sentinel, which is not measured here.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.contest import Turn, Watch
from benchmarks.peers.system import FIRST, Client, Pace, Programs, Promise, System, Task, wait_until
from clymq.testing.ports import free_ports

READ_AT_ONCE = 1000
ANSWER_SECONDS = 60.0
FIELD = b"v"


class RedisStreams(System):
    """See the module."""

    name, key = "Redis Streams", "redis"
    keeps_all_in_memory = True

    def __init__(self, promise: Promise, folder: Path) -> None:
        super().__init__(promise, folder)
        self._ports = free_ports(promise.replicas)
        self._programs = Programs(folder / "log")

    @classmethod
    def missing(cls) -> str | None:
        """Without server or client."""
        if shutil.which("redis-server") is None:
            return "redis-server is not installed: apt-get install redis-server, or scripts/bench all --install-peers"
        if importlib.util.find_spec("redis") is None:
            return "redis is not installed: scripts/setup --bench"
        return None

    @classmethod
    def version(cls) -> str:
        """Of server and client."""
        told = subprocess.run(["redis-server", "--version"], capture_output=True, text=True, check=True).stdout
        number = next(word.removeprefix("v=") for word in told.split() if word.startswith("v="))
        return f"Redis {number}, redis-py {importlib.metadata.version('redis')}"

    @classmethod
    def settings(cls, promise: Promise) -> str | None:
        """`appendfsync`; every command is answered."""
        if not promise.acknowledged:
            return None
        if promise.replicas > 1:
            return None if promise.synced else "appendfsync everysec, two replicas follow without being waited for"
        return f"appendfsync {'always' if promise.synced else 'everysec'}"

    def start(self) -> None:
        """Start what is not running, the master first."""
        for number, port in enumerate(self._ports):
            data = self.folder / str(number)
            data.mkdir(exist_ok=True)
            command = [
                "redis-server", "--bind", "127.0.0.1", "--port", str(port), "--dir", str(data), "--save", "",
                "--appendonly", "yes", "--appendfsync", "always" if self.promise.synced else "everysec",
                "--auto-aof-rewrite-percentage", "0",
            ]  # fmt: skip
            if number:
                command += ["--replicaof", "127.0.0.1", str(self._ports[0])]
            self._programs.start(number, command)
        wait_until(self._serves, self._programs)

    def _serves(self) -> bool:
        found = _connect(self.address).info("replication")
        return bool(found["connected_slaves"] == self.promise.replicas - 1)

    def kill(self, *numbers: int) -> None:
        """Kill servers."""
        self._programs.kill(*numbers)

    def leader(self, topic: str) -> int:
        """The first one, for ever."""
        del topic
        return 0

    def is_whole(self, topic: str) -> bool:
        """When all replicas follow."""
        del topic
        return self._serves()

    @property
    def address(self) -> str:
        """The master."""
        return f"127.0.0.1:{self._ports[0]}"

    @property
    def pids(self) -> list[int]:
        """The servers."""
        return self._programs.pids


def _connect(address: str) -> Any:
    library: Any = importlib.import_module("redis")
    host, _, port = address.partition(":")
    return library.Redis(host=host, port=int(port), socket_timeout=ANSWER_SECONDS)


def _stream(topic: str, partition: int) -> str:
    return f"{topic}:{partition}"


class RedisStreamsClient(Client):
    """`XADD` in pipelines, `XREAD`."""

    def create(self, topic: str, partitions: int = 1, readers: int = 1) -> None:
        """A stream begins with its first message."""

    def drop(self, topic: str, partitions: int = 1, readers: int = 1) -> None:
        """Remove the streams."""
        del readers
        _connect(self.address).unlink(*(_stream(topic, number) for number in range(partitions)))

    def produce(self, task: Task) -> Turn:
        """One pipeline for each run of messages."""
        server, count = _connect(self.address), 0
        server.ping()
        watch = Watch()
        for partition, values in task.runs():
            pipeline, stream = server.pipeline(transaction=False), _stream(task.topic, partition)
            for value in values:
                pipeline.xadd(stream, {FIELD: value})
            pipeline.execute()
            count += len(values)
        return watch.stop(count)

    def consume(self, task: Task, reader: int = 0) -> Turn:
        """`XREAD`, and the value of each message."""
        del reader
        server, stream, count = _connect(self.address), _stream(task.topic, 0), 0
        server.ping()
        watch, after, deadline = Watch(), b"0", time.perf_counter() + task.seconds
        while count < task.count and time.perf_counter() < deadline:
            found = _read(server, stream, after)
            if found:
                after = found[-1][0]
                count += len([fields[FIELD] for _, fields in found])
        return watch.stop(count)

    def write_paced(self, topic: str, pace: Pace) -> None:
        """`XADD` for each message."""
        server, stream = _connect(self.address), _stream(topic, 0)
        server.xadd(stream, {FIELD: FIRST})
        for value in pace:
            server.xadd(stream, {FIELD: value})

    def follow(self, topic: str, ready: Callable[[], None], taken: Callable[[bytes], bool]) -> None:
        """`XREAD` that waits."""
        server, stream, after = _connect(self.address), _stream(topic, 0), b"0"
        server.ping()
        ready()
        while True:
            found = _read(server, stream, after)
            after = found[-1][0] if found else after
            if any(taken(fields[FIELD]) for _, fields in found):
                return

    def write_on(self, topic: str, acknowledged: Callable[[], bool]) -> None:
        """`XADD`, and again if it fails."""
        library: Any = importlib.import_module("redis")
        server = _connect(self.address)
        while True:
            try:
                server.xadd(_stream(topic, 0), {FIELD: FIRST})
            except library.RedisError:
                time.sleep(0.01)
                continue
            if acknowledged():
                return


def _read(server: Any, stream: str, after: bytes) -> list[tuple[bytes, dict[bytes, bytes]]]:
    found = server.xread({stream: after}, count=READ_AT_ONCE, block=1000)
    return _entries(found)


def _entries(found: Any) -> list[tuple[bytes, dict[bytes, bytes]]]:
    """Return the entries of one stream: a list of pairs, or a mapping, by the version of the protocol."""
    if not found:
        return []
    if isinstance(found, dict):
        (value,) = found.values()
        entries: list[tuple[bytes, dict[bytes, bytes]]] = value[0] if len(value) == 1 else value
        return entries
    ((_, entries),) = found
    return list(entries)
