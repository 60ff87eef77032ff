"""A cluster of real processes whose brokers have hooks: `ProcessCluster`, started by our launcher."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from clymq.simulation.chaos.hooks import Control, control, prepare, undo_unsynced
from clymq.testing.process_cluster import ProcessCluster
from clymq.testing.store_cluster import StoreKind

LAUNCHER: Final = (sys.executable, "-m", "clymq.simulation.chaos.launcher")
# As a patient operator would set them, only quicker: faults last seconds.
CONFIG: Final[Mapping[str, object]] = {
    "session_timeout_ms": 2500,
    "controller_tick_ms": 200,
    "broker_request_ms_max": 2000,
    "leader_wait_ms_max": 2000,
    "config_ms": 1000,
    "disk_reserve_bytes": 1024 * 1024,
}


class ChaosCluster(ProcessCluster):
    """See the module. `mutation`: the rule that all brokers break."""

    def __init__(
        self,
        brokers: int,
        zkservers: int,
        store: StoreKind,
        *,
        spares: int = 0,
        folder: Path | None = None,
        mutation: str | None = None,
    ) -> None:
        super().__init__(brokers, zkservers, store, spares=spares, folder=folder, config=CONFIG)
        self._mutation = mutation
        self._controls: dict[str, Control] = {}

    def program(self, name: str) -> Sequence[str]:
        """Return what runs a server: brokers are launched with hooks."""
        if name in self.zkservers:
            return super().program(name)
        mutation = ("--mutation", self._mutation) if self._mutation else ()
        return (*LAUNCHER, "--hooks", str(self.hooks(name)), *mutation, "--")

    def hooks(self, name: str) -> Path:
        """Return the folder through which a broker is told."""
        return self.folder / "hooks" / name

    def tell(self, name: str, **changes: object) -> None:
        """Change what a broker is to suffer, now or when it is started."""
        wanted = self._controls[name] = replace(self._controls.get(name, Control()), **changes)  # type: ignore[arg-type]
        if self.processes.is_running(name):
            control(self.hooks(name), wanted, self.processes.pid(name))
        else:
            prepare(self.hooks(name), wanted)

    def reset_connections(self, name: str) -> None:
        """Break all connections of a broker, its clients' too."""
        self.tell(name, resets=self._controls.get(name, Control()).resets + 1)

    def cut_power(self, *names: str, keep: float) -> int:
        """Kill brokers and let them lose what they had not synced; return how many writes were lost."""
        self.kill(*names)
        return sum(undo_unsynced(self.hooks(name), keep=keep) for name in names)
