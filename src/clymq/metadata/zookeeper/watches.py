"""Watches that last, from ZooKeeper's that fire once.

A path is *armed* when the server will tell of its next change. When it does, and when the connection is lost, the path
is armed again, behind a `sync`, and only then are the watchers told. So between what a watcher reads next and what it
is told next nothing can be missed, and what it reads is at least as new as what it was told.
"""

from __future__ import annotations

import contextlib

from kazoo.protocol.states import WatchedEvent

from clymq.errors import ClosedError, ClymqError, MetadataError, NodeMissing, TransportError
from clymq.metadata.watch import Watch
from clymq.metadata.zookeeper.connection import Connection


class ArmedPath:
    """One path, and all who watch it. kazoo keeps one callback for it, however often it is armed."""

    def __init__(self, connection: Connection, path: str, full_path: str) -> None:
        self.watches: set[Watch] = set()
        self._connection = connection
        self._path = path
        self._full_path = full_path
        self._arming = False
        self._fired_again = False
        connection.on_end(self._ended)

    async def arm(self) -> None:
        """Make the server tell of the next change: of the node, and of its children if it is there."""
        path = self._full_path
        ask = self._connection.ask
        await ask(self._path, lambda client: client.sync_async(path), confirms=True)
        if await ask(self._path, lambda client: client.exists_async(path, watch=self._fired)) is not None:
            # Deleted meanwhile: then the watch of its existence has fired.
            with contextlib.suppress(NodeMissing):
                await ask(self._path, lambda client: client.get_children_async(path, watch=self._fired))

    def _fired(self, event: WatchedEvent) -> None:
        """Hear from kazoo, in a thread of its own, of a change or of a lost connection."""
        del event
        self._connection.hop(self._on_fired)

    def _on_fired(self) -> None:
        self._fired_again = True
        if self.watches and not self._arming and not self._connection.ended:
            self._arming = True
            self._connection.spawn(self._arm_and_tell())

    async def _arm_and_tell(self) -> None:
        # Whatever else goes wrong is the end of the session, of which the watchers hear by `_ended`.
        with contextlib.suppress(MetadataError, ClosedError):
            while self._fired_again:
                self._fired_again = False
                try:
                    await self.arm()
                except TransportError:
                    self._fired_again = True
                    await self._connection.until_connected(patient=True)
                else:
                    for watch in self.watches:
                        watch.notify()
        self._arming = False

    def _ended(self, reason: ClymqError) -> None:
        for watch in self.watches:
            watch.fail(reason)
        self.watches.clear()
