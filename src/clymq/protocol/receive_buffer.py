"""The memory that a connection receives into.

Bytes land in a chunk; frames are cut out of it as views, without a copy. A chunk is not written again while anybody
holds a view of it: payloads are the receiver's to keep and to change (a broker stamps batches where they lie). One that
nobody holds any more is used again, because fresh memory has to be cleared first and is in no cache: the last few are
kept for that, and the oldest is looked at first. What has arrived of a frame that does not fit into the rest of its
chunk moves to the beginning of the next one.

A frame larger than a chunk has memory of its own, which all connections of an endpoint take from one place and bring
back to it (`LargeChunks`): a few megabytes that are made anew for each frame cost more than all that is done with it.
Behind such a frame only a little is read, because the next may be as large, and what has arrived of it has to move.

Invariants: [start, end) are the bytes that no frame has been made of yet; memory is at most one chunk, the spares and
the large chunks beyond `GROWTH` times what has arrived, whatever a prefix announces; a connection that rests holds
nothing.
"""

from __future__ import annotations

from collections import deque
from typing import Final

KiB: Final = 1024
CHUNK_BYTES_MIN: Final = 4 * KiB
CHUNK_BYTES_MAX: Final = 512 * KiB
SPARE_BYTES_MAX: Final = 4 * CHUNK_BYTES_MAX
# For a side that has few connections and reads ahead of whoever takes what it has read.
READER_SPARE_BYTES_MAX: Final = 64 * CHUNK_BYTES_MAX
LARGE_BYTES_MAX: Final = 128 * CHUNK_BYTES_MAX
# What is read behind a large frame before it is known what comes.
HEAD_BYTES: Final = 32 * KiB
GROWTH: Final = 8
# So many times what a large frame needs may be the memory that it gets.
SURPLUS_MAX: Final = 2
# A read shorter than this part of the chunk says that the next may be smaller.
_SHRINK_BELOW: Final = 8
_NO_CHUNK: Final = bytearray()
_NO_VIEW: Final = memoryview(_NO_CHUNK)


class LargeChunks:
    """The memory of frames that are larger than a chunk, while no connection receives into it."""

    def __init__(self, bytes_max: int = LARGE_BYTES_MAX) -> None:
        self.bytes = 0
        self._bytes_max = bytes_max
        self._chunks: deque[bytearray] = deque()
        self._rested = True

    def take(self, size: int) -> bytearray | None:
        """Return memory for a frame that nobody holds any more, the longest there first.

        Not much more than it needs: who keeps a small frame would keep all of it.
        """
        for at, chunk in enumerate(self._chunks):
            if size <= len(chunk) <= SURPLUS_MAX * size and _is_free(chunk):
                del self._chunks[at]
                self.bytes -= len(chunk)
                return chunk
        return None

    def keep(self, chunk: bytearray) -> None:
        """Take memory back that somebody may still hold, rather than what was brought before."""
        self._rested = False
        self._chunks.append(chunk)
        self.bytes += len(chunk)
        while self.bytes > self._bytes_max:
            self.bytes -= len(self._chunks.popleft())

    def rest(self) -> None:
        """Give the memory back if none was brought since this was last called: there are no large frames now."""
        if self._rested:
            self.clear()
        self._rested = True

    def clear(self) -> None:
        """Give all of it back."""
        self._chunks.clear()
        self.bytes = 0


class ReceiveBuffer:
    """Grows and shrinks with the traffic."""

    __slots__ = (
        "_chunk_bytes", "_large", "_offered", "_spare_bytes", "_spare_bytes_max", "_spares", "_was_large", "chunk",
        "end", "start", "view",
    )  # fmt: skip

    def __init__(self, spare_bytes_max: int = SPARE_BYTES_MAX, large: LargeChunks | None = None) -> None:
        """`large`: of the endpoint; without it the buffer has one of its own."""
        self._large = large or LargeChunks()
        self._was_large = False
        self._spare_bytes_max = spare_bytes_max
        self._chunk_bytes = CHUNK_BYTES_MIN
        self._offered = 0
        self._spares: deque[bytearray] = deque()
        self._spare_bytes = 0
        self.chunk = _NO_CHUNK
        self.view = _NO_VIEW
        self.start = 0
        self.end = 0

    def room(self, frame_bytes: int) -> memoryview:
        """Return where the next bytes go, never nothing; `frame_bytes` is what the frame at `start` has at least."""
        arrived = self.end - self.start
        # A frame that has begun goes on where it is if it fits there; else, and when there is none, the next chunk.
        if not arrived or self.start + frame_bytes > len(self.chunk):
            self._begin_chunk(arrived, frame_bytes)
        is_large = frame_bytes > CHUNK_BYTES_MAX
        if is_large:  # all that goes into its memory, so that the one behind it need not move
            limit = self.start + frame_bytes
        else:
            limit = HEAD_BYTES if self._was_large and not arrived else len(self.chunk)
        self._was_large = is_large
        room = self.view[self.end : limit]
        self._offered = len(room)
        return room

    def received(self, count: int) -> None:
        """Note that so many bytes have been written into the room."""
        self.end += count
        if count == self._offered:
            self._chunk_bytes = min(self._chunk_bytes * 4, CHUNK_BYTES_MAX)
        elif count * _SHRINK_BELOW < self._chunk_bytes > CHUNK_BYTES_MIN:
            self._chunk_bytes //= 2

    def rest(self) -> None:
        """Give back the memory, if every byte has become part of a frame."""
        self._spares.clear()
        self._spare_bytes = 0
        if self.start == self.end:
            self._chunk_bytes = CHUNK_BYTES_MIN
            self.chunk = _NO_CHUNK
            self.view = _NO_VIEW
            self.start = self.end = 0

    def _begin_chunk(self, arrived: int, frame_bytes: int) -> None:
        old = self.chunk
        self.view = _NO_VIEW  # our own view would count as somebody's
        chunk = self._large.take(frame_bytes) if frame_bytes > CHUNK_BYTES_MAX else None
        if chunk is None:
            # A few times what has arrived, because an announcement costs the sender nothing; in whole chunks, because
            # what is as large as the one before can be used again.
            size = max(self._chunk_bytes, min(frame_bytes, GROWTH * arrived))
            if size > CHUNK_BYTES_MAX:
                chunk = bytearray(size + -size % CHUNK_BYTES_MAX)
            elif size <= len(old) <= CHUNK_BYTES_MAX and _is_free(old):
                chunk = old
            else:
                chunk = self._free_spare(size) or bytearray(size)
        if chunk is not old:
            self._keep(old)
        self.chunk = chunk
        self.view = view = memoryview(chunk)
        if arrived:
            view[:arrived] = memoryview(old)[self.start : self.end]
        self.start, self.end = 0, arrived

    def _keep(self, chunk: bytearray) -> None:
        """Keep a chunk until nobody holds it, and rather than older ones."""
        if len(chunk) > CHUNK_BYTES_MAX:
            self._large.keep(chunk)
        elif CHUNK_BYTES_MIN <= len(chunk) <= self._spare_bytes_max:
            self._spares.append(chunk)
            self._spare_bytes += len(chunk)
            while self._spare_bytes > self._spare_bytes_max:
                self._spare_bytes -= len(self._spares.popleft())

    def _free_spare(self, size: int) -> bytearray | None:
        """Return the oldest chunk if it is large enough and nobody holds it any more; smaller ones are let go."""
        while self._spares:
            oldest = self._spares[0]
            if len(oldest) >= size and not _is_free(oldest):
                return None
            self._spares.popleft()
            self._spare_bytes -= len(oldest)
            if len(oldest) >= size:
                return oldest
        return None


def _is_free(chunk: bytearray) -> bool:
    """Return whether nobody holds a view: only then Python lets its size change."""
    try:
        last = chunk.pop()
    except BufferError:
        return False
    chunk.append(last)
    return True
