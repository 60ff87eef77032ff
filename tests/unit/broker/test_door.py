"""What a push must pass before a broker stores it: `checked_batches`, for both modes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from clymq.broker.raft_block import checked_batches
from clymq.config import Config
from clymq.errors import CorruptBatch, InvalidRequest, MessageTooLarge
from clymq.protocol.broker import RUN_BATCHES_MAX, Push
from clymq.record import BatchBuilder

LIMIT = 1000
CONFIG = msgspec.structs.replace(Config(), message_bytes_max=LIMIT)
GENEROUS = Config().batch_bytes_max


@dataclass
class Arrived:
    """A call as far as the door looks at it."""

    request: Push
    payload: Any


def arrived(builder: BatchBuilder, *, producer: str = "p", cmdindex: int = 1) -> Arrived:
    data = bytearray(builder.build(producer="p" if "/" not in producer else producer, cmdindex=1, epoch=1))
    return Arrived(Push("t", "0", "u", producer, cmdindex, -1), data)


def enter(call: Arrived) -> None:
    checked_batches(call, CONFIG)  # type: ignore[arg-type]


def several(count: int, *, named: int | None = None, producers: str = "p") -> Arrived:
    """A push of so many batches of one message each, which names so many."""
    data = bytearray()
    for number, producer in zip(range(count), producers.ljust(count, producers[-1]), strict=True):
        data += builder().add(b"x").build(producer=producer, cmdindex=1 + number, epoch=1)
    return Arrived(Push("t", "0", "u", "p", 1, -1, batches=count if named is None else named), data)


def builder(codec: str = "none") -> BatchBuilder:
    return BatchBuilder(codec, message_bytes_max=GENEROUS)  # type: ignore[arg-type]


def test_many_small_messages_may_be_more_than_one_may_be() -> None:
    enter(arrived(builder().add_values([b"x" * LIMIT] * 50)))


@pytest.mark.parametrize(
    "message",
    [
        {"value": b"x" * (LIMIT + 1)},
        {"value": b"x" * (LIMIT - 9), "key": b"k" * 10},
        {"value": b"x" * (LIMIT - 9), "headers": [("name", b"123456")]},
        {"value": b"", "headers": [("a", b"x" * 500), ("b", None), ("c", b"x" * 498)]},
    ],
)
def test_one_message_above_the_topic_s_limit_is_refused_with_its_size(message: dict[str, Any]) -> None:
    with pytest.raises(MessageTooLarge) as refused:
        enter(arrived(builder().add(b"small").add(**message).add(b"small", key=b"k")))
    assert (refused.value.size_bytes, refused.value.limit_bytes) == (LIMIT + 1, LIMIT)
    assert not refused.value.retriable


def test_a_message_of_exactly_the_limit_is_taken() -> None:
    enter(arrived(builder().add(b"x" * (LIMIT - 20), key=b"k" * 10, headers=[("name", b"123456")])))


def test_what_is_packed_is_not_opened_at_the_door() -> None:
    enter(arrived(builder("zstd").add(b"x" * (LIMIT + 1))))


def test_a_broker_s_own_dead_letter_may_carry_more_than_a_producer_might() -> None:
    enter(arrived(builder().add(b"x" * LIMIT, headers=[("reason", b"it failed")]), producer="uid/group"))


@pytest.mark.parametrize("wrong", [{"producer": "q"}, {"cmdindex": 2}])
def test_a_request_that_says_something_else_than_its_batch_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        enter(arrived(builder().add(b"x"), **wrong))


def test_a_flipped_bit_and_bytes_behind_the_batch_are_refused() -> None:
    call = arrived(builder().add(b"x"))
    call.payload[-9] ^= 1
    with pytest.raises(CorruptBatch):
        enter(call)
    call = arrived(builder().add(b"x"))
    call.payload += b"12345678"
    with pytest.raises(InvalidRequest):
        enter(call)


def test_several_batches_of_one_producer_may_come_together() -> None:
    batches = checked_batches(several(3), CONFIG)  # type: ignore[arg-type]
    assert [batch.cmdindex for batch in batches] == [1, 2, 3]


@pytest.mark.parametrize("named", [-1, 0, 2])
def test_a_push_of_another_number_of_batches_than_it_names_is_refused(named: int) -> None:
    with pytest.raises(InvalidRequest):
        enter(several(3, named=named))


def test_a_push_that_names_more_batches_than_it_has_is_refused() -> None:
    with pytest.raises(CorruptBatch):
        enter(several(3, named=4))
    with pytest.raises(InvalidRequest):
        enter(Arrived(Push("t", "0", "u", "p", 1, -1, batches=0), b""))


def test_a_push_of_more_batches_than_a_turn_of_the_broker_has_time_for_is_refused_before_they_are_looked_at() -> None:
    enter(several(RUN_BATCHES_MAX))
    for named in (RUN_BATCHES_MAX + 1, 2**62):
        with pytest.raises(InvalidRequest, match="64 are allowed"):
            enter(Arrived(Push("t", "0", "u", "p", 1, -1, batches=named), b"garbage"))


def test_batches_of_two_producers_do_not_come_in_one_push() -> None:
    with pytest.raises(InvalidRequest):
        enter(several(3, producers="ppq"))


def test_a_flipped_bit_in_any_of_several_batches_refuses_all_of_them() -> None:
    call = several(3)
    call.payload[-9] ^= 1
    with pytest.raises(CorruptBatch):
        enter(call)
