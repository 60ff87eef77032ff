"""What `import clymq` gives, and what it costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import clymq
from clymq import AsyncAdmin, AsyncConsumer, AsyncProducer, errors


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


def test_every_error_is_there_by_its_name_and_nothing_else_of_their_module() -> None:
    kinds = {name: kind for name, kind in vars(errors).items() if getattr(kind, "code", "") == name}
    assert {"ClymqError", "UnknownTopic", "BrokerReplaced"} <= kinds.keys()
    for name, kind in kinds.items():
        assert getattr(clymq, name) is kind
        assert name not in clymq.__all__
    for name in ("ClassVar", "Iterable", "reprlib", "_SHORT"):
        with pytest.raises(AttributeError, match=name):
            getattr(clymq, name)


def test_an_error_is_imported_from_the_root_and_brings_only_the_errors() -> None:
    program = (
        "import sys, clymq; before = set(sys.modules); from clymq import UnknownTopic; "
        "print(sorted(n for n in set(sys.modules) - before if 'clymq' in n), 'clymq.errors' in before, clymq.errors)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.startswith("['clymq.errors'] False <module 'clymq.errors'")


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
