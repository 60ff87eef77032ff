"""Paths of the tree: what is one, and what lies above it. Pure.

A path is absolute, `/` is the root, every other path is its parent's, a slash and a name. The rule is ZooKeeper's,
narrowed where its servers and clients disagree, so that a path that one store takes the other takes too.
"""

from __future__ import annotations

from clymq.errors import InvalidPath

ROOT = "/"
PATH_BYTES_MAX = 4096


def check_path(path: str) -> str:
    """Return `path` if it is one, else raise `InvalidPath` with the rule that it breaks."""
    if not path.startswith("/"):
        raise InvalidPath(path, "must begin with '/'")
    if path == ROOT:
        return path
    if not path.isascii() or not path.isprintable():
        raise InvalidPath(path, "must be printable ASCII; encode names with clymq.types.node_name")
    if len(path) > PATH_BYTES_MAX:
        raise InvalidPath(path[:64] + "...", f"is longer than {PATH_BYTES_MAX} bytes")
    for name in path[1:].split("/"):
        if name in {"", ".", ".."}:
            raise InvalidPath(path, "may not have an empty name, '.' or '..' in it")
    return path


def parent_of(path: str) -> str:
    """Return the path above; the root has none."""
    assert path != ROOT
    return path.rpartition("/")[0] or ROOT


def name_of(path: str) -> str:
    """Return the last name of a path."""
    return path.rpartition("/")[2]


def below(path: str, name: str) -> str:
    """Return the path of a child."""
    return f"/{name}" if path == ROOT else f"{path}/{name}"
