"""A disk that still discards what was deleted a while ago is not calm."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks import processes
from benchmarks.processes import CALM_BYTES, CALM_LOOKS, calm_disk

# Of `/proc/diskstats`: written sectors are the tenth field, discarded ones the seventeenth.
OLD = "253 0 vda 9 9 9 9 9 9 {written} 9 9 9 9\n"
LINE = OLD.rstrip() + " 9 9 {discarded} 9 9 9\n"


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long was waited between looks; it was not."""
    found: list[float] = []
    monkeypatch.setattr(processes.time, "sleep", found.append)
    return found


def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: Iterator[str]) -> Path:
    """Something that says another line at each look."""
    path = tmp_path / "diskstats"
    monkeypatch.setattr(Path, "read_text", lambda each: next(lines) if each == path else "")
    return path


def test_it_is_waited_until_nothing_is_written_or_discarded_for_some_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looks: list[float]
) -> None:
    step = CALM_BYTES // 512
    some = [LINE.format(written=number * step, discarded=0) for number in range(3)]
    some += [LINE.format(written=2 * step, discarded=0)] * 2
    some += [LINE.format(written=2 * step, discarded=number * step) for number in range(1, 4)]
    rest = [LINE.format(written=2 * step, discarded=3 * step)] * CALM_LOOKS
    assert calm_disk(seconds_max=60, statistics=file(tmp_path, monkeypatch, iter([*some, *rest])))
    assert len(looks) == len(some) + len(rest) - 1


def test_a_kernel_that_counts_no_discards_is_understood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looks: list[float]
) -> None:
    lines = [OLD.format(written=7)] * (CALM_LOOKS + 1)
    assert calm_disk(seconds_max=60, statistics=file(tmp_path, monkeypatch, iter(lines)))
    assert len(looks) == CALM_LOOKS


def test_a_disk_that_is_never_calm_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "LOOK_SECONDS", 0.001)
    lines = (LINE.format(written=0, discarded=number * CALM_BYTES) for number in range(1_000_000))
    assert not calm_disk(seconds_max=0.05, statistics=file(tmp_path, monkeypatch, lines))


def test_this_machine_s_disks_can_be_looked_at() -> None:
    assert processes._disk_bytes(Path("/proc/diskstats")) > 0
