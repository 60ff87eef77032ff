"""Windows: who waits, who goes, and who is refused."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clymq.errors import Overloaded
from clymq.protocol.handshake import Window
from clymq.rpc.window import ReceiveWindow, SendWindow


@dataclass(eq=False)
class Item:
    key: str | None
    size: int = 10
    number: int = field(default=0)


GRANT = Window(requests=3, bytes=100, partition_requests=2, partition_bytes=60)


def test_the_surplus_waits_and_goes_in_order() -> None:
    window = SendWindow(GRANT, waiting_max=10)
    items = [Item(None) for _ in range(6)]
    assert [window.enter(item) for item in items] == [True, True, True, False, False, False]
    assert window.leave(items[1]) == [items[3]]
    assert window.leave(items[0]) == [items[4]]


def test_bytes_count_as_well_as_requests() -> None:
    window = SendWindow(GRANT, waiting_max=10)
    large, small = Item(None, 95), Item(None, 10)
    assert window.enter(large)
    assert not window.enter(small)
    assert window.leave(large) == [small]


def test_one_request_always_fits_where_nothing_is_under_way() -> None:
    window = SendWindow(GRANT, waiting_max=10)
    huge = Item("p", 10_000)
    assert window.enter(huge)
    assert ReceiveWindow(GRANT).take("p", 10_000)


def test_a_full_partition_holds_up_nobody_else() -> None:
    window = SendWindow(GRANT, waiting_max=10)
    slow = [Item("slow") for _ in range(4)]
    assert [window.enter(item) for item in slow] == [True, True, False, False]
    other = Item("other")
    assert window.enter(other)
    assert window.leave(other) == []
    assert window.leave(slow[0]) == [slow[2]]


def test_requests_of_one_partition_stay_in_order_even_if_a_smaller_one_would_fit() -> None:
    window = SendWindow(GRANT, waiting_max=10)
    first, large, small = Item("p", 40), Item("p", 50), Item("p", 5)
    assert [window.enter(item) for item in (first, large, small)] == [True, False, False]
    assert window.leave(first) == [large, small]


def test_too_many_that_wait_are_refused() -> None:
    window = SendWindow(GRANT, waiting_max=2)
    for _ in range(5):
        window.enter(Item(None))
    with pytest.raises(Overloaded, match="2 requests wait"):
        window.enter(Item(None))
    with pytest.raises(Overloaded):
        window.enter(Item("p"))


def test_a_request_that_no_longer_waits_makes_room() -> None:
    window = SendWindow(GRANT, waiting_max=2)
    items = [Item("p") for _ in range(4)]
    for item in items:
        window.enter(item)
    with pytest.raises(Overloaded):
        window.enter(Item("p"))
    assert window.forget(items[2]) == []
    assert not window.enter(Item("p"))
    assert window.leave(items[0]) == [items[3]]


def test_the_answering_side_refuses_the_surplus_and_takes_more_later() -> None:
    window = ReceiveWindow(GRANT)
    assert [window.take("p", 10) for _ in range(3)] == [True, True, False]
    assert window.take("q", 10)
    assert not window.take("r", 10)
    window.give_back("p", 10)
    assert window.take("p", 10)


ACTIONS = st.lists(
    st.tuples(st.sampled_from(["ask", "answer", "cancel"]), st.sampled_from([None, "p", "q"]), st.integers(1, 120)),
    max_size=80,
)


@given(ACTIONS)
def test_who_keeps_to_the_window_is_never_refused_and_nobody_is_forgotten(
    actions: list[tuple[str, str | None, int]],
) -> None:
    asking, answering = SendWindow(GRANT, waiting_max=1000), ReceiveWindow(GRANT)
    sent: list[Item] = []
    waiting: list[Item] = []
    ended: list[Item] = []

    def send(items: list[Item]) -> None:
        for item in items:
            waiting.remove(item)
            assert answering.take(item.key, item.size)
            sent.append(item)

    for number, (action, key, size) in enumerate(actions):
        if action == "ask":
            item = Item(key, size, number)
            waiting.append(item)
            if asking.enter(item):
                send([item])
        elif action == "answer" and sent:
            item = sent.pop(size % len(sent))
            answering.give_back(item.key, item.size)
            ended.append(item)
            send(asking.leave(item))
        elif action == "cancel" and waiting:
            item = waiting.pop(size % len(waiting))
            ended.append(item)
            send(asking.forget(item))
    while sent:
        item = sent.pop(0)
        answering.give_back(item.key, item.size)
        ended.append(item)
        send(asking.leave(item))
    assert not waiting
    assert len(ended) == sum(action == "ask" for action, _, _ in actions)
    assert max(Counter(id(item) for item in ended).values(), default=1) == 1
