"""Sizes and defaults of the whole suite: `--size quick` leaves out, `--size long` adds."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

SIZES = ("quick", "normal", "long")
TEST_SECONDS_MAX = 600
PARTS = ("clusters", "spark", "computing")
# Of what starts clusters, this goes with Spark, so that both take about as long.
WITH_SPARK = ("/spark/", "/test_raft_", "/test_sigkill", "/test_storage_rows", "/test_process_", "/test_servers")

settings.register_profile("quick", max_examples=20, deadline=None, derandomize=True)
settings.register_profile("normal", max_examples=100, deadline=None, derandomize=True)
settings.register_profile("long", max_examples=2000, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--size", choices=SIZES, default="normal", help="how much of the suite to run")
    parser.addoption("--part", choices=PARTS, help="what runs beside the other parts; not given: all")


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile(config.getoption("--size"))
    # A shell lets what it starts in the background ignore Ctrl-C, and so would every process that the tests interrupt.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    size = config.getoption("--size")
    unwanted = {"quick": ("long", "quick_skip"), "normal": ("long",), "long": ()}[size]
    part = config.getoption("--part")
    chosen = [
        item
        for item in items
        if not any(item.get_closest_marker(name) for name in unwanted) and part in {None, part_of(item)}
    ]
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = chosen


def part_of(item: pytest.Item) -> str:
    """Return with which part a test runs: what starts clusters waits for them, which leaves room for what computes."""
    path = item.nodeid
    if not path.startswith(("tests/conformance/", "tests/integration/", "tests/property/test_fuzz.py")):
        return "computing"
    return "spark" if any(name in path for name in WITH_SPARK) else "clusters"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Let no test hang: one that takes this long has lost its way, and the others should have their turn."""

    def give_up(*_: object) -> None:
        raise TimeoutError(f"{item.nodeid} takes longer than {TEST_SECONDS_MAX} s")

    if item.config.getoption("--size") != "long":
        signal.signal(signal.SIGALRM, give_up)
        signal.alarm(TEST_SECONDS_MAX)
    try:
        return (yield)
    finally:
        signal.alarm(0)


@pytest.fixture(scope="session")
def size(pytestconfig: pytest.Config) -> str:
    return pytestconfig.getoption("--size")


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("CLYMQ_") or name == "VERBOSE"]:
        monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """A command that runs in this process logs to what is its stderr then; nobody after it should, it is closed."""
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    yield
    for handler in [each for each in root.handlers if each not in before]:
        root.removeHandler(handler)
    root.setLevel(level)
