"""`clymq up` and the commands that talk to a cluster, as other programs see them: JSON, exit codes, signals."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import pytest

from clymq.cli.main import cli, run
from clymq.cli.status import problems_of
from clymq.cli.zookeeper import ZookeeperServer
from clymq.client.admin import AsyncAdmin
from clymq.client.read_routes import microseconds
from clymq.testing.waiting import wait_until

CLYMQ = str(Path(sys.executable).parent / "clymq")
SECONDS_MAX = 30.0

ZKSERVER = {"name", "address", "active"}
BROKER = {"name", "address", "online", "draining", "power", "cpu", "disk_free_bytes", "partitions", "leaders"}
PARTITION = {
    "topic", "partition", "ack", "replicas", "online", "leader", "epoch", "blocks", "start", "end", "lost_messages",
}  # fmt: skip
MESSAGE = ("topic", "partition", "offset", "timestamp", "key", "value", "headers", "delivery_count")


class Up:
    """A running `clymq up`."""

    def __init__(self, data: Path, *arguments: str) -> None:
        self.data = data
        self.errors = data.parent / f"{data.name}.stderr"
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [CLYMQ, "up", "--port", "0", "--data", str(data), *arguments],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def wait_until_ready(self) -> None:
        assert self.process.stdout is not None
        word, name, self.bootstrap = self.process.stdout.readline().split(" ")
        assert (word, name) == ("ready", "cluster")
        self.bootstrap = self.bootstrap.rstrip("\n")

    def pid(self, name: str) -> int:
        return int((self.data / f"{name}.pid").read_text())

    def pids(self) -> dict[str, int]:
        found = {}
        for path in self.data.glob("*.pid"):
            with suppress(FileNotFoundError):  # its process has ended since the folder was read
                found[path.stem] = int(path.read_text())
        return found

    def reported(self) -> str:
        return self.errors.read_text()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@contextmanager
def running(data: Path, *arguments: str) -> Iterator[Up]:
    up = Up(data, *arguments)
    try:
        up.wait_until_ready()
        yield up
    finally:
        up.kill()


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with running(tmp_path_factory.mktemp("up") / "data") as started:
        yield started


class Command:
    """Runs commands against the cluster, inside this process."""

    def __init__(self, bootstrap: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.bootstrap = bootstrap
        self._capsys = capsys

    def __call__(self, line: str, *more: str, code: int = 0) -> Any:
        """Run one with --json; return its one document."""
        (document,) = self.lines(line, *more, code=code)
        return document

    def lines(self, line: str, *more: str, code: int = 0) -> list[Any]:
        return [json.loads(each) for each in self.text(f"{line} --json", *more, code=code).splitlines()]

    def text(self, line: str, *more: str, code: int = 0) -> str:
        arguments = [*shlex.split(line), *more]
        if "--bootstrap" not in arguments:
            arguments += ["--bootstrap", self.bootstrap]
        self._capsys.readouterr()
        got = run(arguments)
        captured = self._capsys.readouterr()
        self.errors = captured.err
        assert got == code, (line, captured.out, captured.err)
        return captured.out

    def refused(self, line: str, *more: str, code: int = 1) -> str:
        """Run one that fails; return the code of its error."""
        error = self(line, *more, code=code)["error"]
        assert set(error) == {"code", "message", "retriable", "hint"}
        assert re.fullmatch(rf"error: .* \[{error['code']}\]\n", self.errors), self.errors
        return error["code"]


@pytest.fixture
def clymq(up: Up, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(up.bootstrap, capsys)


def one_partition(clymq: Command, topic: str) -> dict[str, Any]:
    (found,) = clymq(f"topic describe {topic}")["partitions"]
    return found


# --- status ---


def test_status_has_every_field_even_when_there_is_nothing_in_it(up: Up, clymq: Command) -> None:
    clymq("topic create looked_at --partitions 2")
    clymq("topic create not_begun --ack unset")
    found = clymq("status")
    assert set(found) == {"zkservers", "brokers", "partitions", "groups"}
    assert found["zkservers"] == [{"name": "ZkServer0", "address": up.bootstrap, "active": True}]
    assert [each["name"] for each in found["brokers"]] == ["Broker0", "Broker1", "Broker2"]
    for broker in found["brokers"]:
        assert set(broker) >= BROKER
        assert (broker["online"], broker["draining"], broker["power"]) == (True, False, 1)
        assert isinstance(broker["cpu"], float)
    for partition in found["partitions"]:
        assert set(partition) >= PARTITION
    unset = next(each for each in found["partitions"] if each["topic"] == "not_begun")
    assert (unset["ack"], unset["leader"], unset["replicas"], unset["online"], unset["lost_messages"]) == (
        -2, "", [], [], 0,
    )  # fmt: skip
    mine = [each for each in found["partitions"] if each["topic"] == "looked_at"]
    assert [each["partition"] for each in mine] == ["0", "1"]
    for each in mine:
        assert (each["ack"], each["blocks"], each["start"], each["end"]) == (-1, 1, 0, 0)
        assert sorted(each["replicas"]) == sorted(each["online"]) == ["Broker0", "Broker1", "Broker2"]
    assert isinstance(found["groups"], list)
    assert clymq("status --check")["partitions"] == clymq("status")["partitions"]


def test_status_is_a_table_for_people(clymq: Command) -> None:
    clymq("topic create shown")
    shown = clymq.text("status")
    assert "zkservers:" in shown
    assert re.search(r"^Broker1 +127\.0\.0\.1:\d+ +yes +no +1 ", shown, flags=re.MULTILINE)
    assert re.search(r"^shown +0 +quorum ", shown, flags=re.MULTILINE)


def test_what_a_check_finds_wrong() -> None:
    whole = {"topic": "t", "partition": "0", "ack": -1, "replicas": ["A", "B"], "online": ["A", "B"], "leader": "A"}
    assert problems_of(whole) == []
    assert problems_of(whole | {"online": ["A"]}) == ["t/0 misses B"]
    assert problems_of(whole | {"leader": ""}) == ["t/0 has no leader"]
    assert len(problems_of(whole | {"online": ["B"]})) == 2, "the leader is the one that is missing"
    assert problems_of({**whole, "ack": -2, "replicas": [], "online": [], "leader": ""}) == []


# --- topic ---


def test_a_topic_is_made_once_and_shown_and_deleted(clymq: Command) -> None:
    made = clymq("topic create cities --partitions xian,北京 --replicas 2 --set retention_ms=5000 --set lease_ms=100")
    assert set(made) == {"topic", "id", "created", "partitions"}
    assert (made["topic"], made["created"]) == ("cities", True)
    assert [each["partition"] for each in made["partitions"]] == ["xian", "北京"]
    assert all(set(each) >= PARTITION and len(each["replicas"]) == 2 for each in made["partitions"])
    again = clymq("topic create cities --partitions xian,北京")
    assert (again["id"], again["created"]) == (made["id"], False)
    described = clymq("topic describe cities")
    assert set(described) == {"topic", "id", "settings", "partitions"}
    assert described["settings"] == {"retention_ms": 5000, "lease_ms": 100}
    assert all(set(each) >= PARTITION for each in described["partitions"])
    assert "cities" in clymq("topic list")["topics"]
    assert clymq("topic alter cities --set retention_ms=6000")["settings"] == {"retention_ms": 6000, "lease_ms": 100}
    assert clymq("topic delete cities")["deleted"] is True
    assert "cities" not in clymq("topic list")["topics"]
    assert clymq.refused("topic describe cities") == "UnknownTopic"
    assert clymq.refused("topic delete cities") == "UnknownTopic"


def test_topics_in_words(clymq: Command) -> None:
    assert "is made" in clymq.text("topic create words --partitions 2")
    assert "was there" in clymq.text("topic create words --partitions 2")
    assert "words\n" in clymq.text("topic list")
    assert re.search(r"^1 +quorum +Broker", clymq.text("topic describe words"), flags=re.MULTILINE)


def test_partitions_are_added_and_their_state_is_set(clymq: Command) -> None:
    clymq("topic create grows --partitions a")
    added = clymq("topic add-partition grows b")
    assert (added["partition"], added["created"]) == ("b", True)
    assert clymq("topic add-partition grows b")["created"] is False
    states = {each["partition"]: each["ack"] for each in clymq("topic describe grows")["partitions"]}
    assert states == {"a": -1, "b": -2}
    assert clymq("topic set-state grows b --ack quorum --replicas 1")["result"] == "changed"
    assert clymq("topic set-state grows b --ack -1 --replicas 1")["result"] == "HadRaft"
    assert clymq("topic set-state grows b --ack quorum --replicas 3")["result"] == "changed"
    assert clymq.refused("topic set-state grows b --ack unset") == "InvalidState"
    assert clymq.refused("topic set-state grows b --ack quorum --replicas 9") == "NotEnoughReplicas"
    assert clymq.refused("topic set-state grows c --ack quorum") == "UnknownPartition"
    assert clymq("topic add-partition grows d --ack quorum --replicas 1")["created"] is True
    assert len(clymq("topic describe grows")["partitions"][2]["replicas"]) == 1


# --- push and pull ---


def test_what_was_pushed_is_pulled_with_all_that_it_has(clymq: Command) -> None:
    clymq("topic create once")
    pushed = clymq("push once höllo --key k --header a=1 --header b=")
    assert set(pushed) == {"topic", "messages", "seconds", "partitions"}
    assert (pushed["topic"], pushed["messages"]) == ("once", 1)
    assert pushed["partitions"] == {"0": {"first": 0, "last": 0}}
    assert isinstance(pushed["seconds"], float)
    clymq("push once", os.fsdecode(b"\xff\x00"[:1]))
    first, second = clymq.lines("pull once")
    assert tuple(first) == MESSAGE
    assert first | {"timestamp": 0} == {
        "topic": "once", "partition": "0", "offset": 0, "timestamp": 0, "key": "k", "value": "höllo",
        "headers": [["a", "1"], ["b", ""]], "delivery_count": 1,
    }  # fmt: skip
    assert abs(first["timestamp"] / 1e6 - time.time()) < 60
    assert (second["offset"], second["key"], second["value"], second["headers"]) == (1, None, {"base64": "/w=="}, [])


def test_many_are_pushed_by_count_and_from_a_file(clymq: Command, tmp_path: Path) -> None:
    clymq("topic create many --partitions a,b,c")
    pushed = clymq("push many x --count 3000 --partition b")
    assert (pushed["messages"], pushed["partitions"]) == (3000, {"b": {"first": 0, "last": 2999}})
    lines = [f"line {number}" for number in range(25_000)] + ["", "the end"]
    (tmp_path / "lines").write_text("\n".join(lines))
    pushed = clymq(f"push many --file {tmp_path / 'lines'}")
    assert pushed["messages"] == len(lines)
    values = clymq.text("pull many").splitlines()
    assert sorted(values) == sorted(lines + ["x"] * 3000)
    assert clymq.text("pull many --partition b --max 7").splitlines() == ["x"] * 7
    keyed = clymq("push many y --key same --count 50")
    assert len(keyed["partitions"]) == 1
    (tmp_path / "empty").write_bytes(b"")
    assert clymq(f"push many --file {tmp_path / 'empty'}")["partitions"] == {}
    assert "2 messages in" in clymq.text("push many z --count 2")


def test_offsets_that_nobody_is_told_are_null_and_states_change_under_the_messages(clymq: Command) -> None:
    clymq("topic create unsafe --ack none")
    assert clymq("push unsafe x --count 5")["partitions"] == {"0": {"first": None, "last": None}}
    assert clymq("topic set-state unsafe 0 --ack none")["result"] == "HadFetch"
    assert clymq("topic set-state unsafe 0 --ack quorum")["result"] == "changed"
    assert clymq("push unsafe y --count 5")["partitions"] == {"0": {"first": 5, "last": 9}}
    assert clymq.text("pull unsafe").split() == ["x"] * 5 + ["y"] * 5


def test_a_rate_is_kept(clymq: Command) -> None:
    clymq("topic create slow")
    assert 0.6 <= clymq("push slow x --count 20 --rate 25")["seconds"] < 10


def test_a_line_that_is_too_long_is_refused(clymq: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLYMQ_MESSAGE_BYTES_MAX", "1000")
    clymq("topic create narrow")
    (tmp_path / "long").write_bytes(b"x" * 5000)
    assert clymq.refused(f"push narrow --file {tmp_path / 'long'}") == "MessageTooLarge"


def test_reading_begins_where_it_is_told_to(clymq: Command) -> None:
    clymq("topic create read")
    clymq("push read old --count 5")
    before = clymq.lines("pull read")[-1]["timestamp"]
    moment = datetime.now(UTC)
    clymq("push read new --count 4")

    def offsets(start: str, *more: str) -> list[int]:
        return [each["offset"] for each in clymq.lines(f"pull read --from {start}", *more)]

    assert offsets("earliest") == list(range(9))
    assert offsets("7") == [7, 8]
    assert offsets("2", "--max", "3") == [2, 3, 4]
    assert offsets("latest") == offsets("9") == offsets("500") == []
    assert offsets("earliest", "--max", "0") == []
    assert offsets(moment.isoformat()) == [5, 6, 7, 8]
    assert offsets(moment.isoformat().replace("+00:00", "Z")) == [5, 6, 7, 8]
    assert offsets(moment.astimezone().replace(tzinfo=None).isoformat()) == [5, 6, 7, 8], "the zone of this machine"
    assert offsets("2020-01-01") == list(range(9))
    assert offsets("2999-01-01T00:00Z") == []
    last_old = datetime.fromtimestamp(before // 1_000_000, UTC).replace(microsecond=before % 1_000_000)
    assert microseconds(last_old) == before
    assert set(offsets(last_old.isoformat())) >= {4, 5, 6, 7, 8}


def test_a_time_is_found_among_many_batches(clymq: Command) -> None:
    clymq("topic create batches --partitions 1")
    clymq("push batches x --count 60 --rate 400")
    stored = [(each["timestamp"], each["offset"]) for each in clymq.lines("pull batches")]
    for timestamp, _ in stored[::13]:
        moment = datetime.fromtimestamp(timestamp // 1_000_000, UTC).replace(microsecond=timestamp % 1_000_000)
        found = clymq.lines(f"pull batches --from {moment.isoformat()} --max 1")
        assert found[0]["offset"] == next(offset for time_us, offset in stored if time_us >= timestamp)


def test_partitions_that_are_not_set_are_left_out_or_named(clymq: Command) -> None:
    clymq("topic create half --partitions a")
    clymq("push half x")
    clymq("topic add-partition half b")
    assert [each["value"] for each in clymq.lines("pull half")] == ["x"]
    assert clymq.refused("pull half --partition b") == "PartitionUnset"
    assert clymq.refused("pull half --partition c") == "UnknownPartition"
    assert clymq.refused("push half x --partition b") == "PartitionUnset"
    assert clymq.refused("pull nowhere") == "UnknownTopic"
    assert clymq.refused("push nowhere x") == "UnknownTopic"


def test_values_go_through_pipes_as_they_are(up: Up, clymq: Command) -> None:
    clymq("topic create piped")
    push = f"printf 'a\\xff\\n\\nlast' | {CLYMQ} push piped --file - --bootstrap {up.bootstrap}"
    pull = f"{CLYMQ} pull piped --bootstrap {up.bootstrap}"
    done = subprocess.run(["bash", "-c", f"{push} && {pull}"], capture_output=True, timeout=SECONDS_MAX)
    words, _, values = done.stdout.partition(b"\n")
    assert b"3 messages" in words, done.stderr
    assert values == b"a\xff\n\nlast\n"
    assert done.stderr == b""


def test_a_reader_that_has_seen_enough_is_no_error(up: Up, clymq: Command) -> None:
    clymq("topic create plenty")
    clymq("push plenty", "x" * 100, "--count", "20000")
    command = f"{CLYMQ} pull plenty --json --bootstrap {up.bootstrap} | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=SECONDS_MAX)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["offset"] == 0


def test_following_shows_what_comes_until_the_keyboard_interrupts(up: Up, clymq: Command) -> None:
    clymq("topic create followed")
    clymq("push followed one")
    process = subprocess.Popen(
        [CLYMQ, "pull", "followed", "--follow", "--bootstrap", up.bootstrap],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "one\n"
        clymq("push followed two")
        assert process.stdout.readline() == "two\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=SECONDS_MAX)
    finally:
        process.kill()
        process.communicate()
    assert (process.returncode, out, err) == (130, "", "error: interrupted [Interrupted]\n")


def test_following_ends_after_so_many(up: Up, clymq: Command) -> None:
    clymq("topic create some")
    clymq("push some x --count 3")
    assert clymq.text("pull some --follow --max 3 --format json").count("\n") == 3


def test_a_push_from_a_pipe_that_says_nothing_can_be_interrupted(up: Up, clymq: Command) -> None:
    clymq("topic create silent")
    process = subprocess.Popen(
        [CLYMQ, "push", "silent", "--file", "-", "--bootstrap", up.bootstrap],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stdin is not None
        process.stdin.write(b"early\n")
        process.stdin.flush()
        wait_until(lambda: clymq.text("pull silent") == "early\n", "the line is stored", seconds_max=SECONDS_MAX)
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS_MAX) == 130
    finally:
        process.kill()
        _, err = process.communicate()
    assert err == b"error: interrupted [Interrupted]\n"


# --- cluster ---


def test_a_partition_is_moved_with_its_messages(clymq: Command) -> None:
    clymq("topic create moves --replicas 1")
    clymq("push moves x --count 10")
    there = one_partition(clymq, "moves")["replicas"][0]
    others = sorted({"Broker0", "Broker1", "Broker2"} - {there})
    moved = clymq(f"cluster move moves 0 --to {','.join(others)}")
    assert set(moved) >= {"moved", "remaining"}
    assert (moved["moved"], moved["remaining"]) == (1, 0)
    found = one_partition(clymq, "moves")
    assert (found["replicas"], found["blocks"]) == (others, 2)
    assert clymq(f"cluster move moves 0 --to {','.join(others)}")["moved"] == 0
    clymq("push moves y --count 10")
    assert [each["offset"] for each in clymq.lines("pull moves")] == list(range(20))
    assert clymq.refused("cluster move moves 0 --to Nobody") == "NotEnoughReplicas"
    assert clymq.refused("cluster move moves 9 --to Broker0") == "UnknownPartition"
    clymq("topic delete moves")


def test_what_a_seal_by_force_says(clymq: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    clymq("topic create unforced")
    assert clymq.refused("cluster force-seal unforced 0 --trust Nobody") == "InvalidRequest"

    async def sealed(_: AsyncAdmin, topic: str, partition: str, *, trust: str) -> dict[str, int]:
        assert (topic, partition, trust) == ("unforced", "0", "Broker1")
        return {"end": 3, "lost_messages_max": 2}

    monkeypatch.setattr(AsyncAdmin, "force_seal", sealed)
    said = clymq("cluster force-seal unforced 0 --trust Broker1")
    assert set(said) >= {"moved", "remaining"}
    assert (said["end"], said["lost_messages_max"]) == (3, 2)
    assert "at most 2 messages are lost" in clymq.text("cluster force-seal unforced 0 --trust Broker1")


@pytest.mark.quick_skip
def test_a_seal_by_force_where_nothing_is_wrong_is_an_ordinary_one(clymq: Command) -> None:
    clymq("topic create forced")
    clymq("push forced x --count 3")
    said = clymq(f"cluster force-seal forced 0 --trust {one_partition(clymq, 'forced')['replicas'][-1]}")
    assert (said["end"], said["lost_messages_max"]) == (3, 0)
    assert clymq("push forced x --count 3")["messages"] == 3
    assert [each["offset"] for each in clymq.lines("pull forced")] == list(range(6))
    clymq("topic delete forced")


@pytest.mark.quick_skip
def test_a_broker_is_drained_and_used_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLYMQ_CONFIG_MS", "300")  # brokers hear of copies when they ask next
    with running(tmp_path / "data", "--brokers", "2") as two:
        clymq = Command(two.bootstrap, capsys)
        clymq("topic create everywhere --replicas 2")
        assert clymq.refused("cluster drain Broker0") == "NotEnoughReplicas"
        assert clymq.refused("cluster drain Nobody") == "InvalidRequest"
        clymq("topic delete everywhere")
        clymq("topic create kept --partitions 3 --replicas 1")
        clymq("push kept x --count 30")
        held = sum("Broker0" in each["replicas"] for each in clymq("status")["partitions"])
        assert held, "the ring gives each broker some of three partitions"
        drained = clymq("cluster drain Broker0")
        assert set(drained) >= {"moved", "remaining"}
        assert drained["remaining"] == 0
        assert drained["moved"] >= held
        found = clymq("status")
        assert all(each["replicas"] == ["Broker1"] for each in found["partitions"])
        assert next(each for each in found["brokers"] if each["name"] == "Broker0")["draining"] is True
        assert len(clymq.lines("pull kept")) == 30
        assert set(clymq("cluster undrain Broker0")) >= {"moved", "remaining"}
        assert not any(each["draining"] for each in clymq("status")["brokers"])


# --- errors ---


@pytest.mark.parametrize(
    "line",
    [
        "topic create", "topic create t --partitions ,", "topic create t --ack maybe", "topic create t --replicas 0",
        "topic create t --set x", "topic alter t", "topic set-state t 0", "cluster move t 0", "cluster move t 0 --to ,",
        "cluster force-seal t 0", "push t", "push t v --file /dev/null", "push t v --count 0", "push t v --header x",
        "push t --file /nowhere/at/all", "push t --file /dev/null --count 2", "pull t --from yesterday",
        "pull t --max -1", "pull t --format xml", "status --timeout 0", "status --timeout nan",
        "push t v --rate nan", "consume t --wait nan", "status --bootstrap nowhere", "up --brokers 0",
        "up --port 70000", "up --broker-port 65530 --brokers 20", "topic sing",
    ],
)  # fmt: skip
def test_wrong_usage_is_exit_code_2(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*line.split(), *([] if line.startswith("up") else ["--json"])]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert err.endswith("[Usage]\n")
    assert err.count("\n") == 1


def test_a_setting_that_is_none_is_exit_code_2(clymq: Command) -> None:
    assert clymq.refused("topic create wrong --set colour=red", code=2) == "ConfigError"
    assert clymq.refused("topic create wrong --set retention_ms=soon", code=2) == "ConfigError"


def test_a_name_that_breaks_the_rule_is_refused_with_the_rule(clymq: Command) -> None:
    assert clymq.refused("topic create a/b") == "InvalidName"
    assert "may not contain '/'" in clymq.errors


def test_nobody_there_is_exit_code_3_at_once(clymq: Command) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        nobody = f"127.0.0.1:{probe.getsockname()[1]}"
    began = time.monotonic()
    for line in ("status", "topic list", "push t x", "pull t"):
        assert clymq.refused(line, "--bootstrap", nobody, code=3) == "ConnectFailed"
    assert clymq.refused("status", "--bootstrap", f"{nobody},{nobody}", code=3) == "ConnectFailed"
    assert "clymq up starts a cluster" in clymq.errors
    assert clymq.refused("push nowhere x") == "UnknownTopic"
    assert "clymq topic list shows" in clymq.errors
    assert time.monotonic() - began < 10
    assert clymq("topic list", "--bootstrap", f"{nobody},{clymq.bootstrap}")["topics"]


def test_brokers_lead_to_the_cluster_too_and_the_environment_says_where(
    clymq: Command, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broker = clymq("status")["brokers"][1]["address"]
    monkeypatch.setenv("CLYMQ_BOOTSTRAP", broker)
    assert run(["topic", "list", "--json"]) == 0
    assert "topics" in json.loads(capsys.readouterr().out)


def test_no_answer_in_time_is_exit_code_4(up: Up, clymq: Command) -> None:
    clymq("topic create frozen --replicas 1")
    clymq("push frozen x")
    pid = up.pid(one_partition(clymq, "frozen")["leader"])
    os.kill(pid, signal.SIGSTOP)
    try:
        assert clymq.refused("push frozen y --timeout 0.7", code=4) == "RequestTimeout"
        assert clymq.refused("pull frozen --timeout 0.7", code=4) == "RequestTimeout"
    finally:
        os.kill(pid, signal.SIGCONT)
    values = [each["value"] for each in clymq.lines("pull frozen")]
    assert values in (["x"], ["x", "y"]), "it may or may not have been carried out"


def test_every_command_and_option_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    def look(command: click.Command, path: tuple[str, ...]) -> None:
        assert command.help, path
        assert run([*path, "--help"]) == 0
        for option in command.params:
            assert option.param_type_name != "option" or getattr(option, "help", ""), (path, option.name)
        for name, below in getattr(command, "commands", {}).items():
            look(below, (*path, name))

    look(cli, ())
    assert {"up", "status", "topic", "cluster", "push", "pull"} <= set(cli.load_all())
    assert set(cli.load_all()["topic"].commands) >= {  # type: ignore[attr-defined]
        "create", "list", "describe", "delete", "add-partition", "alter", "set-state",
    }  # fmt: skip
    assert "CLYMQ_BOOTSTRAP" in capsys.readouterr().out


# --- up ---


def is_alive(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_each_process_has_its_folder(up: Up) -> None:
    names = {"ZkServer0", "Broker0", "Broker1", "Broker2"}
    assert {path.name for path in up.data.iterdir() if path.is_dir()} == names
    assert set(up.pids()) == names
    assert all(map(is_alive, up.pids().values()))


def test_a_child_that_ends_is_reported_and_started_again(up: Up, clymq: Command) -> None:
    clymq("topic create survives")
    clymq("push survives x --count 100")
    address = clymq("status")["brokers"][2]["address"]
    for number, code in ((signal.SIGTERM, 0), (signal.SIGKILL, -9)):
        pid = up.pid("Broker2")
        os.kill(pid, number)
        if number == signal.SIGTERM:
            wait_until(lambda: checked(clymq) == 1, "the check misses it", seconds_max=SECONDS_MAX)
        wait_until(
            lambda before=pid: up.pids().get("Broker2", before) != before,
            "it is started again",
            seconds_max=SECONDS_MAX,
        )
        assert f"Broker2 ended with exit code {code}; it is started again in" in up.reported()
    wait_until(lambda: checked(clymq) == 0, "it is back", seconds_max=SECONDS_MAX)
    assert clymq("status")["brokers"][2]["address"] == address
    clymq("push survives y")
    assert len(clymq.lines("pull survives")) == 101


def checked(clymq: Command) -> int:
    with suppress(AssertionError):
        found = clymq("status --check")
        assert found["partitions"]
        return 0
    assert re.fullmatch(r"error: .*Broker2.* \[CheckFailed\]\n", clymq.errors), clymq.errors
    return 1


@pytest.mark.quick_skip
def test_a_signal_stops_all_another_start_finds_everything_and_a_kill_leaves_nobody_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    with running(data, "--brokers", "2") as first:
        clymq = Command(first.bootstrap, capsys)
        clymq("topic create stays --partitions 2")
        clymq("push stays x --count 1000")
        pids = first.pids()
        port = first.bootstrap.rpartition(":")[2]
        assert first.process.stdout is not None
        first.process.send_signal(signal.SIGTERM)
        assert first.process.wait(SECONDS_MAX) == 0
        assert first.process.stdout.read() == ""
        assert not any(map(is_alive, pids.values()))
        assert not list(data.glob("*.pid"))
        assert first.reported() == ""
    with running(data, "--brokers", "2", "--port", port, "--broker-port", "0") as second:
        assert second.bootstrap.endswith(f":{port}")
        clymq = Command(second.bootstrap, capsys)
        assert len(clymq.lines("pull stays")) == 1000
        assert clymq("push stays y")["messages"] == 1
        pids = second.pids()
        assert set(pids) == {"ZkServer0", "Broker0", "Broker1"}
        second.process.kill()
        second.process.wait()
        wait_until(lambda: not any(map(is_alive, pids.values())), "all are gone", seconds_max=5)


@pytest.mark.long
def test_the_metadata_may_be_in_zookeeper(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = ZookeeperServer(tmp_path / "zookeeper")
    server.start()
    try:
        with running(tmp_path / "data", "--brokers", "2", "--zookeeper", server.address, "--root", "/Here") as up:
            clymq = Command(up.bootstrap, capsys)
            clymq("topic create t")
            clymq("push t x --count 10")
            assert clymq.text("pull t").split() == ["x"] * 10
            up.process.send_signal(signal.SIGTERM)
            assert up.process.wait(SECONDS_MAX) == 0
    finally:
        server.stop()


def test_a_cluster_that_cannot_start_says_why_and_ends(up: Up, tmp_path: Path) -> None:
    for arguments, code, problem in (
        (["--port", "0", "--data", str(up.data)], 1, "[FolderLocked]"),
        (["--port", up.bootstrap.rpartition(":")[2], "--data", str(tmp_path / "other")], 2, "in use"),
    ):
        done = subprocess.run([CLYMQ, "up", *arguments], capture_output=True, text=True, timeout=SECONDS_MAX)
        assert (done.returncode, done.stdout) == (code, ""), done.stderr
        assert done.stderr.startswith("error: ZkServer0: ")
        assert problem in done.stderr
        assert done.stderr.count("\n") == 1


def test_a_stop_before_all_serve_is_a_clean_one(tmp_path: Path) -> None:
    up = Up(tmp_path / "data")
    try:
        wait_until(lambda: bool(up.pids()), "the first child is there", seconds_max=SECONDS_MAX)
        up.process.send_signal(signal.SIGINT)
        assert up.process.wait(SECONDS_MAX) == 0
        assert not up.pids()
    finally:
        up.kill()
