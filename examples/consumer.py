"""The consumer of the original program: shares the phone numbers with its group, or reads one city for itself.

    python examples/consumer.py                             # point to point: each message to one consumer of the group
    python examples/consumer.py --partition xian --from 10  # publish-subscribe: everything, from an offset on

Run the first one several times at once: they share the cities. Kill one: the others get what it had not acked.
"""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter
from collections.abc import Sequence

from clymq import AsyncConsumer, Mode

TOPIC = "phone_number"


async def share(consumer: AsyncConsumer, group: str, wait: float) -> Counter[str]:
    """Handle messages that nobody else of the group gets; a message that is not acked comes again."""
    seen: Counter[str] = Counter()
    await consumer.subscribe(TOPIC, mode=Mode.PTP_PULL, group=group)
    while len(messages := await consumer.pull(timeout=wait)):
        for message in messages:
            seen[message.partition] += 1
        await consumer.ack(messages)
    return seen


async def read(consumer: AsyncConsumer, partition: str, offset: int, wait: float) -> Counter[str]:
    """Read one partition from an offset on, whatever others do with it."""
    seen: Counter[str] = Counter()
    await consumer.subscribe(TOPIC, mode=Mode.PSB_PULL, partition=partition, offset=offset)
    while len(messages := await consumer.pull(timeout=wait)):
        seen[partition] += len(messages)
    return seen


async def consume(options: argparse.Namespace) -> Counter[str]:
    """Do one or the other."""
    async with AsyncConsumer(options.bootstrap, name=options.name) as consumer:
        if options.partition is None:
            return await share(consumer, options.group, options.wait)
        return await read(consumer, options.partition, options.start, options.wait)


def main(arguments: Sequence[str] | None = None) -> None:
    """Consume until nothing comes any more, and say what there was."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap", default="127.0.0.1:7878", help="any servers of the cluster")
    parser.add_argument("--name", help="who consumes; not given: a name of its own")
    parser.add_argument("--group", default="default", help="who shares the messages")
    parser.add_argument("--partition", help="read this one instead of sharing all")
    parser.add_argument("--from", dest="start", type=int, default=0, help="the first offset to read")
    parser.add_argument("--wait", type=float, default=3.0, help="end after so many seconds without a message")
    for city, count in sorted(asyncio.run(consume(parser.parse_args(arguments))).items()):
        print(f"{city}: {count} messages")


if __name__ == "__main__":
    main()
