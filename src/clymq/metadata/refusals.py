"""What a metadata store refuses beyond `clymq.errors`: each names the path and the rule.

A refusal is definite: the write was judged and changed nothing. What is not definite has other names, which
`clymq.metadata.store` explains.
"""

from __future__ import annotations

from clymq.errors import MetadataError


class NodeNotEmpty(MetadataError):
    """The node has children and cannot be deleted."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} has children", hint="delete them first, in the same transaction if need be")
        self.path = path


class EphemeralParent(MetadataError):
    """An ephemeral node has no children: they would outlive it."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path}: the node above it is ephemeral and may have no children")
        self.path = path


class InvalidPath(MetadataError):
    """A path breaks the rule for paths."""

    def __init__(self, path: object, rule: str) -> None:
        super().__init__(f"path {path!r}: {rule}")
        self.path = path


class ValueTooLarge(MetadataError):
    """A value, or all values of a transaction together, are larger than the limit."""

    def __init__(self, path: str, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(f"{path}: the write takes {size_bytes} bytes; at most {limit_bytes} are allowed")
        self.path = path
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes


class DamagedNode(MetadataError):
    """A node's value is not what the tree says it must be."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path} is damaged: {problem}", hint="look at the node; ClyMQ never writes such a value")
        self.path = path
        self.problem = problem


class DamagedStore(MetadataError):
    """The store's own file cannot be read as one."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"the store's file {path} cannot be used: {problem}")
        self.path = path
        self.problem = problem


class BrokerReplaced(MetadataError):
    """Another process has taken this broker's name: this one must stop."""

    def __init__(self, name: str, incarnation: int) -> None:
        super().__init__(
            f"broker {name} is online as incarnation {incarnation}, which is not this process",
            hint="two processes run under one name; give each its own --name",
        )
        self.name = name
        self.incarnation = incarnation
