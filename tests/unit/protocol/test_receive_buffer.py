"""Memory that is used again, and memory that is given back."""

from __future__ import annotations

from clymq.protocol.receive_buffer import (
    CHUNK_BYTES_MAX,
    HEAD_BYTES,
    READER_SPARE_BYTES_MAX,
    SPARE_BYTES_MAX,
    LargeChunks,
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


def test_the_memory_of_large_frames_is_shared_by_connections() -> None:
    large, held, seen = LargeChunks(), [], set()
    buffers = [ReceiveBuffer(large=large) for _ in range(4)]
    for turn in range(40):
        held.append(filled(buffers[turn % 4], 4 * CHUNK_BYTES_MAX))
        seen.add(id(held[-1].obj))
        held = held[-8:]
    assert len(seen) <= 13, "eight that are held, one in each connection, one to grow into"


def test_large_frames_of_any_size_find_memory_that_is_large_enough() -> None:
    buffer, seen = grown(), set()
    for turn in range(40):
        frame = filled(buffer, (2 + turn % 5) * CHUNK_BYTES_MAX)
        seen.add(id(frame.obj))
        del frame
    assert len(seen) <= 8


def test_memory_of_large_frames_is_bounded() -> None:
    large = LargeChunks(bytes_max=8 * CHUNK_BYTES_MAX)
    for size in (2, 3, 4, 9, 2):
        large.keep(bytearray(size * CHUNK_BYTES_MAX))
        assert large.bytes <= 8 * CHUNK_BYTES_MAX
    assert large.take(3 * CHUNK_BYTES_MAX) is None
    assert large.take(2 * CHUNK_BYTES_MAX) is not None
    assert large.bytes == 0


def test_memory_of_a_large_frame_that_somebody_holds_is_not_taken() -> None:
    large, chunk = LargeChunks(), bytearray(2 * CHUNK_BYTES_MAX)
    frame = memoryview(chunk)[8:]
    large.keep(chunk)
    assert large.take(CHUNK_BYTES_MAX + 1) is None
    frame.release()
    assert large.take(CHUNK_BYTES_MAX + 1) is chunk


def test_little_is_read_behind_a_large_frame_because_it_may_have_to_move() -> None:
    buffer = grown()
    filled(buffer, 4 * CHUNK_BYTES_MAX)
    assert len(buffer.room(48)) <= HEAD_BYTES
    filled(buffer, 48)
    assert len(buffer.room(48)) > HEAD_BYTES, "small frames are read many at a time"


def test_the_memory_of_large_frames_is_given_back_when_there_are_none_any_more() -> None:
    large = LargeChunks()
    large.keep(bytearray(CHUNK_BYTES_MAX + 1))
    large.rest()
    assert large.bytes, "there was one just now"
    large.rest()
    assert not large.bytes
    assert large.take(1) is None
