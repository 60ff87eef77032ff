"""The house keeps its rules, and each rule catches who breaks it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import architecture
from architecture import RULES, Tree

SOURCE = Path(__file__).parents[1] / "src"


@pytest.fixture(scope="module")
def house() -> Tree:
    return Tree.read(SOURCE)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_rule_holds(rule: Callable[[Tree], list[str]], house: Tree) -> None:
    assert rule(house) == []


def test_the_tree_is_read_whole(house: Tree) -> None:
    assert {"", "errors", "record", "record.batch", "storage.files", "cli.main"} <= set(house.modules)


def seeded(tmp_path: Path, sources: dict[str, str]) -> Tree:
    for name, text in sources.items():
        path = tmp_path / "clymq" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Tree.read(tmp_path)


VIOLATIONS = [
    ("packages_are_known", {"queue": ""}),
    ("packages_are_known", {"queue/thing": ""}),
    ("imports_point_down", {"errors": "from clymq.types import Ack", "types": ""}),
    ("imports_point_down", {"record/a": "import clymq.storage.b", "storage/b": ""}),
    ("imports_point_down", {"record/a": "from clymq.raft import b", "raft/b": ""}),
    ("imports_point_down", {"simulation/a": "import clymq.__main__", "__main__": ""}),
    ("imports_point_down", {"storage/a": "from clymq import __version__", "__init__": "__version__ = '1'"}),
    ("imports_point_down", {"config": "def f():\n    from clymq.record.a import b", "record/a": ""}),
    ("client_side_never_imports_server_side", {"client/a": "from clymq.storage import b", "storage/b": ""}),
    ("client_side_never_imports_server_side", {"spark/a": "from clymq.broker.b import c", "broker/b": ""}),
    ("client_side_never_imports_server_side", {"spark/a": "from clymq.rpc.b import c", "rpc/b": ""}),
    ("pure_packages_are_pure", {"record/a": "import time"}),
    ("pure_packages_are_pure", {"raft/a": "from random import random"}),
    ("pure_packages_are_pure", {"replication/machine": "import os.path"}),
    ("pure_packages_are_pure", {"record/a": "from clymq.clock import now", "clock": "import time"}),
    ("only_edges_touch_threads_sockets_and_time", {"storage/block": "import threading"}),
    ("only_edges_touch_threads_sockets_and_time", {"broker/a": "from concurrent.futures import Future"}),
    ("only_edges_touch_threads_sockets_and_time", {"broker/a": "import asyncio\nasyncio.sleep(1)"}),
    ("only_edges_touch_threads_sockets_and_time", {"broker/a": "from asyncio import to_thread"}),
    ("only_edges_touch_threads_sockets_and_time", {"broker/a": "loop.run_in_executor(None, f)"}),
    ("only_edges_touch_threads_sockets_and_time", {"broker/a": "import datetime\ndatetime.datetime.now()"}),
    ("pure_packages_are_pure", {"raft/a": "import uuid"}),
    ("pure_packages_are_pure", {"controller/__init__": "import asyncio", "controller/ring": ""}),
    *(
        ("only_edges_touch_threads_sockets_and_time", {"broker/a": text})
        for text in (
            "import asyncio as aio\naio.sleep(1)",
            "from asyncio.tasks import sleep",
            "import asyncio.subprocess",
            "import asyncio\nasyncio.wait(x, timeout=1)",
            "import asyncio\nasyncio.open_unix_connection()",
            "self.loop.call_later(1, f)",
            "loop.call_at(1, f)",
            "loop.create_datagram_endpoint(f)",
            "loop.sock_connect(s, a)",
            "from datetime import date\ndate.today()",
            "import datetime as dt\ndt.datetime.now()",
            "import urllib.request",
            "from urllib import request",
            "import http.client",
            "import socketserver",
            "import _thread",
        )
    ),
    ("nothing_is_imported_behind_our_back", {"broker/a": "import importlib"}),
    ("nothing_is_imported_behind_our_back", {"broker/a": "__import__('time')"}),
    ("only_files_touches_files", {"storage/block": "import codecs"}),
    ("only_files_touches_files", {"storage/block": "import os"}),
    ("only_files_touches_files", {"storage/block": "from pathlib import Path"}),
    ("only_files_touches_files", {"broker/a": "open('x')"}),
    ("every_dependency_has_its_door", {"storage/a": "import pyarrow"}),
    ("every_dependency_has_its_door", {"metadata/catalog": "from kazoo.client import KazooClient"}),
    ("every_dependency_has_its_door", {"cli/a": "import requests"}),
    ("there_are_no_cycles", {"storage/a": "import clymq.storage.b", "storage/b": "from clymq.storage import a"}),
    ("there_are_no_cycles", {"raft/__init__": "from clymq.raft import a", "raft/a": "import clymq.raft"}),
    ("names_are_not_vague", {"storage/utils": ""}),
    ("names_are_not_vague", {"broker/manager/a": ""}),
    ("functions_fit_a_screen", {"types": "def f():\n" + "    x = 1\n" * 60}),
]


@pytest.mark.parametrize(("name", "sources"), VIOLATIONS)
def test_a_violation_is_caught(name: str, sources: dict[str, str], tmp_path: Path) -> None:
    assert getattr(architecture, name)(seeded(tmp_path, sources))


def test_every_rule_has_a_violation_that_proves_it() -> None:
    assert {rule.__name__ for rule in RULES} == {name for name, _ in VIOLATIONS}


@pytest.mark.parametrize(
    "sources",
    [
        {"storage/a": "from clymq.record.b import c\nfrom clymq.errors import D", "record/b": "", "errors": ""},
        {"record/__init__": "from clymq.record.a import b", "record/a": "from clymq.record import c", "record/c": ""},
        {"storage/files": "import os, threading, mmap", "clock": "import time, asyncio"},
        {"cli/a": "import click, rich.table, pathlib\nopen('x')"},
        {"broker/a": "import asyncio\nasyncio.Event()\nself._clock.call_later(1, f)"},
        {"types": "import urllib.parse"},
        {"__main__": "from clymq.cli.a import main", "cli/a": ""},
        {"spark/a": "from clymq.client.b import c", "client/b": "from clymq.rpc.d import e", "rpc/d": ""},
        {"types": "def f():\n" + "    x = 1\n" * 59},
    ],
)
def test_what_is_allowed_is_not_called_a_violation(sources: dict[str, str], tmp_path: Path) -> None:
    tree = seeded(tmp_path, sources)
    assert [violation for rule in RULES for violation in rule(tree)] == []
