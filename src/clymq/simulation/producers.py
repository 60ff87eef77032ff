"""Producers as they should be: pipelined, retrying in order, going on after an epoch of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from clymq.errors import BlockSealed, ClymqError, OutOfSequence, ProducerFenced, UnknownProducer
from clymq.record.builder import BatchBuilder, producer_id
from clymq.replication.producers import Initialised
from clymq.simulation.checkers import Violation
from clymq.simulation.surroundings import Surroundings

IN_FLIGHT_MAX: Final = 4
RETRY_MS: Final = 350
BEGIN_AGAIN = (OutOfSequence, UnknownProducer, ProducerFenced)


@dataclass
class Pending:
    """A batch that was not answered yet."""

    cmdindex: int
    epoch: int
    values: list[bytes]
    data: bytes


class Producer:
    """One producer and its batches."""

    def __init__(self, world: Surroundings, name: str) -> None:
        self.name = name
        self.acknowledged = 0
        self.stored = 0
        self.sealed = False
        self.producing = True
        self.follows_hints = False
        """While everything goes wrong it tries anybody; that is worth more than being right."""
        self._world = world
        self._target = world.names[0]
        self._epoch: int | None = None
        self._next = 1
        self._made = 0
        self._window: list[Pending] = []
        self._hinted = False
        self._sent_at = -1e9
        self._asked = 0
        world.clock.call_later(world.options.push_ms, self._tick)

    @property
    def idle(self) -> bool:
        """Whether it has been told of everything that it sent."""
        return not self._window

    def _tick(self) -> None:
        world = self._world
        world.clock.call_later(world.options.push_ms, self._tick)
        now = world.clock.monotonic_ms()
        if self.sealed:
            return
        if now - self._sent_at >= RETRY_MS:
            if self._window or self._epoch is None:
                other = world.chance.choice(world.names)
                self._target = self._target if self.follows_hints and self._hinted else other
                self._hinted = False
            self._send_all()
        elif self._epoch is not None and self.producing and len(self._window) < IN_FLIGHT_MAX:
            self._make()
            self._send(self._window[-1])

    def _make(self) -> None:
        count = self._world.chance.randint(1, self._world.options.batch_messages_max)
        values = [f"{self.name} {self._made + n}".encode() for n in range(count)]
        self._made += count
        self._window.append(self._built(values, self._next))
        self._next += count

    def _built(self, values: list[bytes], cmdindex: int) -> Pending:
        assert self._epoch is not None
        data = BatchBuilder().add_values(values).build(producer=self.name, cmdindex=cmdindex, epoch=self._epoch)
        return Pending(cmdindex, self._epoch, values, data)

    # --- Sending ---

    def _send_all(self) -> None:
        self._sent_at = self._world.clock.monotonic_ms()
        if self._epoch is None:
            self._asked += 1
            asked = self._asked
            self._world.ask(
                self.name,
                self._target,
                lambda replica, reply: replica.init_producer(producer_id(self.name), reply),
                lambda outcome, _: self._initialised(asked, outcome),
            )
        for pending in list(self._window) if self._epoch is not None else ():
            self._send(pending)

    def _send(self, pending: Pending) -> None:
        self._sent_at = self._world.clock.monotonic_ms()
        self._world.ask(
            self.name,
            self._target,
            lambda replica, reply: replica.push(pending.data, reply),
            lambda outcome, duplicate: self._answered(pending, outcome, duplicate),
        )

    # --- Answers ---

    def _initialised(self, asked: int, outcome: int | Initialised | ClymqError) -> None:
        if self._epoch is not None or self.sealed or asked != self._asked:
            return  # an answer to an earlier question may speak of an epoch that has passed
        if not isinstance(outcome, Initialised):
            self._refused(outcome)
            return
        if outcome.next <= self.acknowledged:
            raise Violation(f"AckedIsReadable: {self.name} was told of {self.acknowledged}, {outcome.next} is next")
        self._epoch = outcome.epoch
        self._asked += 1  # the same answer may come twice
        stored = [pending for pending in self._window if pending.cmdindex < outcome.next]
        rest = self._window[len(stored) :]
        for pending in stored:
            self._stored(pending, -1, duplicate=True)
        self._next, self._window = outcome.next, []
        for pending in rest:
            self._window.append(self._built(pending.values, self._next))
            self._next += len(pending.values)
        self._send_all()

    def _answered(self, pending: Pending, outcome: int | Initialised | ClymqError, duplicate: bool) -> None:
        if pending not in self._window:
            return
        if isinstance(outcome, int):
            self._hinted = True
            self._window.remove(pending)
            self._stored(pending, outcome, duplicate=duplicate)
        else:
            self._refused(outcome)

    def _stored(self, pending: Pending, offset: int, *, duplicate: bool) -> None:
        self.acknowledged = max(self.acknowledged, pending.cmdindex + len(pending.values) - 1)
        self.stored += len(pending.values)
        self._world.checkers.acknowledged(offset, pending.values, duplicate=duplicate)

    def _refused(self, error: int | Initialised | ClymqError) -> None:
        if isinstance(error, BlockSealed):
            self.sealed = True
        elif isinstance(error, BEGIN_AGAIN):
            self._epoch = None
        elif isinstance(error, ClymqError) and error.hint in self._world.names:
            self._target = str(error.hint)
            self._hinted = True
        # And again soon, in order, from the lowest that was not answered.
        self._sent_at = min(self._sent_at, self._world.clock.monotonic_ms() - RETRY_MS + 60)
