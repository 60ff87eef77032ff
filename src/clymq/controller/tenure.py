"""One period in which a zkserver is active: its verbs, what it looks after, and the end of all that at once.

Everything that the controller remembers belongs to a tenure and goes with it; the next one begins from the tree alone.
`end` is synchronous: when it returns no move of this tenure takes another step and no verb gives another answer, so it
can be called from where the loss of the session is noticed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from random import Random
from typing import Any

from clymq.clock import Clock, pause
from clymq.config import Config
from clymq.controller.brokers import Brokers
from clymq.controller.chains import Chains
from clymq.controller.copies import Copies
from clymq.controller.drains import Drains
from clymq.controller.groups import Groups
from clymq.controller.hosting import Hosting
from clymq.controller.moves import Moves
from clymq.controller.nudges import Nudges
from clymq.controller.repair import Repair
from clymq.controller.retention import Retention
from clymq.controller.roster import Attendance
from clymq.controller.routes import Routes
from clymq.controller.states import States
from clymq.controller.status import Overview
from clymq.controller.subscriptions import Subscriptions
from clymq.controller.topics import Topics
from clymq.errors import ClymqError, SessionLost
from clymq.metadata.catalog import Catalog
from clymq.metadata.nodes import Controller as Elected
from clymq.protocol import controller as verbs
from clymq.protocol.verbs import Reply

log = logging.getLogger("clymq.controller")

Answers = Callable[[Any], Awaitable[Reply]]
# A look round takes at most a tenth of the time, however much there is to look at.
REST_PER_LOOK = 9


class Tenure:
    """The verbs and the tasks of one active zkserver."""

    def __init__(
        self,
        elected: Elected,
        catalog: Catalog,
        brokers: Brokers,
        clock: Clock,
        config: Config,
        chance: Random,
        cluster_id: str,
    ) -> None:
        self.elected = elected
        self.over = False
        self.ended = asyncio.Event()
        self._clock = clock
        self._config = config
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._wake = asyncio.Event()
        chains = Chains(catalog)
        self._attendance = attendance = Attendance(catalog, brokers, clock)
        self._nudges = nudges = Nudges(brokers, self.spawn)
        moves = Moves(catalog, chains, attendance, brokers, clock, config, self.spawn, nudges)
        copies = Copies(chains, attendance, config, nudges)
        self._repair = Repair(catalog, chains, attendance, moves, copies, nudges, config)
        self._retention = Retention(chains, clock, config)
        self._topics = Topics(catalog, chains, attendance, moves, nudges, clock, config, chance, self.spawn)
        self._states = States(catalog, chains, attendance, moves)
        self._hosting = Hosting(catalog, chains, attendance, copies, cluster_id)
        self._subscriptions = Subscriptions(catalog, chains, self.spawn)
        self._routes = Routes(catalog, chains, attendance, self._subscriptions, moves, brokers, clock, config)
        self._groups = Groups(catalog, chains, attendance, brokers, clock, config)
        self._overview = Overview(catalog, chains, attendance, self._hosting.properties)
        self._drains = Drains(catalog, chains, attendance, self.look_soon)
        self.answers: dict[type, Answers] = {
            **self._about_topics(),
            **self._about_reading(),
            **self._about_brokers(),
        }

    def _about_topics(self) -> dict[type, Answers]:
        return {
            verbs.CreateTopic: self._topics.create_topic,
            verbs.CreatePart: self._topics.create_partition,
            verbs.DeleteTopic: self._topics.delete_topic,
            verbs.AlterTopic: self._topics.alter_topic,
            verbs.ListTopics: self._topics.list_topics,
            verbs.DescribeTopic: self._overview.describe_topic,
            verbs.Status: self._overview.status,
            verbs.ListGroups: self._overview.list_groups,
            verbs.SetPartitionState: self._states.set_partition_state,
            verbs.MovePartition: self._states.move_partition,
            verbs.ForceSeal: self._states.force_seal,
        }

    def _about_reading(self) -> dict[type, Answers]:
        return {
            verbs.ProGetBroker: self._routes.for_producer,
            verbs.ConGetBroker: self._routes.for_consumer,
            verbs.Sub: self._subscriptions.subscribe,
            verbs.UnSub: self._subscriptions.unsubscribe,
            verbs.ListSubs: self._subscriptions.list,
            verbs.ResetGroup: self._groups.reset_group,
        }

    def _about_brokers(self) -> dict[type, Answers]:
        return {
            verbs.BroInfo: self._hosting.broker_info,
            verbs.BroGetConfig: self._hosting.broker_config,
            verbs.BecomeLeader: self._hosting.become_leader,
            verbs.GetNewLeader: self._hosting.get_new_leader,
            verbs.UpdateDup: self._hosting.update_replica,
            verbs.UpdatePTPOffset: self._hosting.update_cursor,
            verbs.ReplicaDown: self._replica_down,
            verbs.RollBlock: self._states.roll_block,
            verbs.DrainBroker: self._drains.drain,
            verbs.UndrainBroker: self._drains.undrain,
        }

    # Tasks.

    def begin(self) -> None:
        """Begin to look after everything."""
        self.spawn(self._keep_looking())
        self.spawn(self._attendance.follow(self.look_soon, self._follow))

    def end(self) -> None:
        """Stop everything; nothing of it takes another step."""
        if not self.over:
            self.over = True
            for task in self._tasks:
                task.cancel()
            self.ended.set()

    async def close(self) -> None:
        """End, and wait until every task has noticed."""
        self.end()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something for as long as the tenure lasts."""
        task = asyncio.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._done)
        if self.over:
            task.cancel()
        return task

    def look_soon(self) -> None:
        """Look round now rather than at the next tick."""
        self._wake.set()

    def _done(self, task: asyncio.Task[None]) -> None:
        """A task has ended. One that failed takes the tenure with it: what it looked after is looked after no more."""
        self._tasks.pop(task, None)
        error = None if task.cancelled() else task.exception()
        if error is not None and not self.over:
            foreseen = isinstance(error, ClymqError)
            log.log(
                logging.INFO if foreseen else logging.ERROR,
                "%s: is active no more: %r", self.elected.name, error, exc_info=None if foreseen else error,
            )  # fmt: skip
            self.end()

    def _follow(self, broker: str) -> None:
        self.spawn(self._attendance.follow_one(broker, self.look_soon))

    async def _keep_looking(self) -> None:
        """Look round at once, every tick, and whenever something has changed among the brokers."""
        retained_at_ms = balanced_at_ms = self._clock.monotonic_ms()
        while True:
            self._wake.clear()
            began_ms = self._clock.monotonic_ms()
            try:
                views = await self._repair.look_round()
                await self._topics.resume_deletions()
                if began_ms - retained_at_ms >= self._config.retention_check_ms:
                    retained_at_ms = began_ms
                    await self._retention.apply(views)
                if began_ms - balanced_at_ms >= self._config.balance_ms:
                    balanced_at_ms = began_ms
                    await self._repair.even_leaders(views)
            except SessionLost:
                raise
            except ClymqError as error:
                log.warning("%s: looking round: %s", self.elected.name, error)
            rest_ms = REST_PER_LOOK * (self._clock.monotonic_ms() - began_ms)
            await pause(self._clock, max(self._config.controller_tick_ms, rest_ms), unless=self._wake)

    async def _replica_down(self, request: verbs.ReplicaDown) -> Reply:
        reply = await self._hosting.replica_down(request)
        self.look_soon()
        return reply
