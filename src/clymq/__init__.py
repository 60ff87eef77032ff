"""ClyMQ: a distributed message queue for Python and Spark.

    async with AsyncProducer("127.0.0.1:7878") as producer:
        receipt = await producer.push("orders", b"one")

The client's names are here. Each is imported when it is first used: `import clymq` costs nothing, and a server never
loads the client. Errors are in `clymq.errors`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clymq.client.admin import AsyncAdmin, PartitionInfo, TopicInfo
    from clymq.client.consumer import AsyncConsumer
    from clymq.client.messages import Message, Messages
    from clymq.client.producer import AsyncProducer
    from clymq.client.receipts import Receipt, Receipts
    from clymq.types import Ack, Mode

__version__ = "0.1.0"

__all__ = [
    "Ack",
    "AsyncAdmin",
    "AsyncConsumer",
    "AsyncProducer",
    "Message",
    "Messages",
    "Mode",
    "PartitionInfo",
    "Receipt",
    "Receipts",
    "TopicInfo",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from clymq import types  # noqa: PLC0415
    from clymq.client import admin, consumer, messages, producer, receipts  # noqa: PLC0415

    homes = (types, admin, consumer, messages, producer, receipts)
    found: object = next(vars(home)[name] for home in homes if name in vars(home))
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
