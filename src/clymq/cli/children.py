"""Server processes that belong to a command: started, started again, stopped, and never left behind."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
LOG_BYTES_MAX: Final = 16 << 20


class Child:
    """One server: what to run, and the process while there is one. It says `ready NAME HOST:PORT` when it serves.

    Beside its own folder lie NAME.pid, the number of its process, and NAME.log, what it has logged in all its lives.
    """

    def __init__(self, name: str, folder: Path, command: Sequence[str], listen: str) -> None:
        self.name = name
        self.address = ""
        """Where it serves; empty: not yet."""
        self.log = folder / f"{name}.log"
        self._pid = folder / f"{name}.pid"
        self._command = tuple(command)
        self._listen = listen
        self._said = b""
        self._process: subprocess.Popen[bytes] | None = None
        self.started_at = 0.0

    def start(self) -> None:
        """Run it; where it served before, it serves again."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        if self.log.exists() and self.log.stat().st_size > LOG_BYTES_MAX:
            self.log.replace(self.log.with_suffix(".log.old"))
        self._said, self.address, self.started_at = b"", "", time.monotonic()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 the command is ours
                [*self._command, "--listen", self._listen],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # the keyboard's interrupt is for who started it
                preexec_fn=dying_with_its_parent(),  # noqa: PLW1509 it calls nothing but the kernel
            )
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        # As a whole: whoever looks finds a number, or no file.
        beside = self._pid.with_suffix(".new")
        beside.write_text(f"{self._process.pid}\n")
        beside.replace(self._pid)

    def look(self) -> int | None:
        """Take note of what it says; return its exit code if it has ended."""
        if self._process is None:
            return None
        code = self._process.poll()
        if not self.address and self._process.stdout is not None:
            with contextlib.suppress(BlockingIOError):
                self._said += os.read(self._process.stdout.fileno(), 4096)
            words = self._said.partition(b"\n")[0].decode(errors="replace").split(" ")
            if b"\n" in self._said and words[:2] == ["ready", self.name] and len(words) == 3:
                self.address = self._listen = words[2]
        if code is not None:
            self._forget()
        return code

    @property
    def is_running(self) -> bool:
        """Whether there is a process that has not been seen to end."""
        return self._process is not None

    def last_words(self) -> str:
        """Return the last line of its log."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return lines[-1] if lines else ""

    def terminate(self) -> None:
        """Ask it to stop; one that stands still is woken for that."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()

    def kill(self) -> None:
        """End it and wait until it is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._forget()

    def _forget(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.stdout is not None:
            process.stdout.close()
        self._pid.unlink(missing_ok=True)


def dying_with_its_parent() -> Callable[[], None]:
    """Return what a child calls before it becomes a server: the kernel kills it when the thread that started it ends.

    Even SIGKILL, which no process can do anything about, leaves no server behind with the port and the data.
    """
    parent = os.getpid()
    control = ctypes.CDLL(None, use_errno=True).prctl  # looked up here: between fork and exec nothing may take a lock

    def ask_kernel() -> None:
        control(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it was gone before the kernel was asked
            os._exit(1)

    return ask_kernel
