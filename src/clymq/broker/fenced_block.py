"""A replica of a Raft block that was fenced: its majority is gone, and an operator ends the block by force.

From the moment that the epoch of the fence is on its disk it takes no part in its group: no vote, no append, in this
life of the process or any other. What is left to do is what a fenced fetch replica does, with the same code: tell where
it ends, and end the block there if it is the one that is trusted. It answers nobody else; an ordinary end of the block
is for those who still are a majority, and only they can say what it is.
"""

from __future__ import annotations

from clymq.broker.active_block import Closed
from clymq.broker.fetch_block import FetchBlock
from clymq.config import Config
from clymq.errors import NotLeader
from clymq.protocol.hosting import CloseAccept
from clymq.rpc.peer import Call


class FencedBlock(FetchBlock):
    """One replica, out of its group."""

    @property
    def leader(self) -> str | None:
        """Nobody whom it knows of."""
        return None

    def push(self, call: Call, config: Config) -> None:
        """Refuse."""
        del call, config
        raise self._fenced()

    def check_reading(self) -> None:
        """Refuse: what is committed only a majority can say."""
        raise self._fenced()

    def close_accept(self, request: CloseAccept, answer: Closed) -> None:
        """Tell where this replica ends, or end the block here."""
        if not request.fence:
            raise self._fenced()
        super().close_accept(request, answer)

    def _fenced(self) -> NotLeader:
        return NotLeader(f"{self._me} is fenced, out of the group of {self.driver.group.name}")
