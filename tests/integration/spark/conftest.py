"""One Spark session and one cluster for all tests here; topics keep them apart. Left out by `--quick`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from spark_queue import SLOW_ELECTIONS, Queue

from clymq.testing import LocalCluster

HERE = Path(__file__).parent
collect_ignore_glob = [] if find_spec("pyspark") else ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.quick_skip)


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    if shutil.which("java") is None:
        pytest.skip("no Java")
    from clymq.spark.session import spark_session  # noqa: PLC0415 without PySpark the tests are skipped

    # Workers import what is defined beside the tests.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))
    settings = {
        "spark.sql.shuffle.partitions": "3",
        "spark.default.parallelism": "2",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.driver.memory": "1g",
        "spark.ui.showConsoleProgress": "false",
    }
    # Three tries for each task, as on a cluster.
    session = spark_session("clymq-tests", master="local[2,3]", settings=settings)
    # What tests provoke is not to be read in every run.
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=1, config=SLOW_ELECTIONS) as running:
        yield running


@pytest.fixture(scope="session")
def queue(cluster: LocalCluster) -> Queue:
    return Queue(cluster.bootstrap)


@pytest.fixture
def source(spark: Any, queue: Queue) -> Callable[..., Any]:
    """Return a reader with the cluster's address."""

    def make(**options: Any) -> Any:
        return spark.read.format("clymq").option("bootstrap.servers", queue.bootstrap).options(**options)

    return make


@pytest.fixture
def stream(spark: Any, queue: Queue) -> Callable[..., Any]:
    def make(**options: Any) -> Any:
        return spark.readStream.format("clymq").option("bootstrap.servers", queue.bootstrap).options(**options)

    return make
