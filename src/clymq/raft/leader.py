"""Leading: feeding followers, counting what is on their disks, committing, stepping aside (§5.3, §5.4.2, §6.2)."""

from __future__ import annotations

from clymq.errors import BlockSealed, NotReady
from clymq.raft.messages import (
    Append,
    AppendResponse,
    Entry,
    Heartbeat,
    HeartbeatResponse,
    Kind,
    TimeoutNow,
)
from clymq.raft.progress import Mode, Progress
from clymq.raft.state import State, majority


class Leader:
    """One term of leading."""

    def __init__(self, state: State) -> None:
        self.asleep = False
        self.sure_until = 0.0
        """The deadline when it was last looked at: it only moves on, so before that there is no need to look again."""
        self._state = state
        state.leader = state.me
        self._followers = {peer: Progress(next_index=state.log.last_index + 1, now=state.now) for peer in state.peers}
        self._beat_at = state.now
        self._term_start: int | None = None
        self._transfer_to: str | None = None
        self._transfer_until = 0.0
        if state.log.sealed:
            # Nothing may follow a seal, not even this term's first entry: it is noted beside the log (`HardState`).
            self._term_start = state.log.last_index
        self.commit()

    # --- Proposals ---

    @property
    def is_ready(self) -> bool:
        """Whether an entry of this term is committed, and so everything before it."""
        return self._term_start is not None and self._state.log.commit >= self._term_start

    def propose(self, length: int, kind: Kind) -> Entry:
        """Add an entry: GENESIS into an empty log, then BELEADER, then, once that is committed, anything."""
        state, log = self._state, self._state.log
        self._refuse_if_out_of_turn(kind)
        entry = Entry(log.last_index + 1, state.term, log.end_position, length, kind)
        log.append(entry)
        if kind is Kind.BELEADER:
            self._term_start = entry.index
        return entry

    def _refuse_if_out_of_turn(self, kind: Kind) -> None:
        log = self._state.log
        if kind is Kind.DATA and self._transfer_to is None and not log.sealed and self.is_ready:
            return  # nearly always
        if log.sealed:
            raise BlockSealed(f"the log is sealed at entry {log.last_index}")
        if self._transfer_to is not None:
            raise NotReady(f"leadership goes to {self._transfer_to}")
        expected = {Kind.DATA, Kind.SEAL}
        if self._term_start is None:
            expected = {Kind.BELEADER if log.last_index else Kind.GENESIS}
        elif not self.is_ready:
            expected = set()
        if kind not in expected:
            raise NotReady(f"a leader that is not ready takes no {kind.name}")

    # --- Feeding ---

    def replicate_all(self) -> None:
        """Send every follower what its window has room for."""
        for peer, progress in self._followers.items():
            self._replicate(peer, progress)

    def _replicate(self, peer: str, progress: Progress) -> None:
        log, limits = self._state.log, self._state.limits
        while progress.may_send(limits.window_messages, limits.window_bytes):
            probing = progress.mode is Mode.PROBE
            entries = () if probing else log.entries_from(progress.next_index, limits.append_bytes_max)
            if not entries and not probing:
                return
            self._send_append(peer, progress, entries)

    def _send_append(self, peer: str, progress: Progress, entries: tuple[Entry, ...]) -> None:
        log, previous = self._state.log, progress.next_index - 1
        progress.sequence += 1
        self._state.send(
            Append,
            peer,
            incarnation=progress.incarnation,
            previous_index=previous,
            previous_term=log.term_at(previous),
            entries=entries,
            commit=log.commit,
            sequence=progress.sequence,
        )
        progress.sent(entries, self._state.now)

    def append_response(self, message: AppendResponse) -> None:
        """Learn where a follower is, and feed it on from there."""
        if not 0 <= message.match <= message.held <= self._state.log.last_index:
            return  # it cannot hold what was never sent in this term
        progress = self._hear(message.sender, message.sender_incarnation)
        if not progress.believes(message.sequence):
            self._replicate(message.sender, progress)
            return
        if message.rejected:
            progress.probe(self._next_to_try(message, progress))
        elif progress.mode is Mode.PROBE:
            progress.replicate(message.held + 1)
        if not message.rejected and progress.matched(message.match, self._state.now):
            self.commit()
        self._replicate(message.sender, progress)
        self._hand_over_if_caught_up()

    def _next_to_try(self, message: AppendResponse, progress: Progress) -> int:
        """Skip a whole term of the follower's that is not ours, or go to the end of that term in our log (§5.3)."""
        log, index = self._state.log, max(message.hint_index, 1)
        while message.hint_term and log.term_at(index) == message.hint_term and index < progress.next_index - 1:
            index += 1
        return max(progress.match + 1, min(index, progress.next_index - 1), 1)

    # --- Committing ---

    def commit(self) -> None:
        """Commit what a majority has on its disks, if it is of this term (§5.4.2, figure 8)."""
        log = self._state.log
        self._state.confirm_seal_if_synced(log.last_index)
        matches = [log.synced, *(progress.match for progress in self._followers.values())]
        agreed = majority(matches, self._state.quorum)
        if self._term_start is not None and agreed >= self._term_start and agreed > log.commit:
            log.commit_to(agreed)

    # --- Heartbeats, and sleep ---

    def beat(self) -> None:
        """Send heartbeats when they are due, repeat what was not answered, and give up a hand-over that takes long."""
        state = self._state
        if state.now >= self._transfer_until:
            self._transfer_to = None
        if state.now < self._beat_at or self.asleep:
            return
        self._beat_at = state.now + state.limits.heartbeat_ms
        live = self._live()
        rest = self._may_rest(live)
        horizon = state.now - state.limits.election_ms_min
        for peer, progress in self._followers.items():
            unanswered = progress.idle and progress.match < state.log.last_index
            if unanswered or progress.overdue(state.now, state.limits.election_ms_min):
                progress.probe(progress.next_index if progress.mode is Mode.PROBE else progress.match + 1)
                self._replicate(peer, progress)
            # To whatever process is there now, if the one that we know has fallen silent.
            answers = progress.heard_at >= min(horizon, progress.beat_at)
            if not self._has_news(peer, progress, (state.log.commit, rest)):
                continue
            incarnation = progress.incarnation if answers else 0
            state.send(Heartbeat, peer, incarnation=incarnation, commit=state.log.commit, sleep=rest)
        self._sleep_if_others_do(live)

    def _has_news(self, peer: str, progress: Progress, beat: tuple[int, bool]) -> bool:
        """Whether a follower must hear this now: where the brokers hear each other, that all is as before can wait."""
        state = self._state
        quiet_ms = state.limits.election_ms_min if state.is_present(peer, progress.heard_at) else 0
        if progress.beat == beat and state.now - progress.beat_at < quiet_ms:
            return False
        progress.beat, progress.beat_at = beat, state.now
        return True

    def heartbeat_response(self, message: HeartbeatResponse) -> None:
        """A follower is alive, and knows so much."""
        progress = self._hear(message.sender, message.sender_incarnation)
        progress.told_commit = message.commit
        progress.asleep = message.asleep
        if self.asleep and progress.match < self._state.log.last_index:
            self.wake()  # another process answers, which may have lost something: it must be looked after
        self._replicate(message.sender, progress)
        self._sleep_if_others_do(self._live())

    def wake(self) -> None:
        """Go on beating at once."""
        state, slept = self._state, self.asleep
        self.asleep = False
        self._beat_at = state.now
        for peer, progress in self._followers.items():
            progress.asleep = False
            progress.beat = None
            # Nobody has spoken for a group that slept; of one that was awake the replicas themselves must be heard.
            if slept and peer in state.brokers:
                progress.heard_at = max(progress.heard_at, state.brokers[peer].heard_at)

    def _may_rest(self, live: list[Progress]) -> bool:
        """Nothing to commit and nothing to send: whoever hears of this commit index may sleep."""
        log = self._state.log
        return (
            self.is_ready
            and self._transfer_to is None
            and log.last_index == log.commit == log.synced
            and all(progress.match == log.last_index for progress in live)
        )

    def _sleep_if_others_do(self, live: list[Progress]) -> None:
        """Sleep as soon as all who are alive do, and have been told of everything."""
        commit = self._state.log.commit
        if len(live) + 1 < self._state.quorum:
            return
        if all(progress.asleep and progress.told_commit == commit for progress in live) and self._may_rest(live):
            self.asleep = True

    def _live(self) -> list[Progress]:
        state = self._state
        horizon = state.now - state.limits.election_ms_min
        followers = self._followers.items()
        return [progress for peer, progress in followers if state.credited(peer, progress.heard_at) >= horizon]

    # --- Staying in touch ---

    def quorum_deadline(self) -> float:
        """When a majority will not have been heard from for too long (dissertation §6.2)."""
        credited = self._state.credited
        heard = sorted((credited(peer, progress.heard_at) for peer, progress in self._followers.items()), reverse=True)
        needed = self._state.quorum - 1  # beside this one
        self.sure_until = heard[needed - 1] + self._state.limits.election_ms_min if needed else float("inf")
        return self.sure_until

    def deadline(self) -> float:
        """When there is something to do."""
        return min(self._beat_at, self.quorum_deadline())

    def _hear(self, peer: str, incarnation: int) -> Progress:
        progress = self._followers[peer]
        progress.heard_at = self._state.now
        progress.meet(incarnation)
        return progress

    # --- Handing over ---

    def successor(self) -> str | None:
        """Return the live follower that has most."""
        live = self._live()
        names = [peer for peer, progress in self._followers.items() if progress in live]
        return max(names, key=lambda peer: self._followers[peer].match, default=None)

    def incarnation_of(self, peer: str) -> int:
        """Return the process of a follower, as far as it is known."""
        return self._followers[peer].incarnation

    def transfer(self, target: str) -> None:
        """Take no more proposals, bring the target up to date, and let it campaign (dissertation §3.10)."""
        self._transfer_to = target
        self._transfer_until = self._state.now + self._state.limits.election_ms_max
        self.wake()
        self._hand_over_if_caught_up()

    def _hand_over_if_caught_up(self) -> None:
        if self._transfer_to is not None:
            progress = self._followers[self._transfer_to]
            if progress.match == self._state.log.last_index:
                self._state.send(TimeoutNow, self._transfer_to, incarnation=progress.incarnation)
