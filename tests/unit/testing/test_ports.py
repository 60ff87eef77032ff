"""Ports that servers are told: free, each another one, and not among those that connections get."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from clymq.testing import ports
from clymq.testing.ports import HOST, free_ports


def test_ports_are_free_and_different_and_no_connection_gets_them() -> None:
    given = free_ports(6)
    assert len(set(given)) == 6
    first_of_connections = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for port in given:
        assert port < first_of_connections
        with socket.socket() as server:
            server.bind((HOST, port))


def test_a_port_that_is_taken_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind((HOST, free_ports(1)[0]))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setattr(ports, "_FIRST", port)
        monkeypatch.setattr(ports, "_END", port + 1)
        with pytest.raises(OSError, match="no 1 free ports"):
            free_ports(1)


def test_processes_that_begin_together_look_in_different_places() -> None:
    one, other = ports._candidates(4711), ports._candidates(4712)
    assert not set(one[:1000]) & set(other[:1000])
    assert sorted(one) == sorted(other), "each comes to all of them if it has to"
