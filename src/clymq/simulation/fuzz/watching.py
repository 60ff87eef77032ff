"""What an input may cost: time, and memory now and for good. Looks at the process from inside."""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import resource
import signal
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from clymq.simulation.fuzz.target import Input, Target, Violated

# One input in so many is watched closely: following every allocation makes it several times as slow. Later inputs more
# seldom: each time it is done the interpreter keeps a little for good, which would be taken for a leak of ours.
_CLOSELY_EVERY: Final = 61
_SELDOM_FROM: Final = 20_000
_SELDOM_EVERY: Final = 1_009
# Of Python objects that one byte of input may become.
_OBJECT_BYTES_PER_BYTE: Final = 120
_OBJECTS_GROWN_MAX: Final = 3_000
_STATUS: Final = Path("/proc/self/status")
_DESCRIPTORS: Final = Path("/proc/self/fd")


class TookTooLong(BaseException):
    """An input takes longer than any may; nobody who handles errors may handle this one."""


class Held(NamedTuple):
    """What a process holds."""

    resident_bytes: int
    objects: int
    descriptors: int


def held() -> Held:
    """Return what this process holds, without what nobody refers to any more."""
    gc.collect()
    give_back = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if give_back is not None:
        give_back(0)  # what is free, and kept by the C library for later, is nobody's leak
    return Held(_status_bytes("VmRSS"), len(gc.get_objects()), len(list(_DESCRIPTORS.iterdir())))


def peak_bytes() -> int:
    """Return the most memory that this process ever had."""
    return _status_bytes("VmHWM")


def check_growth(target: Target, before: Held, after: Held) -> None:
    """Raise if a process holds on to what inputs have left."""
    if after.resident_bytes - before.resident_bytes > target.grown_bytes_max:
        raise Violated(f"the process grew from {before.resident_bytes} to {after.resident_bytes} bytes")
    if target.bytes_max is None:
        return  # others live in the process, who come and go
    if after.objects - before.objects > _OBJECTS_GROWN_MAX:
        raise Violated(f"there were {before.objects} objects, and are {after.objects}")
    if after.descriptors > before.descriptors:
        raise Violated(f"there were {before.descriptors} open files, and are {after.descriptors}")


def limit_process(target: Target) -> None:
    """Let an allocation of an absurd size fail, wherever it is asked for, and what takes too long be given up."""
    faulthandler.enable()
    signal.signal(signal.SIGPROF, _give_up)
    signal.signal(signal.SIGALRM, _give_up)
    if target.reserve_bytes is not None:
        limit = _status_bytes("VmSize") + target.reserve_bytes
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def run_watched(target: Target, number: int, given: Input) -> str:
    """Try an input within its bounds."""
    with _time_bound(target):
        if target.bytes_max is None or number % (_CLOSELY_EVERY if number < _SELDOM_FROM else _SELDOM_EVERY):
            return target.run(given)
        return _run_counting_bytes(target, given)


def _run_counting_bytes(target: Target, given: Input) -> str:
    assert target.bytes_max is not None
    tracemalloc.start()
    try:
        outcome = target.run(given)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    limit = target.bytes_max + _OBJECT_BYTES_PER_BYTE * sum(map(len, given))
    if peak > limit:
        raise Violated(f"{peak} bytes were allocated for an input of {sum(map(len, given))}; at most {limit} may be")
    return outcome


@contextmanager
def _time_bound(target: Target) -> Iterator[None]:
    which = signal.ITIMER_REAL if target.waits else signal.ITIMER_PROF
    signal.setitimer(which, target.seconds_max)
    try:
        yield
    finally:
        signal.setitimer(which, 0)


def _give_up(*_: object) -> None:
    raise TookTooLong("it takes longer than any input may")


def _status_bytes(field: str) -> int:
    for line in _STATUS.read_text(encoding="ascii").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise Violated(f"this system does not tell {field}")
