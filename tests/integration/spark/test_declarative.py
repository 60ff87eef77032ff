"""The example project for Spark's own declarative pipelines, run by `spark-pipelines` as its README says."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from spark_queue import Queue

PROJECT = Path(__file__).parents[3] / "examples/declarative"
SECONDS_MAX = 400
# What a session of tests has, for one that another process makes.
SMALL = ["--conf", "spark.ui.enabled=false", "--conf", "spark.ui.showConsoleProgress=false"]
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a copy of the project that keeps its table beside it."""
    place = tmp_path / "project"
    shutil.copytree(PROJECT, place)
    spec = place / "spark-pipeline.yml"
    kept = "/tmp/clymq-declarative-storage"
    assert kept in spec.read_text()
    spec.write_text(spec.read_text().replace(kept, str(tmp_path / "storage")))
    return place


def spark_pipelines(verb: str, project: Path, bootstrap: str) -> str:
    import pyspark  # noqa: PLC0415 without PySpark the tests are skipped

    home = Path(pyspark.__path__[0])
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "CLYMQ_BOOTSTRAP": bootstrap,
    }
    command = [str(home / "bin/spark-pipelines"), verb, "--remote", "local[2]", *SMALL]
    command += ["--conf", f"spark.driver.extraJavaOptions={QUICK}"]
    running = subprocess.Popen(
        command, cwd=project, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        output, _ = running.communicate(timeout=SECONDS_MAX)
    except subprocess.TimeoutExpired:
        os.killpg(running.pid, signal.SIGKILL)
        raise AssertionError(running.communicate()[0]) from None
    assert running.returncode == 0, output
    return output


@pytest.mark.skipif(find_spec("grpc_status") is None, reason="pip install 'pyspark[pipelines]'")
def test_the_declarative_project_moves_long_calls_from_topic_to_topic_once(
    spark: Any, queue: Queue, project: Path
) -> None:
    queue.admin(lambda admin: admin.create_topic("phone_number", partitions=2))
    queue.admin(lambda admin: admin.create_topic("long_calls", partitions=1))
    try:
        calls = [{"number": str(each), "city": "xian", "seconds": each, "at": "2024-01-01"} for each in range(100)]
        queue.push("phone_number", [json.dumps(call).encode() for call in calls])
        output = spark_pipelines("run", project, queue.bootstrap)
        assert "Run is COMPLETED" in output
        found = queue.pull("long_calls")
        assert sorted(json.loads(message.value)["seconds"] for message in found) == list(range(60, 100))
        assert {message.key for message in found} == {b"xian"}
    finally:
        for topic in ("phone_number", "long_calls"):
            queue.admin(lambda admin, topic=topic: admin.delete_topic(topic))
