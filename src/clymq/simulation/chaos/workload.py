"""The client processes of a run: started, killed, frozen and stopped, and what they have noted."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from clymq.simulation.chaos.events import Journal
from clymq.testing.processes import Processes, ProcessFailed

_PROGRAM: Final = (sys.executable, "-m", "clymq.simulation.chaos.clients")
STOP_SECONDS_MAX: Final = 90.0

Place = tuple[str, str]


class Workload:
    """Producers `p0`, `p1`, ..., readers `r0`, ... and workers `w0`, ...; `with`: none outlives it. Calls block.

    Of the readers and of the workers every other one is sent its messages, the others pull them.
    """

    def __init__(
        self,
        folder: Path,
        bootstrap: str,
        places: Sequence[Place],
        *,
        producers: int = 2,
        readers: int = 2,
        workers: int = 2,
        pause_ms: float = 20.0,
    ) -> None:
        self.journals = folder / "history"
        self.journals.mkdir(parents=True, exist_ok=True)
        self.producers = tuple(f"p{number}" for number in range(producers))
        self.readers = tuple(f"r{number}" for number in range(readers))
        self.workers = tuple(f"w{number}" for number in range(workers))
        self._processes = Processes(folder / "clients", stop_seconds_max=STOP_SECONDS_MAX)
        self._bootstrap = bootstrap
        self._places = places
        self._pause_ms = pause_ms
        self._lives: dict[str, int] = {}
        self._running: dict[str, str] = {}
        """The process that is each client's present life."""

    def __enter__(self) -> Workload:
        return self

    def __exit__(self, *_: object) -> None:
        self._processes.close()

    def start(self, *names: str) -> None:
        """Begin the next life of clients, or of all; a former life is left as it is."""
        for name in names or (*self.producers, *self.readers, *self.workers):
            self._lives[name] = self._lives.get(name, 0) + 1
            process = self._running[name] = f"{name}-{self._lives[name]}"
            self._processes.add(process, self._command(name, process))
            self._processes.start(process)

    def kill(self, name: str) -> None:
        """End the present life of a client, and note that it has ended."""
        self._processes.kill(self._running[name])
        with Journal(self.journals / "ended.jsonl", name) as journal:
            journal.write("ended", life=self._lives[name])

    def replace(self, name: str) -> str:
        """Freeze a client and begin its next life beside it; return the frozen process, for `release`."""
        zombie = self._running[name]
        self._processes.freeze(zombie)
        self.start(name)
        return zombie

    def freeze(self, name: str) -> str:
        """Let a client stand still; return its process, for `release`."""
        self._processes.freeze(self._running[name])
        return self._running[name]

    def release(self, process: str) -> None:
        """Let a frozen life go on for as long as it can."""
        self._processes.thaw(process)

    def stop(self, names: Sequence[str]) -> list[str]:
        """Ask clients, all their lives, to come to an end; return what was not as it should be."""
        problems: list[str] = []
        for process in self._processes.names:
            if process.partition("-")[0] in names and self._processes.is_running(process):
                try:
                    self._processes.stop(process)
                except ProcessFailed as error:
                    problems.append(str(error))
        return problems

    def noted_bytes(self, names: Sequence[str]) -> int:
        """Return how much clients have written down so far."""
        return sum(path.stat().st_size for name in names for path in self.journals.glob(f"{name}-*.jsonl"))

    def failures(self) -> list[str]:
        """Return which present lives have ended by themselves."""
        return [name for name, process in self._running.items() if not self._processes.is_running(process)]

    def _command(self, name: str, process: str) -> Sequence[str]:
        role = "producer" if name in self.producers else "reader" if name in self.readers else "worker"
        pushed = ["--pushed"] if name in {*self.readers[1::2], *self.workers[1::2]} else []
        # A zombie and its next life write to different files: each file is one process's story.
        journal = self.journals / f"{process}.jsonl"
        places = [word for topic, partition in self._places for word in ("--place", f"{topic}/{partition}")]
        life = ["--life", str(self._lives[name]), "--pause-ms", str(self._pause_ms)]
        return [
            *_PROGRAM, role, "--name", name, "--as-process", process, *life, "--bootstrap", self._bootstrap,
            "--journal", str(journal), *places, *pushed,
        ]  # fmt: skip
