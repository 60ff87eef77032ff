"""Histories in files: split by partition, whole lines only, however large; and the figures that are drawn from them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chaos_history import Story
from clymq.simulation.chaos.checker import check_files
from clymq.simulation.chaos.command import main
from clymq.simulation.chaos.events import BadHistory, Journal
from clymq.simulation.chaos.facts import Facts
from clymq.simulation.chaos.figures import Fault, availability, faults_of, longest_gap, visible_lags
from clymq.simulation.chaos.history import History


def written(folder: Path, *stories: Story) -> list[Path]:
    paths = []
    for number, story in enumerate(stories):
        paths.append(folder / f"{number}.jsonl")
        paths[-1].write_text("".join(line + "\n" for line in story.lines), encoding="utf-8")
    return paths


def test_events_of_several_files_are_put_in_order_of_time_by_partition(tmp_path: Path) -> None:
    first, second = Story(), Story()
    first.send("p", "late", t=300)
    first.send("p", "elsewhere", t=100, partition="北京")
    second.send("q", "early", t=200)
    second.tell("nemesis", "note", text="begins")
    with History(written(tmp_path, first, second)) as history:
        assert history.places == [("t", "0"), ("t", "北京")]
        assert [event.values for event in history.partition(("t", "0"))] == [["early"], ["late"]]
        assert [event.rest["text"] for event in history.general] == ["begins"]
        assert history.lines == 4


def test_more_partitions_than_files_may_be_open_are_split_without_a_loss(tmp_path: Path) -> None:
    story = Story()
    for number in range(600):
        story.send("p", str(number), partition=str(number % 200))
    with History(written(tmp_path, story)) as history:
        assert len(history.places) == 200
        assert all(len(history.partition(place)) == 3 for place in history.places)


def test_a_last_line_that_was_cut_short_is_left_out_and_any_other_bad_line_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    with Journal(path, "p") as journal:
        journal.write("send", topic="t", partition="0", op="1", values=["北"])
    whole = path.read_bytes()
    for cut in range(1, len(whole)):
        path.write_bytes(whole + whole[:cut])
        with History([path]) as history:
            assert history.lines == (2 if cut >= len(whole) - 1 else 1)
    path.write_bytes(whole[:20] + b"\n" + whole)
    with pytest.raises(BadHistory, match=r"h\.jsonl:1"), History([path]):
        pass


def test_the_command_judges_files_and_folders_and_says_so_in_its_last_line_and_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.mkdir()
    bad.mkdir()
    written(good, Story().push("p", 0, "p1").final("p1"))
    paths = written(bad, Story().push("p", 0, "p1"), Story().final("p2", offset=0))
    assert main(["--check", str(good)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "0.0 min, 1 acknowledged, 0 anomalies"
    assert main(["--check", *map(str, paths)]) == 1
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "lost write: t/0: p1 was acknowledged at 0 and is nowhere"
    assert said[-1] == "0.0 min, 1 acknowledged, 2 anomalies"
    assert main(["--check", str(tmp_path / "missing.jsonl")]) == 2


def test_a_long_history_is_judged_by_sorting_and_not_by_comparing_each_with_each(tmp_path: Path, size: str) -> None:
    """With anything quadratic in it this would take hours; with it all in one partition it takes seconds."""
    messages = {"quick": 10_000, "normal": 50_000, "long": 1_000_000}[size]
    path = tmp_path / "h.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for number in range(messages):
            place = {"topic": "t", "partition": "0"}
            time, value = 10 * number, f"p:{number}"
            lines = [
                {"t": time, "by": "p", "do": "send", **place, "op": number, "values": [value]},
                {"t": time + 1, "by": "p", "do": "ack", **place, "op": number, "ranges": [[number, 1]]},
                {"t": time + 2, "by": "r", "do": "poll", **place, "offset": number, "values": [value]},
                {"t": 10**9 + number, "by": "final", "do": "final", **place, "offset": number, "values": [value]},
            ]
            file.writelines(json.dumps(line) + "\n" for line in lines)
    verdict = check_files([path])
    assert (verdict.acknowledged, verdict.read, len(verdict.anomalies)) == (messages, messages, 0)


def test_what_does_not_come_back_is_an_anomaly(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    with Journal(path, "nemesis") as journal:
        journal.write("stuck", text="Broker0 was not ready within 60 s")
    assert list(check_files([path]).report()) == [
        "no recovery: Broker0 was not ready within 60 s",
        "no recovery: 1",
        "0.0 min, 0 acknowledged, 1 anomalies",
    ]


# --- Figures ---


def test_faults_have_a_beginning_and_an_end_and_one_that_never_ended_lasts() -> None:
    story = Story()
    for time, number, stage in ((10, "1", "begin"), (20, "2", "begin"), (30, "1", "end"), (90, "3", "begin")):
        story.tell("nemesis", "fault", id=number, kind=f"kind {number}", stage=stage, t=time)
    assert faults_of(story.events()) == [Fault("kind 1", 10, 30), Fault("kind 2", 20, 90), Fault("kind 3", 90, 90)]


def test_the_longest_gap_of_a_fault_is_the_longest_that_touches_it() -> None:
    times = [0, 10, 50, 60, 200, 210]
    assert longest_gap(times, 55, 58) == 10
    assert longest_gap(times, 20, 55) == 40
    assert longest_gap(times, 61, 70) == 140
    assert longest_gap([], 0, 10) == 0
    rows = availability([Fault("kill", 20, 30), Fault("kill", 61, 70), Fault("stop", 55, 58)], [times, [0, 300], []])
    assert [(row.kind, row.faults, row.longest_seconds) for row in rows] == [("kill", 2, 0.0003), ("stop", 1, 0.0003)]


def test_the_lag_of_a_push_runs_from_its_acknowledgement_to_the_first_reader() -> None:
    story = Story().push("p", 0, "p1", "p2")
    operation = story.send("p", "p3")
    story.poll("r", 0, "p1", "p2").poll("s", 0, "p1", "p2").poll("r", 2, "p3").ack("p", operation, 2)
    assert visible_lags(Facts(story.events())) == [2000, 0]
