"""Memory that is used again, and memory that is given back."""

from __future__ import annotations

from clymq.protocol.receive_buffer import (
    CHUNK_BYTES_MAX,
    READER_SPARE_BYTES_MAX,
    SPARE_BYTES_MAX,
    ReceiveBuffer,
)


def filled(buffer: ReceiveBuffer, frame_bytes: int) -> memoryview:
    """Let a frame arrive, as fast as there is room; return it."""
    while buffer.end - buffer.start < frame_bytes:
        room = buffer.room(frame_bytes)
        count = min(len(room), frame_bytes - (buffer.end - buffer.start))
        del room
        buffer.received(count)
    frame = buffer.view[buffer.start : buffer.start + frame_bytes]
    buffer.start += frame_bytes
    return frame


def grown(spare_bytes_max: int = SPARE_BYTES_MAX) -> ReceiveBuffer:
    """Return a buffer that has seen traffic, and whose chunks are as large as they get."""
    buffer = ReceiveBuffer(spare_bytes_max)
    for _ in range(8):
        filled(buffer, CHUNK_BYTES_MAX)
    return buffer


def test_chunks_that_were_held_for_a_while_are_used_again() -> None:
    buffer, held, seen = grown(), [], set()
    for _ in range(40):
        held.append(filled(buffer, CHUNK_BYTES_MAX // 2))
        seen.add(id(held[-1].obj))
        held = held[-4:]
    assert len(seen) <= 6, "fresh memory has to be cleared, and is in no cache"


def test_frames_of_different_sizes_above_a_chunk_share_their_memory() -> None:
    buffer, seen = grown(), set()
    for extra in range(1, 30):
        frame = filled(buffer, CHUNK_BYTES_MAX + extra * 1000)
        seen.add(id(frame.obj))
        del frame
    assert len(seen) <= 4


def test_who_reads_ahead_uses_the_memory_of_large_frames_again() -> None:
    buffer, held, seen = grown(READER_SPARE_BYTES_MAX), [], set()
    for _ in range(40):
        held.append(filled(buffer, 8 * CHUNK_BYTES_MAX))
        seen.add(id(held[-1].obj))
        held = held[-4:]
    assert len(seen) <= 8


def test_a_large_frame_moves_once_when_it_does_not_fit() -> None:
    buffer, frame_bytes, chunks = grown(), 8 * CHUNK_BYTES_MAX, set()
    while buffer.end - buffer.start < frame_bytes:
        room = buffer.room(frame_bytes)
        count = len(room)
        chunks.add(id(room.obj))
        del room
        buffer.received(count)
    assert len(chunks) <= 2


def test_a_chunk_that_somebody_holds_is_never_written_again() -> None:
    buffer = grown()
    held = []
    for number in range(20):
        frame = filled(buffer, CHUNK_BYTES_MAX // 2)
        frame[:] = bytes([number]) * len(frame)
        held.append(frame)
    assert all(bytes(frame) == bytes([number]) * len(frame) for number, frame in enumerate(held))


def test_spare_memory_is_bounded_and_given_back_by_a_rest() -> None:
    buffer = grown()
    held = [filled(buffer, CHUNK_BYTES_MAX) for _ in range(20)]
    spares = list(buffer._spares)
    assert sum(map(len, spares)) == buffer._spare_bytes <= SPARE_BYTES_MAX
    del held
    buffer.rest()
    assert not buffer._spares
    assert not buffer.chunk


def test_nothing_but_a_large_frame_goes_into_its_chunk() -> None:
    buffer = grown()
    size = CHUNK_BYTES_MAX + 8
    first = buffer.room(size)
    buffer.received(len(first))
    del first
    room = buffer.room(size)
    assert buffer.end + len(room) == buffer.start + size, "the one behind it would have to move"
