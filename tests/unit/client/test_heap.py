"""Memory that a consumer's user has let go is used again: no page of it is asked of the kernel anew."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

ROUNDS = 20
PAGES_OF_A_ROUND = 10_000 * 1_000 // 4096

# As `[message.value for message in await consumer.pull(10_000)]` in a loop: made from one column, let go together.
PROGRAM = f"""
import resource, sys
import pyarrow as pa
from clymq.client.consumer import AsyncConsumer

if sys.argv[1] == "consumer":
    AsyncConsumer("127.0.0.1:1")
column = pa.array([bytes(1000)] * 10_000)
values = column.to_pylist()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range({ROUNDS}):
    values = None
    values = column.to_pylist()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults_per_round(who: str) -> float:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, who], env=environment, check=True, capture_output=True, text=True, timeout=60
    )
    return int(run.stdout) / ROUNDS


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries do not learn")
def test_messages_that_are_let_go_cost_no_page_faults_in_a_process_with_a_consumer() -> None:
    assert faults_per_round("nobody") > PAGES_OF_A_ROUND / 2, "nothing to show: this heap is not given back"
    assert faults_per_round("consumer") < PAGES_OF_A_ROUND / 50
