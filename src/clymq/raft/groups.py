"""Many groups between few brokers: one heartbeat per pair of brokers, and groups that sleep.

A thousand idle partitions on three brokers must not mean a thousand heartbeats. All heartbeats that the groups of one
broker have for another travel in one message per interval, which also says which process sends it. That message alone
keeps sleeping groups asleep: as long as the broker of the leader is heard, and is the same process, the leader is
taken to be alive, and nobody looks at the group. Another incarnation, silence for an election timeout, or a group's own
message wakes it.

Costs are per pair of brokers and per *awake* group. Sleeping groups are kept in sets by the broker that leads them, and
by the set of brokers that a sleeping leader here needs, so that even checking on them does not touch each.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from clymq.raft.messages import Heartbeat, HeartbeatResponse, Message
from clymq.raft.state import Presence

Group = str


@dataclass(frozen=True, slots=True)
class PairHeartbeat:
    """Everything that the groups of one broker have to say to another at this moment."""

    sender: str
    incarnation: int
    beats: tuple[tuple[Group, Heartbeat | HeartbeatResponse], ...]
    hears: bool = True
    """Whether its receiver was heard within an election timeout."""


class Coalescer:
    """The heartbeats of one broker."""

    def __init__(self, me: str, incarnation: int, *, heartbeat_ms: int, election_ms: int) -> None:
        self._me = me
        self._incarnation = incarnation
        self._heartbeat_ms = heartbeat_ms
        self._election_ms = election_ms
        self._beat_at = 0.0
        self._peers: dict[str, Presence] = {}
        self._shared: dict[str, int] = defaultdict(int)
        self._gathered: dict[str, list[tuple[Group, Heartbeat | HeartbeatResponse]]] = defaultdict(list)
        self._led_by: dict[str, set[Group]] = defaultdict(set)
        self._leading: dict[frozenset[str], set[Group]] = defaultdict(set)
        self._bed: dict[Group, set[Group]] = {}

    # --- Which groups there are ---

    def join(self, peers: Iterable[str], now: float) -> None:
        """A group with replicas on these other brokers is hosted here."""
        for peer in peers:
            self._shared[peer] += 1
            self._peers.setdefault(peer, Presence(now, now))

    def leave(self, group: Group, peers: Iterable[str]) -> None:
        """It no longer is."""
        self.woken(group)
        for peer in peers:
            self._shared[peer] -= 1
            gathered = self._gathered.pop(peer, ())
            rest = [each for each in gathered if each[0] != group]
            if rest:
                self._gathered[peer] = rest

    def sleeps(self, group: Group, leader: str, peers: Iterable[str]) -> None:
        """A group has fallen asleep."""
        self.woken(group)  # under another leader than before, perhaps
        bed = self._leading[frozenset(peers)] if leader == self._me else self._led_by[leader]
        bed.add(group)
        self._bed[group] = bed

    def woken(self, group: Group) -> None:
        """A group is awake; no change if it was."""
        bed = self._bed.pop(group, None)
        if bed is not None:
            bed.discard(group)

    # --- Sending ---

    def gather(self, group: Group, messages: Iterable[Message]) -> list[Message]:
        """Keep the heartbeats among a group's messages for the next interval; return the others, which go now."""
        others: list[Message] = []
        for message in messages:
            if isinstance(message, Heartbeat | HeartbeatResponse):
                self._gathered[message.receiver].append((group, message))
            else:
                others.append(message)
        return others

    def due_at(self) -> float:
        """When the next heartbeats go out."""
        return self._beat_at

    def beat(self, now: float) -> list[tuple[str, PairHeartbeat]]:
        """Return one message for each broker that shares a group, if it is time."""
        if now < self._beat_at:
            return []
        self._beat_at = now + self._heartbeat_ms
        out = []
        for peer, groups in self._shared.items():
            if groups:
                beats = tuple(self._gathered.pop(peer, ()))
                hears = now - self._peers[peer].heard_at < self._election_ms
                out.append((peer, PairHeartbeat(self._me, self._incarnation, beats, hears)))
        return out

    # --- Hearing ---

    def hear(self, message: PairHeartbeat, now: float) -> set[Group]:
        """Note that a broker is alive; return the groups that it wakes: it is another process, or was silent.

        One that is heard for the first time, late, is among them: groups may have fallen asleep without it.
        """
        peer = self._peers.get(message.sender)
        if peer is None:
            return set()  # it shares no group with us
        stays = peer.incarnation in {0, message.incarnation} and not peer.lost
        if peer.incarnation not in {0, message.incarnation}:
            peer.since = now
        peer.heard_at, peer.incarnation, peer.lost = now, message.incarnation, False
        peer.hears_us = message.hears
        return set() if stays else self._with(message.sender)

    def silent(self, now: float) -> set[Group]:
        """Return the sleeping groups that must wake: their leader is silent, or too many of their followers are."""
        woken: set[Group] = set()
        for name, peer in self._peers.items():
            if not peer.lost and now - peer.heard_at >= self._election_ms:
                peer.lost = True
                woken |= self._led_by[name]
        lost = {name for name, peer in self._peers.items() if peer.lost}
        for needed, groups in self._leading.items():
            majority = (len(needed) + 1) // 2 + 1
            if groups and 1 + len(needed - lost) < majority:
                woken |= groups
        return woken

    @property
    def brokers(self) -> Mapping[str, Presence]:
        """What is known of each broker, at any time."""
        return self._peers

    def _with(self, name: str) -> set[Group]:
        """Return the sleeping groups that a broker takes part in, as far as it matters that it began anew."""
        woken = set(self._led_by[name])
        for needed, groups in self._leading.items():
            if name in needed:
                woken |= groups
        return woken
