"""A broker process that carries the zkserver's role as well: two servers, two addresses, one process.

For small clusters: with the embedded store one broker holds it for all, with ZooKeeper any number of them stand for
election. The two know each other only by their addresses, as if they were two processes. The zkserver comes first and
goes last, because a broker that starts or stops has something to say to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from clymq.errors import ClymqError
from clymq.node.broker import BrokerNode
from clymq.node.zkserver import ZkServerNode


class BrokerWithZkServer:
    """See the module. `make_broker` is told where the zkserver is reached."""

    def __init__(self, zkserver: ZkServerNode, zkserver_listen: str, make_broker: Callable[[str], BrokerNode]) -> None:
        self.zkserver = zkserver
        self._zkserver_listen = zkserver_listen
        self._make_broker = make_broker
        self._broker: BrokerNode | None = None

    @property
    def address(self) -> str:
        """Where the broker listens."""
        assert self._broker is not None, "it was not started"
        return self._broker.address

    async def start(self, address: str) -> None:
        """Serve as a zkserver, then as a broker."""
        await self.zkserver.start(self._zkserver_listen)
        try:
            self._broker = self._make_broker(self.zkserver.address)
            await self._broker.start(address)
        except BaseException:
            await self.zkserver.close()
            raise

    async def failed(self) -> ClymqError:
        """Wait until one of the two can serve no more, and say why."""
        assert self._broker is not None, "it was not started"
        first: asyncio.Future[ClymqError] = asyncio.get_running_loop().create_future()

        async def watch(node: ZkServerNode | BrokerNode) -> None:
            error = await node.failed()
            if not first.done():
                first.set_result(error)

        watching = [asyncio.create_task(watch(node)) for node in (self.zkserver, self._broker)]
        try:
            return await first
        finally:
            for task in watching:
                task.cancel()

    async def close(self) -> None:
        """Stop being a broker, then a zkserver."""
        if self._broker is not None:
            await self._broker.close()
        await self.zkserver.close()
