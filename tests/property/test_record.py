"""Whatever goes into a batch comes out of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clymq.record import Batch, BatchBuilder

TIMES = st.integers(-(2**63), 2**63 - 1)
HEADERS = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=9)), max_size=3)
MESSAGES = st.lists(
    st.tuples(st.binary(max_size=40), st.none() | st.binary(max_size=9), HEADERS, TIMES), min_size=1, max_size=30
)


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
@given(messages=MESSAGES, offset=st.integers(0, 2**60), data=st.data())
def test_any_messages_make_a_round_trip(codec: str, messages, offset: int, data) -> None:
    builder = BatchBuilder(codec)
    for value, key, headers, timestamp in messages:
        builder.add(value, key=key, headers=headers, timestamp=timestamp)
    built = bytearray(builder.build(producer="p", cmdindex=1))
    Batch.parse(built).stamp(base_offset=offset, term=1, index=1, append_time=0, commit_index=0)
    # A batch is found where it lies, whatever is around it.
    before, behind = data.draw(st.binary(max_size=16)), data.draw(st.binary(max_size=16))
    batch = Batch.parse(before + bytes(built) + behind, len(before))
    batch.check()
    expected = [
        (offset + n, timestamp, key, value, tuple(headers))
        for n, (value, key, headers, timestamp) in enumerate(messages)
    ]
    assert [tuple(record) for record in batch] == expected
    assert batch.length == len(built)
    assert (batch.first_timestamp, batch.last_timestamp) == (min(m[3] for m in messages), max(m[3] for m in messages))
