"""ClyMQ: a distributed message queue for Python and Spark.

    with Producer("127.0.0.1:7878") as producer:
        receipt = producer.push("orders", b"one")

`Admin`, `Producer` and `Consumer` wait; `AsyncAdmin`, `AsyncProducer` and `AsyncConsumer` say the same words to be
awaited. Each name is imported when it is first used: `import clymq` costs nothing, and a server never loads the client.
Errors are in `clymq.errors`, and each of them is here by its name too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clymq.client.admin import AsyncAdmin, PartitionInfo, TopicInfo
    from clymq.client.consumer import AsyncConsumer
    from clymq.client.messages import Message, Messages
    from clymq.client.producer import AsyncProducer
    from clymq.client.receipts import Receipt, Receipts
    from clymq.client.sync.admin import Admin
    from clymq.client.sync.consumer import Consumer
    from clymq.client.sync.producer import Producer
    from clymq.errors import *  # noqa: F403
    from clymq.types import Ack, Mode

__version__ = "0.1.0"

__all__ = [
    "Ack",
    "Admin",
    "AsyncAdmin",
    "AsyncConsumer",
    "AsyncProducer",
    "Consumer",
    "Message",
    "Messages",
    "Mode",
    "PartitionInfo",
    "Producer",
    "Receipt",
    "Receipts",
    "TopicInfo",
]


def __getattr__(name: str) -> object:
    found = _client(name) if name in __all__ else _error(name)
    globals()[name] = found
    return found


def _client(name: str) -> object:
    from clymq import types  # noqa: PLC0415
    from clymq.client import admin, consumer, messages, producer, receipts  # noqa: PLC0415
    from clymq.client.sync import admin as sync_admin  # noqa: PLC0415
    from clymq.client.sync import consumer as sync_consumer  # noqa: PLC0415
    from clymq.client.sync import producer as sync_producer  # noqa: PLC0415

    homes = (types, admin, consumer, messages, producer, receipts, sync_admin, sync_consumer, sync_producer)
    return next(vars(home)[name] for home in homes if name in vars(home))


def _error(name: str) -> object:
    # Not `from clymq import errors`: that looks here for the name first.
    import clymq.errors  # noqa: PLC0415

    found = vars(clymq.errors).get(name)
    if not (isinstance(found, type) and issubclass(found, clymq.errors.ClymqError)):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return found


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
