"""The producer: messages in, receipts out; each stored once and in order, whatever happens to brokers on the way.

Messages are placed (`placing`), gather in drafts (`accumulator`, `outbox`) and leave through one `PartitionSender` per
partition. What was accepted stays in order, also when the caller of `push` is cancelled. All of it is settled within
`timeout` from the time that it was accepted: stored, refused, or given up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import pyarrow as pa

from clymq.client.accumulator import MESSAGE_BYTES, Accumulator, Draft, message_bytes
from clymq.client.admin import AsyncAdmin, TopicInfo
from clymq.client.cluster import Cluster
from clymq.client.gathering import Gathering
from clymq.client.identity import default_name
from clymq.client.intake import Intake
from clymq.client.outbox import OnDelivery, Outbox
from clymq.client.partitioning import Limit, by_key, by_key_column, cut_table_by, cut_values, cuts, size_of_few
from clymq.client.placing import Placing
from clymq.client.receipts import Delivery, Outcome, Receipt, Receipts
from clymq.client.surroundings import Surroundings
from clymq.client.waiting import Deadline, next_turn, settled
from clymq.config import KiB, MiB
from clymq.errors import ClosedError, ClymqError, ConfigError, InvalidRequest
from clymq.record import BatchBuilder
from clymq.record.builder import check_table
from clymq.record.elements import Headers, check_columns
from clymq.record.layout import CODECS
from clymq.types import Ack, check_ack, check_name

log = logging.getLogger("clymq.client")

_Fill = Callable[[BatchBuilder], object]

# As many as a partition remembers the places of; see DESIGN 5.
IN_FLIGHT_MAX: Final = 8
PIECES_IN_A_TURN: Final = 4
# No more are made ready for each partition than soon leave: memory that was just used is faster than fresh memory.
PIECES_AHEAD: Final = 2 * IN_FLIGHT_MAX


class AsyncProducer:
    """Pushes messages. `async with`, or `start()` and `close()`. All methods are awaited but `send`."""

    def __init__(
        self,
        bootstrap: str,
        *,
        name: str | None = None,
        ack: Ack | int | None = None,
        linger_ms: float = 5,
        batch_bytes: int = 64 * KiB,
        codec: str = "none",
        buffer_bytes_max: int = 64 * MiB,
        in_flight_max: int = IN_FLIGHT_MAX,
        timeout: float = 30.0,
        on_delivery: OnDelivery | None = None,
        surroundings: Surroundings | None = None,
    ) -> None:
        """`ack` None: each partition's own. `on_delivery` is called once for each batch."""
        self.name = default_name() if name is None else check_name(name, "producer")
        self._timeout = timeout
        self._cluster = Cluster(bootstrap, name=self.name, role="producer", surroundings=surroundings)
        self._clock = self._cluster.clock
        config = self._cluster.config
        _check("linger_ms", linger_ms, 0, 3600_000)
        _check("batch_bytes", batch_bytes, 1, config.batch_bytes_max // 2)
        _check("buffer_bytes_max", buffer_bytes_max, 1, 1 << 40)
        _check("in_flight_max", in_flight_max, 1, IN_FLIGHT_MAX)
        _check("timeout", timeout, 0.001, 86_400)
        if codec not in CODECS:
            raise ConfigError("codec", codec, f"must be one of {', '.join(CODECS)}")
        accumulator = Accumulator(
            batch_bytes=batch_bytes,
            linger_ms=linger_ms,
            buffer_bytes_max=buffer_bytes_max,
            new_builder=lambda: BatchBuilder(
                codec, batch_bytes_max=config.batch_bytes_max, message_bytes_max=config.message_bytes_max
            ),
        )
        self._outbox = Outbox(
            self._cluster,
            accumulator,
            producer=self.name,
            ack=None if ack is None else check_ack(ack, may_be_unset=False),
            codec=codec,
            in_flight_max=in_flight_max,
            timeout=timeout,
            on_delivery=on_delivery,
        )
        self._few_bytes_max = min(batch_bytes, config.message_bytes_max)
        self._placing = Placing(self._cluster, self._outbox, timeout)
        self._lanes = self._placing.lanes
        self._intake = Intake(self._placing, self._outbox, self._clock, timeout, config.message_bytes_max)
        """For the blocking producer, which gathers messages in its caller's thread."""
        self._admin = AsyncAdmin.over(self._cluster, timeout)

    # --- Pushing ---

    async def push(
        self,
        topic: str,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: Headers | None = None,
        partition: str | None = None,
        timestamp: int | None = None,
    ) -> Receipt:
        """Push one message and wait until it is stored; while the buffer is full, wait for room."""
        names = await self._placing.admit(topic, partition, message_bytes(value, key, headers), self._deadline())
        self._outbox.check_open()
        place = self._placing.choose(topic, names, key)
        draft = self._outbox.add(topic, place, value, key, headers, timestamp)
        position = draft.count - 1
        stored: asyncio.Future[Delivery] = asyncio.get_running_loop().create_future()

        def tell(outcome: Outcome) -> None:
            if stored.done():
                return  # the caller was cancelled; the message goes its way all the same
            if isinstance(outcome, Delivery):
                stored.set_result(outcome)
            else:
                stored.set_exception(outcome)

        draft.listeners.append(tell)
        self._placing.hasten(draft)
        delivery = await stored
        offset = None if delivery.base_offset is None else delivery.base_offset + position
        time_us = draft.opened.wall_us if timestamp is None else timestamp
        return Receipt(topic, place, offset, time_us, delivery.duplicate)

    def send(
        self,
        topic: str,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: Headers | None = None,
        partition: str | None = None,
        timestamp: int | None = None,
    ) -> None:
        """Accept one message and return at once; `BufferFull` if there is no room: then `await drain()`.

        Its fate is told to `on_delivery`, batch by batch; `flush` raises the first error.
        """
        lane = self._lanes.get(topic)
        if (
            lane is not None
            and key is None
            and headers is None
            and partition is None
            and timestamp is None
            and type(value) is bytes
        ):
            left = lane.left - len(value) - MESSAGE_BYTES
            if left >= 0:
                lane.left = left
                lane.values.append(value)
                return
        self._outbox.check_open()
        self._placing.place(topic, value, key, headers, partition, timestamp)
        self._outbox.hand_over()

    async def push_many(
        self,
        topic: str,
        values: Sequence[bytes],
        *,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Headers | None] | None = None,
        timestamps: Sequence[int | None] | None = None,
        partition: str | None = None,
    ) -> Receipts:
        """Push messages given as columns, and wait until all are stored; if some fail, raise the first error.

        More than one batch is not all or nothing: those that did not fail are stored.
        """
        columns = {"value": values, "key": keys, "headers": headers, "timestamp": timestamps}
        given = {name: column for name, column in columns.items() if column is not None}
        check_columns(given)
        if len({len(column) for column in given.values()}) > 1:
            lengths = ", ".join(f"{name} {len(column)}" for name, column in given.items())
            raise InvalidRequest(f"columns of different lengths: {lengths}")
        names = await self._placing.admit(topic, partition, 0, self._deadline())
        pieces = _Pieces(self._outbox, self._placing, topic, names)
        parts: Mapping[str | None, Mapping[str, Sequence[Any]]] = {partition: given}
        if partition is None and keys is not None:
            parts = {
                name: {column: [items[at] for at in chosen] for column, items in given.items()}
                for name, chosen in by_key(keys, names).items()
            }
        for name, part in parts.items():
            limit = partial(pieces.batch_bytes, name)
            if len(part) == 1:
                for count, size, fill in self._cut_values(part["value"], limit):
                    await pieces.add(name, count, size, fill, self._deadline())
                continue
            for start, end, size in cuts(_sizes(part), limit):
                piece = {column: items[start:end] for column, items in part.items()}
                await pieces.add(name, end - start, size, _fill_columns(piece), self._deadline())
        return await pieces.receipts()

    async def push_arrow(self, topic: str, table: pa.Table, *, partition: str | None = None) -> Receipts:
        """Push a table with the column value and, if it likes, key, timestamp and headers; no loop over messages."""
        table = _checked_table(table)
        names = await self._placing.admit(topic, partition, 0, self._deadline())
        pieces = _Pieces(self._outbox, self._placing, topic, names)
        parts = {partition: table} if partition is not None else by_key_column(table, names)
        for name, part in parts.items():
            for piece in cut_table_by(part, partial(pieces.batch_bytes, name)):
                size = piece.nbytes + MESSAGE_BYTES * piece.num_rows
                await pieces.add(name, piece.num_rows, size, _fill_arrow(piece), self._deadline())
        return await pieces.receipts()

    async def drain(self) -> None:
        """Wait until half of the buffer is free; for whoever met `BufferFull`."""
        await self._outbox.drain()

    async def flush(self) -> None:
        """Send everything now and wait until its fate is known; raise the first error of what was sent with `send`."""
        await self._placing.all_placed()
        await self._outbox.flush()

    async def last_cmdindex(self, topic: str, partition: str) -> int:
        """Return the number of this producer's last message that is stored in a partition; 0: none."""
        deadline = self._deadline()
        asking = asyncio.ensure_future(self._outbox.sender(topic, partition).last_cmdindex())
        try:
            if await settled(self._clock, asking, deadline.remaining_ms):
                return asking.result()
            raise deadline.error(f"where {self.name} stands in {topic}/{partition}")
        finally:
            asking.cancel()

    @property
    def lost_messages(self) -> int:
        """How many messages were acknowledged at ack 1 or 0 and went with a leader."""
        return self._outbox.lost_messages

    # --- As the administrator's ---

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int | Sequence[str] = 1,
        ack: Ack | int = Ack.QUORUM,
        replicas: int | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> TopicInfo:
        """Make a topic; see `AsyncAdmin.create_topic`."""
        return await self._admin.create_topic(
            name, partitions=partitions, ack=ack, replicas=replicas, settings=settings
        )

    async def create_partition(self, topic: str, partition: str) -> bool:
        """Make a partition, in state -2; see `AsyncAdmin.create_partition`."""
        return await self._admin.create_partition(topic, partition)

    async def set_partition_state(
        self, topic: str, partition: str, *, ack: Ack | int, replicas: int | None = None
    ) -> str:
        """Choose how a partition is replicated; see `AsyncAdmin.set_partition_state`."""
        return await self._admin.set_partition_state(topic, partition, ack=ack, replicas=replicas)

    # --- Beginning and end ---

    async def start(self) -> None:
        """Be ready; connections are made when they are needed."""
        self._outbox.check_open()

    async def close(self) -> None:
        """Send what was accepted, within `timeout`; then everything is settled and every connection closed.

        Raises the first error of what was sent with `send` and not reported by `flush`.
        """
        if isinstance(self._outbox.ended, ClosedError):
            return
        closed = self._outbox.ended = ClosedError(f"producer {self.name} is closed")
        try:
            await self.flush()
        finally:
            await self._placing.close()
            await self._outbox.close(closed)
            await self._cluster.close()

    async def __aenter__(self) -> AsyncProducer:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        try:
            await self.close()
        except ClymqError as problem:
            if error is None:
                raise
            log.warning("producer %s: %s: %s", self.name, problem.code, problem)

    def _cut_values(self, values: Sequence[bytes], limit: Limit) -> Iterator[tuple[int, int, _Fill]]:
        """Divide values into pieces for a batch each: messages, bytes, and what fills a builder with them.

        A few are gathered as they are, and become a column with those of others: a column has its price.
        """
        size = size_of_few(values, MESSAGE_BYTES, self._few_bytes_max)
        if size is not None:
            yield len(values), size, lambda builder: builder.add_checked(values)
            return
        for column, size in cut_values(values, MESSAGE_BYTES, limit):
            yield len(column), size, _fill_columns({"value": column})

    def _deadline(self) -> Deadline:
        self._outbox.check_open()
        return Deadline(self._clock, self._timeout)


class _Pieces:
    """The pieces of one column or table, on their way to their partitions."""

    def __init__(self, outbox: Outbox, placing: Placing, topic: str, partitions: Sequence[str]) -> None:
        self._outbox = outbox
        self._placing = placing
        self._topic = topic
        self._partitions = partitions
        self._gathering = Gathering(topic)
        self._filling: dict[str, Draft] = {}
        self._added = 0

    async def add(
        self,
        partition: str | None,
        count: int,
        size: int,
        fill: _Fill,
        deadline: Deadline,
    ) -> None:
        """Accept a piece as soon as there is room; without a partition it goes where it is the turn of."""
        await self._placing.admit(self._topic, partition or self._partitions[0], size, deadline)
        self._outbox.check_open()
        place = self._place(partition)
        draft = self._outbox.add_many(self._topic, place, count, size, fill)
        self._gathering.expect(draft, count)
        self._filling[place] = draft
        self._outbox.hand_over()
        self._added += 1
        if self._added % PIECES_IN_A_TURN == 0:
            await next_turn()  # answers come in meanwhile, and others do something too
        while self._gathering.pending >= PIECES_AHEAD * len(self._partitions):
            self._outbox.send_now()  # what lingers is not settled while it does
            await self._outbox.some_settled()

    def batch_bytes(self, partition: str | None) -> int:
        """Return how large the next piece should be."""
        return self._outbox.batch_bytes(self._topic, self._place(partition))

    def _place(self, partition: str | None) -> str:
        return self._placing.choose(self._topic, self._partitions, None) if partition is None else partition

    async def receipts(self) -> Receipts:
        """Let what is still open leave, since nothing of ours follows it, and wait for all."""
        with self._outbox.waiting_for(self._filling.values()):
            return await self._gathering.receipts()


def _fill_columns(columns: Mapping[str, Any]) -> _Fill:
    return lambda builder: builder.add_columns(**columns)


def _fill_arrow(table: pa.Table) -> _Fill:
    return lambda builder: builder.add_arrow(table)


def _checked_table(given: object) -> pa.Table:
    """Return a table, or a record batch as one, whose columns can be messages."""
    table = pa.Table.from_batches([given]) if isinstance(given, pa.RecordBatch) else given
    if not isinstance(table, pa.Table):
        raise InvalidRequest(f"a {type(given).__name__} is no Arrow table")
    check_table(table)
    return table


def _sizes(columns: Mapping[str, Sequence[Any]]) -> list[int]:
    """Return about what each message takes in a batch."""
    values = columns["value"]
    if columns.keys() <= {"value", "timestamp"}:
        try:
            return [size + MESSAGE_BYTES for size in map(len, values)]
        except TypeError:
            raise InvalidRequest("column value: a value is not bytes") from None
    nothing: Sequence[Any] = [None] * len(values)
    return list(map(message_bytes, values, columns.get("key", nothing), columns.get("headers", nothing)))


def _check(setting: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ConfigError(setting, value, f"must be from {low:g} to {high:g}")
