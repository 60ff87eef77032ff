"""The commands of consumers, as other programs see them: `consume`, `group`, `sub`, `dlq`, `bench`, `completion`."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from client_subjects import new_topic
from clymq import Ack, Consumer, Producer
from clymq.cli.main import run
from clymq.testing.waiting import wait_until

CLYMQ = str(Path(sys.executable).parent / "clymq")
SECONDS_MAX = 30.0
GROUP = ("topic", "group", "partition", "cursor", "end", "lag")
MESSAGE = ("topic", "partition", "offset", "timestamp", "key", "value", "headers", "delivery_count")


class Command:
    """Runs commands inside this process."""

    def __init__(self, bootstrap: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.bootstrap = bootstrap
        self._capsys = capsys

    def lines(self, line: str, *, code: int = 0) -> list[Any]:
        return [json.loads(each) for each in self.text(f"{line} --json", code=code).splitlines()]

    def one(self, line: str, *, code: int = 0) -> Any:
        (document,) = self.lines(line, code=code)
        return document

    def text(self, line: str, *, code: int = 0) -> str:
        self._capsys.readouterr()
        got = run([*shlex.split(line), "--bootstrap", self.bootstrap])
        captured = self._capsys.readouterr()
        self.errors = captured.err
        assert got == code, (line, captured.out, captured.err)
        return captured.out


@pytest.fixture
def clymq(clymq_bootstrap: str, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(clymq_bootstrap, capsys)


@pytest.fixture
def topic(clymq_bootstrap: str) -> str:
    name = new_topic()
    with Producer(clymq_bootstrap) as producer:
        producer.create_topic(name)
        producer.push_many(name, [b"%d" % number for number in range(20)])
    return name


def eventually(condition: Callable[[], bool], what: str) -> None:
    wait_until(condition, what, seconds_max=SECONDS_MAX)


# --- consume ---


@pytest.mark.parametrize("mode", ["pull", "push"])
def test_consume_prints_each_message_once_for_its_group(clymq: Command, topic: str, mode: str) -> None:
    first = clymq.lines(f"consume {topic} --group g --mode {mode} --max 5")
    assert [tuple(each) for each in first] == [MESSAGE] * 5
    assert [each["value"] for each in first] == ["0", "1", "2", "3", "4"]
    rest = clymq.text(f"consume {topic} --group g --mode {mode} --wait 1.5")
    assert sorted(map(int, rest.split())) == list(range(5, 20))
    assert clymq.lines(f"consume {topic} --group g --wait 0.2") == []
    assert len(clymq.lines(f"consume {topic} --wait 1")) == 20, "another group has its own"


def test_what_is_consumed_without_ack_comes_again(clymq: Command, topic: str) -> None:
    assert [each["delivery_count"] for each in clymq.lines(f"consume {topic} --ack none --max 3")] == [1, 1, 1]
    again = clymq.lines(f"consume {topic} --max 3 --wait 10")
    assert [(each["offset"], each["delivery_count"]) for each in again] == [(0, 2), (1, 2), (2, 2)]


def test_consume_goes_on_until_it_is_interrupted(clymq: Command, topic: str) -> None:
    with subprocess.Popen(
        [CLYMQ, "consume", topic, "--group", "i", "--bootstrap", clymq.bootstrap],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(20)] == [f"{number}\n" for number in range(20)]
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=SECONDS_MAX)
        assert (process.returncode, errors) == (130, "error: interrupted [Interrupted]\n")


# --- group and sub ---


def test_groups_are_listed_described_and_reset(clymq: Command, topic: str) -> None:
    clymq.lines(f"consume {topic} --group g --max 20")

    def lag_is(lag: int) -> bool:
        found = clymq.one(f"group list --topic {topic}")
        return [(each["group"], each["lag"]) for each in found] == [("g", lag)]

    eventually(lambda: lag_is(0), "the group has read everything")
    (place,) = clymq.one(f"group describe g --topic {topic}")
    assert tuple(place) == GROUP
    assert (place["partition"], place["cursor"], place["end"]) == ("0", 20, 20)
    for to, cursor in (("5", 5), ("earliest", 0), ("latest", 20), ("2000-01-01T00:00:00Z", 0), ("2100-01-01", 20)):
        (place,) = clymq.one(f"group reset g --topic {topic} --to {to} --partition 0")
        assert place["cursor"] == cursor, to
    clymq.one(f"group reset g --topic {topic} --to 17")
    assert [each["offset"] for each in clymq.lines(f"consume {topic} --group g --max 3 --wait 10")] == [17, 18, 19]
    table = clymq.text(f"group list --topic {topic}").splitlines()
    assert table[0].split() == [heading.upper() for heading in GROUP]


def test_a_group_that_is_not_there_and_a_wrong_place_are_refused(clymq: Command, topic: str) -> None:
    assert clymq.one(f"group describe nobody --topic {topic}", code=1)["error"]["code"] == "NotSubscribed"
    assert clymq.one(f"group reset nobody --topic {topic} --to 3", code=1)["error"]["code"] == "NotSubscribed"
    clymq.lines(f"consume {topic} --group g --max 1")
    assert clymq.one(f"group reset g --topic {topic} --to 999", code=1)["error"]["code"] == "OffsetOutOfRange"
    assert clymq.one(f"group reset g --topic {topic} --to yesterday", code=2)["error"]["code"] == "Usage"
    assert clymq.one("consume nowhere --wait 1", code=1)["error"]["code"] == "UnknownTopic"
    assert clymq.one(f"consume {topic} --mode shove", code=2)["error"]["code"] == "Usage"


def test_subscriptions_are_listed(clymq: Command, topic: str, clymq_bootstrap: str) -> None:
    with Consumer(clymq_bootstrap, name="c1") as consumer:
        consumer.subscribe(topic, group="g")
        (found,) = clymq.one(f"sub list {topic}")["subscriptions"]
        assert (found["topic"], found["option"], found["groups"]) == (topic, 2, {"g": {"c1": True}})
        assert found in clymq.one("sub list")["subscriptions"]
        assert re.search(rf"{topic}\s+PTP_PULL\s+all\s+g\s+c1", clymq.text(f"sub list {topic}"))
    assert clymq.one(f"sub list {topic}") == {"subscriptions": []}


# --- dlq ---


def test_row_61_dead_letters_are_listed_and_sent_again_once(clymq: Command, topic: str, clymq_bootstrap: str) -> None:
    assert clymq.one(f"dlq list {topic}") == {"topic": topic, "messages": []}
    assert clymq.one(f"dlq resend {topic}") == {"topic": topic, "resent": 0}
    with Consumer(clymq_bootstrap) as consumer:
        consumer.subscribe(topic, group="g")
        messages = list(consumer.pull(3, timeout=SECONDS_MAX))
        for message in messages:
            consumer.reject(message, f"no {message.value.decode()}")

    def dead() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = clymq.one(f"dlq list {topic}")["messages"]
        return found

    eventually(lambda: len(dead()) == 3, "three dead letters")
    assert [(each["value"], each["reason"], each["group"], each["original_offset"]) for each in dead()] == [
        (str(number), f"no {number}", "g", number) for number in range(3)
    ]
    assert "no 1" in clymq.text(f"dlq list {topic}")
    assert clymq.one(f"dlq resend {topic} --max 2") == {"topic": topic, "resent": 2}
    eventually(lambda: len(dead()) == 1, "two are not dead any more")
    assert clymq.one(f"dlq resend {topic}") == {"topic": topic, "resent": 1}
    assert clymq.one(f"dlq resend {topic}") == {"topic": topic, "resent": 0}
    resent = clymq.lines(f"pull {topic} --from 20")
    assert [(each["value"], each["headers"]) for each in resent] == [("0", []), ("1", []), ("2", [])]
    assert clymq.one("dlq list nowhere", code=1)["error"]["code"] == "UnknownTopic"


def test_dead_letters_are_listed_while_their_partition_is_being_made(clymq: Command, topic: str) -> None:
    clymq.one(f"topic create {topic}.dlq --ack unset")

    def give_it_a_state() -> None:
        with Producer(clymq.bootstrap) as producer:
            producer.set_partition_state(f"{topic}.dlq", "0", ack=Ack.QUORUM)

    later = threading.Timer(0.3, give_it_a_state)
    later.start()
    assert clymq.one(f"dlq list {topic}") == {"topic": topic, "messages": []}
    later.join()


def test_a_dead_letter_that_was_cut_is_sent_again_whole(clymq: Command, topic: str, clymq_bootstrap: str) -> None:
    said = {"clymq-reason": b"too much", "clymq-offset": b"15", "clymq-group": b"g", "clymq-cut": b"2"}
    with Producer(clymq_bootstrap) as producer:
        producer.create_topic(f"{topic}.dlq")
        producer.push(f"{topic}.dlq", b"1", headers=said)
    (letter,) = clymq.one(f"dlq list {topic}")["messages"]
    assert (letter["value"], letter["original_offset"], letter["original_bytes"]) == ("1", 15, 2)
    assert clymq.one(f"dlq resend {topic}") == {"topic": topic, "resent": 1}
    (resent,) = clymq.lines(f"pull {topic} --from 20")
    assert (resent["value"], resent["headers"]) == ("15", [])


# --- bench ---


def test_bench_measures_what_goes_in_and_out(clymq: Command) -> None:
    name = new_topic()
    rows = clymq.one(f"bench produce --topic {name} --messages 2000 --size 50")["rows"]
    assert [(row["name"], row["unit"]) for row in rows] == [("produce", "messages/s"), ("produce", "MB/s")]
    rows += clymq.one(f"bench consume --topic {name} --messages 2000")["rows"]
    rows += clymq.one(f"bench latency --topic {name} --messages 20")["rows"]
    assert [row["name"] for row in rows[-3:]] == ["push p50", "push p99", "push p99.9"]
    assert all(row["value"] > 0 for row in rows)
    assert len(clymq.lines(f"pull {name}")) == 2001 + 21
    assert "messages/s" in clymq.text(f"bench produce --topic {name} --messages 10")


@pytest.mark.parametrize("what", ["produce", "latency"])
@pytest.mark.parametrize("size", [16 * 1024 * 1024 + 1, 2**63 - 1])
def test_bench_refuses_messages_that_no_batch_can_hold(clymq: Command, what: str, size: int) -> None:
    error = clymq.one(f"bench {what} --messages 1 --size {size}", code=1)["error"]
    assert error["code"] == "MessageTooLarge"
    assert f"--size {size}" in error["message"]


# --- For people ---


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_can_complete(shell: str) -> None:
    script = subprocess.run([CLYMQ, "completion", shell], capture_output=True, text=True, timeout=60, check=True).stdout
    assert "_CLYMQ_COMPLETE" in script
    environment = {**os.environ, "_CLYMQ_COMPLETE": "bash_complete", "COMP_WORDS": "clymq cons", "COMP_CWORD": "1"}
    done = subprocess.run([CLYMQ], capture_output=True, text=True, timeout=60, env=environment)
    assert (done.returncode, done.stdout.strip()) == (0, "plain,consume")


def test_no_server_is_one_line_and_exit_code_3(capsys: pytest.CaptureFixture[str]) -> None:
    for line in ("consume t", "group list", "sub list", "dlq list t", "bench produce"):
        began = time.monotonic()
        assert run([*line.split(), "--bootstrap", "127.0.0.1:1"]) == 3, line
        assert re.fullmatch(r"error: .* \[ConnectFailed\]\n", capsys.readouterr().err)
        assert time.monotonic() - began < SECONDS_MAX


def test_help_names_every_command_with_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    shown = capsys.readouterr().out
    for command in (
        "bench", "broker", "call", "cluster", "consume", "dlq", "dump", "group", "pull", "push", "status", "sub",
        "topic", "up", "zkserver", "zookeeper",
    ):  # fmt: skip
        assert re.search(rf"^  {command}\s+\w", shown, flags=re.MULTILINE), command
