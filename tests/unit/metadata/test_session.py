"""What a client knows of its session, the paths it may name, and which errors leave an outcome open."""

from __future__ import annotations

import pytest

from clymq import errors
from clymq.errors import InvalidPath
from clymq.metadata.paths import PATH_BYTES_MAX, below, check_path, name_of, parent_of
from clymq.metadata.store import Session, outcome_unknown


def test_a_session_is_confirmed_from_when_it_was_asked_and_never_backwards() -> None:
    session = Session("1", 6000, 1000)
    session.confirm(3000)
    session.confirm(2000)
    assert session.confirmed_at_ms == 3000
    assert session.confirmed_within(6999)
    assert not session.confirmed_within(7000)


def test_a_lost_session_is_never_confirmed_and_tells_each_listener_once() -> None:
    session, told = Session("1", 6000, 0), []
    session.on_lost(lambda: told.append("first"))
    session.end()
    session.end()
    session.on_lost(lambda: told.append("late"))
    assert told == ["first", "late"]
    session.confirm(10)
    assert not session.confirmed_within(11)


def test_only_a_lost_answer_leaves_the_outcome_open() -> None:
    unknown = {errors.ConnectionLost, errors.RequestTimeout}
    kinds = [errors.ConnectFailed, errors.SessionLost, errors.VersionConflict, errors.NodeMissing, *unknown]
    assert {kind for kind in kinds if outcome_unknown(kind("x"))} == unknown


def test_paths_know_their_parents_and_names() -> None:
    assert (parent_of("/a/b"), parent_of("/a"), name_of("/a/b")) == ("/a", "/", "b")
    assert (below("/", "a"), below("/a", "b")) == ("/a", "/a/b")


@pytest.mark.parametrize(
    "path", ["", "a", "//", "/a/", "/a//b", "/.", "/a/..", "/\n", "/é", "/" + "x" * PATH_BYTES_MAX]
)
def test_what_is_no_path_is_refused(path: str) -> None:
    with pytest.raises(InvalidPath):
        check_path(path)
    assert check_path("/a%20b/.lanes/x-1_2.y") == "/a%20b/.lanes/x-1_2.y"
