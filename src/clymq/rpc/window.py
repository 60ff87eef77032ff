"""How much may be under way: the asking side waits inside what it was granted, the answering side holds it to that.

Two bounds at once, requests and bytes; for the whole connection, and for each partition of it, so that one slow
partition cannot take the room of the others. One request always fits where nothing is under way. Both sides count the
same frames with the same rule and see them in the same order, so a side that keeps to the grant is never refused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Protocol

from clymq.errors import Overloaded
from clymq.protocol.handshake import Window


class _Share:
    """What one partition, or the connection, has under way."""

    __slots__ = ("bytes", "bytes_max", "requests", "requests_max")

    def __init__(self, requests_max: int, bytes_max: int) -> None:
        self.requests = 0
        self.bytes = 0
        self.requests_max = requests_max
        self.bytes_max = bytes_max

    def enter(self, size: int) -> bool:
        """Take room if there is any."""
        requests = self.requests
        if requests and (requests >= self.requests_max or self.bytes + size > self.bytes_max):
            return False
        self.requests = requests + 1
        self.bytes += size
        return True

    def fits(self, size: int) -> bool:
        requests = self.requests
        return not requests or (requests < self.requests_max and self.bytes + size <= self.bytes_max)

    def take(self, size: int) -> None:
        self.requests += 1
        self.bytes += size

    def give_back(self, size: int) -> None:
        self.requests -= 1
        self.bytes -= size


class ReceiveWindow:
    """The answering side: what was granted, and what of it is used."""

    __slots__ = ("_grant", "_partitions", "_whole")

    def __init__(self, grant: Window) -> None:
        self._grant = grant
        self._whole = _Share(grant.requests, grant.bytes)
        self._partitions: dict[Hashable, _Share] = {}

    def take(self, key: Hashable, size: int) -> bool:
        """Note a request that has arrived; False: it is beyond the grant, and not noted."""
        if not self._whole.enter(size):
            return False
        if key is not None:
            share = self._partitions.get(key)
            if share is None:
                share = self._partitions[key] = _Share(self._grant.partition_requests, self._grant.partition_bytes)
            if not share.enter(size):
                self._whole.give_back(size)
                return False
        return True

    def give_back(self, key: Hashable, size: int) -> None:
        """Note that a request was answered or cancelled."""
        self._whole.give_back(size)
        if key is not None:
            share = self._partitions[key]
            share.give_back(size)
            if not share.requests:
                del self._partitions[key]


class Waiting(Protocol):
    """A request, as far as the window looks at it."""

    key: Hashable
    size: int


class SendWindow:
    """The asking side: sends what fits, keeps the rest in order, up to a bound.

    A request waits for its partition first (`_behind`), and with a place there for the connection (`_next`). So those
    of one partition stay in order, and those of different partitions do not wait for each other.
    """

    __slots__ = ("_behind", "_grant", "_next", "_partitions", "_waiting", "_waiting_max", "_whole")

    def __init__(self, grant: Window, waiting_max: int) -> None:
        self._grant = grant
        self._waiting_max = waiting_max
        self._whole = _Share(grant.requests, grant.bytes)
        self._partitions: dict[Hashable, _Share] = {}
        self._behind: dict[Hashable, deque[Waiting]] = {}
        self._next: deque[Waiting] = deque()
        self._waiting = 0

    def enter(self, request: Waiting) -> bool:
        """Return whether a request may be sent now; otherwise it waits. `Overloaded`: too many do."""
        key, size = request.key, request.size
        if key is None:
            if not self._next and self._whole.fits(size):
                self._whole.take(size)
                return True
            self._count_waiting()
            self._next.append(request)
            return False
        share = self._partitions.get(key)
        if share is None:
            share = _Share(self._grant.partition_requests, self._grant.partition_bytes)
        if key in self._behind or not share.fits(size):
            self._count_waiting()
            self._behind.setdefault(key, deque()).append(request)
            return False
        ready = not self._next and self._whole.fits(size)
        if not ready:
            self._count_waiting()
            self._next.append(request)
        else:
            self._whole.take(size)
        share.take(size)
        self._partitions[key] = share
        return ready

    def leave(self, request: Waiting) -> list[Waiting]:
        """A request that was sent is over; return those that may be sent now, in order."""
        self._whole.give_back(request.size)
        if request.key is not None:
            self._leave_partition(request.key, request.size)
        return self._sendable() if self._next else []

    def forget(self, request: Waiting) -> list[Waiting]:
        """A request that was waiting is over; return those that may be sent now, in order."""
        self._waiting -= 1
        behind = self._behind.get(request.key)
        if behind is not None and request in behind:
            behind.remove(request)
            self._advance(request.key, self._partitions[request.key])
        else:
            self._next.remove(request)
            if request.key is not None:
                self._leave_partition(request.key, request.size)
        return self._sendable()

    def _count_waiting(self) -> None:
        if self._waiting >= self._waiting_max:
            raise Overloaded(f"{self._waiting} requests wait for the other side already")
        self._waiting += 1

    def _leave_partition(self, key: Hashable, size: int) -> None:
        share = self._partitions[key]
        share.give_back(size)
        self._advance(key, share)
        if not share.requests:
            del self._partitions[key]

    def _advance(self, key: Hashable, share: _Share) -> None:
        """Let those go on that wait for their partition and fit into it now."""
        behind = self._behind.get(key)
        while behind and share.fits(behind[0].size):
            request = behind.popleft()
            share.take(request.size)
            self._next.append(request)
        if behind is not None and not behind:
            del self._behind[key]

    def _sendable(self) -> list[Waiting]:
        out: list[Waiting] = []
        while self._next and self._whole.fits(self._next[0].size):
            request = self._next.popleft()
            self._whole.take(request.size)
            self._waiting -= 1
            out.append(request)
        return out
