"""Who holds how much of a fetch block, and therefore what readers may see.

A follower's pull names the last entry that it holds; that is all the leader ever learns, and all it needs. What a
majority holds is visible: the leader may vanish, and of the replicas that are fenced then at least one has it. What
was visible once stays so; it is for the caller not to go back.

A follower is named with the incarnation of its process. A new one may hold less than the one before, which had perhaps
not synced everything when the power went; what an old one still says, from a connection that outlived it, is refused.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from clymq.errors import StaleEpoch
from clymq.replication.fetch_surroundings import FetchGroup

# Restarts of one follower within one block that are remembered.
_PAST_MAX: Final = 64


class Holders:
    """What the followers of one leader have proved, each in its present life."""

    def __init__(self, group: FetchGroup, visibility: str) -> None:
        self._majority = group.majority
        self._seen_by = 1 if visibility == "leader" else group.majority
        self._followers = {name: _Holder() for name in group.replicas if name != group.leader}

    def prove(self, replica: str, incarnation: int, index: int) -> None:
        """A follower holds everything up to this entry."""
        holder = self._followers[replica]
        if incarnation in holder.past:
            raise StaleEpoch(f"{replica} has begun anew since it sent this")
        if incarnation != holder.incarnation:
            if holder.incarnation:
                holder.past.append(holder.incarnation)
            holder.incarnation = incarnation
        holder.index = index

    def visible(self, own: int) -> int:
        """Return the last entry that enough replicas hold; `own` is the leader's."""
        held = sorted([own, *(holder.index for holder in self._followers.values())], reverse=True)
        # What the leader does not have itself any more it cannot show.
        return min(own, held[self._seen_by - 1])

    def cover(self, own: int) -> bool:
        """Whether the leader could vanish now without a loss: a majority holds all that it has."""
        return 1 + sum(holder.index >= own for holder in self._followers.values()) >= self._majority

    def held(self) -> dict[str, int]:
        """Return the last entry that each follower has proved to hold, to look at."""
        return {name: holder.index for name, holder in self._followers.items()}


class _Holder:
    def __init__(self) -> None:
        self.incarnation = 0
        self.index = 0
        self.past: deque[int] = deque(maxlen=_PAST_MAX)
