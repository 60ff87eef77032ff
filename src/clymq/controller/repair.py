"""The look round: everything that should be otherwise without anybody having asked.

    pending            is finished
    fetch leader gone  the active block moves at once
    member useless     lost, away for `replace_after_ms`, on a broker that is being emptied: the active block moves, if
                       there is a better place; a sealed one is copied
    too few members    the block before was ended by force, when few brokers were there: the active block moves, as soon
                       as there are as many as it should have
    leaders uneven     every `balance_ms`: active blocks move to a replica that leads less

It decides by one reading of the tree and begins what it finds; each beginning is a conditional write, so a look round
that was overtaken begins nothing. It does nothing for a cluster that is as it should be.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable

from clymq.config import Config
from clymq.controller.chains import Chains, View
from clymq.controller.copies import Copies, replicas_to_replace
from clymq.controller.intents import Wish, intend, plan
from clymq.controller.moves import Moves
from clymq.controller.nudges import Nudges
from clymq.controller.roster import Attendance, Roster
from clymq.controller.sealing import fetch_leader_leads
from clymq.errors import ClymqError, NotEnoughReplicas, SessionLost, VersionConflict
from clymq.metadata.catalog import Catalog
from clymq.metadata.nodes import Replica
from clymq.types import Ack

log = logging.getLogger("clymq.controller")


class Repair:
    """Begins what is due."""

    def __init__(
        self,
        catalog: Catalog,
        chains: Chains,
        attendance: Attendance,
        moves: Moves,
        copies: Copies,
        nudges: Nudges,
        config: Config,
    ) -> None:
        self._catalog = catalog
        self._chains = chains
        self._attendance = attendance
        self._moves = moves
        self._copies = copies
        self._nudges = nudges
        self._config = config

    async def look_round(self) -> list[View]:
        """Look at every partition once; return what was seen."""
        await self._catalog.sync()
        roster = await self._attendance.roster()
        views = await self._chains.all_views()
        self._nudges.look_at(views, roster)
        room = self._config.repairs_max
        for view in views:
            try:
                room -= await self._look_at(view, roster, room)
            except SessionLost:
                raise
            except ClymqError as error:
                log.info("%s: left as it is for now: %s", view, error)
        return views

    async def _look_at(self, view: View, roster: Roster, room: int) -> int:
        """Begin what is due for one partition; return how many repairs that were."""
        if view.partition.value.pending is not None:
            self._moves.begin(view.key)
            return 0
        if not view.begun:
            return 0
        wish = self._wish(view, roster, room)
        if wish is not None:
            await self._begin(view, roster, wish)
            return 1
        due = self._copies.due(view, roster)[:room] if room > 0 else []
        if due:
            await self._copies.intend(view, roster, due)
        return len(due)

    def _wish(self, view: View, roster: Roster, room: int) -> Wish | None:
        if view.now.mode != Ack.QUORUM and not fetch_leader_leads(view, roster):
            # Not counted against the room: without a leader nobody can write.
            down = [each.broker for each in view.active.replicas if each.down]
            return Wish("leader gone", avoid=down)
        useless = replicas_to_replace(view.active.replicas, roster, self._config.replace_after_ms)
        missing = view.partition.value.dupnum - len(view.active.replicas)
        if room <= 0 or (not useless and missing <= 0):
            return None
        wish = Wish(
            f"replace {', '.join(each.broker for each in useless)}" if useless else f"{missing} replicas are missing",
            avoid={each.broker for each in useless if each.disk_id == roster.disk_id(each.broker)},
        )
        try:
            places = plan(view, roster, wish).replicas
        except NotEnoughReplicas:
            return None
        still = {(each.broker, each.disk_id) for each in places}
        better = missing > 0 or any((each.broker, each.disk_id) not in still for each in useless)
        return wish if better or _begins_anew(view, useless, roster) else None

    async def _begin(self, view: View, roster: Roster, wish: Wish) -> None:
        await intend(self._chains, view, roster, wish)
        self._moves.begin(view.key)

    # Leaders.

    async def even_leaders(self, views: Iterable[View]) -> None:
        """Begin moves from who leads most to who leads least among the replicas of a partition, as far as they help."""
        roster = await self._attendance.roster()
        led = [view for view in views if view.begun and roster.online(view.now.leader)]
        leads = Counter(view.now.leader for view in led)
        room = self._config.repairs_max
        for view in sorted(led, key=lambda each: (-leads[each.now.leader], each.key)):
            leader = view.now.leader
            able = [name for name in view.members if roster.online(name) and not roster.draining(name)]
            least = min(able, key=lambda name: leads[name], default=leader)
            # A fifth of what it leads, and at least two: less is not worth a move, and one would only swing back.
            if view.partition.value.pending is not None or leads[leader] - leads[least] <= max(2, leads[leader] // 5):
                continue
            try:
                await self._begin(view, roster, Wish("balance", first=view.members, leader=least))
            except (NotEnoughReplicas, VersionConflict) as error:
                log.info("%s: its leader stays for now: %s", view, error)
                continue
            leads[leader] -= 1
            leads[least] += 1
            room -= 1
            if room <= 0:
                return


def _begins_anew(view: View, useless: Iterable[Replica], roster: Roster) -> bool:
    """Say whether a replica that is lost will have a successor on the same broker, for want of another.

    A block can be lost without its disk, and the next one begins there with an empty log. Where the block before was
    lost as well it is the disk, and moving again and again would help nobody.
    """
    lost_before = {each.broker for sealed in view.sealed[-1:] for each in sealed.replicas if each.down}
    return any(each.down and roster.online(each.broker) and each.broker not in lost_before for each in useless)
