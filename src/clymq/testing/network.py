"""The network between the processes of a test: whole, until a pair is cut.

Two kinds, which look the same to a test:

* `namespaces`: each process has a network stack and an address of its own, and packets are lost on the way. As real as
  it gets; needs root and `ip`.
* `proxies`: each process reaches each other one through a port of its own, held by the test, and bytes are kept back
  there. Works everywhere, and can delay and reset too.

In both a cut is silent, as a real one is: nobody is told, connections stay open and stand still, new ones are not
answered. What was on its way arrives after `heal`, if somebody still waits for it. Only pairs that are named are cut:
the test itself reaches every process all the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, Protocol

from clymq.testing.namespaces import Namespaces
from clymq.testing.proxies import Proxies

Kind = Literal["auto", "namespaces", "proxies"]
LISTEN_PORT: Final = 7774


class Network(Protocol):
    """See the module. Names are those of processes; `start` it BEFORE the first of them."""

    kind: str

    def start(self) -> None:
        """Make it."""

    def close(self) -> None:
        """Leave nothing behind; the processes are gone."""

    def command(self, name: str, command: Sequence[str]) -> Sequence[str]:
        """Return the command that runs `command` at this process's place in the network."""

    def listen_address(self, name: str) -> str:
        """Return where a process must listen."""

    def serves(self, name: str, address: str) -> None:
        """Note where a process listens, now that it does."""

    def address(self, source: str, target: str) -> str:
        """Return where one process reaches another, running or not."""

    def partition(self, source: str, target: str, *, one_way: bool = False) -> None:
        """Cut two processes off from each other; one way: only what `source` sends to `target` is lost."""

    def heal(self) -> None:
        """Undo all cuts."""


def make_network(names: Sequence[str], kind: Kind = "auto") -> Network:
    """Choose: namespaces where they are permitted, unless told otherwise."""
    if kind == "namespaces" or (kind == "auto" and Namespaces.refusal() is None):
        return Namespaces(names, port=LISTEN_PORT)
    return Proxies(names)
