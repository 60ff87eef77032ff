"""New copies of sealed blocks, for replicas that are lost, gone for too long, or on a broker that is being emptied.

Intent first, as everywhere: where a copy is to be made is written into the sealed block's node. `BroGetConfig` then
names the block to that broker, which mends it from the others and reports when it is whole. Only then it becomes a
replica, in the same transaction in which the one that it stands for leaves. So the tree never names a copy that nobody
has, and never lets one go before there is another.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from clymq.config import Config
from clymq.controller.chains import Chains, Sealed, View
from clymq.controller.nudges import Nudges
from clymq.controller.placement import key_of, place, usable
from clymq.controller.roster import Attendance, Roster
from clymq.errors import NotEnoughReplicas
from clymq.metadata.nodes import Place, Replica, changed
from clymq.metadata.reading import settled

log = logging.getLogger("clymq.controller")


class Copies:
    """Replaces replicas of sealed blocks."""

    def __init__(self, chains: Chains, attendance: Attendance, config: Config, nudges: Nudges) -> None:
        self._chains = chains
        self._attendance = attendance
        self._config = config
        self._nudges = nudges

    async def intend(self, view: View, roster: Roster, blocks: Sequence[int]) -> None:
        """Write down where the copies of some blocks are to be made, one after the other, and tell who makes them."""
        makers = set[str]()
        for sealed in [each for each in view.sealed if each.block.block in blocks]:
            copies = self._wanted(view, sealed, roster)
            view = await self._chains.rewrite(view, changed(sealed.block, copies=copies))
            makers |= {each.broker for each in copies}
            names = [each.broker for each in copies] or "nobody"
            log.info("%s: block %d is copied to %s", view, sealed.block.block, names)
        self._nudges.tell_of(view, makers, roster)

    def due(self, view: View, roster: Roster) -> list[int]:
        """Return the blocks for which something else should be written down than is."""
        return [each.block.block for each in view.sealed if self._wanted(view, each, roster) != each.block.copies]

    async def became_whole(self, key: tuple[str, str], uid: str, block: int, copy: Place) -> None:
        """Make a whole copy a replica, in the place of one that is of no use any more.

        A replica that was reported as lost and has mended itself is of use again.
        """

        async def attempt() -> None:
            view = await self._chains.view(*key, uid)
            sealed = next((each for each in view.sealed if each.block.block == block), None)
            if sealed is None:
                return
            mended = next((each for each in sealed.replicas if each.down and _lies_on(each, copy)), None)
            if mended is not None:
                good = changed(mended, down="")
                await self._chains.rewrite(view, sealed.block, added=[good], removed=[mended])
                return
            if copy not in sealed.block.copies:
                return
            roster = await self._attendance.roster()
            useless = replicas_to_replace(sealed.replicas, roster, self._config.replace_after_ms)
            left = changed(sealed.block, copies=tuple(each for each in sealed.block.copies if each != copy))
            if not useless:
                await self._chains.rewrite(view, left)  # it has come back meanwhile
                return
            former = useless[0]
            replica = Replica(name=former.name, broker=copy.broker, disk_id=copy.disk_id, start=sealed.block.start)
            await self._chains.rewrite(view, left, added=[replica], removed=[former])
            log.info("%s: %s holds block %d in the place of %s", view, copy.broker, block, former.broker)

        await settled(attempt)

    def _wanted(self, view: View, sealed: Sealed, roster: Roster) -> tuple[Place, ...]:
        """Return where copies should be in the making: those under way as far as they can go on, and new ones."""
        useless = replicas_to_replace(sealed.replicas, roster, self._config.replace_after_ms)
        if not useless:
            return ()
        if not _readable(sealed, roster):
            return sealed.block.copies
        able = usable(roster.seats())
        kept = [each for each in sealed.block.copies if each.broker in able and roster.place(each.broker) == each]
        kept = kept[: len(useless)]
        # A broker that lost its disk may make the new copy on the one that it has now.
        taken = {each.broker for each in sealed.replicas if not _on_another_disk(each, roster)}
        taken |= {each.broker for each in kept}
        for count in range(len(useless) - len(kept), 0, -1):
            try:
                names = place(roster.seats(), key_of(*view.key), count, first=view.members, avoid=taken)
            except NotEnoughReplicas:
                continue
            return (*kept, *(roster.place(name) for name in names))
        return tuple(kept)


def replicas_to_replace(replicas: tuple[Replica, ...], roster: Roster, replace_after_ms: float) -> list[Replica]:
    """Return the replicas that should be somewhere else, the most useless first."""
    down = [each for each in replicas if each.down or _on_another_disk(each, roster)]
    gone = [each for each in replicas if each not in down and roster.away_ms(each.broker) >= replace_after_ms
            and not roster.online(each.broker)]  # fmt: skip
    leaving = [each for each in replicas if each not in down and each not in gone and roster.draining(each.broker)]
    return [*down, *gone, *leaving]


def _lies_on(replica: Replica, place: Place) -> bool:
    return (replica.broker, replica.disk_id) == (place.broker, place.disk_id)


def _on_another_disk(replica: Replica, roster: Roster) -> bool:
    """Say whether a broker is back without the disk that the replica was on."""
    return roster.online(replica.broker) and roster.disk_id(replica.broker) != replica.disk_id


def _readable(sealed: Sealed, roster: Roster) -> bool:
    """Say whether there is anybody to copy from."""
    return any(
        not each.down and roster.online(each.broker) and not _on_another_disk(each, roster) for each in sealed.replicas
    )
