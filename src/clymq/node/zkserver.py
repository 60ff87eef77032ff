"""A zkserver process: a server, the metadata store that it serves or uses, and its own place in the tree.

With the embedded store it holds the file, alone, and serves it to brokers over rpc; with ZooKeeper it is a client like
any other. Either way it keeps a session, says in `/ZkServers` that it is there, and says so again in a new session
when the store has ended the old one.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Final

from clymq.clock import Clock, pause
from clymq.config import Config
from clymq.controller.brokers import LinkedBrokers
from clymq.controller.controller import Controller
from clymq.errors import ClymqError
from clymq.metadata.catalog import Catalog
from clymq.metadata.embedded import StoreFile
from clymq.metadata.engine import Engine
from clymq.metadata.local import LocalStore
from clymq.metadata.nodes import ZkServer
from clymq.metadata.server import StoreServer
from clymq.metadata.store import MetadataStore
from clymq.rpc.endpoint import Endpoint
from clymq.rpc.lasting import lasting
from clymq.rpc.server import Server
from clymq.rpc.transport import Transport

log = logging.getLogger("clymq.node")

SESSION_BITS: Final = 63


class ZkServerNode:
    """One zkserver. `store` is what it uses; `engine` is the embedded store that it serves, or None."""

    def __init__(
        self,
        name: str,
        transport: Transport,
        clock: Clock,
        config: Config,
        store: MetadataStore,
        engine: Engine | None,
        chance: random.Random,
    ) -> None:
        self.name = name
        self.store = store
        self.catalog = Catalog(store)
        self._clock = clock
        self._config = config
        self._engine = engine
        endpoint = Endpoint(clock, config, name=name, role="zkserver")
        self._failure: asyncio.Future[ClymqError]
        if engine is not None:
            endpoint.handlers.update(StoreServer(engine).handlers())
            engine.on_failed = self._fail
        self._chance = chance
        self._brokers = LinkedBrokers(transport, endpoint, config, chance=chance.random)
        self.controller = Controller(name, store, self._brokers, clock, config, chance)
        endpoint.handlers.update(self.controller.handlers())
        self._server = Server(transport, endpoint)
        self._ended = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None

    @classmethod
    def embedded(
        cls, name: str, folder: str | None, transport: Transport, clock: Clock, config: Config, chance: random.Random
    ) -> ZkServerNode:
        """Hold and serve the store in a folder; None: in memory."""
        # Who knows a session's number speaks for it: it must not be guessed.
        engine = Engine(StoreFile(folder), clock, lambda: chance.getrandbits(SESSION_BITS))
        return cls(name, transport, clock, config, LocalStore(engine, clock, config), engine, chance)

    @property
    def address(self) -> str:
        """Where it listens."""
        return self._server.address

    async def start(self, address: str) -> None:
        """Open the store, listen, and be in the tree; when this returns it serves."""
        self._failure = asyncio.get_running_loop().create_future()
        try:
            if self._engine is not None:
                await self._engine.start()
            await self._server.start(address)
            await self._begin_session()
        except ClymqError:
            await self.close()
            raise
        self._keeping = asyncio.create_task(
            lasting(f"{self.name}: session", self._keep_session, self._clock, self._fail)
        )
        self.controller.on_failure = self._fail
        self.controller.start(self.address)

    async def failed(self) -> ClymqError:
        """Wait until this process can serve no more, and say why.

        The disk of the store that it holds has failed; or what keeps it in the cluster fails over and over.
        """
        return await self._failure

    def _fail(self, error: ClymqError) -> None:
        log.error("%s: cannot go on: %s", self.name, error)
        if not self._failure.done():
            self._failure.set_result(error)

    async def close(self) -> None:
        """Leave the tree, finish what is under way, and let go of everything."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
        await self.controller.close()
        try:
            await self.store.close()
        except ClymqError as error:
            # It cannot be reached; what is ephemeral goes when the session runs out.
            log.warning("%s: its session could not be ended: %s", self.name, error)
        await self._server.close()
        await self._brokers.close()
        if self._engine is not None:
            await self._engine.close()

    async def _begin_session(self) -> None:
        await self.store.open()
        self._ended = asyncio.Event()
        self.store.session.on_lost(self._ended.set)
        await self.catalog.prepare()
        cluster = await self.catalog.cluster_id(f"{self._chance.getrandbits(128):032x}")
        await self.catalog.announce_zkserver(ZkServer(name=self.name, address=self.address))
        log.info("%s: session %s in cluster %s", self.name, self.store.session.id, cluster)

    async def _keep_session(self) -> None:
        """Begin a new session whenever the store has ended the one before."""
        while True:
            await self._ended.wait()
            log.warning("%s: the store has ended its session; it begins another", self.name)
            while True:
                try:
                    await self._begin_session()
                    break
                except ClymqError as error:
                    log.warning("%s: no session: %s", self.name, error)
                    await pause(self._clock, self._config.reconnect_ms_max)
