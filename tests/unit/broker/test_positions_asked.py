"""Where a group stands is said by a leader that knows it, and by nobody else."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from clymq.broker.broker import Broker
from clymq.errors import NotLeader, NotReady
from clymq.protocol.broker import FetchOffset


@pytest.mark.parametrize("refusal", [NotReady("not begun"), NotLeader("its session is lost")])
def test_a_leader_that_may_share_no_message_names_no_position(refusal: Exception) -> None:
    """It may show what it has to readers, but a fetch leader that has not begun knows no group at all, and a former one
    only what was true in its time: a consumer would begin anew, or go back.
    """

    def check_sharing() -> None:
        raise refusal

    active: Any = SimpleNamespace(
        check_reading=lambda: None, check_sharing=check_sharing, machine=SimpleNamespace(position=lambda _: None)
    )
    broker: Any = object.__new__(Broker)
    broker.hosting = SimpleNamespace(partition=lambda *_: SimpleNamespace(active=active))
    answers: list[Any] = []
    call: Any = SimpleNamespace(request=FetchOffset("t", "p", "u", "g"), reply=answers.append)
    with pytest.raises(type(refusal)):
        broker._fetch_offset(call)
    assert answers == []
