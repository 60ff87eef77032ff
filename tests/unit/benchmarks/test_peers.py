"""What `scripts/bench all` does with its figures; nothing here is measured."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from benchmarks.peers import machine
from benchmarks.peers.figures import RAW, Book, Cell, percentile, rows
from benchmarks.peers.page import page
from benchmarks.peers.plots import is_possible, plots
from benchmarks.peers.program import FULL, ONE, ONE_SYNCED, QUICK, THREE_SYNCED, Run, size_text
from benchmarks.peers.redis_streams import RedisStreams
from benchmarks.peers.registry import OURS, systems
from benchmarks.peers.system import FIRST, Pace, Promise, Task, age_seconds
from benchmarks.peers.tables import COLUMNS, cell_texts, number, verdict_text
from benchmarks.peers.verdicts import (
    FAILOVER_AIM,
    LATENCY_AIM,
    PARTITIONS_AIM,
    REPLICATED_AIM,
    THROUGHPUT_AIM,
    Verdict,
    verdicts,
)

US = "ClyMQ"


def cell(
    system: str, work: str = "produce", what: str = "100 B", unit: str = "messages/s", promise: Promise = ONE
) -> Cell:
    return Cell(work, what, unit, str(promise), system)


def book_of(*figures: tuple[Cell, float]) -> Book:
    book = Book()
    for place, value in figures:
        book.add(place, value)
    return book


# --- Figures ---


def test_a_figure_is_the_median_of_its_turns_and_keeps_their_spread() -> None:
    book = book_of((cell(US), 5.0), (cell(US), 1.0), (cell(US), 3.0))
    ((_, figure),) = book
    assert figure.median == 3.0
    assert figure.spread == (1.0, 5.0)


def test_a_cell_that_failed_has_a_reason_and_no_figure_and_one_bad_turn_takes_no_good_one_away() -> None:
    book = book_of((cell(US), 5.0))
    book.fail(cell(US), "the second turn was too long")
    book.fail(cell("Kafka"), "not done after 60 s")
    ours, theirs = rows(book)
    assert (ours["value"], ours["reason"]) == (5.0, "the second turn was too long")
    assert (theirs["value"], theirs["reason"], theirs["turns"]) == (None, "not done after 60 s", 0)


def test_rows_have_the_fields_of_every_benchmark_and_the_ratio_to_the_machine_s_limit() -> None:
    book = book_of((cell(US), 50.0), (cell(RAW), 200.0))
    ours, _ = rows(book)
    assert {"name", "unit", "value", "raw", "ratio", "target", "met"} <= set(ours)
    assert (ours["raw"], ours["ratio"]) == (200.0, 0.25)
    assert ours["mb_per_second"] == pytest.approx(0.005)


def test_percentiles_are_taken_from_the_ordered_values() -> None:
    values = list(map(float, range(1000)))
    assert [percentile(values, percent) for percent in (50, 99, 99.9, 100)] == [500, 990, 999, 999]
    assert percentile([7.0], 99.9) == 7.0


def test_sizes_are_said_as_people_say_them() -> None:
    assert [size_text(size) for size in (100, 1000, 10_000)] == ["100 B", "1 KB", "10 KB"]
    assert [cell(US, what=what).size_bytes for what in ("100 B", "10 KB")] == [100, 10_000]
    assert cell(US, unit="ms").size_bytes is None


# --- Verdicts ---


def judged(book: Book, aim: str) -> list[Verdict]:
    return [verdict for verdict in verdicts(book, US) if verdict.aim == aim]


def test_throughput_is_held_against_the_best_peer_under_the_same_promise() -> None:
    book = book_of((cell(US), 30.0), (cell("Kafka"), 10.0), (cell("NATS JetStream"), 20.0), (cell(RAW), 900.0))
    book.add(cell("Redis Streams", promise=ONE_SYNCED), 1.0)
    (verdict,) = judged(book, THROUGHPUT_AIM)
    assert (verdict.ratio, verdict.beside, verdict.is_met) == (1.5, "NATS JetStream", False)
    assert verdict_text(verdict) == "missed: 1.5"


def test_three_synced_replicas_have_an_aim_of_their_own() -> None:
    book = book_of((cell(US, promise=THREE_SYNCED), 30.0), (cell("Kafka", promise=THREE_SYNCED), 20.0))
    (verdict,) = judged(book, REPLICATED_AIM)
    assert verdict.is_met
    assert verdict_text(verdict) == "met"


def test_latency_is_held_against_the_quickest_peer_at_p99_only() -> None:
    def at(percent: str, system: str) -> Cell:
        return cell(system, "latency", f"p{percent}, 100 B at 500/s", "ms")

    book = book_of((at("99", US), 4.0), (at("99", "Kafka"), 3.0), (at("99", "Redis Streams"), 1.0))
    book.add(at("99.9", US), 9.0)
    book.add(at("99.9", "Kafka"), 1.0)
    (verdict,) = judged(book, LATENCY_AIM)
    assert (verdict.ratio, verdict.beside, verdict.is_met) == (4.0, "Redis Streams", False)


@pytest.mark.parametrize(("pause", "is_met"), [(0.4, True), (1.0, False)])
def test_failover_is_to_stay_below_a_second(pause: float, is_met: bool) -> None:
    (verdict,) = judged(book_of((cell(US, "failover", "leader killed", "s"), pause)), FAILOVER_AIM)
    assert verdict.is_met is is_met


def test_a_thousand_partitions_are_held_against_ten() -> None:
    many, few = (cell(US, "partitions", f"{count} partitions, produce 100 B") for count in ("1,000", "10"))
    (verdict,) = judged(book_of((many, 70.0), (few, 100.0)), PARTITIONS_AIM)
    assert (verdict.ratio, verdict.is_met) == (0.7, False)


def test_an_aim_without_figures_is_not_measured_and_never_met() -> None:
    found = verdicts(Book(), US)
    assert len(found) == 5
    assert all(verdict.is_met is None and verdict_text(verdict) == "not measured" for verdict in found)


# --- What is shown ---


def test_a_line_of_a_table_has_every_column_and_says_how_ours_compares() -> None:
    book = book_of((cell(US), 300.0), (cell("Kafka"), 100.0))
    ((ours, figure), (theirs, other)) = book
    lines = [cell_texts(book, US, ours, figure, 600.0), cell_texts(book, US, theirs, other, None)]
    assert [len(line) for line in lines] == [len(COLUMNS)] * 2
    assert dict(zip(COLUMNS, lines[0], strict=True))["of the machine"] == "50%"
    assert dict(zip(COLUMNS, lines[1], strict=True))["ours / it"] == "3"


def test_numbers_are_short() -> None:
    assert [number(value) for value in (None, 1234567.8, 12.345, 0.01234)] == ["-", "1,234,568", "12.3", "0.0123"]


def test_the_page_needs_no_other_file_and_shows_losses_failures_and_what_is_missing() -> None:
    book = book_of((cell(US), 1.0), (cell("Kafka"), 2.0))
    book.fail(cell("NATS JetStream"), "<no answer>")
    lines = [("produce", [cell_texts(book, US, place, figure, None) for place, figure in book])]
    html = page(
        facts={"missing": {"Redis Streams": "redis-server is not installed"}},
        settings=[(str(ONE), "Kafka", "acks=1")],
        tables=lines,
        verdicts=verdicts(book, US),
        plots={"produce": b"png"},
        ours=US,
    )
    assert not re.search(r'(src|href)="(?!data:)', html)
    assert "none: &lt;no answer&gt;" in html
    assert "missed: 0.5" in html
    assert "redis-server is not installed" in html


@pytest.mark.skipif(not is_possible(), reason="matplotlib is not installed")
def test_plots_are_png_files_by_kind_of_work() -> None:
    book = book_of((cell(US), 300.0), (cell("Kafka"), 100.0), (cell(US, "cost", "disk, 100 B", "bytes/message"), 112.0))
    found = plots(book)
    assert set(found) == {"produce", "disk"}
    assert all(image.startswith(b"\x89PNG") for image in found.values())


# --- Who takes part ---


def test_a_queue_that_cannot_be_had_is_missing_with_a_reason_and_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shutil.which", lambda _name, path=None: None)
    (reason,) = machine.missing([RedisStreams]).values()
    assert "apt-get install redis-server" in reason
    assert machine.versions([RedisStreams]) == {}
    assert machine.settings([RedisStreams], [ONE]) == []


def test_nothing_is_compared_under_a_promise_that_a_queue_does_not_have() -> None:
    assert RedisStreams.settings(THREE_SYNCED) is None
    told = {kind.key: [kind.settings(promise) for promise in FULL.promises] for kind in systems()}
    assert all(told[OURS])
    assert all(any(each) for each in told.values())


def test_the_quick_run_has_replicas_of_ours_only(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in systems():
        monkeypatch.setattr(kind, "missing", classmethod(lambda _cls: None))
    quick, full = (Run(plan, systems(), print) for plan in (QUICK, FULL))
    assert [kind.key for kind in systems() if quick._takes_part(kind, THREE_SYNCED)] == [OURS]
    assert len([kind for kind in systems() if full._takes_part(kind, THREE_SYNCED)]) > 2


def test_what_is_said_of_the_machine_names_no_host_and_no_folder() -> None:
    told = " ".join(machine.machine().values())
    assert Path.home().name not in told.split()
    assert "/" not in told.replace("GHz", "")


# --- Work ---


def test_a_task_goes_round_its_partitions_until_the_count_is_reached() -> None:
    runs = list(Task("t", 100, seconds=60, count=250, partitions=2).runs())
    assert [(partition, len(values)) for partition, values in runs] == [(0, 100), (1, 100), (0, 50)]
    assert all(len(value) == 100 for _, values in runs for value in values)


def test_a_task_ends_in_time() -> None:
    assert list(Task("t", 100, seconds=0).runs()) == []


def test_messages_of_a_pace_say_when_they_were_sent() -> None:
    messages = list(Pace(rate=10_000, count=5, size_bytes=100))
    assert [len(message) for message in messages] == [100] * 5
    assert all(0 <= (age_seconds(message) or -1) < 60 for message in messages)
    assert age_seconds(FIRST) is None
