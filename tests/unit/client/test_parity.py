"""The blocking classes say the same words as the asynchronous ones: names, parameters, defaults, descriptions."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from clymq import Admin, AsyncAdmin, AsyncConsumer, AsyncProducer, Consumer, Producer

PAIRS = [(AsyncAdmin, Admin), (AsyncProducer, Producer), (AsyncConsumer, Consumer)]
ONLY_ASYNC = {"over"}  # one client that uses the connections of another
# What these do differs, and so their descriptions do: a blocking send waits, a blocking handler has a thread.
DESCRIBED_APART = {"send", "run", "close"}


def public(kind: type) -> dict[str, Any]:
    return {
        name: inspect.getattr_static(kind, name)
        for name in dir(kind)
        if not name.startswith("_") and name not in ONLY_ASYNC
    }


@pytest.mark.parametrize(("asynchronous", "blocking"), PAIRS)
def test_they_have_the_same_public_names(asynchronous: type, blocking: type) -> None:
    assert public(asynchronous).keys() == public(blocking).keys()


@pytest.mark.parametrize(("asynchronous", "blocking"), PAIRS)
def test_methods_have_the_same_parameters_and_defaults(asynchronous: type, blocking: type) -> None:
    for name, there in {**public(asynchronous), "__init__": asynchronous.__init__}.items():
        here = inspect.getattr_static(blocking, name)
        if isinstance(there, property):
            assert isinstance(here, property), name
            continue
        theirs, ours = inspect.signature(there), inspect.signature(here)
        assert list(theirs.parameters.values()) == list(ours.parameters.values()), name
        assert theirs.return_annotation == ours.return_annotation, name


@pytest.mark.parametrize(("asynchronous", "blocking"), PAIRS)
def test_methods_are_described_in_the_same_words(asynchronous: type, blocking: type) -> None:
    for name, there in public(asynchronous).items():
        assert inspect.getdoc(there), name
        assert inspect.getdoc(getattr(blocking, name)), name
        if name not in DESCRIBED_APART:
            assert inspect.getdoc(there) == inspect.getdoc(inspect.getattr_static(blocking, name)), name


@pytest.mark.parametrize(("asynchronous", "blocking"), PAIRS)
def test_what_is_awaited_there_waits_here(asynchronous: type, blocking: type) -> None:
    for name, there in public(asynchronous).items():
        if inspect.isfunction(there):
            assert not inspect.iscoroutinefunction(getattr(blocking, name)), name
            assert inspect.iscoroutinefunction(there) or name == "send", name


def test_both_can_be_iterated_and_entered() -> None:
    assert hasattr(AsyncConsumer, "__aiter__")
    assert hasattr(Consumer, "__iter__")
    for asynchronous, blocking in PAIRS:
        assert hasattr(asynchronous, "__aenter__")
        assert hasattr(blocking, "__enter__")
