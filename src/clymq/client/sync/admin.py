"""The blocking administrator."""

from __future__ import annotations

from clymq.client.admin import AsyncAdmin
from clymq.client.surroundings import Surroundings
from clymq.client.sync.calls import Blocking, blocking


class Admin(Blocking[AsyncAdmin]):
    """Administers a cluster. `with`, or `start()` and `close()`. Every call ends within `timeout` seconds."""

    def __init__(self, bootstrap: str, *, timeout: float = 30.0, surroundings: Surroundings | None = None) -> None:
        """`bootstrap` is host:port[,host:port...] of any zkservers or brokers."""
        super().__init__(AsyncAdmin(bootstrap, timeout=timeout, surroundings=surroundings))

    create_topic = blocking(AsyncAdmin.create_topic)
    create_partition = blocking(AsyncAdmin.create_partition)
    set_partition_state = blocking(AsyncAdmin.set_partition_state)
    alter_topic = blocking(AsyncAdmin.alter_topic)
    delete_topic = blocking(AsyncAdmin.delete_topic)
    list_topics = blocking(AsyncAdmin.list_topics)
    describe_topic = blocking(AsyncAdmin.describe_topic)
    status = blocking(AsyncAdmin.status)
    groups = blocking(AsyncAdmin.groups)
    reset_group = blocking(AsyncAdmin.reset_group)
    subscriptions = blocking(AsyncAdmin.subscriptions)
    drain = blocking(AsyncAdmin.drain)
    undrain = blocking(AsyncAdmin.undrain)
    move_partition = blocking(AsyncAdmin.move_partition)
    force_seal = blocking(AsyncAdmin.force_seal)
