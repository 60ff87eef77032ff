"""An error that is raised on one side is raised again on the other: same class, same fields."""

from __future__ import annotations

import inspect

import msgspec
import pytest

from clymq import errors
from clymq.errors import ClymqError, NotLeader, OutOfSequence, UnknownServerError
from clymq.protocol.failures import decode_error, encode_error

EXAMPLES = [
    errors.BrokerReplaced("b", 7),
    errors.ConfigError("a", 1, "must be 2", source="f"),
    errors.CorruptBatch("count", "is 0", position=8, start=1, end=2),
    errors.CorruptBlock("/x", 9, "torn"),
    errors.DamagedNode("/t", "no JSON"),
    errors.DamagedStore("/x", "no database"),
    errors.DataLost("gone", start=1, end=2),
    errors.DiskFailed("/x", "write", "no"),
    errors.DiskFull("/x", "no room"),
    errors.EphemeralParent("/e/c"),
    errors.FolderLocked("/x"),
    errors.InvalidPath("a", "must begin with '/'"),
    errors.MessageTooLarge("big", size_bytes=2, limit_bytes=1),
    errors.NodeNotEmpty("/a"),
    errors.OffsetOutOfRange(5, first=7, end=9, hint="read 7"),
    errors.OutOfSequence("gap", expected=4),
    errors.ValueTooLarge("/a", 2, 1),
]
SPECIAL = {type(example) for example in EXAMPLES}
PLAIN = [
    kind("a message", hint="a hint")
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, ClymqError) and kind is not ClymqError and kind not in SPECIAL
]


@pytest.mark.parametrize("error", EXAMPLES + PLAIN, ids=lambda error: error.code)
def test_every_error_comes_back_as_itself(error: ClymqError) -> None:
    back = decode_error(encode_error(error))
    assert type(back) is type(error)
    assert (str(back), back.args, vars(back)) == (str(error), error.args, vars(error))
    assert (back.retriable, back.refresh, back.hint) == (error.retriable, error.refresh, error.hint)


def test_a_code_that_is_not_known_here_is_named_and_keeps_its_flags() -> None:
    told = {"code": "FromTheFuture", "message": "soon", "retriable": True, "refresh": True, "hint": "wait"}
    back = decode_error(msgspec.msgpack.encode(told))
    assert type(back) is UnknownServerError
    assert (back.retriable, back.refresh, str(back)) == (True, True, "FromTheFuture: soon (wait)")
    assert UnknownServerError.retriable is False


def test_an_error_without_the_fields_that_its_class_promises_is_not_taken_for_it() -> None:
    back = decode_error(msgspec.msgpack.encode({"code": "OutOfSequence", "message": "gap"}))
    assert type(back) is UnknownServerError


def test_fields_cannot_replace_what_the_class_says() -> None:
    told = {"code": "NotLeader", "fields": {"retriable": False, "with_traceback": 1, "leader": "b2", "args": [1]}}
    back = decode_error(msgspec.msgpack.encode(told))
    assert isinstance(back, NotLeader)
    assert back.retriable
    assert callable(back.with_traceback)
    assert vars(back) == {"leader": "b2", "message": "", "hint": None}


def test_a_field_without_a_form_in_msgpack_goes_as_text_or_not_at_all() -> None:
    odd = OutOfSequence("gap", expected=4)
    vars(odd)["place"] = ValueError("x")
    assert vars(decode_error(encode_error(odd)))["place"] == "x"
    vars(odd)["place"] = 2**70
    assert type(decode_error(encode_error(odd))) is UnknownServerError


def test_what_is_no_error_at_all_is_still_an_error() -> None:
    assert type(decode_error(b"\xc1")) is UnknownServerError


def test_a_message_of_any_length_fits_into_a_frame() -> None:
    assert len(encode_error(NotLeader("x" * 10**7, hint="y" * 10**7))) < 10_000
