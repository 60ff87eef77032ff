"""Named server processes of a test: started, killed, stopped, frozen, and never left behind.

A server prints `ready NAME HOST:PORT` as its first line when it serves, and stops with exit code 0 on SIGTERM. What it
writes to stderr is kept in a file of its own, through all its lives; an error shows the end of it.

What a process has started itself shares its fate: it is killed, frozen and thawed with it. Each leads a process group,
so that the keyboard's interrupt reaches the test alone. Calls block, and may come from any thread, from one at a time.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from clymq.testing.opened import Opened
from clymq.testing.waiting import WaitedTooLong, wait_until

READY_SECONDS_MAX: Final = 60.0
STOP_SECONDS_MAX: Final = 20.0
LOG_LINES_SHOWN: Final = 20


class ProcessFailed(AssertionError):
    """A process did not do what a server must do: serve, or stop cleanly."""


@dataclass
class _Server:
    """What to run, and the process while there is one."""

    command: Sequence[str]
    environment: Mapping[str, str]
    running: subprocess.Popen[bytes] | None = None
    address: str = ""
    frozen: bool = False


class Processes(Opened):
    """See the module. `add` says what there is, `start` runs it, `close` leaves nothing running."""

    def __init__(
        self, folder: Path, *, ready_seconds_max: float = READY_SECONDS_MAX, stop_seconds_max: float = STOP_SECONDS_MAX
    ) -> None:
        self._folder = folder
        self._ready_seconds_max = ready_seconds_max
        self._stop_seconds_max = stop_seconds_max
        self._servers: dict[str, _Server] = {}

    def add(self, name: str, command: Sequence[str], *, environment: Mapping[str, str] | None = None) -> None:
        """Say how a process is started from now on; `environment` is added to our own."""
        assert not self.is_running(name), f"{name} is running"
        self._servers[name] = _Server(tuple(command), dict(environment or {}))

    # --- What may happen to them ---

    def start(self, *names: str) -> None:
        """Start these together and wait until each of them serves, or kill it and raise `ProcessFailed`."""
        for name in names:
            self._launch(name, self._servers[name])
        failures: list[ProcessFailed] = []
        for name in names:
            try:
                self._await_ready(name, self._servers[name])
            except ProcessFailed as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def kill(self, *names: str) -> None:
        """End these at whatever instruction they are; a frozen one dies too, one that is not running stays so."""
        for name in names:
            _send(self._servers[name].running, signal.SIGKILL)
        for name in names:
            self._reap(self._servers[name])

    def stop(self, name: str) -> None:
        """Ask it to stop, and demand that it does, with exit code 0."""
        server = self._servers[name]
        assert server.running is not None, f"{name} is not running"
        self.thaw(name)
        server.running.terminate()
        try:
            code = server.running.wait(self._stop_seconds_max)
        except subprocess.TimeoutExpired:
            self.kill(name)
            raise ProcessFailed(self._told(name, f"did not stop within {self._stop_seconds_max:g} s")) from None
        self._reap(server)
        if code != 0:
            raise ProcessFailed(self._told(name, f"stopped with exit code {code}"))

    def freeze(self, name: str) -> None:
        """Let it do nothing at all until `thaw`; it has come to a halt when this returns."""
        server = self._servers[name]
        assert server.running is not None, f"{name} is not running"
        _send(server.running, signal.SIGSTOP)
        server.frozen = True
        stat = Path(f"/proc/{server.running.pid}/stat")
        wait_until(
            lambda: stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0] == "T",
            f"{name} comes to a halt",
            seconds_max=self._stop_seconds_max,
        )

    def thaw(self, name: str) -> None:
        """Let it go on; no change if it was not frozen."""
        server = self._servers[name]
        if server.frozen:
            _send(server.running, signal.SIGCONT)
            server.frozen = False

    # --- What can be asked ---

    @property
    def names(self) -> tuple[str, ...]:
        """All of them, running or not."""
        return tuple(self._servers)

    def is_running(self, name: str) -> bool:
        """Whether it is alive; a frozen one is."""
        server = self._servers.get(name)
        return server is not None and server.running is not None and server.running.poll() is None

    def pid(self, name: str) -> int:
        """Return the process id of one that was started."""
        running = self._servers[name].running
        assert running is not None, f"{name} is not running"
        return running.pid

    def address(self, name: str) -> str:
        """Return where it said that it serves, when it last did."""
        return self._servers[name].address

    def log_path(self, name: str) -> Path:
        """Return the file that its stderr goes to."""
        return self._folder / f"{name}.log"

    # --- Begin and end ---

    def close(self) -> None:
        """Kill what is running, and wait until it is gone."""
        self.kill(*self._servers)

    # --- Inside ---

    def _launch(self, name: str, server: _Server) -> None:
        assert not self.is_running(name), f"{name} is running"
        self._folder.mkdir(parents=True, exist_ok=True)
        with self._output(name).open("wb") as output, self.log_path(name).open("ab") as log:
            server.running = subprocess.Popen(  # noqa: S603 - the test says what to run
                server.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=log,
                env={**os.environ, **server.environment},
                start_new_session=True,
            )
        server.frozen = False

    def _await_ready(self, name: str, server: _Server) -> None:
        """Stdout is a file, not a pipe: nobody has to read it for the server to go on."""
        output = self._output(name)
        try:
            wait_until(
                lambda: b"\n" in output.read_bytes() or not self.is_running(name),
                f"{name} is ready",
                seconds_max=self._ready_seconds_max,
            )
        except WaitedTooLong:
            self.kill(name)
            raise ProcessFailed(self._told(name, f"was not ready within {self._ready_seconds_max:g} s")) from None
        line = output.read_text(encoding="utf-8", errors="replace").partition("\n")[0]
        words = line.split(" ")
        if len(words) == 3 and words[:2] == ["ready", name]:
            server.address = words[2]
            return
        code = server.running.poll() if server.running is not None else None
        self.kill(name)
        how = f"said {line!r} first" if line else f"ended with exit code {code} before it was ready"
        raise ProcessFailed(self._told(name, how))

    def _reap(self, server: _Server) -> None:
        if server.running is not None:
            server.running.wait()
            server.running = None
            server.frozen = False

    def _output(self, name: str) -> Path:
        return self._folder / f"{name}.out"

    def _told(self, name: str, what: str) -> str:
        path = self.log_path(name)
        log = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
        return "\n  ".join((f"{name} {what}; the end of {path}:", *log[-LOG_LINES_SHOWN:]))


def _send(running: subprocess.Popen[bytes] | None, number: signal.Signals) -> None:
    """Signal a process and all that it has started; one that is not reaped keeps its number from being given away."""
    if running is not None and running.poll() is None:
        descendants = _descendants(running.pid)
        os.killpg(running.pid, number)
        for pid in descendants:
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def _descendants(pid: int) -> list[int]:
    """Return the children of a process and theirs, whatever groups they have made for themselves."""
    found: list[int] = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):
            for child in map(int, children.read_text(encoding="ascii").split()):
                found += [child, *_descendants(child)]
    return found
