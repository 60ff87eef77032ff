"""Command lines of `clymq`: typed wrong in every way, at a cluster that is there and at one that is not.

Whatever is typed, the command leaves with one of its exit codes and says an error in one line. What would go on for
ever is interrupted, as whoever typed it would, and must leave with the code for that. Servers run as processes.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

from clymq.cli.main import DONE, INTERRUPTED, NO, TIMED_OUT, UNREACHABLE, USAGE
from clymq.cli.main import run as run_command
from clymq.client.sync.admin import Admin
from clymq.client.sync.producer import Producer
from clymq.simulation.fuzz.mutation import BYTES, TEXTS, number
from clymq.simulation.fuzz.target import Input, MiB, Target, Violated
from clymq.testing.local_cluster import LocalCluster

CODES: Final = (DONE, NO, USAGE, UNREACHABLE, TIMED_OUT, INTERRUPTED)
SERVERS: Final = ("zkserver", "broker", "up")
INTERRUPT_SECONDS: Final = 4.0
APART_SECONDS: Final = 30.0
PROCESS_SECONDS_MAX: Final = 60.0
_LOOK_SECONDS: Final = 0.05
# Of client commands so many run as processes; the others in this one, which takes a hundredth of the time.
_AS_PROCESS_SHARE: Final = 0.04
PROCESS: Final = b"process"
HERE: Final = b"here"

# @cluster, @nobody and @folder are replaced by addresses and a folder when the line is run.
_LINES: Final = tuple(
    shlex.split(line)
    for line in """
topic create new --partitions 2 --ack leader --replicas 1 --set retention_ms=1000
topic create other --partitions a,b,c --json
topic list --json
topic describe t
topic delete new
topic add-partition t p2 --ack quorum
topic alter t --set lease_ms=1000
topic set-state t 0 --ack -1 --replicas 1
push t hello --key k --header a=b --count 3 --json
push t x --partition 0 --rate 1000
push t --file @folder/lines
push t --file -
pull t --from earliest --max 5 --json
pull t --partition 0 --from 3 --format value
pull t --from 2024-01-01T00:00:00
consume t --group g --max 2 --wait 0.2 --mode push --ack auto
consume t --wait 0.1 --ack none --json
group list
group describe g --topic t
group reset g --topic t --to latest
group reset g --topic t --partition 0 --to 1 --json
sub list
sub list t --json
dlq list t
dlq resend t --max 3
cluster undrain Broker0
cluster move t 0 --to Broker0
cluster drain Broker9
cluster force-seal t 0 --trust Broker0
status --check --json
status
bench produce --messages 10 --size 10 --ack leader
bench latency --messages 5 --topic t --json
bench consume --messages 5 --topic t
call @cluster ListTopics {}
call @cluster ProGetBroker '{"topic":"t","partition":"0"}' --json
call @cluster Pull '{"topic":"t","partition":"0","uid":"u"}'
dump @folder/block --messages 3 --json
dump @folder/lines
pipeline validate @folder/p.yaml --no-spark
pipeline status @folder/p.yaml --json
pipeline validate @folder/lines --no-spark
completion bash
--version
--help
topic --help
--config @folder/c.toml topic list
""".strip().splitlines()
)
_WITHOUT_CLUSTER: Final = (b"call", b"dump", b"completion", b"--version", b"--help")
_SERVER_LINES: Final = tuple(
    shlex.split(line)
    for line in (
        "zkserver --listen 127.0.0.1:0 --name Z1 --data @folder/zk",
        "broker --listen 127.0.0.1:0 --name B1 --zkserver @cluster --data @folder/b --power 2 --host h --rack r",
        "broker --listen 127.0.0.1:0 --name B1 --zkserver @nobody --data @folder/b",
        "broker --listen 127.0.0.1:0 --with-zkserver --data @folder/bz",
        "up --port 0 --brokers 1 --data @folder/up",
    )
)
_OPTIONS: Final = (
    "--json", "--timeout", "--bootstrap", "--partition", "--partitions", "--ack", "--replicas", "--set", "--count",
    "--rate", "--max", "--from", "--to", "--topic", "--group", "--file", "--format", "--wait", "--mode", "--messages",
    "--size", "--data", "--listen", "--name", "--power", "--config", "--store", "--help", "--version", "--nonsense",
    "--", "-", "-x", "--trust", "--key", "--header",
)  # fmt: skip


class CommandLines(Target):
    """The first part says whether it is a process of its own; the others are its arguments."""

    name = "cli"
    full = 500
    usual = 40
    seconds_max = 2 * PROCESS_SECONDS_MAX
    waits = True
    bytes_max = None
    reserve_bytes = 4096 * MiB
    grown_bytes_max = 192 * MiB

    def open(self) -> None:
        """Start a cluster with something in it, and make files to be named."""
        self._temporary = tempfile.TemporaryDirectory(prefix="clymq-fuzz-")
        self._folder = Path(self._temporary.name)
        # What is made by a wrong path is made in here.
        os.chdir(self._folder)
        (self._folder / "lines").write_bytes(b"one\ntwo\n\xff\xfe\n")
        (self._folder / "c.toml").write_text('log = "error"\n', encoding="utf-8")
        (self._folder / "p.yaml").write_text(
            "name: p\ncheckpoint: state\nsources: {s: {topic: t}}\nsinks: [{kind: console, from: s}]\n",
            encoding="utf-8",
        )
        self._cluster = LocalCluster(brokers=1, config={"move_wait_ms_max": 2000, "leader_wait_ms_max": 500})
        self._cluster.open()
        with Admin(self._cluster.bootstrap) as admin:
            admin.create_topic("t")
        with Producer(self._cluster.bootstrap) as producer:
            producer.push_many("t", [b"value"] * 10)
        (block,) = self._cluster.folder.glob("Broker0/t~*/*/Block_1")
        (self._folder / "block").symlink_to(block)

    def close(self) -> None:
        """End it."""
        os.chdir("/")
        self._cluster.close()
        self._temporary.cleanup()

    def make(self, chance: Random) -> Input:
        """Type a line wrong."""
        if chance.random() < 0.06:
            line = list(chance.choice(_SERVER_LINES))
            arguments = [each.encode() for each in line]
            fixed = 3
        else:
            arguments = [each.encode() for each in chance.choice(_LINES)]
            fixed = 0
        for _ in range(chance.choice((0, 1, 1, 1, 1, 2, 4))):
            _mistype(chance, arguments, fixed)
        if not fixed and arguments and arguments[0] not in _WITHOUT_CLUSTER and chance.random() < 0.95:
            where = chance.choice((b"@cluster", b"@cluster", b"@cluster", b"@nobody"))
            arguments += [b"--timeout", b"2", b"--bootstrap", where]
        apart = _is_server(arguments) or chance.random() < _AS_PROCESS_SHARE
        return (PROCESS if apart else HERE), *arguments

    def run(self, given: Input) -> str:
        """Run the line, and look at how it leaves and what it says."""
        how, *parts = given or (HERE,)
        arguments = [os.fsdecode(part.replace(b"\0", b"")) for part in map(self._filled_in, parts)]
        apart = how == PROCESS or _is_server(parts)
        code, out, err = _apart(arguments) if apart else _here(arguments)
        _check(arguments, code, out, err)
        return {DONE: "done", NO: "refused", INTERRUPTED: "interrupted"}.get(code, f"code {code}")

    def _filled_in(self, part: bytes) -> bytes:
        place = os.fsencode(self._folder)
        address = self._cluster.addresses["ZkServer0"].encode()
        return part.replace(b"@cluster", address).replace(b"@nobody", b"127.0.0.1:1").replace(b"@folder", place)


def _is_server(arguments: Sequence[bytes]) -> bool:
    return any(name.encode() in arguments for name in (*SERVERS, "zookeeper"))


def _mistype(chance: Random, arguments: list[bytes], fixed: int) -> None:
    """Change one thing; the first `fixed` arguments stay."""
    values = [at for at in range(max(1, fixed), len(arguments)) if not arguments[at].startswith(b"-")]
    if values and chance.random() < 0.6:
        arguments[chance.choice(values)] = _word(chance)
        return
    at = chance.randrange(fixed, len(arguments) + 1)
    ways: tuple[Callable[[], Any], ...] = (
        lambda: arguments.__setitem__(slice(at, at + 1), [_word(chance)]),
        lambda: arguments.__delitem__(slice(at, at + 1)),
        lambda: arguments.insert(at, _word(chance)),
        lambda: arguments.insert(at, chance.choice(_OPTIONS).encode()),
        lambda: arguments.extend([chance.choice(_OPTIONS).encode(), _word(chance)]),
        lambda: arguments.insert(at, chance.choice(_OPTIONS).encode() + b"=" + _word(chance)),
    )
    chance.choice(ways)()


def _word(chance: Random) -> bytes:
    way = chance.random()
    if way < 0.3:
        return str(number(chance)).encode()
    return chance.choice(TEXTS).encode() if way < 0.85 else chance.choice(BYTES)


# --- Running ---


def _here(arguments: list[str]) -> tuple[int, str, str]:
    """Run a line in this process; interrupt it if it does not end."""
    out, err = io.BytesIO(), io.BytesIO()
    # As Python opens them: what cannot be written is an error on stdout, and shown somehow on stderr.
    stdout, stderr = io.TextIOWrapper(out, "utf-8"), io.TextIOWrapper(err, "utf-8", "backslashreplace")
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr), _interrupted():
        code = run_command(arguments)
    stdout.flush()
    stderr.flush()
    return code, out.getvalue().decode("utf-8", "replace"), err.getvalue().decode("utf-8", "replace")


@contextlib.contextmanager
def _interrupted() -> Iterator[None]:
    """Press Ctrl-C when it is time; what does not end then has the time of any input."""

    def press(*_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, PROCESS_SECONDS_MAX)
        signal.signal(signal.SIGALRM, hangs)
        signal.raise_signal(signal.SIGINT)

    hangs = signal.signal(signal.SIGALRM, press)
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, INTERRUPT_SECONDS)
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, hangs)
        signal.signal(signal.SIGINT, former)


def _apart(arguments: list[str]) -> tuple[int, str, str]:
    """Run a line as a process; interrupt it when it serves, or if it does not end."""
    command = [sys.executable, "-m", "clymq.cli", *arguments]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(  # noqa: S603 ourselves
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
        )
        try:
            _wait(process, out.fileno())
            code = process.wait(PROCESS_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            raise Violated(f"it goes on {PROCESS_SECONDS_MAX:g} s after it was interrupted") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with what it has started itself
            process.wait()
        said = [_content(file.fileno()).decode("utf-8", "replace") for file in (out, err)]
    # An interpreter that has not begun yet, or has ended, leaves an interrupt to the system.
    return (INTERRUPTED if code == -signal.SIGINT else code), said[0], said[1]


def _wait(process: subprocess.Popen[bytes], out: int) -> None:
    """Wait until it has ended, or says that it serves, or has had its time; then interrupt it."""
    until = time.monotonic() + APART_SECONDS
    while process.poll() is None:
        if _content(out).startswith(b"ready ") or time.monotonic() > until:
            process.send_signal(signal.SIGINT)
            return
        time.sleep(_LOOK_SECONDS)


def _content(file: int) -> bytes:
    return os.pread(file, 16 * MiB, 0)


# --- Judging ---


def _check(arguments: list[str], code: int, out: str, err: str) -> None:
    said = f"code {code}, stderr {err[-1500:]!r}"
    if code not in CODES:
        raise Violated(f"it left with an exit code of its own: {said}")
    if "Traceback" in err or "Traceback" in out:
        raise Violated(f"it showed a traceback: {said}")
    if "error: unexpected " in err:
        raise Violated(f"it met an error that it has no name for: {said}")
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    if code in {USAGE, UNREACHABLE, TIMED_OUT} and not errors and "Usage:" not in err:
        raise Violated(f"it does not say what is wrong: {said}")
    if len(errors) > 1:
        raise Violated(f"it says two errors: {said}")
    if errors and "--json" in arguments:
        _check_document(out)


def _check_document(out: str) -> None:
    """The last line of stdout is the error as a document."""
    try:
        fields = json.loads(out.splitlines()[-1])["error"]
    except (ValueError, KeyError, TypeError, IndexError):
        raise Violated(f"no document with the error: {out[-500:]!r}") from None
    if set(fields) != {"code", "message", "retriable", "hint"}:
        raise Violated(f"a document with other fields: {fields}")
