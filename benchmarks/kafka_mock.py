"""The broker that librdkafka brings along to be tested with, in a process of its own: in memory, written in C.

It keeps the last 5 MB of each partition and makes topics of four partitions when they are first named.

    python -m benchmarks.kafka_mock
"""

from __future__ import annotations

import importlib
import signal
import sys
from typing import Any

START_SECONDS_MAX = 30.0


def main() -> None:
    """Serve until the process is ended."""
    library: Any = importlib.import_module("confluent_kafka")
    # Whoever has the mock brokers replaces the address by theirs.
    holder = library.Producer({"bootstrap.servers": "127.0.0.1:1", "test.mock.num.brokers": 1, "log_level": 0})
    (broker,) = holder.list_topics(timeout=START_SECONDS_MAX).brokers.values()
    sys.stdout.write(f"ready kafka-mock {broker.host}:{broker.port}\n")
    sys.stdout.flush()
    signal.pause()


if __name__ == "__main__":
    main()
