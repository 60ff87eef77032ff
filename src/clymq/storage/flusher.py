"""When blocks are synced: one flusher per broker, for all its blocks.

`commit`: as soon as possible, and whoever waits for it is told. While a block is being synced, everything appended to
it gathers; the next sync takes it all, which is group commit. `interval`: within so many milliseconds of the first
write that is not synced. `never`: the operating system decides. Syncs run off the event loop, a few at once; a slow
block delays no other. Threads and time come from `Files` and `Clock`, so the same code runs on virtual time.
"""

from __future__ import annotations

from collections.abc import Callable

from clymq.clock import Clock, Timer
from clymq.config import Config
from clymq.errors import StorageError
from clymq.storage.block import Block

Listener = Callable[[StorageError | None], None]


class Flusher:
    """Syncs the blocks that were handed to it with `add`."""

    def __init__(self, clock: Clock, config: Config) -> None:
        self._clock = clock
        self._config = config
        self._tasks: dict[Block, _Task] = {}

    def add(self, block: Block, listener: Listener) -> None:
        """Take care of a block; the listener hears of every sync that ends, well or with the error that stopped it."""
        assert block not in self._tasks
        self._tasks[block] = _Task(block, listener)

    def written(self, block: Block, fsync: str | None = None) -> None:
        """Something was appended; see to it as `fsync` says, or else the setting: commit, interval or never."""
        task, fsync = self._tasks[block], fsync or self._config.fsync
        if fsync == "commit":
            task.sync()
        elif fsync == "interval" and task.timer is None:
            task.timer = self._clock.call_later(self._config.fsync_interval_ms, task.sync)

    def is_syncing(self, block: Block) -> bool:
        """Whether a sync of a block is under way."""
        task = self._tasks.get(block)
        return task is not None and task.syncing

    def remove(self, block: Block, done: Callable[[], None] = lambda: None) -> None:
        """Let go of a block; `done` is called once no sync of it is under way and its file may be closed."""
        self._tasks.pop(block).stop(done)


class _Task:
    """One block's syncs: at most one under way, and at most one more to come."""

    def __init__(self, block: Block, listener: Listener) -> None:
        self.timer: Timer | None = None
        self._block = block
        self._listener = listener
        self.syncing = False
        self._again = False
        self._stopped: Callable[[], None] | None = None

    def sync(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        if self.syncing:
            self._again = True
        elif self._block.failure is not None:
            self._listener(self._block.failure)  # nobody waits for what will never come
        else:
            self.syncing = True
            self._block.sync_soon(self._done)

    def stop(self, done: Callable[[], None]) -> None:
        self._again = False
        if self.timer is not None:
            self.timer.cancel()
        if self.syncing:
            self._stopped = done
        else:
            done()

    def _done(self, error: StorageError | None) -> None:
        self.syncing = False
        if self._stopped is not None:
            self._stopped()
            return
        self._listener(error)
        # The listener may have written more and asked for a sync of it already.
        if self._again and not self.syncing:
            self._again = False
            self.sync()
