"""What a report says about the machine and the run; no names of hosts, users or folders."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Sequence
from pathlib import Path

from benchmarks.peers.system import Promise, System


def machine() -> dict[str, str]:
    """Return what the figures depend on."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return {
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "memory": f"{memory:.1f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
        "load before": f"{os.getloadavg()[0]:.1f}",
    }


def _processor() -> str:
    found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found.group(1) if found else platform.machine()


def versions(systems: Sequence[type[System]]) -> dict[str, str]:
    """Return the versions of what can run here."""
    return {each.name: each.version() for each in systems if each.missing() is None}


def missing(systems: Sequence[type[System]]) -> dict[str, str]:
    """Return what cannot run here, with the reason and how to get it."""
    return {each.name: reason for each in systems if (reason := each.missing()) is not None}


def settings(systems: Sequence[type[System]], promises: Sequence[Promise]) -> list[tuple[str, str, str]]:
    """Return how each system keeps each promise, or that it has no such promise."""
    return [
        (str(promise), each.name, each.settings(promise) or "has no such promise")
        for promise in promises
        for each in systems
        if each.missing() is None
    ]
