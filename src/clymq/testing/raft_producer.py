"""An idempotent producer for tests: it never gives up, and remembers everything that it was promised.

It makes values of its own (`history.value_of`) and pushes them in batches, several in flight. When anything goes wrong
it goes to whoever leads and sends the same bytes again, in order, from its lowest unanswered batch. When the group
cannot tell how to go on (`OutOfSequence`, `UnknownProducer`, `ProducerFenced`) it asks for a new epoch: what the group
then says is stored counts as acknowledged, the rest is numbered anew. So each value must be in the log once, whatever
happens to the nodes; `history.problems` says whether it is.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Final

from clymq.errors import ClymqError, NotLeader, OutOfSequence, ProducerFenced, UnknownProducer
from clymq.protocol.broker import OFFSET_UNKNOWN, InitProducer, ProducerReady, Push
from clymq.record import BatchBuilder
from clymq.rpc.asks import Outcome
from clymq.rpc.peer import Peer
from clymq.testing.history import Message, value_of
from clymq.testing.raft_client import ASK_MS_MAX, RaftClient
from clymq.testing.waiting import until
from clymq.types import Ack

RETRY_SECONDS: Final = 0.02
RESUME_SECONDS_MAX: Final = 30.0


@dataclass(frozen=True, slots=True)
class _Batch:
    """One batch as it was sent; `serial` counts what this producer made, and stays when it is numbered anew."""

    serial: int
    cmdindex: int
    values: tuple[bytes, ...]
    data: bytes


class RaftProducer:
    """See the module. `start` it, `await stop()` it: then everything that it made is acknowledged."""

    def __init__(
        self,
        client: RaftClient,
        group: str = "0",
        *,
        name: str = "p",
        in_flight_max: int = 8,
        messages_per_batch: int = 1,
        message_bytes: int = 64,
        pause_ms: float = 2.0,
    ) -> None:
        self.name = name
        self.group = group
        self.acknowledged: list[Message] = []
        self.epochs = 0
        """How many times it had to ask for one."""
        self._client = client
        self._in_flight_max = in_flight_max
        self._messages_per_batch = messages_per_batch
        self._message_bytes = message_bytes
        self._pause_seconds = pause_ms / 1000
        self._node = client.names[0]
        self._epoch: int | None = None
        self._next = 1
        self._made = 0
        self._serial_acknowledged = 0
        self._acknowledged_by = ""
        self._unanswered: dict[int, _Batch] = {}
        self._stopping = False
        self._task: asyncio.Task[None] | None = None

    # --- What a test asks ---

    def start(self) -> None:
        """Begin to push, without end."""
        assert self._task is None
        self._task = asyncio.create_task(self._run())

    async def stop(self, *, seconds_max: float = RESUME_SECONDS_MAX) -> None:
        """Make no more, and wait until everything that was made is acknowledged."""
        assert self._task is not None, "the producer was not started"
        self._stopping = True
        async with asyncio.timeout(seconds_max):
            await self._task

    async def abandon(self) -> None:
        """Stop at once, whatever is unanswered."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])

    @property
    def made(self) -> int:
        """How many messages it has made so far."""
        return self._made * self._messages_per_batch

    @property
    def in_flight(self) -> int:
        """How many batches are unanswered."""
        return len(self._unanswered)

    async def resumed(
        self, *, batches: int = 1, elsewhere_than: str = "", seconds_max: float = RESUME_SECONDS_MAX
    ) -> float:
        """Wait until so many batches that are made from now on are acknowledged; return how many seconds that took.

        `elsewhere_than`: and until it was another node than this that acknowledged the last.
        """
        assert self._task is not None, "the producer was not started"
        goal, task = self._made + batches, self._task

        def acknowledged() -> bool:
            if task.done():
                task.result()
            return self._serial_acknowledged >= goal and self._acknowledged_by != elsewhere_than

        return await until(acknowledged, f"pushes of {self.name} to group {self.group}", seconds_max=seconds_max)

    # --- Pushing ---

    async def _run(self) -> None:
        while not self._stopping or self._unanswered:
            try:
                await self._push_to(self._node)
            except ClymqError as error:
                self._choose_next(error)
                await asyncio.sleep(RETRY_SECONDS)

    async def _push_to(self, node: str) -> None:
        """Send to one node until something goes wrong: what is unanswered first, then what is new."""
        if self._epoch is None:
            await self._begin_epoch(node)
        peer = await self._client.peer(node)
        failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            for batch in tuple(self._unanswered.values()):
                self._send(node, peer, batch, failure)
            while not self._stopping or self._unanswered:
                if not self._stopping and len(self._unanswered) < self._in_flight_max:
                    self._send(node, peer, self._make(), failure)
                await asyncio.wait([failure], timeout=self._pause_seconds)
                if failure.done():
                    failure.result()
        finally:
            if not failure.done():
                failure.cancel()

    def _send(self, node: str, peer: Peer, batch: _Batch, failure: asyncio.Future[None]) -> None:
        def answered(outcome: Outcome) -> None:
            if not isinstance(outcome, ClymqError):
                self._acknowledge(node, batch, outcome.reply.base_offset)
            elif not failure.done():
                failure.set_exception(outcome)

        request = Push(
            topic=self.group,
            partition="0",
            uid=self.group,
            producer=self.name,
            cmdindex=batch.cmdindex,
            ack=Ack.QUORUM,
        )
        peer.ask_soon(request, [batch.data], answered, timeout_ms=ASK_MS_MAX)

    def _acknowledge(self, node: str, batch: _Batch, base_offset: int) -> None:
        """Note a promise, from whomever and however late; one that comes twice is the same promise."""
        if self._unanswered.get(batch.cmdindex) is batch:
            del self._unanswered[batch.cmdindex]
        self._serial_acknowledged = max(self._serial_acknowledged, batch.serial)
        self._acknowledged_by = node
        for at, value in enumerate(batch.values):
            self.acknowledged.append(Message(None if base_offset == OFFSET_UNKNOWN else base_offset + at, value))

    def _make(self) -> _Batch:
        first = self._made * self._messages_per_batch
        values = tuple(
            value_of(self.name, first + at, bytes_min=self._message_bytes) for at in range(self._messages_per_batch)
        )
        self._made += 1
        return self._number(self._made, values)

    def _number(self, serial: int, values: tuple[bytes, ...]) -> _Batch:
        assert self._epoch is not None
        builder = BatchBuilder().add_values(values)
        now = time.time_ns() // 1000
        data = builder.build(producer=self.name, cmdindex=self._next, epoch=self._epoch, now=now)
        batch = _Batch(serial, self._next, values, data)
        self._unanswered[batch.cmdindex] = batch
        self._next += len(values)
        return batch

    # --- When something goes wrong ---

    def _choose_next(self, error: ClymqError) -> None:
        """Decide where to go on; whatever no retry can help is a failure of the test."""
        if isinstance(error, OutOfSequence | UnknownProducer | ProducerFenced):
            self._epoch = None
        elif isinstance(error, NotLeader) and error.hint and error.hint in self._client.names:
            self._node = error.hint
        elif error.refresh:
            names = self._client.names
            self._node = names[(names.index(self._node) + 1) % len(names)]
        elif not error.retriable:
            raise error

    async def _begin_epoch(self, node: str) -> None:
        request = InitProducer(topic=self.group, partition="0", uid=self.group, producer=self.name)
        ready: ProducerReady = (await self._client.ask(node, request)).reply
        self.epochs += 1
        places = {stored.cmdindex: stored.base_offset for stored in ready.stored}
        unanswered = tuple(self._unanswered.values())
        for batch in unanswered:
            if batch.cmdindex < ready.next:
                self._acknowledge(node, batch, places.get(batch.cmdindex, OFFSET_UNKNOWN))
        self._epoch, self._next, self._unanswered = ready.epoch, ready.next, {}
        for batch in unanswered:
            if batch.cmdindex >= ready.next:
                self._number(batch.serial, batch.values)
