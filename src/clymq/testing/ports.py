"""Ports for servers that must be told theirs, and must have the same ones again after a restart.

What the kernel gives to connections that somebody opens lies above; a port from there could be in use by the time that
its server comes back. These lie below, and nobody but servers takes them.

Between the look and the server somebody else may look. So each process begins in a part of its own: two runs of tests
that are started together do not meet there.
"""

from __future__ import annotations

import os
import random
import socket
from typing import Final

HOST: Final = "127.0.0.1"
_FIRST, _END = 15_000, 32_000
_PARTS: Final = 17


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback interface that nobody listens at."""
    found: list[int] = []
    for port in _candidates(os.getpid()):
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise OSError(f"there are no {count} free ports from {_FIRST} to {_END}")


def _candidates(process: int) -> list[int]:
    """Return all ports, in the order in which a process tries them: those of its own part first."""
    chance, size = random.SystemRandom(), (_END - _FIRST) // _PARTS
    start = _FIRST + process % _PARTS * size
    own = range(start, start + size)
    others = [port for port in range(_FIRST, _END) if port not in own]
    return chance.sample(own, len(own)) + chance.sample(others, len(others))
