"""Verbs by name and as JSON: for `clymq call`, for tests, and for people.

Bytes are base64 in JSON. A field that a verb does not have is refused here, unlike on the wire: who types a message by
hand has misspelt it.
"""

from __future__ import annotations

from typing import Any, cast

import msgspec

from clymq.errors import InvalidRequest
from clymq.protocol.verbs import Message, Reply, all_verbs, by_name


def message_of(name: str, text: str) -> Message:
    """Return the message with this name and these fields."""
    verb = by_name(name)
    if verb is None:
        names = ", ".join(sorted(verb.name for verb in all_verbs()))
        raise InvalidRequest(f"there is no verb {name!r}", hint=f"there are {names}")
    try:
        fields = msgspec.json.decode(text or "{}")
        if not isinstance(fields, dict):
            raise InvalidRequest(f"{name}: a JSON object with its fields is needed, not {text!r}")
        unknown = fields.keys() - set(verb.message.__struct_fields__)
        if unknown:
            has = ", ".join(verb.message.__struct_fields__)
            raise InvalidRequest(f"{name} has no field {', '.join(sorted(unknown))}", hint=f"it has {has}")
        # As an array where the wire has one: JSON objects are for people.
        return cast(Message, msgspec.convert(_in_order(verb.message, fields), verb.message))
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"{name}: {error}") from None
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise InvalidRequest(f"{name}: that is not JSON: {error}") from None


def json_of(reply: Reply) -> str:
    """Return a reply as one JSON document, every field of it."""
    return msgspec.json.encode(_whole(reply)).decode()


def _whole(value: Any) -> Any:
    """Return structs with every field, whatever the wire omits: as an array where the wire has one."""
    if isinstance(value, msgspec.Struct):
        fields = {name: _whole(getattr(value, name)) for name in value.__struct_fields__}
        return list(fields.values()) if value.__struct_config__.array_like else fields
    if isinstance(value, tuple | list):
        return [_whole(each) for each in value]
    if isinstance(value, dict):
        return {key: _whole(each) for key, each in value.items()}
    return value


def _in_order(kind: type[msgspec.Struct], fields: dict[str, Any]) -> Any:
    if not kind.__struct_config__.array_like:
        return fields
    names = kind.__struct_fields__
    required = len(names) - len(kind.__struct_defaults__)
    missing = [name for name in names[:required] if name not in fields]
    if missing:
        raise InvalidRequest(f"{kind.__name__} needs {', '.join(missing)}")
    defaults = dict(zip(names[required:], kind.__struct_defaults__, strict=True))
    return [fields[name] if name in fields else defaults[name] for name in names]
