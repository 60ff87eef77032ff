"""`Controller`: the zkserver's part of the cluster, active or standing by.

One zkserver is active at a time, by an ephemeral node of the store; the others watch it and one takes over when it is
gone. Election only saves work: two that believe to be active can push the same moves forward, and nothing else. One
whose session is lost stops all moves BEFORE it answers anything else, and is a standby again.

It needs a store that somebody opens, and opens again when a session was lost; a way to brokers; the time; and chance.
It opens no socket: `handlers` go into the endpoint of whoever listens.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from random import Random

from clymq.clock import Clock, pause
from clymq.config import Config
from clymq.controller.brokers import Brokers
from clymq.controller.tenure import Tenure
from clymq.errors import ClymqError, LeaderUnavailable, NotController
from clymq.metadata import nodes
from clymq.metadata.catalog import Catalog
from clymq.metadata.store import MetadataStore, Session
from clymq.metadata.watch import Watch
from clymq.protocol import controller as verbs
from clymq.protocol.controller import ControllerFound, FindController
from clymq.protocol.verbs import Reply, Request
from clymq.rpc.handlers import Handler, answering
from clymq.rpc.lasting import lasting
from clymq.rpc.peer import Call

log = logging.getLogger("clymq.controller")

SERVED = (
    verbs.CreateTopic, verbs.CreatePart, verbs.DeleteTopic, verbs.AlterTopic, verbs.ListTopics, verbs.DescribeTopic,
    verbs.Status, verbs.ListGroups, verbs.SetPartitionState, verbs.MovePartition, verbs.ProGetBroker,
    verbs.ConGetBroker, verbs.Sub, verbs.UnSub, verbs.ListSubs, verbs.BroInfo, verbs.BroGetConfig, verbs.BecomeLeader,
    verbs.GetNewLeader, verbs.UpdateDup, verbs.UpdatePTPOffset, verbs.ReplicaDown, verbs.RollBlock, verbs.DrainBroker,
    verbs.UndrainBroker, verbs.ResetGroup, verbs.ForceSeal,
)  # fmt: skip


class Controller:
    """One zkserver's controller; `start` when its address is known, `close` at the end."""

    def __init__(
        self, name: str, store: MetadataStore, brokers: Brokers, clock: Clock, config: Config, chance: Random
    ) -> None:
        self.name = name
        self._catalog = Catalog(store)
        self._brokers = brokers
        self._clock = clock
        self._config = config
        self._chance = chance
        self._address = ""
        self._tenure: Tenure | None = None
        self._task: asyncio.Task[None] | None = None
        self._starting = True
        self.on_failure: Callable[[ClymqError], None] = lambda _: None
        """Hears that this controller can do its work no more; filled in by whoever runs it."""

    @property
    def is_active(self) -> bool:
        """Whether this zkserver is the active one, as far as it knows."""
        return self._tenure is not None and not self._tenure.over

    def handlers(self) -> Mapping[type, Handler]:
        """Return what handles each verb of the controller."""

        async def handle(call: Call) -> Reply:
            return await self.answer(call.request)

        return dict.fromkeys((*SERVED, FindController), answering(handle))

    def start(self, address: str) -> None:
        """Stand for election, as who is reached at this address."""
        assert self._task is None, "a controller is started once"
        self._address = address
        # Who is in office and does nothing keeps the others from it: it tries again, and if that is in vain, leaves.
        self._task = asyncio.create_task(lasting(f"{self.name}: office", self._run, self._clock, self.on_failure))

    async def close(self) -> None:
        """Stop everything; the store, if it still is there, is its owner's to close, and with it the office."""
        if self._tenure is not None:
            self._tenure.end()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def answer(self, request: Request[Reply]) -> Reply:
        """Answer a request, if this zkserver is the active one; all answer `FindController`."""
        if isinstance(request, FindController):
            return await self._find()
        tenure = self._tenure
        if tenure is None or tenure.over:
            raise await self._not_active()
        try:
            reply = await tenure.answers[type(request)](request)
        except ClymqError as error:
            if tenure.over:
                raise await self._not_active() from error
            raise
        if tenure.over:
            # It may well be done, but that is for the next one to say.
            raise await self._not_active()
        return reply

    async def _find(self) -> ControllerFound:
        found = await self._catalog.controller()
        if found is None:
            raise LeaderUnavailable("no zkserver is active")
        return ControllerFound(found.value.name, found.value.address, found.value.epoch)

    async def _not_active(self) -> NotController:
        try:
            found = await self._find()
        except ClymqError as error:
            return NotController(f"{self.name} is not the active zkserver, and who is, is not known: {error}")
        if found.name == self.name:
            return NotController(f"{self.name} is about to be the active zkserver, or was until now")
        return NotController(f"{self.name} is not the active zkserver; {found.name} is", hint=found.address)

    # Office.

    async def _run(self) -> None:
        """Be active whenever nobody else is, for as long as there is a session."""
        while True:
            try:
                await self._take_part()
            except ClymqError as error:
                log.info("%s: stands by: %s", self.name, error)
            await pause(self._clock, self._config.reconnect_ms_min)

    async def _take_part(self) -> None:
        """Be elected and serve until that ends, or wait until who is active is gone."""
        session = self._catalog.store.session
        await self._catalog.prepare()
        watch = await self._catalog.store.watch(nodes.CONTROLLER)
        try:
            await self._catalog.sync()
            found = await self._catalog.controller()
            elected = found.value if found is not None and found.owner == session.id else None
            # What a former life of this process has left need not run out first. Only at the start: of two processes
            # with one name each would take the other's place for ever.
            left = self._starting and found is not None and found.value.name == self.name
            if elected is None and (found is None or left):
                elected = await self._catalog.elect(self.name, self._address, replaces=found)
            self._starting = False
            if elected is None:
                await watch.changed()
            else:
                await self._serve(elected, session, watch)
        finally:
            watch.close()

    async def _serve(self, elected: nodes.Controller, session: Session, watch: Watch) -> None:
        cluster_id = await self._catalog.cluster_id(f"{self._chance.getrandbits(128):032x}")
        tenure = Tenure(elected, self._catalog, self._brokers, self._clock, self._config, self._chance, cluster_id)
        self._tenure = tenure
        # From within the call that notices the loss: no move takes a step, and nothing is answered, after it.
        session.on_lost(tenure.end)
        log.info("%s: is the active zkserver, epoch %d", self.name, elected.epoch)
        try:
            tenure.begin()
            tenure.spawn(self._keep_office(tenure, session, watch))
            await tenure.ended.wait()
        finally:
            await tenure.close()
            self._tenure = None
            log.info("%s: is no longer the active zkserver", self.name)

    async def _keep_office(self, tenure: Tenure, session: Session, watch: Watch) -> None:
        """End the tenure when the tree names somebody else, or nobody."""
        while True:
            await watch.changed()
            found = await self._catalog.controller()
            if found is None or found.owner != session.id:
                tenure.end()
                return
