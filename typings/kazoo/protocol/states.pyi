from typing import Final, NamedTuple

class KazooState(str):
    SUSPENDED: Final[KazooState]
    CONNECTED: Final[KazooState]
    LOST: Final[KazooState]

class WatchedEvent(NamedTuple):
    type: str
    state: str
    path: str | None

class ZnodeStat(NamedTuple):
    czxid: int
    mzxid: int
    ctime: int
    mtime: int
    version: int
    cversion: int
    aversion: int
    ephemeralOwner: int  # noqa: N815
    dataLength: int  # noqa: N815
    numChildren: int  # noqa: N815
    pzxid: int
