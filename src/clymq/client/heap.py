"""What the C library does with memory that Python has let go.

glibc gives the top of its heap back to the kernel as soon as a little is free there, and every page that is needed
again is a fault: a consumer that lets some megabytes of messages go at a time spends a third of its time on those. How
much is a little it learns from the largest block that was mapped by itself and freed: twice that. So one such block is
made and freed, untouched, once in a process; it costs microseconds and no memory. Whoever sets glibc's own variables
(`MALLOC_TRIM_THRESHOLD_` and its like) has decided otherwise, and nothing changes; nor does it with other C libraries.
"""

from __future__ import annotations

from functools import cache
from typing import Final

# As much as a consumer reads ahead; glibc learns from nothing above 32 MiB. Twice that may stay free in the heap.
_BLOCK_BYTES: Final = 16 * 1024 * 1024


@cache
def keep_what_is_freed() -> None:
    """Have up to twice a block of freed memory used again instead of given back."""
    bytes(_BLOCK_BYTES)  # of zeros, which the kernel promises and nobody writes
