"""A consumer in a process of its own, to be killed and frozen: prints what it gets, one line a message.

    consuming_process.py BOOTSTRAP TOPIC KIND MODE GROUP ACK

KIND is async or sync, MODE one of the four by name, ACK is ack, none, or commit. Each line is partition, offset and
delivery count, printed once the message is acked, or the position stored.
"""

from __future__ import annotations

import asyncio
import sys

from clymq import AsyncConsumer, Consumer, Message, Mode


def show(message: Message) -> None:
    print(message.partition, message.offset, message.delivery_count, flush=True)


async def consume(bootstrap: str, topic: str, mode: Mode, group: str, end: str) -> None:
    async with AsyncConsumer(bootstrap) as consumer:
        await consumer.subscribe(topic, mode=mode, group=group)
        print("subscribed", flush=True)
        async for message in consumer:
            if end == "ack":
                await consumer.ack(message)
            elif end == "commit":
                await consumer.commit()
            show(message)


def consume_blocking(bootstrap: str, topic: str, mode: Mode, group: str, end: str) -> None:
    with Consumer(bootstrap) as consumer:
        consumer.subscribe(topic, mode=mode, group=group)
        print("subscribed", flush=True)
        for message in consumer:
            if end == "ack":
                consumer.ack(message)
            elif end == "commit":
                consumer.commit()
            show(message)


def main() -> None:
    bootstrap, topic, kind, mode, group, end = sys.argv[1:]
    if kind == "async":
        asyncio.run(consume(bootstrap, topic, Mode[mode], group, end))
    else:
        consume_blocking(bootstrap, topic, Mode[mode], group, end)


if __name__ == "__main__":
    main()
