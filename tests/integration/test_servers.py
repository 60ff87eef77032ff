"""`clymq zkserver` and `clymq call` as other programs see them: lines, JSON, exit codes, signals."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from clymq.rpc.local import connect_locally
from clymq.rpc.transport import parse_address

CLYMQ = (str(Path(sys.executable).parent / "clymq"),)


@contextmanager
def zkserver(data: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    process = subprocess.Popen(
        [*CLYMQ, "zkserver", "--listen", "127.0.0.1:0", "--data", str(data), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        word, _, address = process.stdout.readline().split()
        assert word == "ready"
        yield process, address
    finally:
        process.kill()
        process.communicate()


def call(*arguments: str) -> tuple[int, Any, str]:
    done = subprocess.run([*CLYMQ, "call", *arguments], capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, json.loads(done.stdout) if done.stdout else None, done.stderr


def test_a_zkserver_says_when_it_serves_is_in_the_tree_and_leaves_on_a_signal(tmp_path: Path) -> None:
    with zkserver(tmp_path / "zk", "--name", "Zk7") as (process, address):
        code, session, _ = call(address, "StoreOpenSession", '{"timeout_ms": 60000}')
        assert code == 0
        _, names, _ = call(address, "StoreChildren", json.dumps({"session": session["session"], "path": "/ZkServers"}))
        assert names["names"] == ["Zk7"]
        for number in (signal.SIGTERM,):
            process.send_signal(number)
            assert process.wait(timeout=15) == 0
        assert process.stdout is not None
        assert process.stdout.read() == ""


def test_what_the_embedded_store_was_told_is_there_after_a_kill(tmp_path: Path) -> None:
    with zkserver(tmp_path / "zk") as (process, address):
        _, opened, _ = call(address, "StoreOpenSession", '{"timeout_ms": 60000}')
        create = {"session": opened["session"], "number": 1, "create": {"path": "/kept", "value": "aGVsbG8="}}
        code, _, error = call(address, "StoreCreate", json.dumps(create))
        assert code == 0, error
        process.kill()
        process.wait()
    with zkserver(tmp_path / "zk") as (_, address):
        code, node, _ = call(address, "StoreGet", json.dumps({"session": opened["session"], "path": "/kept"}))
        assert code == 0
        assert node["value"] == "aGVsbG8="


def test_a_second_zkserver_on_the_same_folder_is_refused(tmp_path: Path) -> None:
    with zkserver(tmp_path / "zk"):
        second = subprocess.run(
            [*CLYMQ, "zkserver", "--listen", "127.0.0.1:0", "--data", str(tmp_path / "zk")],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert second.returncode == 1
    assert "[FolderLocked]" in second.stderr
    assert second.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--listen", "nowhere"), "nowhere"),
        (("--listen", "127.0.0.1:99999"), "99999"),
        (("--name", "a/b"), "a/b"),
        (("--store", "etcd"), "etcd"),
    ],
)
def test_a_wrong_flag_is_named_and_exits_with_2(tmp_path: Path, arguments: tuple[str, ...], told: str) -> None:
    done = subprocess.run(
        [*CLYMQ, "zkserver", "--data", str(tmp_path / "zk"), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_call_tells_usage_refusal_and_silence_apart(tmp_path: Path) -> None:
    with zkserver(tmp_path / "zk") as (_, address):
        assert call(address, "NoSuchVerb", "--json")[0] == 2
        assert call(address, "StoreGet", '{"pathh": 1}', "--json")[0] == 2
        assert call(address, "StoreGet", "[", "--json")[0] == 2
        code, answer, error = call(address, "StoreGet", '{"session": 12345, "path": "/x"}', "--json")
        assert (code, answer["error"]["code"]) == (1, "SessionLost")
        assert error.startswith("error: ")
        code, answer, _ = call(
            address,
            "Push",
            json.dumps(dict.fromkeys(("topic", "partition", "uid", "producer"), "x") | {"cmdindex": 1, "ack": -1}),
            "--json",
        )
        assert (code, answer["error"]["code"]) == (1, "InvalidRequest")
    code, answer, _ = call(address, "StoreSync", '{"session": 1}', "--json", "--timeout", "5")
    assert (code, answer["error"]["code"]) == (3, "ConnectFailed")


def test_call_gives_up_in_time(tmp_path: Path) -> None:
    with zkserver(tmp_path / "zk") as (process, address):
        process.send_signal(signal.SIGSTOP)
        code, answer, _ = call(address, "StoreSync", '{"session": 1}', "--json", "--timeout", "0.5")
        process.send_signal(signal.SIGCONT)
    assert code in {3, 4}, answer


@pytest.mark.parametrize(("setting", "nearby"), [("true", True), ("false", False)])
def test_a_server_listens_beside_its_port_unless_it_is_told_not_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str, nearby: bool
) -> None:
    monkeypatch.setenv("CLYMQ_LOCAL_SOCKETS", setting)
    with zkserver(tmp_path / "zk") as (_, address):
        host, port = parse_address(address)
        found = connect_locally(host, port)
        assert (found is not None) is nearby
        if found is not None:
            found.close()
