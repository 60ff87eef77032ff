"""The examples in docs/spark.md run as written, one after the other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from spark_queue import Queue

PAGE = Path(__file__).parents[3] / "docs/spark.md"


def test_the_examples_of_the_page_run_as_written(spark: Any, queue: Queue, tmp_path: Path) -> None:
    for name in ("orders", "calls", "copies"):
        queue.admin(lambda admin, name=name: admin.create_topic(name, partitions=1))
    queue.push("orders", [b"one", b"two", b"three"])
    names = {"spark": spark, "bootstrap": queue.bootstrap, "checkpoint": str(tmp_path)}
    examples = re.findall(r"```py\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert len(examples) >= 7
    for code in examples:
        exec(compile(code, str(PAGE), "exec"), names)
    assert [message.value for message in queue.pull("copies")] == [b"one", b"two", b"three"]
