"""Names for producers and consumers that were given none: `<hash of the machine's MAC>-<pid>-<random>`.

The first two say where to look for whom; the last makes the name one of a kind, so that no two producers ever fence
each other by accident, not even two of one process.
"""

from __future__ import annotations

import hashlib
import secrets
import uuid
from posix import getpid  # not os, through which files are touched as well


def default_name() -> str:
    """Return a name that nobody else has."""
    machine = hashlib.sha256(uuid.getnode().to_bytes(6, "big")).hexdigest()[:12]
    return f"{machine}-{getpid()}-{secrets.token_hex(8)}"
