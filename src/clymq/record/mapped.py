"""Bytes that lie in a file: whoever sends them may let the kernel take them from there.

A range of the log is a view of mapped memory, and to send that copies it into the socket. The file's own pages can go
there instead (`sendfile`), for a quarter of the processor time, and the receiver has less to do too. Who receives them
looks at the file's pages then: what is mapped is committed, and neither changes nor is cut.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import pyarrow as pa

from clymq.record.layout import Buffer


class FileMemory(ABC):
    """Memory that is a file's, from its first byte on: what owns such a view."""

    address: int
    """Of the first byte."""

    @abstractmethod
    def send_to(self, socket: int, position: int, count: int) -> int | None:
        """Send bytes of the file to a socket's descriptor, as many as it takes now, and return how many those were.

        None: that cannot be done, and the memory is to be sent. 0: the disk cannot read them, or they are not there.
        """


class Place(NamedTuple):
    """Where bytes lie."""

    memory: FileMemory
    position: int


def place_in_file(buffer: Buffer) -> Place | None:
    """Return where bytes lie if that is a file, else None."""
    owner = buffer.obj if isinstance(buffer, memoryview) else None
    return Place(owner, address_of(buffer) - owner.address) if isinstance(owner, FileMemory) else None


def address_of(buffer: object) -> int:
    """Return where memory begins."""
    address: int = pa.py_buffer(buffer).address
    return address
