"""A cluster of real processes whose servers have hooks: `ProcessCluster`, started by our launcher.

Where the kernel allows no network namespaces, two servers are cut off from each other by their hooks: each holds back
what it says, and does not hear what it is told, on the connections that it has opened to the other.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from clymq.simulation.chaos.hooks import Control, control, prepare, undo_unsynced
from clymq.testing.namespaces import Namespaces
from clymq.testing.network import Kind
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
    "checkpoint_ms_max": 500,
    "scrub_bytes_per_second": 4 * 1024 * 1024,
    "scrub_interval_ms": 20_000,
}
ZOOKEEPERS: Final = 3


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
        network: Kind = "auto",
        mutation: str | None = None,
    ) -> None:
        super().__init__(
            brokers, zkservers, store,
            spares=spares, zookeepers=ZOOKEEPERS, folder=folder, network=network, config=CONFIG,
        )  # fmt: skip
        self._mutation = mutation
        self._controls: dict[str, Control] = {}

    def program(self, name: str) -> Sequence[str]:
        """Return what runs a server: with hooks."""
        mutation = ("--mutation", self._mutation) if self._mutation and name not in self.zkservers else ()
        return (*LAUNCHER, "--hooks", str(self.hooks(name)), *mutation, "--")

    def hooks(self, name: str) -> Path:
        """Return the folder through which a server is told."""
        return self.folder / "hooks" / name

    def tell(self, name: str, **changes: object) -> None:
        """Change what a server is to suffer, now or when it is started."""
        wanted = self._controls[name] = replace(self._controls.get(name, Control()), **changes)  # type: ignore[arg-type]
        if self.processes.is_running(name):
            control(self.hooks(name), wanted, self.processes.pid(name))
        else:
            prepare(self.hooks(name), wanted)

    def reset_connections(self, name: str) -> None:
        """Break all connections of a broker, its clients' too."""
        self.tell(name, resets=self._controls.get(name, Control()).resets + 1)

    def partition(self, one: str, other: str, *, one_way: bool = False) -> None:
        """Cut two servers off from each other; one way: only what the first sends to the second."""
        if self.network.kind == Namespaces.kind or not {one, other}.isdisjoint(self.zookeepers):
            super().partition(one, other, one_way=one_way)
            return
        self.network.partition(one, other, one_way=one_way)  # the addresses that they were given
        self._cut(one, other, speaks=False, hears=one_way)
        self._cut(other, one, speaks=one_way, hears=False)

    def _cut(self, name: str, other: str, *, speaks: bool, hears: bool) -> None:
        """Let a server not speak to another one, or not hear it, over the connections that it has opened to it."""
        address = self.processes.address(other)
        known = self._controls.get(name, Control())
        mute = known.mute if speaks else (*known.mute, address)
        deaf = known.deaf if hears else (*known.deaf, address)
        self.tell(name, mute=mute, deaf=deaf)

    def heal(self) -> None:
        """Undo all cuts."""
        super().heal()
        for name, known in tuple(self._controls.items()):
            if known.mute or known.deaf:
                self.tell(name, mute=(), deaf=())

    def cut_power(self, *names: str, keep: float) -> int:
        """Kill brokers and let them lose what they had not synced; return how many writes were lost."""
        self.kill(*names)
        return sum(undo_unsynced(self.hooks(name), keep=keep) for name in names)
