"""What a producer calls lost: by the ack that was given, not by the mode that the partition is in by now."""

from __future__ import annotations

from clymq.client.numbering import Numbering
from clymq.errors import DataLost
from clymq.protocol.broker import ProducerReady
from clymq.types import Ack


class Stored:
    """A batch as far as `stored` looks at it."""

    def __init__(self, last: int) -> None:
        self.last = last


def numbering(*, majority: int, leader: int) -> Numbering:
    """Return a producer with so many messages acknowledged by a majority, and then so many by a leader alone."""
    found = Numbering("p", "t/0", "none")
    found.begin_partition("u")
    found.ask_epoch()
    assert found.begin_epoch(ProducerReady(1, 1, ()), Ack.QUORUM) is None
    found.stored(Stored(majority), -1, Ack.QUORUM)  # type: ignore[arg-type]
    found.stored(Stored(majority + leader), -1, Ack.LEADER)  # type: ignore[arg-type]
    found.ask_epoch()
    return found


def test_what_a_leader_had_acknowledged_alone_is_counted_also_when_the_next_block_has_a_majority() -> None:
    found = numbering(majority=10, leader=5)
    assert found.begin_epoch(ProducerReady(2, 13, ()), Ack.QUORUM) is None
    assert found.lost_messages == 3


def test_what_a_majority_had_acknowledged_is_an_error_whatever_the_next_block_is() -> None:
    for ack in (Ack.QUORUM, Ack.LEADER):
        found = numbering(majority=10, leader=5)
        error = found.begin_epoch(ProducerReady(2, 9, ()), ack)
        assert isinstance(error, DataLost)
        assert "2 messages" in str(error)
        assert found.lost_messages == 7
