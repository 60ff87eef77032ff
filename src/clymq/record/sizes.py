"""How large the messages of some columns are, in C: no loop over messages anywhere.

What counts is what a user gave: key, value and headers. What a batch needs to hold them together does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


def largest_message(columns: Mapping[str, Any]) -> int:
    """Return the bytes of key, value and headers of the largest message; there is at least one."""
    sizes = pc.binary_length(columns["value"])
    if "key" in columns:
        sizes = pc.add(sizes, pc.fill_null(pc.binary_length(columns["key"]), 0))
    if "headers" in columns:
        sizes = pc.add(sizes, _header_sizes(columns["headers"]))
    largest: int = pc.max(sizes).as_py()
    return largest


def _header_sizes(headers: pa.ListArray) -> pa.Array:
    """Return the bytes of all headers of each message: running sums, and their differences at the list's offsets."""
    pairs = headers.values
    each = pc.add(pc.binary_length(pairs.field(0)), pc.fill_null(pc.binary_length(pairs.field(1)), 0))
    sums = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(pc.fill_null(each, 0))])
    at = sums.take(headers.offsets)
    return pc.subtract(at[1:], at[:-1])
