"""What is tried with hostile input, and what an input is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from random import Random
from typing import ClassVar, Final

Input = tuple[bytes, ...]
"""Parts; what each is for is the target's business. Plain bytes, so that any input can be shown, kept and shrunk."""

MiB: Final = 1024 * 1024


class Violated(AssertionError):
    """An input did what no input may do."""


class Target(ABC):
    """One kind of input. `open` comes first, then any number of `make` and `run`, then `close`."""

    name: ClassVar[str]
    full: ClassVar[int]
    """How many inputs make a full run."""
    usual: ClassVar[int]
    """How many are run with every change."""
    seconds_max: ClassVar[float] = 5.0
    """What one input may take."""
    waits: ClassVar[bool] = False
    """Whether it waits for others: then it is the clock's seconds that count, otherwise those of the processor."""
    bytes_max: ClassVar[int | None] = 2 * MiB
    """What Python may allocate for one input, beside a small multiple of its size; None: it is not looked at."""
    grown_bytes_max: ClassVar[int] = 48 * MiB
    """How much larger the process may be at the end than it was when it had warmed up."""
    reserve_bytes: ClassVar[int | None] = 1024 * MiB
    """Addresses that the process may take beyond what it began with; None: no limit is set."""
    wanted: ClassVar[Iterable[str]] = ()
    """Outcomes that a run of some length must have seen: a wall that refuses everything proves nothing."""

    def open(self) -> None:  # noqa: B027 not every target needs it
        """Make ready."""

    def close(self) -> None:  # noqa: B027
        """Leave nothing behind."""

    @abstractmethod
    def make(self, chance: Random) -> Input:
        """Return an input; nothing but `chance` decides which."""

    @abstractmethod
    def run(self, given: Input) -> str:
        """Try an input; return in a word what came of it. Whatever is raised is a violation."""

    def look(self) -> None:  # noqa: B027
        """Look now and then, and at the end, whether all is well apart from the inputs; raise if not."""
