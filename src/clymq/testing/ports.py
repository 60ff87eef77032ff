"""Ports for servers that must be told theirs, and must have the same ones again after a restart.

What the kernel gives to connections that somebody opens lies above; a port from there could be in use by the time that
its server comes back. These lie below, and nobody but servers takes them.
"""

from __future__ import annotations

import random
import socket
from typing import Final

HOST: Final = "127.0.0.1"
_FIRST, _END = 15_000, 32_000


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback interface that nobody listens at."""
    found: list[int] = []
    for port in random.SystemRandom().sample(range(_FIRST, _END), _END - _FIRST):
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise OSError(f"there are no {count} free ports from {_FIRST} to {_END}")
