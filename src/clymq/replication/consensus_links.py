"""The messages of Raft over our own connections: two links to each broker, for consensus alone.

Each broker dials the others and sends over the links that it dialled; what it receives comes over theirs. Appends have
one of the two, all that is short the other: behind megabytes of appends a heartbeat would come too late, and a leader
that is busy be taken for dead. So the two overtake each other, and a message that finds no connection, or does not fit
into a frame, is lost; Raft is made for both. A batch that travels in an append is not copied here. A message is heard
only from the broker in whose name it speaks; that a broker is who its handshake says is for the handshake to make sure.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from clymq.errors import FrameTooLarge, RemoteProtocolError
from clymq.protocol import consensus as wire
from clymq.protocol.verbs import OneWay
from clymq.raft.groups import PairHeartbeat
from clymq.raft.messages import (
    Append,
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    Message,
    RequestVote,
    TimeoutNow,
    VoteResponse,
)
from clymq.record.layout import Buffer
from clymq.replication.raft_host import RaftHost
from clymq.rpc.client import Link
from clymq.rpc.endpoint import Endpoint
from clymq.rpc.peer import Call
from clymq.rpc.transport import Transport

log = logging.getLogger("clymq.replication")


class Ways(NamedTuple):
    """The two links to a broker."""

    appends: Link
    rest: Link


class ConsensusLinks:
    """The links of one process to the brokers that it shares groups with.

    `on_open` is called with a broker's name whenever the way to it opens: `RaftHost.reached`.
    """

    def __init__(self, transport: Transport, endpoint: Endpoint, *, chance: Callable[[], float]) -> None:
        self.on_open: Callable[[str], None] = _ignore
        self._transport = transport
        self._endpoint = endpoint
        self._chance = chance
        self._links: dict[str, Ways] = {}

    def join(self, peer: str, address: str) -> None:
        """Keep links to a broker; if there are, let them lead to this address."""
        ways = self._links.get(peer)
        if ways is None:
            self._links[peer] = Ways(self._link(peer, address), self._link(peer, address))
        else:
            for link in ways:
                link.move(address)

    def _link(self, peer: str, address: str) -> Link:
        link = Link(
            self._transport,
            address,
            self._endpoint,
            chance=self._chance,
            on_open=lambda _: self.on_open(peer),
            # A broker that is back must hear its leaders before it runs for their office.
            pause_ms_max=self._endpoint.config.election_ms_min,
        )
        link.start()
        return link

    async def close(self) -> None:
        """Drop all links."""
        links = [link for ways in self._links.values() for link in ways]
        self._links = {}
        await asyncio.gather(*(link.close() for link in links))

    def send(self, group: str, message: Message, payload: Sequence[Buffer]) -> None:
        """Send a replica's message, or lose it."""
        ways = self._links.get(message.receiver)
        if ways is not None:
            link = ways.appends if isinstance(message, Append) else ways.rest
            _tell(link, to_wire(group, message), payload)

    def beat(self, peer: str, beat: PairHeartbeat) -> None:
        """Send a broker's heartbeat, or lose it."""
        ways = self._links.get(peer)
        if ways is not None:
            _tell(
                ways.rest,
                wire.Heartbeats(beat.sender, beat.incarnation, tuple(_beat(*each) for each in beat.beats), beat.hears),
            )


def _ignore(_peer: str) -> None:
    """For whoever does not listen."""


def _tell(link: Link, message: OneWay, payload: Sequence[Buffer] = ()) -> None:
    try:
        link.tell(message, payload, now=True)  # one to each follower and turn: there is nothing to wait for
    except FrameTooLarge as error:
        # It is that broker that takes no more; all others are to be told, and this turn to be ended.
        log.error("%s takes no message of this size: %s", link.address, error)


def _check_sender(call: Call) -> None:
    if call.request.sender != call.peer.name:
        raise RemoteProtocolError(f"{call.peer.name} speaks in the name of {call.request.sender}")


def handlers(host: RaftHost) -> Mapping[type, Callable[[Call], None]]:
    """Return what an endpoint must serve so that a host hears the others."""

    def message(call: Call) -> None:
        _check_sender(call)
        host.receive(call.request.group, from_wire(call.request), call.payload)

    def beats(call: Call) -> None:
        _check_sender(call)
        request: wire.Heartbeats = call.request
        messages = tuple((beat.group, _message(request.sender, host.name, beat)) for beat in request.beats)
        host.receive_beat(PairHeartbeat(request.sender, request.incarnation, messages, request.hears))

    return {wire.Heartbeats: beats} | dict.fromkeys(_FROM_WIRE, message)


def to_wire(group: str, message: Message) -> OneWay:
    """Return a message as it travels; the batches of an append are its payload."""
    return _TO_WIRE[type(message)](group, message)


def from_wire(request: Any) -> Message:
    """Return a message as the core knows it; the entries of an append are in its payload."""
    return _FROM_WIRE[type(request)](request)


def _beat(group: str, message: Heartbeat | HeartbeatResponse) -> wire.Beat:
    answer = isinstance(message, HeartbeatResponse)
    return wire.Beat(
        group=group,
        answer=answer,
        term=message.term,
        sender_incarnation=message.sender_incarnation,
        receiver_incarnation=message.receiver_incarnation,
        commit=message.commit,
        sleep=message.asleep if isinstance(message, HeartbeatResponse) else message.sleep,
    )


def _message(sender: str, receiver: str, beat: wire.Beat) -> Heartbeat | HeartbeatResponse:
    kind = HeartbeatResponse if beat.answer else Heartbeat
    return kind(
        sender, receiver, beat.term, beat.sender_incarnation, beat.receiver_incarnation, beat.commit, beat.sleep
    )


def _shared(group: str, message: Message) -> tuple[str, str, str, int, int, int]:
    return (
        group,
        message.sender,
        message.receiver,
        message.term,
        message.sender_incarnation,
        message.receiver_incarnation,
    )


def _append(group: str, message: Any) -> OneWay:
    return wire.AppendEntries(
        *_shared(group, message), message.previous_index, message.previous_term, message.commit, message.sequence
    )


def _append_answer(group: str, message: Any) -> OneWay:
    return wire.AppendAnswer(
        *_shared(group, message),
        message.held,
        message.match,
        message.sequence,
        message.rejected,
        message.hint_index,
        message.hint_term,
    )


def _request_vote(group: str, message: Any) -> OneWay:
    return wire.RequestVote(
        *_shared(group, message), message.last_index, message.last_term, message.pre, message.transfer
    )


def _vote_answer(group: str, message: Any) -> OneWay:
    return wire.VoteAnswer(*_shared(group, message), message.granted, message.pre)


def _timeout_now(group: str, message: Any) -> OneWay:
    return wire.TimeoutNow(*_shared(group, message))


_TO_WIRE: Mapping[type, Callable[[str, Any], OneWay]] = {
    Append: _append,
    AppendResponse: _append_answer,
    RequestVote: _request_vote,
    VoteResponse: _vote_answer,
    TimeoutNow: _timeout_now,
}


def _envelope(request: Any) -> tuple[str, str, int, int, int]:
    return (
        request.sender,
        request.receiver,
        request.term,
        request.sender_incarnation,
        request.receiver_incarnation,
    )


def _from_append(request: wire.AppendEntries) -> Message:
    return Append(
        *_envelope(request),
        request.previous_index,
        request.previous_term,
        (),
        request.commit,
        request.sequence,
    )


def _from_append_answer(request: wire.AppendAnswer) -> Message:
    return AppendResponse(
        *_envelope(request),
        request.held,
        request.match,
        request.sequence,
        request.rejected,
        request.hint_index,
        request.hint_term,
    )


def _from_request_vote(request: wire.RequestVote) -> Message:
    return RequestVote(
        *_envelope(request),
        request.last_index,
        request.last_term,
        request.pre,
        request.transfer,
    )


def _from_vote_answer(request: wire.VoteAnswer) -> Message:
    return VoteResponse(
        *_envelope(request),
        request.granted,
        request.pre,
    )


def _from_timeout_now(request: wire.TimeoutNow) -> Message:
    return TimeoutNow(*_envelope(request))


_FROM_WIRE: Mapping[type, Callable[[Any], Message]] = {
    wire.AppendEntries: _from_append,
    wire.AppendAnswer: _from_append_answer,
    wire.RequestVote: _from_request_vote,
    wire.VoteAnswer: _from_vote_answer,
    wire.TimeoutNow: _from_timeout_now,
}
