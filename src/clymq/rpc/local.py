"""The short way between two processes of one machine: a Unix socket beside the port.

Bytes through TCP's loopback cost more than twice the processor time of bytes through a Unix socket, and on one machine,
which is what most people begin with, that is taken from everything else. So whoever listens at a loopback address also
listens at a Unix socket that is named after it, and whoever dials such an address tries that first. Nobody has to know:
the address stays host:port, and where there is no such socket (another network namespace, a proxy, an older version)
the port is dialled as ever.

The names are abstract ones (unix(7)): no file is left behind, and they end with the process. Any user may take a name
that is free, as with ports; so a dialler believes only a process of its own user, or of root.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
import struct
from contextlib import ExitStack, suppress
from typing import Final

logger = logging.getLogger("clymq.rpc")

_BACKLOG: Final = 1024
# A Unix socket counts as writable only when three quarters of this are free; the kernel's default is a few batches.
_BUFFER_BYTES: Final = 1024 * 1024
_CREDENTIALS: Final = struct.Struct("3i")
_ROOT: Final = 0


def listen_locally(host: str, port: int) -> socket.socket | None:
    """Return a socket that listens beside host:port, or None where that is no place on this machine alone."""
    if not _is_loopback(host):
        return None
    with ExitStack() as unless_all_is_well, suppress(OSError):
        listening = unless_all_is_well.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        listening.bind(_name(host, port))
        listening.listen(_BACKLOG)
        listening.setblocking(False)
        unless_all_is_well.pop_all()
        return listening
    # Somebody has the name, or there is no room for another descriptor: the port is there all the same.
    logger.info("%s:%d is reached by its port alone", host, port)
    return None


def connect_locally(host: str, port: int) -> socket.socket | None:
    """Return a connection to whoever listens beside host:port, or None if the port is to be dialled."""
    if not _is_loopback(host):
        return None
    with ExitStack() as unless_all_is_well, suppress(OSError):
        sock = unless_all_is_well.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        sock.setblocking(False)
        sock.connect(_name(host, port))
        if peer_of(sock)[1] in {_own_user(), _ROOT}:
            unless_all_is_well.pop_all()
            return sock
    return None


def prepare(sock: socket.socket) -> None:
    """Give a connection room for what one turn of an event loop writes."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)


def peer_of(sock: socket.socket) -> tuple[int, int]:
    """Return the process and the user at the other end."""
    process, user, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return process, user


def _own_user() -> int:
    """Return who we are to others, by the same word that says who they are to us."""
    one, other = socket.socketpair()
    with one, other:
        return peer_of(one)[1]


def _is_loopback(host: str) -> bool:
    return ipaddress.ip_address(host).is_loopback


def _name(host: str, port: int) -> str:
    return f"\0clymq/{ipaddress.ip_address(host)}/{port}"
