"""Gathering messages into batches: pure, told the time.

A draft is a batch that is being filled: one for each partition at a time, with a `BatchBuilder` of its own. It is
closed when the next message would not fit into `batch_bytes`, when it is as old as `linger_ms`, or when told; closed
drafts wait in `ready`, in order, for whoever sends them. A draft gets its number only when it is sent.

Where a partition is crowded (as many batches are on their way to it as may be), to close a draft would not make it
leave any sooner. There it goes on filling, up to `GROWTH` times the size, and is overdue until it is asked for
(`close_overdue`): what a partition cannot keep up with in small batches it gets in fewer and larger ones. `put_off`
says which drafts these are, so that messages that may go anywhere go elsewhere, as if they were closed.

Everything that was accepted and is not yet settled counts against `buffer_bytes_max`; a message that does not fit is
refused with `BufferFull`, and one always fits where nothing is buffered.

Messages that are nothing but a value are what a fast sender has most of. They go through a `Lane`: a list and the bytes
that are left in it, taken from the draft and the buffer beforehand. Appending to it is all that such a message costs;
what it adds up to is worked out once, when the draft is looked at again (`_take_lane`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from clymq.client.receipts import Outcome
from clymq.config import MiB
from clymq.errors import BufferFull
from clymq.record import BatchBuilder
from clymq.record.elements import Headers

# What a message costs beside its bytes: its timestamp and the end of its value.
MESSAGE_BYTES: Final = 12
# How much larger than `batch_bytes` a draft may become while its partition is crowded, and where that ends.
GROWTH: Final = 4
GROWN_BYTES_MAX: Final = MiB


@dataclass(frozen=True, slots=True)
class Moment:
    """Now, on both clocks."""

    monotonic_ms: float
    wall_us: int


Now = Callable[[], Moment]


class Lane:
    """Values on their way into a draft, and how many more bytes of them fit; see the module."""

    __slots__ = ("left", "values")

    def __init__(self, left: int) -> None:
        self.left = left
        """0 or less: it takes nothing more."""
        self.values: list[bytes] = []


class Draft:
    """A batch before it has a number."""

    __slots__ = (
        "builder", "closed", "count", "lane", "listeners", "opened", "overdue", "partition", "size_bytes", "topic",
        "unawaited",
    )  # fmt: skip

    def __init__(self, topic: str, partition: str, builder: BatchBuilder, opened: Moment) -> None:
        self.topic = topic
        self.partition = partition
        self.builder = builder
        self.opened = opened
        """When its first message was accepted; its messages have this time if they were given none."""
        self.count = 0
        self.size_bytes = 0
        self.lane: Lane | None = None
        self.closed = False
        self.overdue = False
        """It would be closed if its partition were not crowded."""
        self.unawaited = False
        """It has messages whose fate nobody waits for."""
        self.listeners: list[Callable[[Outcome], None]] = []
        """Called once, when its fate is known."""


class Accumulator:
    """See the module."""

    def __init__(
        self,
        *,
        batch_bytes: int,
        linger_ms: float,
        buffer_bytes_max: int,
        new_builder: Callable[[], BatchBuilder],
    ) -> None:
        self.batch_bytes = batch_bytes
        self.is_crowded: Callable[[str, str], bool] = lambda _topic, _partition: False
        """Asked for a topic and a partition."""
        self._grown_bytes = max(batch_bytes, min(GROWTH * batch_bytes, GROWN_BYTES_MAX))
        self.buffer_bytes_max = buffer_bytes_max
        self.buffered_bytes = 0
        self.ready: list[Draft] = []
        """Closed, in order; whoever takes them out empties it."""
        self.put_off: list[Draft] = []
        """Overdue: each time that it came to be, or was filled further."""
        self._linger_ms = linger_ms
        self._new_builder = new_builder
        self._open: dict[tuple[str, str], Draft] = {}  # in the order of their opening

    def size_max(self, topic: str, partition: str) -> int:
        """Return what a draft of this partition may take in all."""
        return self._grown_bytes if self.is_crowded(topic, partition) else self.batch_bytes

    def has_room(self, size_bytes: int) -> bool:
        """Whether so much more may be accepted."""
        return not self.buffered_bytes or self.buffered_bytes + size_bytes <= self.buffer_bytes_max

    def add(
        self,
        topic: str,
        partition: str,
        now: Now,
        value: bytes,
        key: bytes | None = None,
        headers: Headers | None = None,
        timestamp: int | None = None,
    ) -> Draft:
        """Add one message to the draft of its partition; return the draft, in which it is the last.

        `now` is asked only when a draft is opened.
        """
        size = message_bytes(value, key, headers)
        draft = self._open.get((topic, partition))
        if draft is not None and draft.lane is not None:
            self._take_lane(draft)
        if draft is None or draft.size_bytes + size > self.batch_bytes or not self.has_room(size):
            draft = self._draft_for(topic, partition, size, now)
        draft.builder.add(value, key=key, headers=headers, timestamp=timestamp)
        self._added(draft, 1, size)
        return draft

    def add_many(
        self, topic: str, partition: str, now: Now, count: int, size: int, fill: Callable[[BatchBuilder], Any]
    ) -> Draft:
        """Add what `fill` puts into the builder: `count` messages of about `size` bytes, which fit into one batch."""
        draft = self._draft_for(topic, partition, size, now)
        fill(draft.builder)
        self._added(draft, count, size)
        return draft

    def open_lane(self, topic: str, partition: str, now: Now, value: bytes, value_bytes_max: int) -> tuple[Draft, Lane]:
        """Add one value to the draft of its partition; return the draft, and a lane for more of the kind."""
        draft = self.add(topic, partition, now, value)
        lane = Lane(0)
        if not draft.closed:
            room = min(self.size_max(topic, partition) - draft.size_bytes, self.buffer_bytes_max - self.buffered_bytes)
            lane.left = max(0, min(room, value_bytes_max))
            draft.lane = lane
            draft.size_bytes += lane.left
            self.buffered_bytes += lane.left
        return draft, lane

    def close_due(self, now_ms: float) -> None:
        """Close the drafts that have waited long enough, but for those of crowded partitions."""
        due = [draft for draft in self._open.values() if draft.opened.monotonic_ms + self._linger_ms <= now_ms]
        for draft in due:
            if not self.is_crowded(draft.topic, draft.partition):
                self._close(draft)
            elif not draft.overdue or draft.lane is not None:
                self._put_off(draft)

    def close_overdue(self, topic: str, partition: str) -> None:
        """Close the draft of a partition if that was put off, and need not be any longer."""
        draft = self._open.get((topic, partition))
        if draft is not None and draft.overdue and not self.is_crowded(topic, partition):
            self._close(draft)

    def close_all(self) -> None:
        """Close every draft."""
        for draft in tuple(self._open.values()):
            self._close(draft)

    def close(self, draft: Draft) -> None:
        """Close one draft, if it is open."""
        if not draft.closed:
            self._close(draft)

    def open_draft(self, topic: str, partition: str) -> Draft | None:
        """Return the draft of a partition that is being filled, if there is one."""
        return self._open.get((topic, partition))

    def next_due_ms(self) -> float | None:
        """Return when the oldest draft is due; None if there is none, or none that was not put off."""
        oldest = next((draft for draft in self._open.values() if not draft.overdue or draft.lane is not None), None)
        return None if oldest is None else oldest.opened.monotonic_ms + self._linger_ms

    def settle(self, draft: Draft) -> None:
        """A draft's fate is known: its bytes are not buffered any more."""
        self.buffered_bytes -= draft.size_bytes

    def _draft_for(self, topic: str, partition: str, size: int, now: Now) -> Draft:
        """Return a draft with room for so many bytes, a new one if need be."""
        if not self.has_room(size):
            self._take_lanes()
        if not self.has_room(size):
            raise BufferFull(
                f"{self.buffered_bytes} bytes are buffered; {self.buffer_bytes_max} are allowed",
                hint="wait with drain()",
            )
        draft = self._open.get((topic, partition))
        if draft is not None:
            self._take_lane(draft)
        if draft is not None and draft.size_bytes + size > self.size_max(topic, partition):
            self._close(draft)
            draft = None
        # A new one is kept only once something is in it: what cannot be added leaves nothing behind.
        return draft or Draft(topic, partition, self._new_builder(), now())

    def _added(self, draft: Draft, count: int, size: int) -> None:
        if not draft.count:
            self._open[draft.topic, draft.partition] = draft
        draft.count += count
        draft.size_bytes += size
        self.buffered_bytes += size
        if draft.overdue or draft.size_bytes >= self.batch_bytes:
            if draft.size_bytes >= self.size_max(draft.topic, draft.partition):
                self._close(draft)
            else:
                self._put_off(draft)

    def _take_lane(self, draft: Draft) -> None:
        """Put what is in a draft's lane into its builder, give back what the lane did not need, and end it."""
        lane, draft.lane = draft.lane, None
        if lane is None:
            return
        draft.size_bytes -= lane.left
        self.buffered_bytes -= lane.left
        lane.left = 0
        if lane.values:
            draft.builder.add_checked(lane.values)
            draft.count += len(lane.values)

    def _take_lanes(self) -> None:
        for draft in self._open.values():
            self._take_lane(draft)

    def _put_off(self, draft: Draft) -> None:
        self._take_lane(draft)
        draft.overdue = True
        self.put_off.append(draft)

    def _close(self, draft: Draft) -> None:
        self._take_lane(draft)
        del self._open[draft.topic, draft.partition]
        draft.closed = True
        self.ready.append(draft)

    def take_put_off(self) -> Iterator[Draft]:
        """Yield the drafts that were put off."""
        put_off, self.put_off = self.put_off, []
        yield from put_off

    def take_ready(self) -> Iterator[Draft]:
        """Yield the closed drafts, each once."""
        ready, self.ready = self.ready, []
        yield from ready


def message_bytes(value: bytes, key: bytes | None, headers: Headers | None) -> int:
    """Return about what a message takes in a batch."""
    try:
        size = len(value) + MESSAGE_BYTES
        if key is not None:
            size += len(key) + 4
        if headers:
            pairs = headers.items() if isinstance(headers, Mapping) else headers
            size += sum(len(name) + len(content or b"") + 8 for name, content in pairs)
    except (TypeError, ValueError):
        return MESSAGE_BYTES  # no message at all: the builder says what is wrong with it
    return size
