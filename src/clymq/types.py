"""The words that every layer shares: acknowledgements, modes of consumption, and what may be a name.

A name (of a topic, partition, group, producer or consumer) is 1 to 200 bytes of UTF-8 in NFC, with no `/`, no control
character, and is not `.` or `..`. NFC, because two spellings of one word must not be two topics. Names reach disks and
metadata stores percent-encoded: `node_name` is reversible, `folder_name` may cut and therefore always carries an id.
"""

from __future__ import annotations

import enum
import unicodedata
import urllib.parse

from clymq.errors import ConfigError, InvalidName

NAME_BYTES_MAX = 200
FOLDER_NAME_BYTES_MAX = 100


class Ack(enum.IntEnum):
    """When a push is answered; per partition, and changeable at run time."""

    UNSET = -2
    QUORUM = -1
    NONE = 0
    LEADER = 1


class Mode(enum.IntEnum):
    """How a consumer takes messages: point to point or publish-subscribe, pushed or pulled."""

    PTP_PUSH = 1
    PTP_PULL = 2
    PSB_PUSH = 3
    PSB_PULL = 4


def check_ack(ack: int, *, may_be_unset: bool = True) -> Ack:
    """Return `ack` as one, else raise `ConfigError` with those that are allowed."""
    allowed = [each for each in Ack if may_be_unset or each is not Ack.UNSET]
    for each in allowed:
        if ack == each:
            return each
    raise ConfigError("ack", ack, f"must be one of {', '.join(f'{each.name} ({each:d})' for each in allowed)}")


def check_name(name: str, what: str = "name") -> str:
    """Return `name` if it may be a name, else raise `InvalidName` with the rule that it breaks."""
    if not isinstance(name, str):
        raise InvalidName(f"{what} {name!r} is a {type(name).__name__}, not a string")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise InvalidName(f"{what} {name!r} is not valid Unicode") from None
    if not 1 <= size <= NAME_BYTES_MAX:
        raise InvalidName(f"{what} {name!r} is {size} bytes of UTF-8; 1 to {NAME_BYTES_MAX} are allowed")
    if unicodedata.normalize("NFC", name) != name:
        raise InvalidName(f"{what} {name!r} is not in Unicode normal form NFC")
    if "/" in name or name in {".", ".."}:
        raise InvalidName(f"{what} {name!r} may not contain '/' nor be '.' or '..'")
    if any(unicodedata.category(character) == "Cc" for character in name):
        raise InvalidName(f"{what} {name!r} contains a control character")
    return name


def node_name(name: str) -> str:
    """Encode a name for the metadata tree: every byte outside [A-Za-z0-9_.-] as %XX."""
    # quote() spares '~' as well, which separates a folder's name from its id: it must not.
    return urllib.parse.quote(name, safe="").replace("~", "%7E")


def name_of_node(node: str) -> str:
    """Undo `node_name`."""
    return urllib.parse.unquote(node, errors="strict")


def folder_name(name: str, unique_id: str) -> str:
    """Name a folder after a topic or partition: its encoded name, cut, with the id that tells it apart."""
    return f"{node_name(name)[:FOLDER_NAME_BYTES_MAX]}~{unique_id}"
