"""What a queue must offer to be measured beside others: servers that keep a promise, and a client in Python.

Servers (`System`) belong to the program that measures; it starts, kills and ends them. A client (`Client`) lives in a
child process and knows an address and the promise. All calls block. A queue that cannot be had on this machine says
why, and how to get it (`missing`); nothing about it is guessed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import struct
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from benchmarks.contest import Turn
from benchmarks.load import Load
from benchmarks.processes import cpu_seconds, own_memory_bytes

START_SECONDS_MAX = 90.0
STOP_SECONDS_MAX = 10.0
RUN_BYTES_MAX = 1_000_000
RUN_OF_MANY_PARTITIONS = 100
STAMP = struct.Struct("<d")
STAMP_BYTES = STAMP.size
LATE_SECONDS_MAX = 0.002
FIRST = b"first"
NO_END = 1 << 62


@dataclass(frozen=True)
class Promise:
    """What an acknowledgement means: on how many replicas a message is kept, and whether it is on disks by then.

    Without acknowledgement nobody waits for anything: what is measured is how fast messages are taken.
    """

    replicas: int
    synced: bool
    acknowledged: bool = True

    def __str__(self) -> str:
        copies = "1 replica" if self.replicas == 1 else f"{self.replicas} replicas"
        if not self.acknowledged:
            return f"{copies}, no ack"
        return f"{copies}, {'synced before the ack' if self.synced else 'ack before the sync'}"


@dataclass(frozen=True)
class Task:
    """What a client has to write or read: so long, or so many messages, whichever is first."""

    topic: str
    size_bytes: int
    seconds: float
    count: int = NO_END
    partitions: int = 1

    def runs(self) -> Iterator[tuple[int, list[bytes]]]:
        """Yield partitions in turn, each with some messages, until it is enough; time begins with the first."""
        some = Load(self.size_bytes, 0).some
        length = min(len(some), RUN_BYTES_MAX // self.size_bytes)
        if self.partitions > 1:
            length = min(length, RUN_OF_MANY_PARTITIONS)
        deadline, left, number = time.perf_counter() + self.seconds, self.count, 0
        while left > 0 and time.perf_counter() < deadline:
            yield number % self.partitions, some[: min(length, left)]
            left -= min(length, left)
            number += 1


class Pace:
    """Messages at a fixed rate, each with the time at which it was to be sent; for plain and for asynchronous loops.

    The stamp is the time at which the loop gets the message, so that the grain of its timers is not measured; but if
    the client holds the loop up, it is the time at which the message was due.
    """

    def __init__(self, rate: float, count: int, size_bytes: int) -> None:
        self._step = 1 / rate
        self._count = count
        self._rest = os.urandom(size_bytes - STAMP_BYTES)

    def __iter__(self) -> Iterator[bytes]:
        began = time.monotonic()
        for number in range(self._count):
            due = began + number * self._step
            while (early := due - time.monotonic()) > 0:
                time.sleep(early)
            yield self._message(due)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        began = time.monotonic()
        for number in range(self._count):
            due = began + number * self._step
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            yield self._message(due)

    def _message(self, due: float) -> bytes:
        now = time.monotonic()
        return STAMP.pack(now if now - due < LATE_SECONDS_MAX else due) + self._rest


def age_seconds(message: bytes) -> float | None:
    """Return how long a message of a pace has taken; None for another message."""
    if message == FIRST:
        return None
    (sent,) = STAMP.unpack_from(message)
    return time.monotonic() - float(sent)


class Client(ABC):
    """A client in Python of one queue, in a process of its own, as its users would write it for speed."""

    def __init__(self, address: str, promise: Promise) -> None:
        self.address = address
        self.promise = promise

    @abstractmethod
    def create(self, topic: str, partitions: int = 1, readers: int = 1) -> None:
        """Make a topic, or what comes nearest, for so many readers who each want everything."""

    @abstractmethod
    def drop(self, topic: str, partitions: int = 1, readers: int = 1) -> None:
        """Remove it, so that the next turn finds the disk and the memory as this one did."""

    @abstractmethod
    def produce(self, task: Task) -> Turn:
        """Write messages, many at a time; the turn ends when all are acknowledged."""

    @abstractmethod
    def consume(self, task: Task, reader: int = 0) -> Turn:
        """Read from the beginning to Python bytes; the turn ends in time, or when the count is there."""

    @abstractmethod
    def write_paced(self, topic: str, pace: Pace) -> None:
        """Write one message, then those of the pace as they come, each at once; wait for all acknowledgements."""

    @abstractmethod
    def follow(self, topic: str, ready: Callable[[], None], taken: Callable[[bytes], bool]) -> None:
        """Read what is new from now on, handing each message over as it comes, until told that it is enough."""

    @abstractmethod
    def write_on(self, topic: str, acknowledged: Callable[[], bool]) -> None:
        """Write one message after the other through whatever happens, until told that it is enough."""


class System(ABC):
    """One queue that keeps one promise, on free ports of the loopback interface and in a folder of its own."""

    name: ClassVar[str]
    key: ClassVar[str]
    keeps_all_in_memory: ClassVar[bool] = False

    def __init__(self, promise: Promise, folder: Path) -> None:
        self.promise = promise
        self.folder = folder
        self.folder.mkdir(parents=True, exist_ok=True)

    @classmethod
    @abstractmethod
    def missing(cls) -> str | None:
        """Return why it cannot run on this machine and how to change that; None if it can."""

    @classmethod
    @abstractmethod
    def version(cls) -> str:
        """Return the versions of its server and of its client."""

    @classmethod
    @abstractmethod
    def settings(cls, promise: Promise) -> str | None:
        """Return what makes it keep this promise; None if it has no such promise."""

    def prepare(self) -> None:  # noqa: B027 - most have nothing to prepare
        """Do what is done once, before the first start; it is not part of the time that a start takes."""

    @abstractmethod
    def start(self) -> None:
        """Start every server that is not running and wait until they serve."""

    @abstractmethod
    def kill(self, *numbers: int) -> None:
        """End servers with SIGKILL; all of them if none is named."""

    @abstractmethod
    def leader(self, topic: str) -> int:
        """Return the number of the server that leads a topic."""

    @abstractmethod
    def is_whole(self, topic: str) -> bool:
        """Return whether every replica of a topic is there, so that another one may be killed."""

    @property
    @abstractmethod
    def address(self) -> str:
        """Where clients find it."""

    @property
    @abstractmethod
    def pids(self) -> list[int]:
        """The processes of its servers."""

    def close(self) -> None:
        """End all servers and remove their data."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Programs:
    """Server processes by number: each leads a session of its own and is killed with all that it has started."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._running: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, number: int, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """Start one, unless it is running."""
        if number in self._running:
            return
        with self._log.open("ab") as log:
            self._running[number] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env=dict(environment) if environment is not None else None, cwd=self._log.parent,
            )  # fmt: skip

    def kill(self, *numbers: int) -> None:
        """End these, or all."""
        chosen = [self._running.pop(number) for number in numbers or tuple(self._running)]
        for process in chosen:
            end_family(process.pid)
        for process in chosen:
            process.wait(STOP_SECONDS_MAX)

    @property
    def pids(self) -> list[int]:
        """All processes, with those that they have started."""
        return [pid for process in self._running.values() for pid in family(process.pid)]

    def check(self) -> None:
        """Raise if one has ended by itself, with the end of what it said."""
        for number, process in self._running.items():
            if process.poll() is not None:
                raise ServerFailed(f"server {number} ended with {process.returncode}: {self.last_words()}")

    def last_words(self) -> str:
        """Return the end of the log, on one line."""
        return " | ".join(self._log.read_text(errors="replace").strip().splitlines()[-5:])[-600:]


class ServerFailed(RuntimeError):
    """A server did not come up, or went away."""


def wait_until(serves: Callable[[], bool], programs: Programs | None = None) -> None:
    """Ask until the answer is yes; an error of the network, or of a client's library, is a no."""
    deadline, problem = time.monotonic() + START_SECONDS_MAX, "no answer"
    while time.monotonic() < deadline:
        if programs is not None:
            programs.check()
        try:
            if serves():
                return
        except Exception as error:  # noqa: BLE001 - every client's library has errors of its own
            problem = f"{type(error).__name__}: {error}"
        time.sleep(0.05)
    raise ServerFailed(f"does not serve after {START_SECONDS_MAX:.0f} s: {problem}")


def end_family(pid: int) -> None:
    """Kill a process that leads a session, its group, and all that descend from it; some may be gone already."""
    descendants = family(pid)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    for each in descendants:
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)


def family(pid: int) -> list[int]:
    """Return a process and all that descend from it."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                fields = (path / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has ended meanwhile
                continue
            children.setdefault(int(fields[1]), []).append(int(path.name))
    found = [pid]
    for each in found:
        found += children.get(each, [])
    return found


@dataclass(frozen=True)
class Used:
    """What servers have used so far: processor time, memory of their own, room on the disk."""

    cpu_seconds: float
    memory_bytes: int
    disk_bytes: int


def used(pids: Sequence[int], folder: Path) -> Used:
    """Look at servers. What is written is on the disk first: files get their room only then."""
    os.sync()
    disk = sum(_allocated(Path(base) / name) for base, _, names in os.walk(folder) for name in names)
    return Used(sum(map(cpu_seconds, pids)), sum(map(own_memory_bytes, pids)), disk)


def _allocated(path: Path) -> int:
    try:
        return path.lstat().st_blocks * 512
    except FileNotFoundError:  # removed meanwhile
        return 0
