"""What was put aside: the dead letters of a topic, read to their end and written down where they came from.

They are put aside in the log first and travel to their topic afterwards, and nobody says when the last has arrived. So
they are read until for a while no more come.
"""

from __future__ import annotations

import asyncio
from typing import Final

from clymq.client.consumer import AsyncConsumer
from clymq.client.messages import Message
from clymq.errors import ClymqError, UnknownTopic
from clymq.simulation.chaos.events import Journal
from clymq.testing.waiting import until_asked

SUFFIX: Final = ".dlq"
SECONDS_MAX: Final = 60.0
QUIET_SECONDS: Final = 3.0


async def read_dead_letters(bootstrap: str, topic: str, journal: Journal) -> None:
    """Write down every dead letter; no topic for them means that there are none."""
    letters: dict[tuple[str, int], Message] = {}

    async def read() -> bool:
        async with AsyncConsumer(bootstrap, timeout=10) as consumer:
            try:
                for partition, end in (await consumer.end_offsets(topic + SUFFIX)).items():
                    await consumer.assign(topic + SUFFIX, partition, 0)
                    while (partition, end - 1) not in letters and end:
                        for message in await consumer.pull(timeout=10):
                            letters[message.partition, message.offset] = message
            except UnknownTopic:
                return True
            except ClymqError:
                return False
        return True

    async def read_all() -> bool:
        count = len(letters)
        if not await read():
            return False
        await asyncio.sleep(QUIET_SECONDS)
        return await read() and len(letters) == count

    await until_asked(read_all, f"the dead letters of {topic} are read", seconds_max=SECONDS_MAX)
    for _, message in sorted(letters.items()):
        headers = {name: (value or b"").decode(errors="replace") for name, value in message.headers}
        journal.write(
            "dead",
            topic=topic,
            partition=headers.get("clymq-partition", message.partition),
            group=headers.get("clymq-group", ""),
            offset=int(headers.get("clymq-offset", -1)),
            values=[message.value.decode(errors="replace")],
            reason=headers.get("clymq-reason", ""),
        )
