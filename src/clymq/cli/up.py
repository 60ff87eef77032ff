"""`clymq up`: a whole cluster on this machine, one process for each server, all of them children of this one.

A child that ends by itself is reported and started again, at the same address, after a pause that grows from half a
second to ten; one that has served for half a minute begins anew with the short one. A child that never came to serve at
the start ends the whole, with its exit code. At the end brokers stop first, one after the other, so that each can hand
over what it leads and say so in the tree; the zkserver, which may hold the tree, is the last.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from clymq.cli.children import Child
from clymq.cli.flags import setting_option
from clymq.errors import RequestTimeout

HOST: Final = "127.0.0.1"
BROKER_PORT: Final = 7774
POLL_SECONDS: Final = 0.05
READY_SECONDS_MAX: Final = 60.0
STOP_SECONDS_MAX: Final = 20.0
RESTART_SECONDS_MIN: Final = 0.5
RESTART_SECONDS_MAX: Final = 10.0
STEADY_SECONDS: Final = 30.0


@click.command()
@click.option("--brokers", type=click.IntRange(1, 100), default=3, show_default=True, help="How many.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=7878, show_default=True, help="The zkserver's; 0: any free one."
)
@click.option(
    "--broker-port",
    type=click.IntRange(0, 65535),
    help=f"The first broker's, the others follow; 0: free ones. Not given: {BROKER_PORT}; free ones with --port 0.",
)
@setting_option(
    "--data",
    type=click.Path(path_type=Path),
    default="./clymq-data",
    show_default=True,
    help="A folder for each process goes in here, and its log beside it.",
)
@setting_option("--zookeeper", "hosts", metavar="HOSTS", help="Keep the metadata there; not given: in the zkserver.")
@setting_option("--root", default="/ClyMQ", show_default=True, help="Where the cluster's tree lies in ZooKeeper.")
@click.pass_context
def up(
    context: click.Context,
    brokers: int,
    port: int,
    broker_port: int | None,
    data: Path,
    hosts: str | None,
    root: str,
) -> int:
    """Run a zkserver and brokers on this machine until SIGTERM or SIGINT.

    A server that ends by itself is started again. A second signal kills what has not stopped yet.
    """
    first = (BROKER_PORT if port else 0) if broker_port is None else broker_port
    if first + brokers > 65536:
        raise click.UsageError(f"--broker-port {first}: there are no {brokers} ports from there on")
    settings = context.find_root().params.get("file")
    clymq = [sys.executable, "-m", "clymq.cli", *(["--config", str(settings)] if settings else [])]
    store = ["--store", "zookeeper", "--zookeeper", hosts, "--root", root] if hosts else ["--store", "embedded"]
    supervisor = Supervisor()
    try:
        zkserver = _server("ZkServer0", data, [*clymq, "zkserver", *store], port)
        supervisor.start([zkserver])
        command = [*clymq, "broker", "--zkserver", zkserver.address, *store]
        supervisor.start([_server(f"Broker{n}", data, command, first + n if first else 0) for n in range(brokers)])
        if not supervisor.stopping:
            click.echo(f"ready cluster {zkserver.address}")
            sys.stdout.flush()
        supervisor.watch()
    except DidNotServe as error:
        click.echo(str(error), err=True)
        return error.exit_code
    finally:
        clean = supervisor.stop()
    return 0 if clean else 1


class DidNotServe(Exception):
    """A child ended before it served."""

    def __init__(self, child: Child, code: int) -> None:
        words = child.last_words()
        if code <= 0 or not words.startswith("error: "):
            words = f"error: ended with exit code {code} before it served, see {child.log} [NotReady]"
        super().__init__(f"error: {child.name}: {words.removeprefix('error: ')}")
        self.exit_code = max(code, 1)


class Supervisor:
    """Looks after children. Signals are heard from when it is made."""

    def __init__(self) -> None:
        self._started: list[Child] = []
        self._pauses: dict[str, float] = {}
        self._due: dict[str, float] = {}
        self._signals = 0
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._heard)

    @property
    def stopping(self) -> bool:
        """Whether somebody has said to stop."""
        return self._signals > 0

    def start(self, children: Sequence[Child]) -> None:
        """Start children together and return when each of them serves, or when it is time to stop."""
        for child in children:
            self._started.append(child)
            child.start()
        deadline = time.monotonic() + READY_SECONDS_MAX
        while not self.stopping and not all(child.address for child in children):
            for child in children:
                code = child.look()
                if code is not None:
                    raise DidNotServe(child, code)
            if time.monotonic() > deadline:
                late = ", ".join(child.name for child in children if not child.address)
                raise RequestTimeout(f"{late} does not serve after {READY_SECONDS_MAX:g} s", hint=_logs(children))
            time.sleep(POLL_SECONDS)

    def watch(self) -> None:
        """Start again what ends by itself, until it is time to stop."""
        while not self.stopping:
            for child in self._started:
                self._look_after(child)
            time.sleep(POLL_SECONDS)

    def stop(self) -> bool:
        """Stop all, the last that was started first; return whether all of them stopped by themselves and well."""
        stopped_well = [self._stop(child) for child in reversed(self._started)]
        return all(stopped_well)

    def _look_after(self, child: Child) -> None:
        now = time.monotonic()
        code = child.look()
        if code is not None:
            steady = now - child.started_at > STEADY_SECONDS
            pause = RESTART_SECONDS_MIN if steady else self._pauses.get(child.name, RESTART_SECONDS_MIN)
            self._pauses[child.name] = min(2 * pause, RESTART_SECONDS_MAX)
            self._due[child.name] = now + pause
            click.echo(f"{child.name} ended with exit code {code}; it is started again in {pause:g} s", err=True)
        elif not child.is_running and now >= self._due[child.name]:
            child.start()

    def _stop(self, child: Child) -> bool:
        if not child.is_running:
            return True
        deadline = time.monotonic() + STOP_SECONDS_MAX
        child.terminate()
        while child.is_running and time.monotonic() < deadline and self._signals < 2:
            code = child.look()
            if code is not None:
                # One that did not serve yet may not even have heard of signals.
                well = code == 0 or not child.address
                if not well:
                    click.echo(f"{child.name} stopped with exit code {code}, see {child.log}", err=True)
                return well
            time.sleep(POLL_SECONDS / 5)
        click.echo(f"{child.name} did not stop and is killed", err=True)
        child.kill()
        return False

    def _heard(self, *_: object) -> None:
        # A plain number: an Event's lock may be held by the very thread that the signal interrupts.
        self._signals += 1


def _server(name: str, data: Path, command: Sequence[str], port: int) -> Child:
    return Child(name, data, [*command, "--name", name, "--data", str(data / name)], f"{HOST}:{port}")


def _logs(children: Sequence[Child]) -> str:
    return "see " + ", ".join(str(child.log) for child in children if not child.address)
