"""Where the next block goes: the ring, labels, and who is stepped over."""

from __future__ import annotations

import pytest

from clymq.controller.placement import Seat, key_of, place, usable
from clymq.errors import NotEnoughReplicas

KEY = key_of("phone_number", "xian")


def seats(count: int, **changed: Seat) -> dict[str, Seat]:
    return {f"Broker{number}": Seat() for number in range(count)} | changed


def test_without_labels_the_answer_is_exactly_the_rings() -> None:
    assert KEY == "phone_numberxiandup"
    assert place(seats(3), KEY, 3) == ["Broker0", "Broker1", "Broker2"]
    assert place(seats(5), KEY, 3) == ["Broker0", "Broker4", "Broker1"]


def test_who_is_offline_draining_or_avoided_is_stepped_over_and_the_others_stay_in_order() -> None:
    offline, draining = Seat(online=False), Seat(draining=True)
    assert place(seats(5), KEY, 5) == ["Broker0", "Broker4", "Broker1", "Broker3", "Broker2"]
    assert place(seats(5, Broker4=offline), KEY, 3) == ["Broker0", "Broker1", "Broker3"]
    assert place(seats(5, Broker0=draining), KEY, 3) == ["Broker4", "Broker1", "Broker3"]
    assert place(seats(5), KEY, 3, avoid=["Broker0"]) == ["Broker4", "Broker1", "Broker3"]
    assert usable(seats(3, Broker1=offline, Broker2=draining)) == ["Broker0"]


def test_a_stronger_broker_is_chosen_more_often() -> None:
    strong = seats(3, Broker1=Seat(power=8))
    firsts = [place(strong, f"key{number}", 1)[0] for number in range(500)]
    assert firsts.count("Broker1") > 300


def test_racks_are_used_evenly_and_hosts_within_them() -> None:
    labelled = {f"Broker{number}": Seat(rack=f"rack{number // 2}", host=f"host{number}") for number in range(6)}
    for number in range(200):
        chosen = place(labelled, f"key{number}", 3)
        assert len({labelled[name].rack for name in chosen}) == 3
        assert len({labelled[name].rack for name in place(labelled, f"key{number}", 5)}) == 3
    crowded = {f"Broker{number}": Seat(host=f"host{number // 3}") for number in range(6)}
    for number in range(200):
        assert len({crowded[name].host for name in place(crowded, f"key{number}", 2)}) == 2


def test_too_few_is_an_error_that_names_how_many_there_are() -> None:
    with pytest.raises(NotEnoughReplicas, match="3 replicas are asked for and 2 of 3 brokers can take one"):
        place(seats(3, Broker1=Seat(online=False)), KEY, 3)
    with pytest.raises(NotEnoughReplicas, match="0 of 0"):
        place({}, KEY, 1)


def test_a_member_that_is_away_keeps_its_seat_only_when_nobody_else_can_take_it() -> None:
    away = Seat(online=False)
    assert place(seats(3, Broker0=away), KEY, 3, keep=["Broker0"]) == ["Broker1", "Broker2", "Broker0"]
    assert place(seats(4, Broker0=away), KEY, 3, keep=["Broker0"]) == ["Broker1", "Broker3", "Broker2"]


def test_somebody_has_to_be_there() -> None:
    away = Seat(online=False)
    with pytest.raises(NotEnoughReplicas):
        place({"Broker0": away}, KEY, 1, keep=["Broker0"])


def test_those_named_first_come_before_the_ring() -> None:
    assert place(seats(5), KEY, 3, first=["Broker3", "gone", "Broker2"]) == ["Broker3", "Broker2", "Broker0"]
