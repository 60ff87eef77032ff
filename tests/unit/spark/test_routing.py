"""Which partitions a micro-batch goes by, whenever it is repeated."""

from __future__ import annotations

from pathlib import Path

import pytest

from clymq.errors import InvalidRequest
from clymq.spark.routing import FILE, ROUTES_KEPT, Divided, Route, Routes, load, place_of, save

TWO = {"t": Divided("one", ("0", "1"))}
THREE = {"t": Divided("one", ("0", "1", "2"))}


def test_what_is_found_first_holds_from_the_beginning() -> None:
    routes = Routes().begun(TWO)
    assert routes.at(0) == routes.at(7) == TWO
    assert routes.begun(THREE) is routes, "a partition that was added counts when a micro-batch is done, not before"


def test_a_partition_that_was_added_counts_from_the_next_micro_batch_on_and_not_for_a_repetition() -> None:
    routes = Routes().begun(TWO).after(4, THREE)
    assert routes.at(4) == TWO
    assert routes.at(5) == THREE
    again = routes.after(4, {"t": Divided("one", ("0", "1", "2", "3"))})
    assert again.at(4) == TWO
    assert again.at(5)["t"].partitions == ("0", "1", "2", "3")


def test_nothing_is_written_down_where_nothing_has_changed() -> None:
    routes = Routes().begun(TWO)
    assert routes.after(4, TWO) is routes
    assert routes.begun(TWO) is routes


def test_another_topic_joins_and_leaves_the_first_as_it_was() -> None:
    other = {"u": Divided("two", ("x",))}
    routes = Routes().begun(TWO).after(3, THREE).after(6, other)
    assert routes.at(6) == THREE
    assert routes.at(7) == {**THREE, **other}


def test_a_topic_that_was_made_anew_is_taken_as_it_is_also_by_a_repetition() -> None:
    anew = {"t": Divided("another", ("x",))}
    routes = Routes().begun(TWO).after(3, THREE).begun(anew)
    assert [routes.at(batch) for batch in (0, 3, 4)] == [anew, anew, anew]


def test_what_is_kept_is_bounded_and_the_last_two_are_there() -> None:
    routes = Routes().begun(TWO)
    for batch in range(100):
        routes = routes.after(batch, {"t": Divided("one", tuple(map(str, range(batch + 3))))})
    assert len(routes.kept) == ROUTES_KEPT
    assert [len(routes.at(batch)["t"].partitions) for batch in (99, 100)] == [101, 102]


def test_it_is_written_down_and_read_again(tmp_path: Path) -> None:
    place = tmp_path / "checkpoint" / FILE
    assert load(place) == Routes()
    routes = Routes((Route(0, TWO), Route(5, {**THREE, "北京": Divided("x", ("西安",))})))
    save(place, routes)
    assert load(place) == routes
    assert [each.name for each in place.parent.iterdir()] == [FILE]


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"routes": [{"from": 0}]}', '{"routes": [{"from": 0, "topics": 1}]}']
)
def test_what_cannot_be_read_is_an_error_and_not_a_guess(tmp_path: Path, text: str) -> None:
    place = tmp_path / FILE
    place.write_text(text)
    with pytest.raises(InvalidRequest, match=FILE):
        load(place)


@pytest.mark.parametrize(
    ("checkpoint", "place"),
    [
        ("/a/b", f"/a/b/{FILE}"),
        ("file:///a/b", f"/a/b/{FILE}"),
        ("hdfs://name/a", None),
        ("s3a://b/a", None),
        ("", None),
    ],
)
def test_only_a_checkpoint_on_a_file_system_of_here_has_a_place_for_it(checkpoint: str, place: str | None) -> None:
    assert place_of(checkpoint) == (None if place is None else Path(place))
