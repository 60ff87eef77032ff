"""Memory for benchmarks is used before it is measured with."""

from itertools import chain, repeat

import pytest
from benchmarks import memory
from benchmarks.memory import FREE_BYTES, ROUNDS_MAX, STEP_BYTES, UsedMemory, memory_bytes


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Where the file was read instead of reading it: the machine's memory is not the test's to use."""
    found: list[int] = []
    monkeypatch.setattr(memory.os, "posix_fadvise", lambda _file, at, _length, _advice: found.append(at))
    return found


def test_memory_is_used_until_little_is_free(monkeypatch: pytest.MonkeyPatch, steps: list[int]) -> None:
    free = chain([1 << 40, FREE_BYTES + 2, FREE_BYTES + 1], repeat(FREE_BYTES))
    monkeypatch.setattr(memory, "memory_bytes", lambda name: next(free) if name == "MemFree" else 1 << 40)
    with UsedMemory() as used:
        used.fill()
        used.fill()
    assert steps == [0, STEP_BYTES, 2 * STEP_BYTES]


def test_memory_that_stays_free_is_given_up(monkeypatch: pytest.MonkeyPatch, steps: list[int]) -> None:
    monkeypatch.setattr(memory, "memory_bytes", lambda name: FREE_BYTES + 1 if name == "MemFree" else 8 * STEP_BYTES)
    with UsedMemory() as used:
        used.fill()
    assert len(steps) == 8 * ROUNDS_MAX


def test_what_the_kernel_says_of_memory_is_read() -> None:
    assert 0 < memory_bytes("MemAvailable") <= memory_bytes("MemTotal")
    with pytest.raises(AssertionError, match="MemNone"):
        memory_bytes("MemNone")
