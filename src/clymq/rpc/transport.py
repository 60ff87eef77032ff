"""Bytes between two processes: what a transport is, and the one on TCP.

With `local` the only module above the operating system's sockets; nobody else touches them or the event loop's
descriptors. It knows nothing of frames. It owns its sockets instead of using asyncio's streams because those copy: they
join what is gathered before they send it (in 3.11), and hand out what they received in memory of their own.

* What is written in one turn of the loop leaves in one `sendmsg`, from the memory that it lies in. So written memory
  must stay as it is until `buffered` has fallen to 0. Large views of files leave from there (`record.mapped`).
* The receiver says where received bytes go (`get_buffer`) and is called until the wire is `closed`, once.
* A wire that was closed still sends what was written before; one that was aborted does not.

Between processes of one machine the bytes take a Unix socket instead (`local`); nobody above notices.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import itertools
import logging
import re
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from clymq.errors import ConfigError, ConnectFailed, ConnectionLost, InvalidRequest
from clymq.protocol.frames import Buffer
from clymq.record.mapped import place_in_file
from clymq.rpc.local import connect_locally, listen_locally, peer_of, prepare

logger = logging.getLogger("clymq.rpc")

# More than this is sent at once rather than at the end of the turn: by then there is enough for one system call.
_FLUSH_AT_BYTES: Final = 256 * 1024
# Of the buffers that one `sendmsg` may take; Linux allows 1,024.
_GATHER_MAX: Final = 512
# Less than this is copied sooner than the kernel has been asked to take it from a file.
_FROM_FILE_BYTES_MIN: Final = 64 * 1024
# A peer that has not acknowledged what was sent for so long is gone, or the way to it is.
_UNACKNOWLEDGED_MS_MAX: Final = 5_000
_READS_PER_TURN: Final = 4
# Small frames in plenty keep their receiver busy for long; others, heartbeats among them, have their turn meanwhile.
_READ_SECONDS_PER_TURN: Final = 0.005
_BACKLOG: Final = 1024
_PORT: Final = re.compile("[0-9]{1,5}")
_ACCEPTS_PER_TURN: Final = 64
_ACCEPT_AGAIN_SECONDS: Final = 0.2


class Receiver(Protocol):
    """Who is called by a wire."""

    def get_buffer(self) -> memoryview:
        """Return where the next bytes go; never empty."""
        ...

    def received(self, count: int) -> None:
        """Note that `count` bytes were put there."""
        ...

    def closed(self, error: ConnectionLost | None) -> None:
        """Note that the wire is gone; None: the other side closed it in an orderly way, or we did."""
        ...


class Wire(Protocol):
    """One connection; reading begins with `start`."""

    address: str
    """Of the other side."""
    buffered: int
    """Bytes written and not yet taken by the operating system."""

    def start(self, receiver: Receiver) -> None:
        """Begin to read; once."""
        ...

    def write(self, buffers: Sequence[Buffer], size: int) -> None:
        """Send `size` bytes, in order; nothing happens on a wire that is closing."""
        ...

    def flush(self) -> None:
        """Do not wait for the end of the turn with what was written: somebody else does."""
        ...

    def when_drained(self, callback: Callable[[], None]) -> None:
        """Call once, from the event loop, when nothing is buffered any more or the wire is gone."""
        ...

    def pause_reading(self) -> None:
        """Let what arrives wait in the operating system, and with it the sender; its end is not noticed either."""
        ...

    def resume_reading(self) -> None:
        """Undo `pause_reading`."""
        ...

    def close(self) -> None:
        """Send what is buffered, then close."""
        ...

    def abort(self) -> None:
        """Close now."""
        ...


class Listener(Protocol):
    """A place where others can connect."""

    address: str

    def close(self) -> None:
        """Take no more connections; those that are there stay."""
        ...


class Transport(Protocol):
    """Makes wires."""

    async def listen(self, address: str, accept: Callable[[Wire], None]) -> Listener:
        """Listen at host:port (port 0: any free one); `accept` is called with each new wire and starts it.

        An address that is taken, or none of this machine, is `ConfigError`: who is told to listen there is told wrong.
        """
        ...

    async def connect(self, address: str, timeout_ms: float) -> Wire:
        """Connect to host:port; `ConnectFailed` says why it did not work."""
        ...


def parse_address(address: str) -> tuple[str, int]:
    """Split host:port or [IPv6]:port."""
    host, colon, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    if not colon or not host or not _PORT.fullmatch(port) or int(port) > 65535:
        raise InvalidRequest(f"address {address!r} must be host:port or [IPv6 address]:port")
    return host, int(port)


def format_address(host: str, port: int) -> str:
    """Undo `parse_address`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class TcpTransport:
    """TCP on the running event loop; `local`: and the short way where both ends are on one machine."""

    def __init__(self, *, local: bool = True) -> None:
        self._local = local

    async def listen(self, address: str, accept: Callable[[Wire], None]) -> Listener:
        """Listen at host:port; the port of the listener's address is the real one."""
        host, port = parse_address(address)
        loop = asyncio.get_running_loop()
        try:
            family, where = await _resolve(loop, host, port)
            listening = socket.create_server(where[:2], family=family, backlog=_BACKLOG)
        except OSError as error:
            raise ConfigError("listen", address, f"nobody can listen there: {_reason(error)}") from error
        listening.setblocking(False)
        port = listening.getsockname()[1]
        nearby = listen_locally(where[0], port) if self._local else None
        # The name is let go of first: whoever waits for the port wants both.
        sockets = [listening] if nearby is None else [nearby, listening]
        return _TcpListener(loop, sockets, format_address(host, port), accept)

    async def connect(self, address: str, timeout_ms: float) -> Wire:
        """Connect, or say why not."""
        host, port = parse_address(address)
        loop = asyncio.get_running_loop()
        sock: socket.socket | None = None
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                family, where = await _resolve(loop, host, port)
                sock = connect_locally(where[0], port) if self._local else None
                if sock is None:
                    sock = socket.socket(family, socket.SOCK_STREAM)
                    sock.setblocking(False)
                    await loop.sock_connect(sock, where)
            return _TcpWire(loop, sock, address)
        except BaseException as error:
            if sock is not None:
                sock.close()
            if isinstance(error, TimeoutError):
                raise ConnectFailed(f"cannot connect to {address} within {timeout_ms:g} ms") from None
            if isinstance(error, OSError):
                raise ConnectFailed(f"cannot connect to {address}: {_reason(error)}") from error
            raise


async def _resolve(
    loop: asyncio.AbstractEventLoop, host: str, port: int
) -> tuple[socket.AddressFamily, tuple[str, int] | tuple[str, int, int, int]]:
    """Return the first address of a host; a literal one without asking anybody."""
    try:
        version = ipaddress.ip_address(host).version
    except ValueError:
        try:
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except UnicodeError as error:
            raise OSError(f"{host!r} is no name of a host: {error}") from None
        # Where a name has both, servers that listen at one address are found at the older kind.
        family, _, _, _, where = min(found, key=lambda each: each[0] != socket.AF_INET)
        return family, where  # type: ignore[return-value]
    return (socket.AF_INET if version == 4 else socket.AF_INET6), (host, port)


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


class _TcpListener:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sockets: Sequence[socket.socket],
        address: str,
        accept: Callable[[Wire], None],
    ) -> None:
        self.address = address
        self._loop = loop
        self._sockets = sockets
        self._accept = accept
        for listening in sockets:
            loop.add_reader(listening, self._acceptable, listening)

    def close(self) -> None:
        for listening in self._sockets:
            if listening.fileno() >= 0:
                self._loop.remove_reader(listening)
                listening.close()

    def _acceptable(self, listening: socket.socket) -> None:
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                sock, where = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}:
                    raise
                logger.error("%s: cannot accept connections for now: %s", self.address, _reason(error))
                self._loop.remove_reader(listening)
                self._loop.call_later(_ACCEPT_AGAIN_SECONDS, self._accept_again, listening)
                return
            sock.setblocking(False)
            # Who comes the short way has no address, or one of its own choice; the process says more.
            is_local = listening.family == socket.AF_UNIX
            dialler = f"process {peer_of(sock)[0]}" if is_local else format_address(where[0], where[1])
            self._accept(_TcpWire(self._loop, sock, dialler))
            if listening.fileno() < 0:
                return

    def _accept_again(self, listening: socket.socket) -> None:
        if listening.fileno() >= 0:
            self._loop.add_reader(listening, self._acceptable, listening)


class _TcpWire:
    __slots__ = (
        "__weakref__",
        "_closing",
        "_fd",
        "_flush_is_due",
        "_has_files",
        "_is_full",
        "_loop",
        "_on_drained",
        "_reading",
        "_receiver",
        "_socket",
        "_unsent",
        "address",
        "buffered",
    )  # fmt: skip

    def __init__(self, loop: asyncio.AbstractEventLoop, sock: socket.socket, address: str) -> None:
        if sock.family == socket.AF_UNIX:
            prepare(sock)
        else:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # After a cut TCP waits ever longer before it tries again; a new connection is there sooner.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED_MS_MAX)
        self.address = address
        self.buffered = 0
        self._loop = loop
        self._socket = sock
        self._fd = sock.fileno()
        self._receiver: Receiver | None = None
        self._unsent: deque[Buffer] = deque()
        self._on_drained: list[Callable[[], None]] = []
        # Some of it is to be sent from files.
        self._has_files = False
        # A flush will come at the end of this turn.
        self._flush_is_due = False
        # The socket takes no more; a flush will come when it is writable again.
        self._is_full = False
        self._closing = False
        self._reading = False

    # --- Reading ---

    def start(self, receiver: Receiver) -> None:
        assert self._receiver is None
        self._receiver = receiver
        if self._fd >= 0:
            self._loop.add_reader(self._fd, self._readable)
            self._reading = True

    def pause_reading(self) -> None:
        if not self._closing:
            self._loop.remove_reader(self._fd)
            self._reading = False

    def resume_reading(self) -> None:
        if not self._closing:
            self._loop.add_reader(self._fd, self._readable)
            self._reading = True

    def _readable(self) -> None:
        receiver = self._receiver
        assert receiver is not None
        # What is written while received bytes are looked at leaves together, right behind it.
        flush_here = not self._flush_is_due
        self._flush_is_due = True
        until = self._loop.time() + _READ_SECONDS_PER_TURN
        try:
            for _ in range(_READS_PER_TURN):
                room = receiver.get_buffer()
                try:
                    count = self._socket.recv_into(room)
                except (BlockingIOError, InterruptedError):
                    break
                except OSError as error:
                    self._gone(ConnectionLost(f"connection with {self.address} lost: {_reason(error)}"))
                    return
                if count == 0:
                    self._gone(None)
                    return
                filled = count == len(room)
                del room  # nobody but the receiver holds its memory
                receiver.received(count)
                if not filled or self._closing or self._loop.time() >= until:
                    break
        finally:
            if flush_here:
                self._flush_is_due = False
                if (self._unsent or self._closing) and self._fd >= 0 and not self._is_full:
                    self._flush()

    # --- Writing ---

    def write(self, buffers: Sequence[Buffer], size: int) -> None:
        if self._closing:
            return
        self._unsent.extend(buffers)
        self.buffered += size
        if size >= _FROM_FILE_BYTES_MIN and any(map(_is_in_file, buffers)):
            self._has_files = True
        if not (self._flush_is_due or self._is_full):
            if self.buffered >= _FLUSH_AT_BYTES:
                self._flush()
            else:
                self._flush_is_due = True
                self._loop.call_soon(self._flush_at_end_of_turn)

    def flush(self) -> None:
        if self._unsent and self._fd >= 0 and not self._is_full:
            self._flush()

    def when_drained(self, callback: Callable[[], None]) -> None:
        self._on_drained.append(callback)
        if not self.buffered:
            self._loop.call_soon(self._tell_drained)

    def _tell_drained(self) -> None:
        if not self.buffered:
            callbacks, self._on_drained = self._on_drained, []
            for callback in callbacks:
                callback()

    def _flush_at_end_of_turn(self) -> None:
        self._flush_is_due = False
        if self._fd >= 0 and not self._is_full:
            self._flush()

    def _flush(self) -> None:
        try:
            while self._unsent:
                sent = self._send_some_with_files() if self._has_files else self._send_some()
                if sent is None:  # the rest of a frame is missing: whatever followed would be taken for it
                    self._end_soon(ConnectionLost(f"what is to be sent to {self.address} cannot be read"))
                    return
                self._drop_sent(sent)
        except (BlockingIOError, InterruptedError):
            self._is_full = True
            self._loop.add_writer(self._fd, self._writable)
            return
        except OSError as error:
            self._cannot_send(ConnectionLost(f"connection with {self.address} lost: {_reason(error)}"))
            return
        if self._on_drained:
            self._loop.call_soon(self._tell_drained)
        if self._closing:
            self._end_soon(None)

    def _send_some(self) -> int:
        unsent = self._unsent
        if len(unsent) == 1:
            return self._socket.send(unsent[0])
        if len(unsent) <= _GATHER_MAX:
            return self._socket.sendmsg(unsent)
        return self._socket.sendmsg([unsent[at] for at in range(_GATHER_MAX)])

    def _send_some_with_files(self) -> int | None:
        """Send what comes first from its file if it lies in one, else all up to the next that does; None: it cannot."""
        unsent = self._unsent
        while not len(unsent[0]):
            unsent.popleft()
        first = unsent[0]
        place = place_in_file(first) if len(first) >= _FROM_FILE_BYTES_MIN else None
        if place is None:
            some = itertools.islice(unsent, _GATHER_MAX)
            before: list[Buffer] = list(itertools.takewhile(lambda each: not _is_in_file(each), some))
            return self._socket.sendmsg(before)
        sent = place.memory.send_to(self._fd, place.position, len(first))
        return self._socket.send(first) if sent is None else sent or None

    def _cannot_send(self, error: ConnectionLost) -> None:
        """Nobody is there to send to; what they said before may still lie in the socket: the reader finds its end."""
        if self._closing or not self._reading:
            self._end_soon(error)
            return
        self._forget_unsent()
        if self._on_drained:
            self._loop.call_soon(self._tell_drained)

    def _drop_sent(self, sent: int) -> None:
        unsent = self._unsent
        self.buffered -= sent
        if self.buffered == 0:
            self._forget_unsent()
            return
        while sent:
            first = unsent.popleft()
            if len(first) > sent:
                unsent.appendleft(memoryview(first)[sent:])
                return
            sent -= len(first)

    def _writable(self) -> None:
        self._loop.remove_writer(self._fd)
        self._is_full = False
        self._flush()

    # --- The end ---

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            if not (self._flush_is_due or self._is_full):
                self._flush_is_due = True
                self._loop.call_soon(self._flush_at_end_of_turn)

    def abort(self) -> None:
        if self._fd >= 0:
            self._end_soon(None)

    def _end_soon(self, error: ConnectionLost | None) -> None:
        """Let go of the socket now, and say so in the next turn: nobody expects to be called back by what they call."""
        self._release()
        self._loop.call_soon(self._tell_closed, error)

    def _gone(self, error: ConnectionLost | None) -> None:
        self._release()
        self._tell_closed(error)

    def _release(self) -> None:
        self._closing = True
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        self._fd = -1
        self._socket.close()
        self._forget_unsent()

    def _forget_unsent(self) -> None:
        self._unsent.clear()
        self.buffered = 0
        self._has_files = False

    def _tell_closed(self, error: ConnectionLost | None) -> None:
        self._tell_drained()
        if self._receiver is not None:
            self._receiver.closed(error)


def _is_in_file(buffer: Buffer) -> bool:
    return len(buffer) >= _FROM_FILE_BYTES_MIN and place_in_file(buffer) is not None
