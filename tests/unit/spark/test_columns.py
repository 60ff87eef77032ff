"""Rows made of batches: what Spark gets is what the log has, however batches lie."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa

from clymq.client.messages import Run
from clymq.record import Batch, BatchBuilder
from clymq.spark.columns import ROWS_MAX, RowMaker, table_schema

TIME_US = 1_700_000_000_000_001


def run(start: int, count: int, *, keys: bool = False, skipped: int = 0) -> Run:
    """Return a run of messages that are numbered by their offsets, the first `skipped` of the batch left out."""
    values = [b"%d" % offset for offset in range(start, start + count)]
    builder = BatchBuilder()
    builder.add_columns(value=values, key=[b"k" + value for value in values] if keys else None)
    built = bytearray(builder.build(producer="p", cmdindex=1, now=TIME_US))
    batch = Batch.parse(built)
    batch.stamp(base_offset=start, term=1, index=1, append_time=0, commit_index=0)
    return Run("t", "7", batch, start + skipped, start + count)


def table(runs: list[Run]) -> pa.Table:
    return pa.Table.from_batches(RowMaker(table_schema(headers=False), "t", "7").rows(runs))


def test_rows_are_numbered_as_the_log_is_whatever_batches_they_come_in() -> None:
    runs, start = [], 5
    for count in (1, 900, 1000, ROWS_MAX - 1, ROWS_MAX, 3 * ROWS_MAX + 17, 2):
        runs.append(run(start, count))
        start += count
    found = table(runs)
    assert found.column("offset").to_pylist() == list(range(5, start))
    assert found.column("value").to_pylist() == [b"%d" % offset for offset in range(5, start)]


def test_numbers_go_on_where_messages_are_left_out() -> None:
    found = table([run(0, 10, skipped=4), run(1000, 10), run(ROWS_MAX * 9, 10, skipped=9), run(50, 2)])
    assert found.column("offset").to_pylist() == [4, 5, 6, 7, 8, 9, *range(1000, 1010), ROWS_MAX * 9 + 9, 50, 51]


def test_keys_are_there_where_messages_have_some() -> None:
    found = table([run(0, 2), run(2, 2, keys=True)])
    assert found.column("key").to_pylist() == [None, None, b"k2", b"k3"]


def test_the_other_columns_say_where_and_when() -> None:
    (row,) = table([run(3, 1)]).to_pylist()
    time = datetime.fromtimestamp(TIME_US // 1_000_000, UTC).replace(microsecond=1)
    assert row == {
        "key": None,
        "value": b"3",
        "topic": "t",
        "partition": "7",
        "offset": 3,
        "timestamp": time,
        "timestampType": 0,
    }
