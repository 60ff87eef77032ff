"""Disks that are full, rotten, short or empty, and clocks that are wrong."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from clymq.errors import StorageError
from clymq.simulation.chaos.plan import Fault
from clymq.simulation.chaos.scene import Scene, one_of
from clymq.storage.checkpoint import read_checkpoint
from clymq.storage.files import RealFiles

# What is older than this may be damaged: it is known to be committed by the broker itself, so the damage is noticed.
OLD_SECONDS: Final = 1.0
DAY_SECONDS: Final = 86_400.0


class DiskFaults:
    """See the module."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene

    @asynccontextmanager
    async def damage(self, fault: Fault) -> AsyncIterator[None]:
        """Truncation, a flipped bit, or no files at all, of one broker that is down; see `tolerance` for the rule."""
        scene = self._scene
        down = [name for name in scene.brokers if not scene.is_running(name)]
        if down or not await scene.tolerance.may_damage():
            scene.note(f"no damage: {' '.join(down) or scene.tolerance.damaged or 'somebody'} is down or not whole")
            yield
            return
        name = one_of(scene.brokers, fault.pick)
        old = sizes(scene.cluster.data(name))
        await asyncio.sleep(OLD_SECONDS)
        scene.tolerance.note(name)
        await scene.kill([name], keep=0.0)
        if fault.who == "wipe":
            await asyncio.to_thread(shutil.rmtree, scene.cluster.data(name))
            scene.note(f"{name} has lost all files")
        else:
            known = old if fault.who == "flip" else known_to_be_committed(old)
            if known:
                scene.note(damage_file(known, fault, random.Random(f"{fault.pick} {fault.amount}")))
        yield
        await scene.start([name])

    @asynccontextmanager
    async def disk_full(self, fault: Fault) -> AsyncIterator[None]:
        """No room for messages."""
        names = await self._scene.chosen(fault)
        for name in names:
            self._scene.cluster.tell(name, disk_full=True)
        yield
        for name in names:
            self._scene.cluster.tell(name, disk_full=False)

    @asynccontextmanager
    async def clock_jump(self, fault: Fault) -> AsyncIterator[None]:
        """The wall clocks of brokers are wrong by up to a day, each by another time, either way; then right again."""
        names = await self._scene.chosen(fault)
        chance = random.Random(fault.amount)
        for name in names:
            self._scene.cluster.tell(name, clock_offset_seconds=chance.uniform(-DAY_SECONDS, DAY_SECONDS))
        yield
        for name in names:
            self._scene.cluster.tell(name, clock_offset_seconds=0.0)


def sizes(data: Path) -> dict[Path, int]:
    """Return the files of a broker that hold messages, and how long they are."""
    paths = sorted(data.glob("*/*/Block_*/batches"))
    return {path: path.stat().st_size for path in paths if path.stat().st_size}


def known_to_be_committed(old: Mapping[Path, int]) -> dict[Path, int]:
    """Return how much of these files their checkpoints speak of.

    Whatever is cut off takes with it what followed, and so every batch that named a higher commit index. What is left
    to tell a loss from a torn write is the checkpoint, which follows within a moment, but not at once.
    """
    known: dict[Path, int] = {}
    for path, size in old.items():
        try:
            checkpoint = read_checkpoint(RealFiles(), str(path.with_name("checkpoint")))
        except StorageError:
            continue
        if checkpoint is not None and checkpoint.position:
            known[path] = min(size, checkpoint.position)
    return known


def damage_file(old: Mapping[Path, int], fault: Fault, chance: random.Random) -> str:
    """Truncate one of these files, or flip a bit in it, within what is old; return what was done."""
    path = chance.choice(sorted(old))
    position = chance.randrange(old[path])
    where = "/".join(path.parts[-5:])
    with path.open("r+b") as file:
        if fault.who == "truncate":
            file.truncate(position)
            return f"{where} is cut to {position} of {old[path]} bytes"
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ (1 << chance.randrange(8))]))
        return f"{where} has a bit flipped at {position} of {old[path]} bytes"
