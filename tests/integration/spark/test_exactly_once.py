"""Each row once in the topic, whatever fails on the way; and with at-least-once the same faults do double rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flaky import FlakySource, in_another_order
from pyspark.errors import StreamingQueryException
from spark_queue import Queue

from clymq.spark.session import start_query

MESSAGES = 4000
BATCHES = 20
STARTS_MAX = 12


@pytest.fixture(scope="module")
def flaky(spark: Any) -> None:
    spark.dataSource.register(FlakySource)


def run_until_done(start: Callable[[], Any], after_failure: Callable[[int], object] = lambda _: None) -> int:
    """Start a query again after each failure, as whoever operates it would; return how often it failed."""
    for failures in range(STARTS_MAX):
        query = start()
        try:
            query.awaitTermination(180)
        except StreamingQueryException as error:
            if "Struck" not in str(error):
                raise
            after_failure(failures)
            continue
        assert not query.isActive
        return failures
    raise AssertionError(f"it failed {STARTS_MAX} times")


def copy(
    stream: Callable[..., Any],
    queue: Queue,
    folder: Path,
    *,
    shuffled: bool,
    batches: int,
    target: str = "",
    after_failure: Callable[[int], object] = lambda _: None,
    **options: Any,
) -> tuple[list[bytes], Counter[bytes], int]:
    """Copy a topic through a flaky sink; return what was sent, what has come, and how often the query failed."""
    source, target = queue.topic(2), target or queue.topic(3)
    sent = [b"%d" % number for number in range(MESSAGES)]
    queue.push(source, sent, keys=[b"k%d" % (number % 50) for number in range(MESSAGES)])
    (folder / "faults").mkdir()

    def start() -> Any:
        rows = stream(subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger=-(-MESSAGES // batches)).load()
        rows = rows.select("key", "value")
        if shuffled:
            rows = rows.repartition(3, "value").mapInArrow(in_another_order, rows.schema)
        writer = (
            rows.writeStream.format("flaky")
            .option("bootstrap.servers", queue.bootstrap)
            .option("topic", target)
            .option("faults", str(folder / "faults"))
            .option("checkpointLocation", str(folder / "checkpoint"))
            .options(**options)
            .trigger(availableNow=True)
        )
        return start_query(writer)

    failures = run_until_done(start, after_failure)
    return sent, Counter(message.value for message in queue.pull(target)), failures


@pytest.mark.parametrize("shuffled", [False, True], ids=["as-they-come", "shuffled"])
def test_twenty_micro_batches_with_faults_everywhere_store_each_row_once(
    stream: Callable[..., Any], queue: Queue, flaky: None, tmp_path: Path, shuffled: bool
) -> None:
    sent, received, failures = copy(stream, queue, tmp_path, shuffled=shuffled, batches=BATCHES)
    assert sorted(received) == sorted(sent)
    assert max(received.values()) == 1
    struck = [path.name for path in (tmp_path / "faults").iterdir()]
    assert failures == 4, struck  # the driver's, of micro-batches 4, 9, 14 and 19
    assert {int(name.split("-")[0]) % 5 for name in struck} == {1, 2, 3, 4}
    assert len(list((tmp_path / "checkpoint" / "commits").glob("[0-9]*"))) >= BATCHES


def test_at_least_once_doubles_rows_under_the_same_faults(
    stream: Callable[..., Any], queue: Queue, flaky: None, tmp_path: Path
) -> None:
    sent, received, _ = copy(stream, queue, tmp_path, shuffled=False, batches=5, delivery="at-least-once")
    assert set(received) == set(sent)
    assert sum(received.values()) > len(sent)


def test_a_partition_that_is_added_before_a_micro_batch_is_repeated_doubles_nothing_and_is_used_later(
    stream: Callable[..., Any], queue: Queue, flaky: None, tmp_path: Path
) -> None:
    target = queue.topic(["0", "1"])

    def grow(failures: int) -> None:
        queue.admin(lambda admin: admin.create_partition(target, f"new{failures}"))
        queue.admin(lambda admin: admin.set_partition_state(target, f"new{failures}", ack=-1))

    sent, received, failures = copy(
        stream, queue, tmp_path, shuffled=False, batches=10, target=target, after_failure=grow
    )
    assert failures == 2  # micro-batches 4 and 9 are all written when the driver fails
    assert sorted(received) == sorted(sent)
    assert max(received.values()) == 1
    ends = queue.ends(target)
    assert ends["new0"] > 0, "from micro-batch 5 on its share of the keys goes there"
    assert ends["new1"] == 0, "there is no micro-batch after the last"
