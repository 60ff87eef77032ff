"""Pipelines from files: the two examples as they are, and the command."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from examples.call_records import generate as call_records
from examples.click_stream import generate as click_stream
from spark_queue import Queue

from clymq import AsyncAdmin
from clymq.client.cluster import Cluster
from clymq.client.surroundings import Surroundings
from clymq.errors import ConfigError, PipelineFailed
from clymq.pipeline.checkpoints import QueryStatus, pipeline_status
from clymq.pipeline.definition import Definition
from clymq.pipeline.files import load_definition
from clymq.pipeline.running import Running

ROOT = Path(__file__).parents[3]


def run(spark: Any, definition: Definition, queue: Queue) -> None:
    running = Running(spark, definition, queue.bootstrap)
    running.start()
    try:
        running.wait(lambda: False, lambda _queries: None)
    finally:
        running.stop()


def status(definition: Definition, queue: Queue) -> dict[str, QueryStatus]:
    async def ask() -> list[QueryStatus]:
        cluster = Cluster(queue.bootstrap, name="status", role="admin", surroundings=Surroundings())
        try:
            return await pipeline_status(definition, cluster, 30)
        finally:
            await cluster.close()

    return {each.query: each for each in asyncio.run(ask())}


def example(name: str, folder: Path) -> Definition:
    (folder / "pipeline.yaml").write_text((ROOT / "examples" / name / "pipeline.yaml").read_text())
    return load_definition(folder / "pipeline.yaml")


@pytest.fixture
def topics(queue: Queue) -> Iterator[Any]:
    """Make topics by their names, which the examples have, and delete them again."""
    made: list[str] = []

    def make(**partitions: Any) -> None:
        for name, each in partitions.items():
            topic = name.replace("__", ".")
            queue.admin(lambda admin, topic=topic, each=each: admin.create_topic(topic, partitions=each))
            made.append(topic)

    yield make

    async def delete(admin: AsyncAdmin) -> None:
        for name in made:
            await admin.delete_topic(name)

    queue.admin(delete)


def test_call_records_become_counts_per_city_with_late_ones_and_without_those_that_are_too_late(
    spark: Any, queue: Queue, topics: Any, tmp_path: Path
) -> None:
    topics(phone_number=["xian", "beijing", "shanghai"], calls_per_city=1, phone_number__bad=1)
    definition = example("call_records", tmp_path)
    records = list(call_records.calls(3000))
    asyncio.run(call_records.push(queue.bootstrap, iter(records)))
    queue.push("phone_number", [b"no JSON"], partition="xian")
    run(spark, definition, queue)
    # A call of the first window, a day after it was closed: it is not counted.
    late = json.dumps({"number": "1", "city": "xian", "seconds": 5, "at": "2024-01-01T00:01:00+00:00"}).encode()
    queue.push("phone_number", [late], partition="xian")
    run(spark, definition, queue)
    counts = [json.loads(message.value) for message in queue.pull("calls_per_city")]
    assert sum(each["calls"] for each in counts) == 3000
    seconds = sum(json.loads(record)["seconds"] for _, record in records)
    assert sum(each["seconds"] for each in counts) == seconds
    assert len({(each["start"], each["city"]) for each in counts}) == len(counts)
    lake = spark.read.parquet(str(tmp_path / "calls_per_city"))
    assert lake.selectExpr("sum(calls)").first()[0] == 3000
    (bad,) = queue.pull("phone_number.bad")
    assert bad.value == b"no JSON"
    assert dict(bad.headers)["topic"] == b"phone_number"
    assert b"does not fit the schema" in dict(bad.headers)["reason"]
    found = status(definition, queue)
    assert set(found) == {"to_topic", "to_parquet", "calls-dead-letters"}
    assert all(each.lag == 0 and each.batch >= 1 for each in found.values())
    queue.push("phone_number", [late], partition="xian")
    assert status(definition, queue)["to_topic"].lag == 1


def test_clicks_become_sessions_and_bad_lines_dead_letters(
    spark: Any, queue: Queue, topics: Any, tmp_path: Path
) -> None:
    topics(clicks=2, clicks__bad=1, sessions=1)
    lines = list(click_stream.clicks(users=40, bad=12))
    queue.push("clicks", [line.encode() for line in lines])
    run(spark, example("click_stream", tmp_path), queue)
    sessions = [json.loads(message.value) for message in queue.pull("sessions")]
    assert len(sessions) == 80
    assert {each["user"] for each in sessions} == {f"u{user}" for user in range(40)}
    good = len(lines) - 12 - 1
    assert sum(each["clicks"] for each in sessions) == good
    dead = [message.value.decode() for message in queue.pull("clicks.bad")]
    assert sorted(dead) == sorted(click_stream.BAD * 3)


def write(folder: Path, **changes: Any) -> Path:
    document: dict[str, Any] = {"name": "p", "checkpoint": "c", **changes}
    place = folder / "p.yaml"
    place.write_text(json.dumps(document))  # JSON is YAML
    return place


def test_json_without_a_schema_is_looked_at_and_stays_as_it_was(spark: Any, queue: Queue, tmp_path: Path) -> None:
    source, out = queue.topic(1), queue.topic(1)
    queue.push(source, [b'{"city": "xian", "n": %d}' % number for number in range(5)])
    sources = {"s": {"topic": source, "decode": "json"}}
    sinks = [{"from": "t", "kind": "topic", "topic": out, "value": "concat(city, total)"}]
    steps = [{"name": "t", "sql": "SELECT city, n + 1 AS total FROM s"}]
    definition = load_definition(write(tmp_path, sources=sources, steps=steps, sinks=sinks))
    run(spark, definition, queue)
    assert sorted(message.value for message in queue.pull(out)) == [b"xian%d" % number for number in range(1, 6)]
    queue.push(source, [b'{"city": "beijing", "n": 7, "more": true}'])
    run(spark, definition, queue)
    assert queue.pull(out)[-1].value == b"beijing8"


def test_csv_and_text_are_decoded(spark: Any, queue: Queue, tmp_path: Path) -> None:
    csv, text, bad, out = queue.topic(1), queue.topic(1), queue.topic(1), queue.topic(1)
    queue.push(csv, [b"xian,3", b"beijing,many"])
    queue.push(text, ["你好".encode(), b"\xff\xfe"])
    sources = {
        "a": {"topic": csv, "decode": "csv", "schema": "city string, n int", "dead_letter": bad},
        "b": {"topic": text, "decode": "text", "dead_letter": bad},
    }
    sinks = [
        {"from": "a", "kind": "topic", "topic": out, "value": "concat(city, n)"},
        {"from": "b", "kind": "topic", "topic": out, "value": "value"},
    ]
    run(spark, load_definition(write(tmp_path, sources=sources, sinks=sinks)), queue)
    assert sorted(message.value for message in queue.pull(out)) == [b"xian3", "你好".encode()]
    assert sorted(message.value for message in queue.pull(bad)) == [b"beijing,many", b"\xff\xfe"]


def test_mistakes_in_sql_are_named_and_a_query_that_fails_fails_the_pipeline(
    spark: Any, queue: Queue, tmp_path: Path
) -> None:
    topic = queue.topic(1)
    queue.push(topic, [b"x"])
    sources = {"s": {"topic": topic}}
    sinks = [{"from": "t", "kind": "topic", "topic": "no_such_topic", "value": "value"}]
    wrong = write(tmp_path, sources=sources, steps=[{"name": "t", "sql": "SELECT nothing FROM s"}], sinks=sinks)
    with pytest.raises(ConfigError) as caught:
        Running(spark, load_definition(wrong), queue.bootstrap).writers()
    assert caught.value.setting == "steps[0].sql"
    counts = [{"name": "t", "sql": "SELECT topic AS value, count(*) AS n FROM s GROUP BY topic"}]
    with pytest.raises(ConfigError, match="watermark") as caught:
        Running(
            spark, load_definition(write(tmp_path, sources=sources, steps=counts, sinks=sinks)), queue.bootstrap
        ).writers()
    assert caught.value.setting == "sinks[0].mode"
    right = write(tmp_path, sources=sources, steps=[{"name": "t", "sql": "SELECT value FROM s"}], sinks=sinks)
    with pytest.raises(PipelineFailed, match="no_such_topic"):
        run(spark, load_definition(right), queue)


def test_rows_that_change_go_to_the_console_and_a_topic_refuses_them(spark: Any, queue: Queue, tmp_path: Path) -> None:
    source, out = queue.topic(1), queue.topic(1)
    steps = [{"name": "t", "sql": "SELECT string(value) AS city, count(*) AS n FROM s GROUP BY value"}]
    sinks = [{"from": "t", "kind": "topic", "topic": out, "mode": "update"}]
    with pytest.raises(ConfigError, match=r"sinks\[0\]\.mode.*append"):
        load_definition(write(tmp_path, sources={"s": {"topic": source}}, steps=steps, sinks=sinks))
    sinks = [{"from": "t", "kind": "console", "mode": "update"}]
    definition = load_definition(write(tmp_path, sources={"s": {"topic": source}}, steps=steps, sinks=sinks))
    queue.push(source, [b"xian", b"xian", b"beijing"])
    run(spark, definition, queue)  # raises if the query fails


COMMAND = [sys.executable, "-c", "from clymq.cli.main import main; main()", "pipeline"]


def test_the_command_runs_until_it_is_told_to_stop_and_stops_cleanly(spark: Any, queue: Queue, tmp_path: Path) -> None:
    source, out = queue.topic(1), queue.topic(1)
    queue.push(source, [b"one", b"two"])
    sinks = [{"from": "s", "kind": "topic", "topic": out, "value": "value", "name": "copy"}]
    file = write(tmp_path, sources={"s": {"topic": source}}, sinks=sinks, trigger="1 second", bootstrap=queue.bootstrap)
    command = [*COMMAND, "run", str(file), "--master", "local[1]"]
    running = subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert running.stderr is not None
        for line in running.stderr:
            if line.startswith("copy: batch 0, 2 rows"):
                break
        running.send_signal(signal.SIGTERM)
        output, errors = running.communicate(timeout=120)
    finally:
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)
            running.communicate()
    assert running.returncode == 0, errors
    assert output.strip() == "stopped"
    assert len(queue.pull(out)) == 2
    shown = subprocess.run([*COMMAND, "status", str(file), "--json"], capture_output=True, text=True, timeout=120)
    assert shown.returncode == 0, shown.stderr
    (query,) = json.loads(shown.stdout)["queries"]
    assert (query["query"], query["batch"], query["lag"]) == ("copy", 0, 0)
    checked = subprocess.run(
        [*COMMAND, "validate", str(file), "--no-spark"], capture_output=True, text=True, timeout=120
    )
    assert checked.stdout.strip() == "pipeline p is valid"
    file.write_text("{}")
    refused = subprocess.run(
        [*COMMAND, "validate", str(file), "--no-spark"], capture_output=True, text=True, timeout=120
    )
    assert refused.returncode == 2
    assert "sources" in refused.stderr
