"""What the caller's thread has accepted and the event loop has not taken yet.

`send` only appends to a list, under a lock. The list goes over as a whole: when it is as large as a batch, when it is
as old as `linger_ms`, or before anything that must come behind it. There are two kinds: values of one topic, which the
loop adds in one go; and messages with more to them, which it takes one by one. Within a topic the order is that of the
calls: a topic whose messages wait in the second kind takes no values of the first.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from clymq.client.accumulator import MESSAGE_BYTES, message_bytes
from clymq.record.elements import Headers

Sent = tuple[str, bytes, bytes | None, Headers | None, str | None, int | None]

# A list of single messages is long enough at this.
MESSAGES_MAX: Final = 1000


class Values:
    """Messages of one topic that are only values."""

    __slots__ = ("left", "size", "topic", "values")

    def __init__(self, topic: str, size: int) -> None:
        self.topic = topic
        self.values: list[bytes] = []
        self.size = size
        self.left = size
        """How many more bytes it takes; less than 0: none."""

    @property
    def size_bytes(self) -> int:
        """What is in it."""
        return self.size - self.left


class Several:
    """Messages with all that they have."""

    __slots__ = ("messages", "size_bytes", "topics")

    def __init__(self) -> None:
        self.messages: list[Sent] = []
        self.topics: set[str] = set()
        self.size_bytes = 0


Chunk = Values | Several


class Chunks:
    """See the module; whoever calls holds the lock."""

    def __init__(self, chunk_bytes: int) -> None:
        self.open: dict[str, Values] = {}
        """By topic: where its values go."""
        self.closed: deque[Chunk] = deque()
        """Complete, in order."""
        self.closed_bytes = 0
        self.chunk_bytes = chunk_bytes
        self._several = Several()

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits."""
        return not (self.closed or self.open or self._several.messages)

    def add(self, *message: Any) -> None:
        """Add a message: topic, value, key, headers, partition, timestamp."""
        topic, value, key, headers, partition, timestamp = message
        is_plain = key is None and headers is None and partition is None and timestamp is None and type(value) is bytes
        if is_plain and topic not in self._several.topics and len(value) + MESSAGE_BYTES <= self.chunk_bytes:
            self._add_value(topic, value)
            return
        self._close(topic)
        several = self._several
        several.messages.append(message)
        several.topics.add(topic)
        several.size_bytes += message_bytes(value, key, headers)
        if several.size_bytes >= self.chunk_bytes or len(several.messages) >= MESSAGES_MAX:
            self._close_several()

    def close_all(self) -> None:
        """Let everything go over."""
        for topic in tuple(self.open):
            self._close(topic)
        self._close_several()

    def take(self) -> Chunk:
        """Take the first that is complete."""
        chunk = self.closed.popleft()
        self.closed_bytes -= chunk.size_bytes
        return chunk

    def _add_value(self, topic: str, value: bytes) -> None:
        self._close(topic)
        chunk = self.open[topic] = Values(topic, self.chunk_bytes)
        chunk.values.append(value)
        chunk.left -= len(value) + MESSAGE_BYTES

    def _close(self, topic: str) -> None:
        chunk = self.open.pop(topic, None)
        if chunk is not None:
            self._closed(chunk)

    def _close_several(self) -> None:
        if self._several.messages:
            self._closed(self._several)
            self._several = Several()

    def _closed(self, chunk: Chunk) -> None:
        self.closed.append(chunk)
        self.closed_bytes += chunk.size_bytes
