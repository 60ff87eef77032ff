"""Connections that carry the protocol: `Endpoint` is who we are, `Server` listens, `connect` and `Link` dial.

`transport` is the only module that touches a socket; its twin in `memory` runs on any clock.
"""

from clymq.rpc.client import Link, connect
from clymq.rpc.endpoint import Endpoint
from clymq.rpc.handlers import Handler, answering
from clymq.rpc.peer import Answer, Call, Peer
from clymq.rpc.server import Server

__all__ = ["Answer", "Call", "Endpoint", "Handler", "Link", "Peer", "Server", "answering", "connect"]
