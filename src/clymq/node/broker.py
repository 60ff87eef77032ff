"""A broker process: a server, a data folder, the Raft groups in it, a session with the metadata store, and the broker.

The order at the start: the folder is locked and the disk knows who it is; the store is open, and the cluster that it
names is the one that the folder was made for; the broker is in the tree; then it listens, hears what to host, and says
that it is there. At the end leadership is handed over first, then the broker leaves the tree, and only then its ports.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from clymq.broker.broker import Broker
from clymq.broker.hosting import Hosting, Reports
from clymq.broker.neighbours import ActiveController, Neighbours, PullLinks
from clymq.clock import Clock, pause
from clymq.config import Config
from clymq.errors import BrokerReplaced, ClosedError, ClymqError, ConfigError, LeaderUnavailable
from clymq.metadata import nodes
from clymq.metadata.catalog import Catalog
from clymq.metadata.store import MetadataStore, Session
from clymq.node.figures import Gauge, Totals
from clymq.protocol.broker import PUSH_RUNS
from clymq.protocol.controller import BroInfo, ControllerFound, Property
from clymq.replication.consensus_links import ConsensusLinks, handlers
from clymq.replication.fetch_host import FetchHost
from clymq.replication.raft_driver import INCARNATION_MAX
from clymq.replication.raft_host import RaftHost
from clymq.rpc.endpoint import Endpoint
from clymq.rpc.lasting import lasting
from clymq.rpc.server import Server
from clymq.rpc.transport import Transport
from clymq.storage.files import Files
from clymq.storage.folder import DataFolder

log = logging.getLogger("clymq.node")

ASK_MS = 5_000.0
COVER_POLL_MS = 5.0


@dataclass(frozen=True)
class Place:
    """Where a broker stands, for placement."""

    host: str = ""
    rack: str = ""
    power: int = 1


class BrokerNode:
    """One broker process. `start`, then it serves; `close`."""

    def __init__(
        self,
        name: str,
        data: str,
        *,
        store: Callable[[], MetadataStore],
        transport: Transport,
        files: Files,
        clock: Clock,
        config: Config,
        chance: random.Random,
        place: Place | None = None,
        totals: Callable[[], Totals] = Totals,
    ) -> None:
        """`totals`: what this process has used so far, for whoever looks at `status`."""
        self.name = name
        self._place = place or Place()
        self._transport = transport
        self._files = files
        self._clock = clock
        self._config = config
        self._chance = chance
        self._gauge = Gauge(clock, totals)
        self._store = store()
        self._catalog = Catalog(self._store)
        self._folder = DataFolder.open(files, data, config)
        self._disk_id = self._folder.identity(lambda: f"{chance.getrandbits(128):032x}")
        self._incarnation = chance.randint(1, INCARNATION_MAX)
        self._endpoint = Endpoint(
            clock, config, name=name, role="broker", incarnation=self._incarnation, features=(PUSH_RUNS,)
        )
        self._server = Server(transport, self._endpoint)
        self._links = ConsensusLinks(transport, self._endpoint, chance=chance.random)
        self._neighbours = Neighbours(transport, self._endpoint, chance=chance.random)
        self._controller = ActiveController(self._neighbours, self._active_address)
        self._raft = RaftHost(
            name, clock=clock, config=config, links=self._links, draw=chance.randint, incarnation=self._incarnation
        )
        self._fetch = self._fetch_host()
        self._links.on_open = self._raft.reached
        self._endpoint.on_settled = self._raft.settle
        self.broker = Broker(
            name,
            self._disk_id,
            self._incarnation,
            hosting=self._hosting,
            controller=self._controller,
            neighbours=self._neighbours,
            find_controller=self._find_controller,
            clock=clock,
            config=config,
        )
        self._endpoint.handlers.update(handlers(self._raft))
        self._endpoint.handlers.update(self.broker.handlers())
        self._tasks: list[asyncio.Task[None]] = []
        self._session_ended = asyncio.Event()
        self._failure: asyncio.Future[ClymqError]
        self.broker.on_failure = self._fail

    def _fetch_host(self) -> FetchHost:
        return FetchHost(
            self.name,
            clock=self._clock,
            config=self._config,
            flusher=self._raft.flusher,
            links=PullLinks(self._neighbours),
            draw=self._chance.randint,
            incarnation=self._incarnation,
            session_is_confirmed=self._session_is_confirmed,
        )

    def _hosting(self, reports: Reports) -> Hosting:
        return Hosting(
            self.name,
            self._disk_id,
            files=self._files,
            folder=self._folder,
            clock=self._clock,
            config=self._config,
            raft=self._raft,
            fetch=self._fetch,
            links=self._links,
            neighbours=self._neighbours,
            reports=reports,
            session=self._session_id,
        )

    @property
    def address(self) -> str:
        """Where it listens."""
        return self._server.address

    async def start(self, address: str) -> None:
        """Join the cluster; when this returns the broker serves what it should host."""
        try:
            await self._server.start(address)
            await self._begin_session(starting=True)
            self._failure = asyncio.get_running_loop().create_future()
            self._raft.start()
            self._fetch.start()
            self._keep("session", self._keep_session)
            self._keep("announcing", self._keep_known)
            await self._unless_it_fails(self.broker.start())
        except BaseException:
            await self.close()
            raise

    async def _unless_it_fails(self, work: Coroutine[Any, Any, None]) -> None:
        """Do what may wait for ever once this process can serve no more; then the reason is raised."""
        task = asyncio.create_task(work)
        self._failure.add_done_callback(lambda _: task.cancel())
        try:
            await task
        except asyncio.CancelledError:
            if not self._failure.done():
                raise
            raise self._failure.result() from None

    async def failed(self) -> ClymqError:
        """Wait until this process can serve no more, and say why.

        Another one has taken its name; or what keeps it in the cluster fails over and over, and it only looks alive.
        """
        return await self._failure

    def _fail(self, error: ClymqError) -> None:
        log.error("%s: %s", self.name, error)
        if not self._failure.done():
            self._failure.set_result(error)

    def _keep(self, what: str, work: Callable[[], Awaitable[None]]) -> None:
        self._tasks.append(asyncio.create_task(lasting(f"{self.name}: {what}", work, self._clock, self._fail)))

    async def close(self) -> None:
        """Hand over, leave the tree, let go."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._fetch.retire()
        if self._raft.hand_over():
            await pause(self._clock, self._config.election_ms_max)
        await self._let_followers_pull()
        self.broker.consumption.leave()
        try:
            await self._store.close()
        except ClymqError as error:
            log.warning("%s: its session could not be ended: %s", self.name, error)
        await self._server.close()
        await self.broker.close()
        await self._links.close()
        await self._neighbours.close()
        self._raft.close()
        self._fetch.close()
        self._folder.close()

    async def _let_followers_pull(self) -> None:
        """Wait until the followers have what the fetch blocks led here have acknowledged, but not for long.

        BEFORE the session ends: then they are fenced, and what they do not have by then is lost.
        """
        deadline_ms = self._clock.monotonic_ms() + self._config.election_ms_max
        while not self._fetch.is_covered and self._clock.monotonic_ms() < deadline_ms:
            await pause(self._clock, COVER_POLL_MS)

    # --- The tree ---

    async def _begin_session(self, *, starting: bool) -> None:
        await self._store.open()
        self._session_ended = asyncio.Event()
        self._store.session.on_lost(self._session_lost)
        await self._catalog.prepare()
        cluster = await self._catalog.cluster_id(f"{self._chance.getrandbits(128):032x}")
        kept = self._folder.kept_line("cluster", lambda: cluster)
        if kept != cluster:
            raise ConfigError("data", self._folder.path, f"belongs to cluster {kept}, not to {cluster}")
        await self._catalog.register_broker(
            nodes.Broker(
                name=self.name,
                address=self.address,
                id=f"{self._incarnation:x}",
                disk_id=self._disk_id,
                host=self._place.host,
                rack=self._place.rack,
                power=self._place.power,
            )
        )
        await self._catalog.announce_broker(self.name, self._incarnation, starting=starting)

    def _session_lost(self) -> None:
        """What was led under the session is led no more, BEFORE anything else is answered."""
        self._fetch.lose_session()
        self._session_ended.set()

    def _session(self) -> Session | None:
        """Return the session with the store; None while there is none, because it could not be opened again."""
        try:
            session = self._store.session
        except ClosedError:
            return None
        return None if session.lost else session

    def _session_id(self) -> str:
        session = self._session()
        return "" if session is None else session.id

    def _session_is_confirmed(self) -> bool:
        session = self._session()
        return session is not None and session.confirmed_within(self._clock.monotonic_ms())

    async def _keep_session(self) -> None:
        """Begin a new session whenever the store has ended the one before, and ask anew what to host."""
        while True:
            await self._session_ended.wait()
            log.warning("%s: the store has ended its session; it begins another", self.name)
            try:
                await self._begin_session(starting=False)
                self.broker.ask_again()
            except BrokerReplaced as error:
                # Another process has this name now. Two of them would take each other's place for ever.
                self._fail(error)
                return
            except ClymqError as error:
                log.warning("%s: no session: %s", self.name, error)
                await pause(self._clock, self._config.reconnect_ms_max)
                # Nobody else will: the session may have begun, and the broker only not be announced.
                self._session_ended.set()

    async def _keep_known(self) -> None:
        """Tell the controller who this is, and how it is doing, every few seconds."""
        while True:
            try:
                await self._controller.ask(self._info(), timeout_ms=ASK_MS)
                await pause(self._clock, self._config.config_ms)
            except BrokerReplaced as error:
                self._fail(error)
                return
            except ClymqError as error:
                log.info("%s: the controller does not know it yet: %s", self.name, error)
                await pause(self._clock, self._config.reconnect_ms_min)

    def _info(self) -> BroInfo:
        free, rates = self._files.free_bytes(self._folder.path), self._gauge.look()
        return BroInfo(
            name=self.name,
            address=self.address,
            disk_id=self._disk_id,
            incarnation=self._incarnation,
            host=self._place.host,
            rack=self._place.rack,
            properties=Property(self._place.power, rates.cpu, rates.disk_io, disk_free_bytes=free),
        )

    async def _active_address(self) -> str | None:
        controller = await self._catalog.controller()
        return controller.value.address if controller is not None else None

    async def _find_controller(self) -> ControllerFound:
        controller = await self._catalog.controller()
        if controller is None:
            raise LeaderUnavailable("no zkserver is active")
        found = controller.value
        return ControllerFound(found.name, found.address, found.epoch)
