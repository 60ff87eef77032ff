"""Point to point: the leader of an active block shares the partition's messages out among the consumers of groups.

The pure table (`subscriptions.leases`) says who has what, the machine's cursor what is finished; this puts them
together with those who wait, the bytes, the clock and the log. Every end of a lease is an entry in the log, and takes
effect when that is applied: an ack by the cursor, everything else by one more delivery that is counted there. What was
delivered in vain too often is given up by an entry as well, and goes to the dead letters.

It lives as long as this broker leads the block. Whoever waits when that ends is told, and goes to the next leader, who
was handed the leases, unless this one crashed.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Coroutine, Iterable, Sequence
from functools import partial
from typing import Any, Final, Protocol

from clymq.broker.acks import Acks, answer
from clymq.broker.active_block import ActiveBlock, Listener
from clymq.broker.endings import RETRY_MS, Endings
from clymq.broker.hosted_partition import HostedPartition
from clymq.broker.reading import Locating, read_here
from clymq.broker.subscriptions.leases import GroupLeases, Offer, Taken
from clymq.broker.subscriptions.spans import Span, Spans
from clymq.broker.takers import Delivery, Taker, WaitingPull
from clymq.clock import Clock, Timer
from clymq.errors import (
    BlockSealed,
    ClymqError,
    InvalidRequest,
    NotPrepared,
    NotReady,
    OffsetOutOfRange,
    Overloaded,
)
from clymq.protocol.broker import Ack, Extend, Locator, Nack, OffsetRange, Pulled, Reject
from clymq.replication import entries
from clymq.replication.cursors import Cursor
from clymq.replication.handed_over import decode_group, encode_group, within_bounds
from clymq.replication.machine import Elected
from clymq.rpc.peer import Call

log = logging.getLogger("clymq.broker")

# What waits for a place to be found is not sent away with nothing meanwhile.
LOCATE_MS_MAX: Final = 2_000.0
# Messages in one lease whose bytes are elsewhere, where the consumer has not said how many it wants.
REMOTE_MESSAGES_MAX: Final = 1_000
MESSAGES_MAX: Final = 2**31
# What a request may ask for: more would hold up the broker, or be no number that can be handed over.
RANGES_MAX: Final = 25_000
LEASE_MS_MAX: Final = 86_400_000
DELAY_MS_MAX: Final = 365 * 86_400_000
# A holder of an ordered group that has nothing and asks for nothing for so many heartbeats has given it up.
HELD_HEARTBEATS: Final = 3


class Around(Protocol):
    """What all shared partitions of a broker have in common."""

    clock: Clock
    locating: Locating

    def expect(self, consumer: str, within_ms: float) -> None:
        """A consumer may show up here whose leases came from another leader."""

    def dead(self, sharing: Sharing) -> None:
        """There are dead letters to be delivered."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something that takes its time."""


class Sharing(Listener):
    """One partition's groups. See the module."""

    def __init__(self, partition: HostedPartition, block: ActiveBlock, around: Around) -> None:
        self.partition = partition
        self.block = block
        self.leading = False
        self._around = around
        self._clock = around.clock
        self._groups: dict[str, GroupLeases] = {}
        self._takers: dict[str, dict[Taker, None]] = {}
        self._resetting: Counter[str] = Counter()
        self._serving: dict[str, bool] = {}
        """Groups that are being served, and whether something has changed meanwhile."""
        self._next_number = 1
        self._timer: Timer | None = None
        self._timer_at = 0.0
        self._locating = False
        self._endings = Endings(
            partition,
            block,
            around.clock,
            changed=self._changed,
            dead=lambda: around.dead(self),
            is_current=lambda name, group: self._groups.get(name) is group,
        )
        self._acks = Acks(block, around.clock, changed=self._changed)

    # --- What consumers ask ---

    def pull(self, call: Call) -> None:
        """Answer with leases, as soon as there are any."""
        self.block.check_sharing()
        pull = WaitingPull(call, self._clock, self.forget, self.partition.config.batch_bytes_max)
        self.join(pull)
        if not pull.bytes_max:
            return
        if pull.wait_ms_max or self._locating:
            wait_ms = max(pull.wait_ms_max, LOCATE_MS_MAX if self._locating else 0)
            pull.wait(wait_ms, self._nothing)
        else:
            pull.answer_empty(self._nothing())

    def join(self, taker: Taker) -> None:
        """Give a taker what there is, now and whenever there is more."""
        self._prepared(taker.group)
        _check_ms("lease_ms", taker.lease_ms, LEASE_MS_MAX)
        if taker.messages_max < 0:
            raise InvalidRequest(f"messages_max {taker.messages_max} is negative")
        if sum(map(len, self._takers.values())) >= self.partition.config.waiting_pulls_max:
            raise Overloaded(f"too many wait for messages of {self._name}", hint="use fewer consumers")
        self._takers.setdefault(taker.group, {})[taker] = None
        self.serve(taker.group)

    def forget(self, taker: Taker) -> None:
        """A taker wants nothing more."""
        takers = self._takers.get(taker.group)
        if takers is not None:
            takers.pop(taker, None)
            if not takers:
                del self._takers[taker.group]

    def ack(self, call: Call) -> None:
        """Finish what is named."""
        request: Ack = call.request
        self.block.check_sharing()
        cursor = self._prepared(request.group)
        group = self._table_of(request)
        taken = group.take_to_ack(cursor, request.consumer, request.leases, _spans(request.ranges))
        if taken.spans:
            self._acks.add(request.group, group, taken, call)
        else:
            answer(call, taken)

    def nack(self, call: Call) -> None:
        """Have what is named delivered again."""
        request: Nack = call.request
        self.block.check_sharing()
        _check_ms("delay_ms", request.delay_ms, DELAY_MS_MAX)
        group = self._table_of(request)
        taken = group.take_to_end(request.consumer, request.leases, _spans(request.ranges))
        if request.unread:
            group.settled(taken.spans, until=self._endings.until(request.delay_ms))
            answer(call, taken)
            self._changed(request.group)
        elif taken.pieces:
            self._endings.in_vain(
                request.group,
                group,
                taken,
                lambda outcome: answer(call, taken, outcome),
                delay_ms=request.delay_ms,
            )
        else:
            answer(call, taken)

    def reject(self, call: Call) -> None:
        """Give up what is named, whatever its count is."""
        request: Reject = call.request
        self.block.check_sharing()
        if not self._endings.has_dead_letters:
            raise InvalidRequest(f"{self.partition.topic} holds dead letters and has none of its own", hint="ack it")
        group = self._table_of(request)
        taken = group.take_to_end(request.consumer, request.leases, _spans(request.ranges))
        if not taken.pieces:
            answer(call, taken)
            return
        reason = request.reason or "rejected"
        self._endings.reject(request.group, group, taken, reason, lambda outcome: answer(call, taken, outcome))

    def extend(self, call: Call) -> None:
        """Let leases last longer."""
        request: Extend = call.request
        self.block.check_sharing()
        _check_ms("lease_ms", request.lease_ms, LEASE_MS_MAX)
        group = self._table_of(request)
        lease_ms = request.lease_ms or self.partition.config.lease_ms
        unknown = group.extend(request.consumer, request.leases, self._clock.monotonic_ms() + lease_ms)
        answer(call, Taken(unknown=unknown))
        self._arm()

    def give_back(self, consumer: str) -> None:
        """A consumer leaves, and nobody has looked at what it has: it comes back as if it had not been delivered."""
        self._give_no_more(consumer)
        for name, group in list(self._groups.items()):
            group.settled(group.gone(consumer).spans)
            self._changed(name)

    def gone(self, consumer: str) -> None:
        """A consumer is gone: what it has comes back, and what it waits for is not given to it."""
        self._give_no_more(consumer)
        for name, group in list(self._groups.items()):
            held = group.holder == consumer
            taken = group.gone(consumer)
            if taken.pieces:
                self._endings.in_vain(name, group, taken, partial(self._ends_soon, group, taken))
            elif held:
                self.serve(name)

    def _give_no_more(self, consumer: str) -> None:
        error = NotPrepared(f"consumer {consumer} was silent for too long, or has left", hint="ask anew")
        for taker in [each for takers in self._takers.values() for each in takers if each.consumer == consumer]:
            self.forget(taker)
            taker.fail(error)

    def _ends_soon(self, group: GroupLeases, taken: Taken, outcome: object) -> None:
        """What could not be written of a consumer that is gone is tried again, as if its time was over."""
        if isinstance(outcome, ClymqError):
            for piece in taken.pieces:
                group.extend(piece.lease.consumer, [piece.lease.number], self._clock.monotonic_ms())

    # --- What the block tells ---

    def leads(self, elected: Elected) -> None:
        """Go on with what the leader before had out."""
        self.leading = True
        now = self._clock.monotonic_ms()
        self._next_number = self._clock.wall_us()
        for record in elected.leases:
            try:
                handed = decode_group(record)
            except ClymqError as error:
                log.warning("%s: leases of the leader before are lost: %s", self._name, error)
                continue
            cursor = self.block.machine.cursor(handed.group)
            if cursor is None:
                continue
            group = self._groups[handed.group] = self._new_group(cursor)
            group.adopt(handed, cursor, now)
            numbers = [lease.number for lease in group.leases]
            self._next_number = max([self._next_number, *(number + 1 for number in numbers)])
            for consumer in sorted({*(lease.consumer for lease in group.leases), *filter(None, [group.holder])}):
                self._around.expect(consumer, self.partition.config.lease_ms)
        self._arm()
        self._around.dead(self)

    def advanced(self) -> None:
        """More may be visible, or the block has ended."""
        if self.block.machine.sealed:
            following = self.block.number + 1
            self._end(BlockSealed(f"block {self.block.number} of {self._name} is sealed"), following)
        elif self._takers:
            self._serve_all()

    def lost(self, error: ClymqError) -> None:
        """This broker leads the block no more."""
        self._end(error)

    def leases(self) -> Sequence[bytes]:
        """Return what is leased now, for the next leader."""
        self._acks.refuse(NotReady(f"{self._name} is about to end, or to be led by another", hint="try again"))
        now = self._clock.monotonic_ms()
        out = [(name, group) for name, group in sorted(self._groups.items()) if not group.is_idle]
        return within_bounds([encode_group(group.hand_over(name, now)) for name, group in out])

    def resets(self, group: str) -> None:
        """A group is being set to another place: what it has out is void from now on."""
        self._acks.refuse(NotPrepared(f"group {group} is being set to another place", hint="try again"), group)
        self._resetting[group] += 1
        self._groups.pop(group, None)

    def was_reset(self, group: str) -> None:
        """It is there, or stays where it was."""
        self._resetting -= Counter({group: 1})
        self._groups.pop(group, None)
        if self.leading:
            self.serve(group)

    def _end(self, error: ClymqError, next_block: int = 0) -> None:
        self.leading = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        takers, self._takers = self._takers, {}
        for taker in [each for some in takers.values() for each in some]:
            taker.fail(error, next_block)
        self._acks.refuse(error)
        self._groups.clear()

    # --- Sharing out ---

    def _serve_all(self) -> None:
        for name in list(self._takers):
            self.serve(name)

    def serve(self, name: str) -> None:
        """Give those who wait for a group what there is, each in turn."""
        cursor = self.block.machine.cursor(name)
        if cursor is None or name not in self._takers or not self.leading or name in self._resetting:
            return
        if name in self._serving:
            self._serving[name] = True  # whoever does it looks again: what it has found may not be there any more
            return
        self._serving[name] = True
        try:
            self.block.check_sharing()
            while self._serving[name]:
                self._serving[name] = False
                for taker in list(self._takers.get(name, ())):
                    if self._serve_one(taker, cursor):
                        self._serving[name] = True
        except ClymqError as error:
            log.debug("%s: group %s is not served: %s", self._name, name, error)
        finally:
            del self._serving[name]
        self._arm()

    def _serve_one(self, taker: Taker, cursor: Cursor) -> bool:
        """Give one taker what it takes; return whether to look again, because something has changed by that."""
        group = self._group(taker.group, cursor)
        is_waiting = taker.bytes_max and taker in self._takers.get(taker.group, ())
        if not is_waiting or not self._admits(group, taker):
            return False
        offers = group.offers(cursor, self.block.end, taker.messages_max or MESSAGES_MAX)
        worn = [offer for offer in offers if self._endings.is_worn(offer.deliveries)]
        if worn:
            self._endings.give_up(taker.group, group, worn)
            return True
        if not offers:
            return False
        found = read_here(self.partition, offers[0].start, taker.bytes_max)
        if found is not None:
            leased = self._lease(group, taker, offers, found.end)
            return self._give(group, taker, leased, found.block, found.up_to(leased[-1].left.end), None)
        locator = self._around.locating.known(self.partition, offers[0].start)
        if locator is not None:
            end = min(locator.end, offers[0].start + (taker.messages_max or REMOTE_MESSAGES_MAX))
            leased = self._lease(group, taker, offers, end)
            return self._give(group, taker, leased, locator.block, None, locator)
        self._locate(taker.group, offers[0].start)
        return False

    def _admits(self, group: GroupLeases, taker: Taker) -> bool:
        """Whether a taker may have something; of an ordered group the holder only, as long as it does hold it."""
        now, holder = self._clock.monotonic_ms(), group.holder
        if taker.ordered and holder not in {None, taker.consumer}:
            if any(each.consumer == holder for each in self._takers.get(taker.group, ())):
                group.held_at = now
            elif group.let_go(now - self._held_ms):
                log.info("%s: group %s goes from %s to %s", self._name, taker.group, holder, taker.consumer)
        return group.admit(taker.consumer, ordered=taker.ordered, now=now)

    @property
    def _held_ms(self) -> float:
        return HELD_HEARTBEATS * self.partition.config.consumer_heartbeat_ms

    def _lease(self, group: GroupLeases, taker: Taker, offers: Iterable[Offer], end: int) -> list[Any]:
        """Lease what of the offers lies below `end`."""
        kept = [Offer(each.start, min(each.end, end), each.deliveries) for each in offers if each.start < end]
        return group.lease(
            kept,
            taker.consumer,
            now=self._clock.monotonic_ms(),
            lease_ms=taker.lease_ms or self.partition.config.lease_ms,
            number=self._number,
        )

    def _give(
        self,
        group: GroupLeases,
        taker: Taker,
        leased: Sequence[Any],
        block: int,
        data: memoryview | None,
        locator: Locator | None,
    ) -> bool:
        now = self._clock.monotonic_ms()
        delivery = Delivery(leased, now, block, data, locator, self.block.end, self._start)
        if not taker.give(delivery):
            taken = group.take_to_end(taker.consumer, [lease.number for lease in leased], ())
            group.settled(taken.spans)  # nobody has seen it
            return False
        return True

    def _changed(self, name: str) -> None:
        """Something of a group has ended: it may be served again, and the next end may be another."""
        self._arm()
        self.serve(name)

    def _number(self) -> int:
        self._next_number += 1
        return self._next_number - 1

    # --- Bytes that are elsewhere ---

    def _locate(self, name: str, offset: int) -> None:
        if not self._locating:
            self._locating = True
            self._around.spawn(self._find(name, offset))

    async def _find(self, name: str, offset: int) -> None:
        delay_ms = RETRY_MS
        try:
            if (await self._around.locating.find(self.partition, offset)).end > offset:
                delay_ms = 0
        except OffsetOutOfRange as error:
            self._step_over(name, error.first)
        except ClymqError as error:
            log.info("%s: where offset %d is cannot be found out: %s", self._name, offset, error)
        finally:
            self._locating = False
        self._clock.call_later(delay_ms, self._serve_all)

    def _step_over(self, name: str, first: int) -> None:
        """What lies before the first offset is gone: the group is done with it."""
        cursor = self.block.machine.cursor(name)
        if cursor is None or first <= cursor.low:
            return
        log.warning("%s: group %s steps over [%d, %d), which is gone", self._name, name, cursor.low, first)
        finished = (entries.Range(cursor.low, first),)
        try:
            self.block.write(entries.Ack(group=name, ranges=finished), lambda _: self.serve(name))
        except ClymqError as error:
            log.info("%s: %s", self._name, error)

    # --- Time ---

    def _arm(self) -> None:
        """Wake up when the next lease or delay ends."""
        times = [at for at in (group.next_at() for group in self._groups.values()) if at is not None]
        now = self._clock.monotonic_ms()
        waited_for = [group.held_at for name, group in self._groups.items() if self._is_waited_for(name)]
        times += [max(held_at + self._held_ms, now + RETRY_MS) for held_at in waited_for]
        if not times or not self.leading:
            return
        at = max(min(times), now, self._endings.retry_at)
        if self._timer is not None:
            if self._timer_at <= at:
                return
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._clock.call_later(at - now, self._look)

    def _is_waited_for(self, name: str) -> bool:
        """Whether others wait for an ordered group whose holder has nothing and asks for nothing."""
        group, takers = self._groups[name], self._takers.get(name)
        if not takers or group.holder is None or group.is_held:
            return False
        return all(taker.consumer != group.holder for taker in takers)

    def _look(self) -> None:
        """End what is over. What cannot be written is tried again: it is the log that must know."""
        self._timer = None
        now = self._clock.monotonic_ms()
        for name, group in list(self._groups.items()):
            group.end_delays(now)
            taken = group.expire(now)
            if taken.pieces:
                self._endings.in_vain(name, group, taken, _ignore)
            self.serve(name)
        self._arm()

    # --- Inside ---

    @property
    def _name(self) -> str:
        return f"{self.partition.topic}/{self.partition.name}"

    @property
    def _start(self) -> int:
        """The first offset that this broker knows to be there."""
        return min([self.block.start, *(sealed.start for sealed in self.partition.sealed.values())])

    def _nothing(self) -> Pulled:
        return Pulled(high_watermark=self.block.end, log_start=self._start, block=self.block.number)

    def _prepared(self, name: str) -> Cursor:
        cursor = self.block.machine.cursor(name)
        if cursor is None:
            raise NotPrepared(f"group {name} has no cursor in {self._name}", hint="ask ConGetBroker first")
        if name in self._resetting:
            raise NotPrepared(f"group {name} is being set to another place", hint="try again")
        return cursor

    def _group(self, name: str, cursor: Cursor) -> GroupLeases:
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = self._new_group(cursor)
        return group

    def _table_of(self, request: Ack | Nack | Reject | Extend) -> GroupLeases:
        """Return the group that a consumer speaks of; whoever holds it and says something still does."""
        group = self._group(request.group, self._prepared(request.group))
        if group.holder == request.consumer:
            group.held_at = self._clock.monotonic_ms()
        return group

    def _new_group(self, cursor: Cursor) -> GroupLeases:
        return GroupLeases(cursor.low, leases_max=self.partition.config.leases_max)


def _spans(ranges: Iterable[OffsetRange]) -> list[Span]:
    """Return ranges of a request, ascending and disjoint."""
    given = list(ranges)
    if len(given) > RANGES_MAX:
        raise InvalidRequest(f"{len(given)} ranges; at most {RANGES_MAX} can be named at once")
    if any(not 0 <= each.start < each.end for each in given):
        raise InvalidRequest("a range is empty or negative")
    return list(Spans((each.start, each.end) for each in given))


def _check_ms(what: str, given: int, most: int) -> None:
    if not 0 <= given <= most:
        raise InvalidRequest(f"{what} {given} is not between 0 and {most}")


def _ranges(spans: Iterable[Span]) -> tuple[entries.Range, ...]:
    return tuple(entries.Range(span.start, span.end) for span in spans)


def _ignore(_: object) -> None:
    """For whoever does not wait for the answer."""
