"""The consumer: reads partitions that it was told to read, each from an offset of its own (publish-subscribe).

One `PartitionReader` per partition reads ahead; `pull` takes what is there. Positions belong to the consumer; with a
group they can be stored in the partition's own log (`commit`) and found again by another process (`committed`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Final

from clymq.client.cluster import LOOK_AGAIN_MS_MAX, Cluster
from clymq.client.identity import default_name
from clymq.client.messages import Message, Messages, Run
from clymq.client.reader import PartitionReader
from clymq.client.surroundings import Surroundings
from clymq.client.waiting import Deadline, settled
from clymq.config import MiB
from clymq.errors import ClosedError, ClymqError, InvalidRequest, OffsetOutOfRange, UnknownPartition
from clymq.protocol.broker import CommitOffset, FetchOffset, Pull
from clymq.protocol.controller import DescribeTopic, UnSub
from clymq.types import Mode, check_name

log = logging.getLogger("clymq.client")

# No partition comes this far: asked for it, a leader says where the end is.
OFFSET_MAX: Final = 2**62


class AsyncConsumer:
    """Pulls messages. `async with`, or `start()` and `close()`. All methods are awaited."""

    def __init__(
        self,
        bootstrap: str,
        *,
        name: str | None = None,
        credit_bytes: int = 16 * MiB,
        timeout: float = 30.0,
        surroundings: Surroundings | None = None,
    ) -> None:
        """`credit_bytes` bounds what is read ahead, over all partitions."""
        self.name = default_name() if name is None else check_name(name, "consumer")
        if credit_bytes < 1:
            raise InvalidRequest(f"credit_bytes {credit_bytes} must be at least 1")
        self._credit_bytes = credit_bytes
        self._timeout = timeout
        self._cluster = Cluster(bootstrap, name=self.name, role="consumer", surroundings=surroundings)
        self._clock = self._cluster.clock
        self._readers: dict[tuple[str, str], PartitionReader] = {}
        self._turn = 0
        self._arrival: asyncio.Future[None] | None = None
        self._is_closed = False

    # --- Where to read ---

    async def assign(
        self, topic: str, partition: str, offset: int | str = "earliest", *, group: str | None = None
    ) -> None:
        """Read a partition from an offset, from its `earliest` or `latest`, or from what its group has `committed`.

        A group that has committed nothing begins at the earliest.
        """
        self._check_open()
        check_name(topic, "topic")
        check_name(partition, "partition")
        if group is not None:
            check_name(group, "group")
        start = await self._resolve(topic, partition, offset, group)
        before = self._readers.pop((topic, partition), None)
        if before is not None:
            await before.close()
        reader = PartitionReader(
            self._cluster,
            topic,
            partition,
            consumer=self.name,
            group=group,
            offset=start,
            share_bytes=lambda: self._credit_bytes // max(1, len(self._readers)),
            on_change=self._arrived,
        )
        self._readers[topic, partition] = reader
        reader.start()

    async def seek(self, topic: str, partition: str, offset: int | str) -> None:
        """Go on at another offset; what was read ahead is forgotten."""
        reader = self._reader(topic, partition)
        await reader.seek(await self._resolve(topic, partition, offset, reader.group))

    async def position(self, topic: str, partition: str) -> int:
        """Return the next offset that `pull` or the iteration gives."""
        return self._reader(topic, partition).position

    async def end_offsets(self, topic: str) -> dict[str, int]:
        """Return where each partition of a topic ends now: one past the last message that can be read."""
        deadline = self._deadline()
        names = await self._cluster.partitions(topic, deadline)
        ends = await asyncio.gather(*(self._end_offset(topic, name, deadline) for name in names))
        return dict(zip(names, ends, strict=True))

    # --- Reading ---

    async def pull(self, max_messages: int = 1000, timeout: float = 1.0) -> Messages:
        """Return messages as soon as there are any, at most so many; none when the time is over.

        An error that stops a partition (its offset is out of range, its messages are lost) is raised until that
        partition is assigned or sought anew; one whose leader cannot be reached for long is a `RequestTimeout`.
        """
        self._check_open()
        if max_messages < 1:
            raise InvalidRequest(f"max_messages {max_messages} must be at least 1")
        deadline = Deadline(self._clock, timeout)
        while True:
            runs = self._take(max_messages)
            if runs or deadline.is_over:
                return Messages(runs)
            self._arrival = asyncio.get_running_loop().create_future()
            await settled(self._clock, self._arrival, deadline.remaining_ms)
            self._check_open()

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Yield message after message, without end; `position` follows what was yielded."""
        while True:
            self._check_open()
            messages = await self.pull()
            seeks = {place: reader.seeks for place, reader in self._readers.items()}
            for run in messages.runs:
                self._reader(run.topic, run.partition).position = run.start
            for run in messages.runs:
                for message in Messages([run]):
                    reader = self._readers.get((run.topic, run.partition))
                    if reader is None or reader.seeks != seeks.get((run.topic, run.partition)):
                        break  # the user has gone elsewhere
                    reader.position = message.offset + 1
                    yield message

    # --- Positions of a group ---

    async def commit(self) -> None:
        """Store the positions of all partitions that were assigned with a group."""
        self._check_open()
        deadline = self._deadline()
        moved = [each for each in self._readers.values() if each.group and each.committed != each.position]
        await asyncio.gather(*(self._commit(reader, deadline) for reader in moved))

    async def committed(self, topic: str, partition: str) -> int | None:
        """Return the stored position of the group that a partition was assigned with; None if there is none."""
        reader = self._reader(topic, partition)
        if reader.group is None:
            raise InvalidRequest(f"{topic}/{partition} was assigned without a group")
        return await self._fetch_committed(topic, partition, reader.group)

    # --- Beginning and end ---

    async def start(self) -> None:
        """Be ready; connections are made when they are needed."""
        self._check_open()

    async def close(self) -> None:
        """Stop reading and close every connection; positions are not stored by this."""
        if self._is_closed:
            return
        self._is_closed = True
        self._arrived()
        for reader in self._readers.values():
            await reader.close()
        for reader in self._readers.values():
            if reader.subscribed:
                await self._unsubscribe(reader)
        await self._cluster.close()

    async def __aenter__(self) -> AsyncConsumer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- Inside ---

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError(f"consumer {self.name} is closed")

    def _deadline(self) -> Deadline:
        self._check_open()
        return Deadline(self._clock, self._timeout)

    def _reader(self, topic: str, partition: str) -> PartitionReader:
        self._check_open()
        reader = self._readers.get((topic, partition))
        if reader is None:
            raise InvalidRequest(f"{topic}/{partition} is not assigned", hint="call assign() first")
        return reader

    def _arrived(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    def _take(self, messages_max: int) -> list[Run]:
        """Take what the readers have, each in turn at the head; an error comes once all before it was taken."""
        readers = list(self._readers.values())
        if not readers:
            return []
        self._turn = (self._turn + 1) % len(readers)
        readers = readers[self._turn :] + readers[: self._turn]
        for reader in readers:
            self._raise_problem(reader)
        runs: list[Run] = []
        for reader in readers:
            while messages_max > 0:
                try:
                    run = reader.take(messages_max)
                except ClymqError:
                    if not runs:
                        raise
                    break  # the reader keeps it, for the next call
                if run is None:
                    break
                runs.append(run)
                messages_max -= run.end - run.start
        return runs

    def _raise_problem(self, reader: PartitionReader) -> None:
        if reader.error is not None and not reader.has_messages:
            raise reader.error
        since_ms = reader.failing_since_ms
        if since_ms is not None and self._clock.monotonic_ms() - since_ms >= self._timeout * 1000:
            reader.failing_since_ms = self._clock.monotonic_ms()
            waited_for = f"{reader.topic}/{reader.partition} from offset {reader.position}"
            raise Deadline(self._clock, self._timeout).error(waited_for, reader.problem)

    async def _resolve(self, topic: str, partition: str, offset: int | str, group: str | None) -> int:
        """Return the offset that is meant."""
        if isinstance(offset, int):
            if offset < 0:
                raise InvalidRequest(f"offset {offset} is negative")
            return offset
        deadline = self._deadline()
        if offset == "latest":
            return await self._end_offset(topic, partition, deadline)
        if offset == "committed":
            if group is None:
                raise InvalidRequest("only a group has a committed offset", hint="assign with group=")
            committed = await self._fetch_committed(topic, partition, group)
            if committed is not None:
                return committed
        elif offset != "earliest":
            raise InvalidRequest(f"offset {offset!r} must be a number, earliest, latest or committed")
        described = await self._cluster.ask_controller(DescribeTopic(topic), deadline)
        for each in described.partitions:
            if each.partition == partition:
                return each.start
        raise UnknownPartition(f"{topic} has no partition {partition}")

    async def _end_offset(self, topic: str, partition: str, deadline: Deadline) -> int:
        try:
            answer = await self._cluster.ask_leader(
                topic,
                partition,
                lambda route: Pull(topic, partition, route.uid, offset=OFFSET_MAX, bytes_max=1),
                deadline,
            )
        except OffsetOutOfRange as error:
            return error.end
        return answer.reply.high_watermark

    async def _fetch_committed(self, topic: str, partition: str, group: str) -> int | None:
        answer = await self._cluster.ask_leader(
            topic, partition, lambda route: FetchOffset(topic, partition, route.uid, group), self._deadline()
        )
        return answer.reply.offset

    async def _commit(self, reader: PartitionReader, deadline: Deadline) -> None:
        offset, group = reader.position, reader.group
        assert group is not None
        await self._cluster.ask_leader(
            reader.topic,
            reader.partition,
            lambda route: CommitOffset(reader.topic, reader.partition, route.uid, group, offset),
            deadline,
        )
        reader.committed = offset

    async def _unsubscribe(self, reader: PartitionReader) -> None:
        """Undo what reading needed. It is no loss if nobody hears it: the controller sees who is gone."""
        request = UnSub(reader.topic, self.name, Mode.PSB_PULL, reader.group or "default", reader.partition)
        try:
            await self._cluster.ask_controller(request, Deadline(self._clock, LOOK_AGAIN_MS_MAX / 1000))
        except ClymqError as error:
            log.info("consumer %s: %s/%s stays subscribed: %s", self.name, reader.topic, reader.partition, error)
