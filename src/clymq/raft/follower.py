"""Following a leader, or waiting for one (§5.2, §5.3)."""

from __future__ import annotations

from clymq.raft.messages import Append, AppendResponse, Heartbeat, HeartbeatResponse, Message
from clymq.raft.state import State


class Follower:
    """Takes the leader's entries; campaigns when it hears none for too long."""

    def __init__(self, state: State) -> None:
        self.asleep = False
        self._state = state
        self._heard_at = state.now
        self._patience_ms = state.draw_ms(state.limits.election_ms_min, state.limits.election_ms_max)
        self._sequence = 0
        self._leader_incarnation = 0
        self._owed = False
        # A leader that slept when this one woke says nothing, and owes nothing: its broker cannot speak for it.
        self._spoken_to = False

    # --- Time ---

    def deadline(self) -> float:
        """When patience ends."""
        return self._leader_there_at() + self._patience_ms

    def hears_a_leader(self) -> bool:
        """Whether a leader was heard within the least time that anyone waits: then it is to be protected."""
        state = self._state
        return state.leader is not None and state.now - self._leader_there_at() < state.limits.election_ms_min

    def _leader_there_at(self) -> float:
        leader = self._state.leader
        return self._heard_at if leader is None or not self._spoken_to else self._state.credited(leader, self._heard_at)

    def wake(self) -> None:
        """Stop sleeping; patience begins anew, because a sleeper has not listened. Its broker has, to the leader's.

        But not while the whole process was stopped: no more than the least patience is taken off.
        """
        state = self._state
        broker = state.brokers.get(state.leader or "")
        self.asleep = self._spoken_to = False
        self._heard_at = state.now
        if broker is not None:
            self._heard_at = max(broker.heard_at, state.now - state.limits.election_ms_min)

    def saved(self, now: float) -> None:
        """Its vote is on the disk, and is given only now: whoever gets it has not had the time yet to lead."""
        if self._state.leader is None:
            self._heard_at = now

    # --- Messages from the leader of this term ---

    def append(self, message: Append) -> None:
        """Take entries if the one before them is here; else say where to look (§5.3)."""
        self._hear(message)
        self._sequence = max(self._sequence, message.sequence)
        log = self._state.log
        if message.previous_index > log.commit:
            here = log.term_at(message.previous_index)
            if here != message.previous_term:
                self._reject(message, here)
                return
        written = self._take(message)
        self._state.held = max(self._state.held, message.previous_index + len(message.entries))
        self._commit(message.commit)
        self._state.confirm_seal_if_synced(self._state.held)
        self._trust_again(message)
        # What was written is answered when it is on the disk.
        self._owed = log.synced < self._state.held
        if not written:
            self._answer()

    def heartbeat(self, message: Heartbeat) -> None:
        """The leader is alive; it may say that more is committed, or that this is the time to sleep."""
        self._hear(message)
        self._commit(message.commit)
        self._trust_again(message)
        log = self._state.log
        # A lame one waits for a word to its very process, and this may not have been it.
        may_sleep = message.sleep and not self._state.lame
        self.asleep = may_sleep and log.last_index == log.synced == log.commit == message.commit
        self._state.send(
            HeartbeatResponse,
            message.sender,
            incarnation=message.sender_incarnation,
            commit=log.commit,
            asleep=self.asleep,
        )

    def synced(self) -> None:
        """More of the log is on the disk: acknowledge it."""
        if self._owed and self._state.leader is not None:
            self._owed = self._state.log.synced < self._state.held
            self._state.confirm_seal_if_synced(self._state.held)
            self._answer()

    # --- Inside ---

    def _hear(self, message: Message) -> None:
        state = self._state
        assert state.leader in {None, message.sender}, "one leader per term"
        state.leader = message.sender
        self._leader_incarnation = message.sender_incarnation
        self._heard_at = state.now
        self._spoken_to = True
        self.asleep = False

    def _reject(self, message: Append, here: int | None) -> None:
        log = self._state.log
        hint = log.last_index + 1 if here is None else log.first_index_of_term(message.previous_index)
        self._respond(message.sequence, rejected=True, hint_index=hint, hint_term=here or 0)

    def _take(self, message: Append) -> bool:
        """Append what is new, after cutting away what conflicts with it; return whether anything was."""
        log, written = self._state.log, False
        for entry in message.entries:
            if entry.index <= log.last_index:
                if entry.index <= log.commit or log.term_at(entry.index) == entry.term:
                    continue
                log.truncate(entry.index - 1)
            log.append(entry)
            written = True
        return written

    def _commit(self, leader_commit: int) -> None:
        log = self._state.log
        log.commit_to(max(log.commit, min(leader_commit, self._state.held)))

    def _trust_again(self, message: Append | Heartbeat) -> None:
        """See the rule in `state`: it must be this process that is spoken to, and the leader's own term."""
        state = self._state
        if state.lame and message.receiver_incarnation == state.incarnation and message.commit <= self._state.held:
            state.lame = not state.holds_own_term_commit(message.commit, message.term)

    def _answer(self) -> None:
        self._respond(self._sequence)

    def _respond(self, sequence: int, *, rejected: bool = False, hint_index: int = 0, hint_term: int = 0) -> None:
        state = self._state
        assert state.leader is not None
        state.send(
            AppendResponse,
            state.leader,
            incarnation=self._leader_incarnation,
            held=self._state.held,
            match=min(self._state.held, state.log.synced),
            sequence=sequence,
            rejected=rejected,
            hint_index=hint_index,
            hint_term=hint_term,
        )
