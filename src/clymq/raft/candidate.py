"""Running for leader: first asking whether one would win, then asking for votes (§5.2; pre-vote, dissertation §9.6)."""

from __future__ import annotations

from typing import Final

from clymq.raft.messages import RequestVote, VoteResponse
from clymq.raft.state import Role, State


class Candidate:
    """Counts votes, or promises of votes while it is a precandidate."""

    asleep: Final = False
    """Whoever runs for leader is awake."""

    def __init__(self, state: State, role: Role, *, transfer: bool = False) -> None:
        self._state = state
        self._pre = role is Role.PRECANDIDATE
        self._began = state.now
        self._patience_ms = state.draw_ms(state.limits.election_ms_min, state.limits.election_ms_max)
        self._granted = {state.me}
        self._refused: set[str] = set()
        for peer in state.peers:
            state.send(
                RequestVote,
                peer,
                term=self.term,
                last_index=state.log.last_index,
                last_term=state.last_term,
                pre=self._pre,
                transfer=transfer,
            )

    @property
    def term(self) -> int:
        """The term it runs in; a precandidate has not entered it yet."""
        return self._state.term + 1 if self._pre else self._state.term

    def saved(self, now: float) -> None:
        """Its own vote is on the disk, and the others are asked for theirs only now: so long it has not waited yet."""
        self._began = now

    def deadline(self) -> float:
        """When it has waited long enough for votes."""
        return self._began + self._patience_ms

    def count(self, message: VoteResponse) -> None:
        """Take a vote, if it answers what was asked."""
        if message.pre == self._pre and (message.term == self.term or not message.granted):
            (self._granted if message.granted else self._refused).add(message.sender)

    @property
    def won(self) -> bool:
        """Whether a majority is for it."""
        return len(self._granted) >= self._state.quorum

    @property
    def lost(self) -> bool:
        """Whether a majority is no longer possible."""
        return len(self._refused) > len(self._state.members) - self._state.quorum
