"""What a group's driver may know of the process that it runs in, and of whoever owns the group."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from clymq.clock import Clock
from clymq.errors import ClymqError
from clymq.raft.messages import Message
from clymq.raft.state import Limits, Presence
from clymq.record.layout import Buffer
from clymq.storage.flusher import Flusher


class Owner(Protocol):
    """Whoever runs the group: a partition of a broker, or a test."""

    def leads(self, term: int) -> None:
        """This replica was elected; propose what a term begins with."""

    def leads_no_more(self) -> None:
        """It is no longer leader: forget what was submitted."""

    def advanced(self) -> None:
        """More is committed and applied; readers may have it."""

    def answered(self) -> None:
        """All who waited for what is applied have been told, too."""

    def stopped(self, error: ClymqError) -> None:
        """This replica is out, and will not come back without being opened anew."""


class Driven(Protocol):
    """A group's driver, as its process sees it."""

    group: str
    peers: tuple[str, ...]
    due_at: float
    """When it wants to be ticked."""

    @property
    def disk_is_idle(self) -> bool:
        """Whether no sync of its block is under way."""
        ...

    @property
    def would_campaign(self) -> bool:
        """Whether it runs for leader when it is ticked."""
        ...

    @property
    def is_saving(self) -> bool:
        """Whether it waits for a promise to be on the disk, and so for nobody else."""
        ...

    def perform(self) -> None:
        """Do what the core says."""

    def tick(self) -> None:
        """Let time pass."""

    def look(self) -> None:
        """Take the time, and what follows from it for a leader."""

    def checkpoint(self) -> bool:
        """Keep the machine's state; return whether that is done."""
        ...


class Surroundings(Protocol):
    """The process: its time, its chance, its flusher, and its way to the others."""

    name: str
    clock: Clock
    limits: Limits
    flusher: Flusher
    uncommitted_bytes_max: int
    draw: Callable[[int, int], int]
    brokers: Mapping[str, Presence]
    """What is known of the other brokers, at any time."""

    def schedule(self, driver: Driven) -> None:
        """Let a driver perform before this turn of the event loop ends, once for all that happens in it."""

    def gather(self, group: str, messages: Iterable[Message]) -> Sequence[Message]:
        """Keep heartbeats for the next interval; return the messages that go now."""

    def send(self, group: str, message: Message, payload: Sequence[Buffer]) -> None:
        """Send a message, or lose it."""

    def sleeps(self, driver: Driven, leader: str) -> None:
        """A group has fallen asleep."""

    def woken(self, driver: Driven) -> None:
        """A group is awake."""

    def applied(self, driver: Driven) -> None:
        """A group's state or what it has promised has moved: a checkpoint will be due."""

    def stopped(self, driver: Driven) -> None:
        """A replica is out."""
