"""Names: what may be one, and how they reach disks and trees."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clymq.errors import ConfigError, InvalidName
from clymq.types import Ack, Mode, check_ack, check_name, folder_name, name_of_node, node_name


@pytest.mark.parametrize("name", ["a", "北京", "phone_number", "a b", "...", "x" * 200, "é", "a~b", "%41"])
def test_names_that_are_allowed(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("", "1 to 200"),
        ("x" * 201, "1 to 200"),
        ("京" * 67, "1 to 200"),
        ("a/b", "'/'"),
        (".", "'.'"),
        ("..", "'..'"),
        ("a\nb", "control"),
        ("a\x00", "control"),
        ("a\x7f", "control"),
        ("e\u0301", "NFC"),
        ("\ud800", "Unicode"),
        (7, "not a string"),
    ],
)
def test_a_name_that_breaks_a_rule_is_refused_with_the_rule(name: str, rule: str) -> None:
    with pytest.raises(InvalidName, match="topic") as caught:
        check_name(name, "topic")
    assert rule in str(caught.value)


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=50))
def test_a_node_name_is_reversible_and_has_only_plain_characters(name: str) -> None:
    node = node_name(name)
    assert name_of_node(node) == name
    assert all(c.isascii() and (c.isalnum() or c in "_.-%") for c in node)


def test_a_folder_name_is_cut_and_carries_the_id() -> None:
    assert folder_name("北", "7") == "%E5%8C%97~7"
    assert folder_name("x" * 200, "7") == "x" * 100 + "~7"
    assert folder_name("a~b", "7").count("~") == 1


def test_numbers_of_acks_and_modes_are_those_of_the_wire() -> None:
    assert [(a.name, a.value) for a in Ack] == [("UNSET", -2), ("QUORUM", -1), ("NONE", 0), ("LEADER", 1)]
    assert [m.value for m in (Mode.PTP_PUSH, Mode.PTP_PULL, Mode.PSB_PUSH, Mode.PSB_PULL)] == [1, 2, 3, 4]


def test_an_ack_is_one_by_its_number_or_itself() -> None:
    for ack in Ack:
        assert check_ack(ack) is check_ack(int(ack)) is ack


@pytest.mark.parametrize("wrong", [5, -3, "quorum", None, [], 1.5])
def test_an_ack_that_is_none_is_refused_with_those_that_there_are(wrong: int) -> None:
    with pytest.raises(ConfigError) as caught:
        check_ack(wrong)
    assert (caught.value.setting, caught.value.value) == ("ack", wrong)
    assert caught.value.allowed == "must be one of UNSET (-2), QUORUM (-1), NONE (0), LEADER (1)"


def test_an_ack_is_refused_as_unset_where_it_must_be_set() -> None:
    with pytest.raises(ConfigError, match=r"ack = .*must be one of QUORUM \(-1\), NONE \(0\), LEADER \(1\)$"):
        check_ack(Ack.UNSET, may_be_unset=False)
