"""What a task stores when attempts before it were cut off, without Spark around it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pyarrow as pa
import pytest
from spark_queue import Queue

from clymq.client.exactly_once import SparseWriter, Standing
from clymq.errors import DataLost, InvalidRequest, MessageTooLarge, ProducerFenced
from clymq.spark import storing
from clymq.spark.link import link_to
from clymq.spark.options import sink_options
from clymq.spark.repeats import read_back
from clymq.spark.storing import TaskRows

FIRST, LAST = 1 << 20, (2 << 20) - 1
VALUES = [b"value %d" % (number // 2) for number in range(2000)]  # each twice
STEP = 100


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storing, "BATCH_BYTES", 4000)
    monkeypatch.setattr(storing, "CUT_BYTES", 2000)


def attempt(queue: Queue, topic: str, **options: str) -> TaskRows:
    given = {"bootstrap.servers": queue.bootstrap, "topic": topic, **options}
    return TaskRows(link_to(queue.bootstrap), f"{topic}-task", FIRST, LAST, sink_options(given))


def add(rows: TaskRows, topic: str, values: Sequence[bytes]) -> None:
    for at in range(0, len(values), STEP):
        rows.add((topic, "0"), pa.table({"value": pa.array(values[at : at + STEP], pa.binary())}))


def cut_off(queue: Queue, topic: str, values: Sequence[bytes]) -> TaskRows:
    """Store some of the rows and go no further."""
    rows = attempt(queue, topic)
    add(rows, topic, values)
    for each in rows._places.values():
        each.settle()
    return rows


def in_another_order(values: Sequence[bytes]) -> list[bytes]:
    return random.Random(3).sample(values, len(values))


def received(queue: Queue, topic: str) -> Counter[bytes]:
    return Counter(message.value for message in queue.pull(topic))


def test_rows_are_stored_in_their_order_while_they_come(queue: Queue) -> None:
    topic = queue.topic(1)
    rows = attempt(queue, topic)
    add(rows, topic, VALUES)
    for each in rows._places.values():
        each.settle()
    assert 0 < queue.ends(topic)["0"] < len(VALUES)
    written, skipped = rows.finish()
    assert written > 3
    assert skipped == 0
    assert [message.value for message in queue.pull(topic)] == VALUES


def test_what_is_missing_after_an_attempt_that_was_cut_off_is_stored_in_whatever_order_it_comes(queue: Queue) -> None:
    topic = queue.topic(1)
    cut_off(queue, topic, VALUES[:900])
    before = queue.ends(topic)["0"]
    assert 0 < before < 900
    again = attempt(queue, topic)
    add(again, topic, in_another_order(VALUES))
    assert again.finish()[1] == before
    assert received(queue, topic) == Counter(VALUES)


def test_all_attempts_before_count_and_what_others_wrote_in_between_does_not(queue: Queue) -> None:
    topic = queue.topic(1)
    others = [b"other %d" % number for number in range(30_000)]
    cut_off(queue, topic, VALUES[:900])
    queue.push(topic, others)
    # It knows what is stored, stores some of the rest, and is cut off as well.
    second = attempt(queue, topic)
    add(second, topic, in_another_order(VALUES))
    interrupt_after_one_batch(second)
    with pytest.raises(InterruptedError):
        second.finish()
    queue.push(topic, others)
    third = attempt(queue, topic)
    add(third, topic, VALUES)
    third.finish()
    assert received(queue, topic) == Counter(VALUES) + Counter(others * 2)


def interrupt_after_one_batch(rows: TaskRows) -> None:
    (place,) = rows._places.values()
    push = place._writer.push

    async def push_one(epoch: int, batches: Sequence[object]) -> None:
        await push(epoch, batches[:1])  # type: ignore[arg-type]
        raise InterruptedError

    place._writer.push = push_one  # type: ignore[method-assign]


def test_what_was_stored_to_the_end_is_left_out_without_being_read(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = queue.topic(1)
    first = attempt(queue, topic)
    add(first, topic, VALUES)
    first.finish()
    monkeypatch.delattr(storing, "read_back")
    for values in (in_another_order(VALUES), VALUES[:10]):
        again = attempt(queue, topic)
        add(again, topic, values)
        assert again.finish() == (0, len(values))
    assert received(queue, topic) == Counter(VALUES)


def test_a_task_that_makes_more_batches_than_it_has_numbers_is_refused(queue: Queue) -> None:
    topic = queue.topic(1)
    options = sink_options({"bootstrap.servers": queue.bootstrap, "topic": topic})
    rows = TaskRows(link_to(queue.bootstrap), f"{topic}-task", FIRST, FIRST + 2, options)
    with pytest.raises(InvalidRequest, match="more than 2 batches"):
        add(rows, topic, VALUES)
        rows.finish()


def test_an_attempt_that_is_still_running_stores_nothing_once_another_has_asked(queue: Queue) -> None:
    topic = queue.topic(1)
    slow = cut_off(queue, topic, VALUES[:900])
    again = attempt(queue, topic)
    add(again, topic, in_another_order(VALUES))
    again.finish()
    with pytest.raises(ProducerFenced):
        add(slow, topic, VALUES[900:])
        slow.finish()
    assert received(queue, topic) == Counter(VALUES)


def test_the_attempt_that_asked_last_goes_on_also_if_it_began_first(queue: Queue) -> None:
    topic = queue.topic(1)
    slow = attempt(queue, topic)
    add(slow, topic, VALUES[:100])  # too little to ask
    fast = cut_off(queue, topic, in_another_order(VALUES)[:1500])
    add(slow, topic, VALUES[100:])
    slow.finish()
    with pytest.raises(ProducerFenced):
        fast.finish()
    assert received(queue, topic) == Counter(VALUES)


def test_an_attempt_with_other_rows_is_refused(queue: Queue) -> None:
    topic = queue.topic(1)
    cut_off(queue, topic, VALUES)
    again = attempt(queue, topic)
    add(again, topic, [b"other"] * len(VALUES))
    with pytest.raises(InvalidRequest, match="exactly-once cannot hold"):
        again.finish()


def test_stored_batches_that_cannot_be_found_are_an_error_and_nothing_is_written(queue: Queue) -> None:
    topic = queue.topic(1)
    cut_off(queue, topic, VALUES[:900])
    link = link_to(queue.bootstrap)
    producer = f"{topic}-task"

    async def look() -> None:
        standing = await SparseWriter(link.cluster, topic, "0", producer).begin(LAST)
        more = Standing(standing.epoch, standing.next + 1, standing.kept)
        await read_back(link.cluster, topic, "0", producer, FIRST, more, timeout=30)

    with pytest.raises(DataLost, match="not all there"):
        link.begin(look()).result(60)


def test_what_a_task_holds_is_bounded(queue: Queue) -> None:
    topic = queue.topic(1)
    cut_off(queue, topic, VALUES[:900])
    again = attempt(queue, topic, bufferBytesMax="10000")
    with pytest.raises(MessageTooLarge, match="bufferBytesMax"):
        add(again, topic, VALUES)
