"""Messages whose fate nobody waits for, taken in by a coroutine that waits where there is no room.

For whoever gathers messages elsewhere and hands them over as they are: the blocking producer. What is wrong with them
is reported as for every batch: to `on_delivery`, and by `flush`.
"""

from __future__ import annotations

from collections.abc import Callable

from clymq.client.accumulator import Draft, message_bytes
from clymq.client.outbox import Outbox
from clymq.client.placing import Placing
from clymq.client.waiting import Deadline
from clymq.clock import Clock
from clymq.errors import ClymqError
from clymq.record import BatchBuilder
from clymq.record.elements import Headers


class Intake:
    """See the module."""

    def __init__(self, placing: Placing, outbox: Outbox, clock: Clock, timeout: float, message_bytes_max: int) -> None:
        self._placing = placing
        self._outbox = outbox
        self._clock = clock
        self._timeout = timeout
        self._message_bytes_max = message_bytes_max

    @property
    def buffered_bytes(self) -> int:
        """What is accepted and not settled."""
        return self._outbox.buffered_bytes

    def check_open(self) -> None:
        """Raise the reason for which nothing is accepted any more, if there is one."""
        self._outbox.check_open()

    def check(self, value: bytes, key: bytes | None, headers: Headers | None, timestamp: int | None) -> None:
        """Raise what is wrong with a message in itself."""
        BatchBuilder(message_bytes_max=self._message_bytes_max).add(
            value, key=key, headers=headers, timestamp=timestamp
        )

    async def add_values(self, topic: str, values: list[bytes], size: int) -> None:
        """Add messages that are only values, so many bytes of them, which fit into one batch."""

        def add(place: str) -> Draft:
            return self._outbox.add_many(topic, place, len(values), size, lambda builder: builder.add_checked(values))

        await self._take_in(topic, None, None, size, add)

    async def add(
        self,
        topic: str,
        value: bytes,
        key: bytes | None,
        headers: Headers | None,
        partition: str | None,
        timestamp: int | None,
    ) -> None:
        """Add one message that was checked."""

        def add(place: str) -> Draft:
            return self._outbox.add(topic, place, value, key, headers, timestamp)

        await self._take_in(topic, partition, key, message_bytes(value, key, headers), add)

    def send_now(self) -> None:
        """Send what was added without waiting for more."""
        self._outbox.send_now()

    async def _take_in(
        self, topic: str, partition: str | None, key: bytes | None, size: int, add: Callable[[str], Draft]
    ) -> None:
        """Wait for room and for the topic's partitions, then add to the one that is chosen."""
        try:
            names = await self._placing.admit(topic, partition, size, self._deadline())
            draft = add(self._placing.choose(topic, names, key))
        except ClymqError as error:
            self._outbox.report(error, unawaited=True)
            return
        draft.unawaited = True
        self._outbox.hand_over()

    def _deadline(self) -> Deadline:
        return Deadline(self._clock, self._timeout)
