"""A network of namespaces: every process has a stack of its own, joined by a bridge, and packets can be lost.

    namespace a: eth0 10.x.y.2 --\
    namespace b: eth0 10.x.y.3 ---+-- bridge in namespace hub -- clymqPID.N 10.x.y.1, where the test is
    namespace c: eth0 10.x.y.4 --/

The bridge has a namespace of its own because a host's firewall (Docker's, say) looks at what its own bridges carry.

A cut is a wrong hardware address for the other one: packets leave, and nobody takes them. A route that drops them would
tell the sender, which no real cut does. It needs nothing but `ip`, works one way, and is undone in one command.

Namespaces are named after the process that made them. Those of a run that was killed are found by its process id,
which is dead, and removed with whatever still runs in them.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

PREFIX: Final = "clymq"
_OURS: Final = re.compile(rf"{PREFIX}-(\d+)-")
_NOBODY: Final = "02:00:00:00:00:00"
_COMMAND_SECONDS_MAX: Final = 30.0
_numbers = itertools.count()


class NetworkFailed(Exception):
    """The operating system did not do what `ip` was told to do."""


class Namespaces:
    """See the module."""

    kind = "namespaces"

    def __init__(self, names: Sequence[str], *, port: int) -> None:
        self._names = tuple(names)
        self._port = port
        self._number = next(_numbers)
        self._hosts = {name: number for number, name in enumerate(self._names, 2)}
        self._subnet = ""
        self._outside = f"{PREFIX}{os.getpid()}.{self._number}"
        self._cuts: set[tuple[str, str]] = set()

    @staticmethod
    def refusal() -> str | None:
        """Return why there can be no namespaces here, or None if there can."""
        if os.geteuid() != 0:
            return "not root"
        if shutil.which("ip") is None:
            return "no `ip`: install iproute2"
        return _probe()

    # --- Begin and end ---

    def start(self) -> None:
        """Clear away what dead runs have left, and make everything."""
        remove_leftovers()
        # Far from where another process begins to look at the same time.
        self._subnet = _free_subnet(257 * os.getpid() + self._number)
        try:
            self._make()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Remove the namespaces; all links go with them, ours at once."""
        with suppress(NetworkFailed):  # it was never made
            _ip("link", "delete", self._outside)
        there = _namespaces()
        for name in (*self._names, "hub"):
            if self._namespace(name) in there:
                _ip("netns", "delete", self._namespace(name))

    def _make(self) -> None:
        hub, outside = self._namespace("hub"), self._outside
        _batch([f"netns add {self._namespace(name)}" for name in ("hub", *self._names)])
        _batch(
            [
                f"link add {outside} type veth peer name outside netns {hub}",
                f"address add {self._ip_of(1)}/24 dev {outside}",
                f"link set {outside} up",
            ]
        )
        _batch(["link add bridge type bridge forward_delay 0", "link set bridge up"], within=hub)
        _batch(
            [
                f"link add port{host} type veth peer name eth0 netns {self._namespace(name)}"
                for name, host in self._hosts.items()
            ],
            within=hub,
        )
        ports = ["outside", *(f"port{host}" for host in self._hosts.values())]
        _batch([f"link set {port} master bridge up" for port in ports], within=hub)
        for name, host in self._hosts.items():
            commands = ["link set lo up", f"address add {self._ip_of(host)}/24 dev eth0", "link set eth0 up"]
            _batch(commands, within=self._namespace(name))

    # --- What processes need ---

    def command(self, name: str, command: Sequence[str]) -> Sequence[str]:
        """Return the command that runs `command` in the process's namespace, under the same process id."""
        return (_program(), "netns", "exec", self._namespace(name), *command)

    def listen_address(self, name: str) -> str:
        """Return where a process must listen: its own address, always the same port."""
        return f"{self._ip_of(self._hosts[name])}:{self._port}"

    @property
    def outside(self) -> str:
        """Where processes reach the test."""
        return self._ip_of(1)

    def serves(self, name: str, address: str) -> None:
        """Nothing is to be noted: addresses do not change."""
        assert address == self.listen_address(name), f"{name} listens at {address}"

    def address(self, source: str, target: str) -> str:
        """Return where a process is reached, by whomever."""
        del source
        return self.listen_address(target)

    # --- Cuts ---

    def partition(self, source: str, target: str, *, one_way: bool = False) -> None:
        """Lose all packets between two processes, or those from `source` to `target`."""
        for sender, receiver in ((source, target),) if one_way else ((source, target), (target, source)):
            to = self._ip_of(self._hosts[receiver])
            wrong = f"neighbour replace {to} lladdr {_NOBODY} dev eth0 nud permanent"
            _batch([wrong], within=self._namespace(sender))
            self._cuts.add((sender, receiver))

    def heal(self) -> None:
        """Let packets through again; each process asks anew where the others are."""
        cuts, self._cuts = self._cuts, set()
        for sender, receiver in cuts:
            to = self._ip_of(self._hosts[receiver])
            _batch([f"neighbour delete {to} dev eth0"], within=self._namespace(sender))

    # --- Inside ---

    def _namespace(self, name: str) -> str:
        return f"{PREFIX}-{os.getpid()}-{self._number}-{name}"

    def _ip_of(self, host: int) -> str:
        return f"{self._subnet}.{host}"


def remove_leftovers() -> None:
    """Remove the namespaces of runs whose process is gone, and kill what still runs in them."""
    for namespace in _namespaces():
        ours = _OURS.match(namespace)
        if ours and not Path(f"/proc/{ours[1]}").exists():
            # Another run may be clearing away the same: what is gone is gone.
            with suppress(NetworkFailed, ProcessLookupError):
                for pid in _ip("netns", "pids", namespace).split():
                    os.kill(int(pid), signal.SIGKILL)
                _ip("netns", "delete", namespace)


@cache
def _probe() -> str | None:
    """Try it, once in a process: being root is not enough in every container."""
    namespace = f"{PREFIX}-{os.getpid()}-probe"
    try:
        _ip("netns", "add", namespace)
        _ip("-n", namespace, "link", "add", "bridge", "type", "bridge")
        _ip("-n", namespace, "link", "add", "one", "type", "veth", "peer", "name", "other")
        _ip("netns", "exec", namespace, "true")
    except NetworkFailed as error:
        return str(error)
    finally:
        with suppress(NetworkFailed):
            _ip("netns", "delete", namespace)
    return None


def _namespaces() -> list[str]:
    return [line.split()[0] for line in _ip("netns", "list").splitlines() if line]


def _free_subnet(first: int) -> str:
    """Return a /24 of 10.64.0.0/10, as its first three numbers, that no interface of this machine is in."""
    used = set(re.findall(r"\b(\d+\.\d+\.\d+)\.\d+/", _ip("-4", "-o", "address", "show")))
    for number in range(first, first + 0x4000):
        subnet = f"10.{64 + (number >> 8) % 64}.{number % 256}"
        if subnet not in used:
            return subnet
    raise NetworkFailed("all of 10.64.0.0/10 is in use")


def _program() -> str:
    return shutil.which("ip") or "ip"


def _batch(commands: Sequence[str], *, within: str | None = None) -> None:
    """Run many commands as one process."""
    place = () if within is None else ("-n", within)
    _ip(*place, "-batch", "-", told="\n".join(commands) + "\n")


def _ip(*arguments: str, told: str = "") -> str:
    command = [_program(), *arguments]
    try:
        done = subprocess.run(  # noqa: S603 - ours, from start to end
            command, input=told, capture_output=True, text=True, check=True, timeout=_COMMAND_SECONDS_MAX
        )
    except subprocess.CalledProcessError as error:
        raise NetworkFailed(f"{' '.join(command)}: {error.stderr.strip()}: {told.strip()}") from None
    return done.stdout
