"""Spark's own Kafka connector and a Kafka broker, to do the same work: got from Maven Central, once, and kept.

There is no connector for PySpark 4.3 in the registries (November 2026). The one for 4.2 runs in it, with the token
provider of 4.0, the last that is there: `spark-sql-kafka-0-10` needs it to be loaded, and nothing here uses tokens.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks import maven
from benchmarks.peers import kafka
from benchmarks.peers.system import Promise

# What it is, and its SHA-256.
JARS = {
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0": (
        "64539c45e5d39f7ddb747312c239f38f5208d08c1a0ddf7d70beb2fbd9373705"
    ),
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0": (
        "f2be3b76f9e6cbe63379d4e4e0dc14f59dbf056ae2ad16ff15ac108004c86767"
    ),
    "org.apache.kafka:kafka-clients:3.9.2": "014b4ef36884478a932641818b080c36a8f8e2e92dc771e800c9d2694f4f83d8",
    "org.apache.commons:commons-pool2:2.13.1": "f77a5060d6936a9144023584232f9de3f2248f1abfe156e9d31795f18770674f",
}
CONNECTOR = maven.KEPT / "connector-4.2.0"
# Ours is on disk when it is acknowledged; so must theirs be.
PROMISE = Promise(replicas=1, synced=True)


def connector() -> list[Path]:
    """Return the connector's jars, got if they are not here; none if they cannot be had, and then says why."""
    maven.get(JARS, CONNECTOR, with_what_they_need=False)
    if not CONNECTOR.is_dir():
        _say("the jars are not here: apt-get install maven, and Maven Central must be reachable")
        return []
    found = []
    for name, digest in JARS.items():
        _, artifact, version = name.split(":")
        place = CONNECTOR / f"{artifact}-{version}.jar"
        if hashlib.sha256(place.read_bytes()).hexdigest() != digest:
            _say(f"{place.name} is not what it was")
            return []
        found.append(place)
    return found


@contextmanager
def broker() -> Iterator[kafka.KafkaClient | None]:
    """Run a Kafka broker; None if there is none, and then says why."""
    kafka.get()
    missing = kafka.Kafka.missing()
    if missing is not None:
        _say(missing)
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="clymq-bench-") as folder:
        server = kafka.Kafka(PROMISE, Path(folder) / "kafka")
        try:
            server.prepare()
            server.start()
            yield kafka.KafkaClient(server.address, PROMISE)
        finally:
            server.close()


def _say(why: str) -> None:
    print(f"bench: nothing is compared with Spark's Kafka connector: {why}", file=sys.stderr)
