"""The memory that a connection receives into.

Bytes land in a chunk; frames are cut out of it as views, without a copy. A chunk is not written again while anybody
holds a view of it: payloads are the receiver's to keep and to change (a broker stamps batches where they lie). One that
nobody holds any more is used again, because fresh memory has to be cleared first and is in no cache. What has arrived
of a frame that does not fit into the rest of its chunk moves to the beginning of the next one.

Invariants: [start, end) are the bytes that no frame has been made of yet; memory is at most two chunks beyond a small
multiple of what has arrived, whatever a prefix announces; a connection that rests holds nothing.
"""

from __future__ import annotations

from typing import Final

KiB: Final = 1024
CHUNK_BYTES_MIN: Final = 4 * KiB
CHUNK_BYTES_MAX: Final = 512 * KiB
# A read shorter than this part of the chunk says that the next may be smaller.
_SHRINK_BELOW: Final = 8
_NO_CHUNK: Final = bytearray()
_NO_VIEW: Final = memoryview(_NO_CHUNK)


class ReceiveBuffer:
    """Grows and shrinks with the traffic."""

    __slots__ = ("_chunk_bytes", "_offered", "_spare", "chunk", "end", "start", "view")

    def __init__(self) -> None:
        self._chunk_bytes = CHUNK_BYTES_MIN
        self._offered = 0
        self._spare = _NO_CHUNK
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
        room = self.view[self.end :]
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
        self._spare = _NO_CHUNK
        if self.start == self.end:
            self._chunk_bytes = CHUNK_BYTES_MIN
            self.chunk = _NO_CHUNK
            self.view = _NO_VIEW
            self.start = self.end = 0

    def _begin_chunk(self, arrived: int, frame_bytes: int) -> None:
        # For a frame larger than a chunk: exactly the frame, so that the one behind it begins a chunk of its own; but
        # at most twice what has arrived, because an announcement costs the sender nothing.
        size = max(self._chunk_bytes, min(frame_bytes, 2 * arrived))
        old, spare = self.chunk, self._spare
        self.view = _NO_VIEW  # our own view would count as somebody's
        if len(old) == size and _is_free(old):
            chunk = old
        else:
            chunk = spare if len(spare) == size and _is_free(spare) else bytearray(size)
            self._spare = old if len(old) <= CHUNK_BYTES_MAX else _NO_CHUNK
        self.chunk = chunk
        self.view = view = memoryview(chunk)
        if arrived:
            view[:arrived] = memoryview(old)[self.start : self.end]
        self.start, self.end = 0, arrived


def _is_free(chunk: bytearray) -> bool:
    """Return whether nobody holds a view: only then Python lets its size change."""
    try:
        last = chunk.pop()
    except BufferError:
        return False
    chunk.append(last)
    return True
