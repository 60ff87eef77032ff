"""Clusters of real processes: killed, stopped, frozen, cut off from each other, and gone when the test is over.

`Cluster` is what all of them share; what its servers are, a subclass says with one command. `RaftCluster` runs bare
Raft groups (`clymq.testing.raft_node`). Calls block, in `async with` too: they end soon, but for `start` and `stop`,
which tests with an event loop run by `asyncio.to_thread`.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from clymq.testing.background import Background
from clymq.testing.network import Kind, Network, make_network
from clymq.testing.opened import Opened
from clymq.testing.processes import Processes
from clymq.testing.raft_client import LEADER_SECONDS_MAX, RaftClient
from clymq.testing.raft_node import DISK_FILE
from clymq.testing.waiting import until, wait_until

SETTLE_SECONDS_MAX: Final = 60.0


class Cluster(Opened):
    """Server processes on a network of their own. Subclasses say how each is run: `command`.

    `folder`: where data and logs go; not given: to one that is removed at the end. `settings` of the servers, by name.
    `clients`: further places in the network, from which a test itself reaches the servers.
    """

    def __init__(
        self,
        names: Sequence[str],
        *,
        folder: Path | None = None,
        network: Kind = "auto",
        settings: Mapping[str, object] | None = None,
        clients: Sequence[str] = (),
    ) -> None:
        self._names = tuple(names)
        self._places = (*names, *clients)
        self._kind = network
        self._given_folder = folder
        self._environment = {f"CLYMQ_{name.upper()}": str(value) for name, value in (settings or {}).items()}
        self._network: Network | None = None
        self._processes: Processes | None = None

    @abstractmethod
    def command(self, name: str) -> Sequence[str]:
        """Return how a server is run, the next time that it is started."""

    # --- Begin and end ---

    def open(self) -> None:
        """Make the network and start every server; if that fails, nothing is left."""
        self.folder = self._given_folder or Path(tempfile.mkdtemp(prefix="clymq-"))
        self._processes = Processes(self.folder / "logs")
        try:
            network = make_network(self._places, self._kind)
            network.start()
            self._network = network
            self.start(*self._names)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Kill what is running, and leave nothing behind but a folder that was given."""
        try:
            if self._processes is not None:
                self._processes.close()
        finally:
            network, self._network = self._network, None
            if network is not None:
                network.close()
            if self._given_folder is None:
                shutil.rmtree(self.folder, ignore_errors=True)

    # --- What there is ---

    @property
    def network(self) -> Network:
        """The network between the servers; its `kind` says which one it is."""
        assert self._network is not None, "the cluster is not open"
        return self._network

    @property
    def processes(self) -> Processes:
        """The processes, for what is not said here."""
        assert self._processes is not None, "the cluster is not open"
        return self._processes

    @property
    def addresses(self) -> Mapping[str, str]:
        """Where the test reaches each server; one that is not running had it there."""
        return {name: self.processes.address(name) for name in self._names}

    @property
    def bootstrap(self) -> str:
        """All addresses, as clients want them."""
        return ",".join(self.addresses.values())

    def data(self, name: str) -> Path:
        """Return the data folder of a server."""
        return self.folder / name

    # --- What may happen ---

    def start(self, *names: str) -> None:
        """Start servers together, and wait until each of them serves."""
        for name in names:
            command = self.network.command(name, self.command(name))
            self.processes.add(name, command, environment=self._environment)
        self.processes.start(*names)
        for name in names:
            self.network.serves(name, self.processes.address(name))

    def kill(self, *names: str) -> None:
        """End servers with SIGKILL."""
        self.processes.kill(*names)

    def stop(self, name: str) -> None:
        """End a server with SIGTERM, and demand that it ends well."""
        self.processes.stop(name)

    def freeze(self, name: str) -> None:
        """Let a server stand still."""
        self.processes.freeze(name)

    def thaw(self, name: str) -> None:
        """Let a frozen server go on."""
        self.processes.thaw(name)

    def partition(self, one: str, other: str, *, one_way: bool = False) -> None:
        """Cut two servers off from each other; one way: only what the first sends to the second."""
        self.network.partition(one, other, one_way=one_way)

    def isolate(self, name: str) -> None:
        """Cut a server off from all others; the test still reaches it."""
        for other in self._names:
            if other != name:
                self.partition(name, other)

    def heal(self) -> None:
        """Undo all cuts."""
        self.network.heal()


class RaftCluster(Cluster):
    """Nodes `a`, `b`, `c`, ... that host the same Raft groups, `0`, `1`, ..."""

    def __init__(
        self,
        nodes: int = 3,
        groups: int = 1,
        *,
        folder: Path | None = None,
        network: Kind = "auto",
        settings: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__([chr(ord("a") + n) for n in range(nodes)], folder=folder, network=network, settings=settings)
        self.nodes = self._names
        self.groups = tuple(str(number) for number in range(groups))
        self._disk_ids: dict[str, str] = {}

    def command(self, name: str) -> Sequence[str]:
        """Return how a node is run: with the disk that it had the first time, as a metadata store would name it."""
        arguments = ["--name", name, "--listen", self.network.listen_address(name), "--data", str(self.data(name))]
        for peer in self.nodes:
            if peer != name:
                arguments += ["--peer", f"{peer}={self.network.address(name, peer)}"]
        if name in self._disk_ids:
            arguments += ["--disk-id", self._disk_ids[name]]
        return (sys.executable, "-m", "clymq.testing.raft_node", *arguments, "--groups", str(len(self.groups)))

    def start(self, *names: str) -> None:
        """Start nodes together; remember which disk each of them began on."""
        super().start(*names)
        for name in names:
            self._disk_ids.setdefault(name, (self.data(name) / DISK_FILE).read_text(encoding="ascii"))

    def leader(self, group: str = "0", *, seconds_max: float = LEADER_SECONDS_MAX) -> str:
        """Return who leads a group, by asking all; wait until somebody does."""
        background = Background("clymq-leader")
        background.start()
        try:
            return background.run(self._ask_for_leader(group, seconds_max), seconds_max=2 * seconds_max)
        finally:
            background.close()

    async def _ask_for_leader(self, group: str, seconds_max: float) -> str:
        async with RaftClient(self) as client:
            return await client.leader(group, seconds_max=seconds_max)

    def batches(self, name: str, group: str = "0") -> Path:
        """Return the file that holds the log of a group on a node."""
        return self.data(name) / group / "Block_1" / "batches"

    def settle(self, nodes: Sequence[str] = (), *, seconds_max: float = SETTLE_SECONDS_MAX) -> None:
        """Wait until all nodes, or these, hold the same bytes of every group; nobody pushes meanwhile."""
        for group in self.groups:
            paths = [self.batches(node, group) for node in nodes or self.nodes]
            wait_until(partial(_are_equal, paths), f"group {group} is the same on all nodes", seconds_max=seconds_max)

    async def caught_up(self, *nodes: str, seconds_max: float = SETTLE_SECONDS_MAX) -> None:
        """Wait until nodes hold as much of every group as the one that holds most of it does now."""
        for group in self.groups:
            size = max(self.batches(node, group).stat().st_size for node in self.nodes)
            paths = [self.batches(node, group) for node in nodes]
            what = f"{' and '.join(nodes)} catch up in group {group}"
            await until(partial(_are_as_long, paths, size), what, seconds_max=seconds_max)


def _are_equal(paths: Sequence[Path]) -> bool:
    return len({path.read_bytes() for path in paths}) == 1


def _are_as_long(paths: Sequence[Path], size: int) -> bool:
    return all(path.stat().st_size >= size for path in paths)
