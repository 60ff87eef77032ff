"""Servers that are killed, frozen, stopped: brokers, zkservers, ZooKeeper."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from clymq.simulation.chaos.plan import Fault
from clymq.simulation.chaos.scene import Scene, some_of


class ProcessFaults:
    """See the module."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene

    @asynccontextmanager
    async def kill(self, fault: Fault) -> AsyncIterator[None]:
        """SIGKILL."""
        names = await self._scene.chosen(fault)
        await self._scene.kill(names, keep=fault.amount)
        yield
        await self._scene.start(names)

    @asynccontextmanager
    async def power_cut(self, fault: Fault) -> AsyncIterator[None]:
        """SIGKILL, and what was not synced is gone."""
        names = await self._scene.chosen(fault)
        await self._scene.cut_power(names, keep=fault.amount)
        yield
        await self._scene.start(names)

    @asynccontextmanager
    async def freeze(self, fault: Fault) -> AsyncIterator[None]:
        """SIGSTOP, and later SIGCONT."""
        frozen = await self._scene.freeze(await self._scene.chosen(fault))
        yield
        self._scene.thaw(frozen)

    @asynccontextmanager
    async def stop(self, fault: Fault) -> AsyncIterator[None]:
        """SIGTERM; `rolling`: all of them, one after the other, each back before the next goes."""
        if fault.who == "rolling":
            for name in self._scene.brokers:
                await self._scene.stop(name)
                await self._scene.start([name])
            yield
            return
        names = await self._scene.chosen(fault)
        for name in names:
            await self._scene.stop(name)
        yield
        await self._scene.start(names)

    # --- The control plane ---

    @asynccontextmanager
    async def kill_zkserver(self, _: Fault) -> AsyncIterator[None]:
        """SIGKILL of the active zkserver."""
        name = await self._scene.active_zkserver()
        await self._scene.kill([name], keep=0.0)
        yield
        await self._scene.start([name])

    @asynccontextmanager
    async def freeze_zkserver(self, _: Fault) -> AsyncIterator[None]:
        """SIGSTOP of the active zkserver."""
        frozen = await self._scene.freeze([await self._scene.active_zkserver()])
        yield
        self._scene.thaw(frozen)

    @asynccontextmanager
    async def stop_zkserver(self, _: Fault) -> AsyncIterator[None]:
        """SIGTERM of the active zkserver."""
        name = await self._scene.active_zkserver()
        await self._scene.stop(name)
        yield
        await self._scene.start([name])

    @asynccontextmanager
    async def kill_zookeeper(self, fault: Fault) -> AsyncIterator[None]:
        """SIGKILL of members of the ensemble."""
        names = some_of(self._scene.cluster.zookeepers, fault)
        self._scene.cluster.kill(*names)
        yield
        await self._scene.start(names)

    @asynccontextmanager
    async def freeze_zookeeper(self, fault: Fault) -> AsyncIterator[None]:
        """SIGSTOP of members of the ensemble."""
        frozen = await self._scene.freeze(some_of(self._scene.cluster.zookeepers, fault))
        yield
        self._scene.thaw(frozen)
