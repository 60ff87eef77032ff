"""Errors on the wire: what one side raises, the other side raises again as the same class with the same fields.

The code decides the class; the flags travel too, so that an error that only a newer peer knows still drives the retry
loops as it should: it becomes an `UnknownServerError` that names the code and has the flags of the original.
"""

from __future__ import annotations

import inspect
from typing import Any, Final

import msgspec
from msgspec import Struct, field

from clymq import errors
from clymq.errors import ClymqError, UnknownServerError

MESSAGE_CHARACTERS_MAX: Final = 4096
# It must fit where nothing was agreed on yet (64 KiB): message and hint have at most half of that.
HEADER_BYTES_MAX: Final = 60 * 1024
_FIELDS_OF_ALL: Final = {"message", "hint", "retriable", "refresh"}


class Failure(Struct, frozen=True, omit_defaults=True):
    """The header of an ERROR frame."""

    code: str
    message: str = ""
    retriable: bool = False
    refresh: bool = False
    hint: str | None = None
    fields: dict[str, Any] = field(default_factory=dict)


_CLASSES: Final = {
    kind.code: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, ClymqError) and kind is not ClymqError
}
_REQUIRED: Final = {
    code: frozenset(
        name
        for name, parameter in inspect.signature(kind).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty
    )
    for code, kind in _CLASSES.items()
}
_ENCODER: Final = msgspec.msgpack.Encoder(enc_hook=str)
_DECODER: Final = msgspec.msgpack.Decoder(Failure)


def encode_error(error: ClymqError) -> bytes:
    """Return the header that says this error; a field that msgpack has no form for goes as its text."""
    fields = {name: value for name, value in vars(error).items() if name not in _FIELDS_OF_ALL and name[0] != "_"}
    hint = None if error.hint is None else error.hint[:MESSAGE_CHARACTERS_MAX]
    message = error.message[:MESSAGE_CHARACTERS_MAX]
    failure = Failure(error.code, message, error.retriable, error.refresh, hint, fields)
    try:
        header = _ENCODER.encode(failure)
    except (TypeError, ValueError, OverflowError, RecursionError):
        header = b""
    if 0 < len(header) <= HEADER_BYTES_MAX:
        return header
    # The error is what matters; what hangs on it may be anything that a constructor was given.
    return _ENCODER.encode(msgspec.structs.replace(failure, fields={}))


def decode_error(header: memoryview | bytes) -> ClymqError:
    """Rebuild the error."""
    try:
        failure = _DECODER.decode(header)
    except (msgspec.DecodeError, ValueError, RecursionError) as problem:
        return UnknownServerError(f"an error that cannot be read: {problem}")
    kind = _CLASSES.get(failure.code)
    if kind is None or not _REQUIRED[failure.code] <= failure.fields.keys():
        unknown = UnknownServerError(f"{failure.code}: {failure.message}", hint=failure.hint)
        return _with_flags(unknown, failure)
    error = kind.__new__(kind)
    error.args = (failure.message,)
    # A field may not stand in for what the class itself says (its code, its flags, its methods).
    fields = {name: value for name, value in failure.fields.items() if not hasattr(kind, name)}
    vars(error).update(fields, message=failure.message, hint=failure.hint)
    return _with_flags(error, failure) if kind is UnknownServerError else error


def _with_flags(unknown: ClymqError, failure: Failure) -> ClymqError:
    """Give an error without a name here the flags of the original, which may have come from further away."""
    # The class says no to both; this one error may say yes.
    if failure.retriable or failure.refresh:
        vars(unknown).update(retriable=failure.retriable, refresh=failure.refresh)
    return unknown
