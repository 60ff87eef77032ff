"""How much may be broken at once: the rule that keeps a run within what the design promises.

Killing, stopping, freezing and cutting off are always allowed, of any number: they lose nothing that was promised. A
power cut takes what was not synced, which nobody was promised by a majority. Damage to files is different: an
acknowledged message lies on a majority of disks, two of three, so it survives the damage of one disk and not of two.
Hence: **at most one broker's files are damaged at a time, and only while every replica of every block is whole; the
next damage waits until they are whole again.**

In fetch mode a power cut of all brokers takes what nobody has synced (`fsync = "interval"`), acknowledged or not; and
what only the leader has goes with its disk. Both are documented losses.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable


class Tolerance:
    """Says whether a disk may be damaged now. `all_whole` asks whether all replicas are whole and equal."""

    def __init__(self, all_whole: Callable[[], Awaitable[bool]]) -> None:
        self._all_whole = all_whole
        self._damaged: str | None = None

    @property
    def damaged(self) -> str | None:
        """Whose files were damaged and are not known to be whole again."""
        return self._damaged

    async def may_damage(self) -> bool:
        """Look; BEFORE each damage, with all brokers running."""
        if await self._all_whole():
            self._damaged = None
            return True
        return False

    def note(self, broker: str) -> None:
        """Take note that a broker's files are damaged from now on."""
        assert self._damaged is None, f"{self._damaged} is damaged already"
        self._damaged = broker
