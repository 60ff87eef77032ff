"""What `import clymq` gives, and what it costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import clymq
from clymq import AsyncAdmin, AsyncConsumer, AsyncProducer


def test_every_public_name_is_there() -> None:
    assert set(clymq.__all__) >= {
        "Ack", "AsyncAdmin", "AsyncConsumer", "AsyncProducer", "Message", "Messages", "Mode", "PartitionInfo",
        "Receipt", "Receipts", "TopicInfo",
    }  # fmt: skip
    for name in clymq.__all__:
        assert getattr(clymq, name).__name__ == name
        assert name in dir(clymq)
    with pytest.raises(AttributeError, match="Nothing"):
        _ = clymq.Nothing  # type: ignore[attr-defined]


def test_importing_the_root_loads_neither_the_client_nor_arrow() -> None:
    program = (
        "import sys, clymq, clymq.errors; print([n for n in sys.modules if 'pyarrow' in n or 'clymq.client' in n])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_constructors_do_nothing_but_remember() -> None:
    """No event loop runs here, and nobody listens."""
    assert AsyncProducer("nobody:1").name != AsyncProducer("nobody:1").name
    assert AsyncConsumer("nobody:1", name="c").name == "c"
    AsyncAdmin("nobody:1,nobody:2")
