"""`RaftNode`: one replica of one group, as a pure function of what it is told.

The driver's loop, whose order is what durability rests on:

    node.tick(now) | node.step(message, now) | node.propose(length, kind, now) | node.synced(index, now)
    ready = node.ready()
        1. save `ready.hard_state`, synced                                  BEFORE anything below
        2. cut the file behind `ready.truncate_to`, synced                  BEFORE it writes there
        3. write `ready.entries`
        4. send `ready.messages`
        5. apply what `ready.commit` says is committed
    node.advance()
    when the file has been synced: node.synced(index, now), and so on

Nothing is acknowledged from step 3: a replica's word, the leader's to itself included, is what `synced` was told.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from clymq.errors import InvalidRequest, NotLeader
from clymq.raft.candidate import Candidate
from clymq.raft.follower import Follower
from clymq.raft.leader import Leader
from clymq.raft.log import RaftLog
from clymq.raft.messages import (
    Append,
    AppendResponse,
    Entry,
    Heartbeat,
    HeartbeatResponse,
    Kind,
    Message,
    RequestVote,
    TimeoutNow,
    VoteResponse,
)
from clymq.raft.state import TERM_MAX, TRANSITIONS, HardState, Limits, Presence, Role, State


class Ready(NamedTuple):
    """What the driver has to do now, in the order of the fields."""

    hard_state: HardState | None
    truncate_to: int | None
    entries: tuple[Entry, ...]
    messages: tuple[Message, ...]
    commit: int

    @property
    def must_sync(self) -> bool:
        """Whether something must be on the disk before the messages leave."""
        return self.hard_state is not None or self.truncate_to is not None


class RaftNode:
    """One replica of one group."""

    def __init__(
        self,
        me: str,
        members: Sequence[str],
        log: RaftLog,
        *,
        hard_state: HardState,
        incarnation: int,
        now: float,
        draw_ms: Callable[[int, int], int],
        lame: bool = False,
        limits: Limits | None = None,
        brokers: Mapping[str, Presence] | None = None,
    ) -> None:
        """`brokers`: what is known of the brokers of the others at any time, if anything is."""
        if me not in members or len(set(members)) != len(members):
            raise InvalidRequest(f"replica {me!r} is not one of {list(members)}, or one is named twice")
        self._state = State(
            me,
            members,
            log,
            hard=hard_state,
            incarnation=incarnation,
            lame=lame,
            limits=limits or Limits(),
            draw_ms=draw_ms,
            brokers=brokers,
        )
        self.able = True
        """Whether it can write. One that cannot follows, votes, and does not campaign."""
        self._state.now = now
        self._saved = hard_state
        self._handed_over: Ready | None = None
        self._role: Follower | Candidate | Leader = Follower(self._state)

    # --- What it is ---

    @property
    def role(self) -> Role:
        """Follower, precandidate, candidate or leader."""
        return self._state.role

    @property
    def term(self) -> int:
        """The current term."""
        return self._state.term

    @property
    def leader(self) -> str | None:
        """Who leads this term, as far as this replica knows."""
        return self._state.leader

    @property
    def lame(self) -> bool:
        """Whether it may neither vote nor campaign."""
        return self._state.lame

    @property
    def log(self) -> RaftLog:
        """The log; to look at."""
        return self._state.log

    @property
    def is_ready(self) -> bool:
        """Whether it leads and an entry of its own term is committed."""
        return isinstance(self._role, Leader) and self._role.is_ready

    @property
    def unsaved(self) -> HardState | None:
        """The term and the vote that are to be on the disk first; None if they are.

        A driver that saves off its event loop saves this and says so with `saved`, BEFORE it asks for `ready`.
        """
        hard = self._state.hard
        return None if hard is self._saved or hard == self._saved else hard

    @property
    def asleep(self) -> bool:
        """Whether its clock need not run: it is woken by a message, a proposal, or `wake`."""
        return self._role.asleep

    def successor(self) -> str | None:
        """Return the follower that a leader would hand over to: of those that are alive, the one that has most."""
        return self._role.successor() if isinstance(self._role, Leader) else None

    def farewell(self) -> TimeoutNow | None:
        """Return what a leader that cannot go on says to its successor: there is no time to bring it up to date."""
        successor = self.successor()
        if successor is None:
            return None
        assert isinstance(self._role, Leader)
        incarnation = self._role.incarnation_of(successor)
        state = self._state
        return TimeoutNow(state.me, successor, state.term, state.incarnation, incarnation)

    def deadline(self) -> float:
        """When it wants to be ticked next; never, while asleep."""
        return float("inf") if self.asleep else self._role.deadline()

    # --- Inputs ---

    def tick(self, now: float) -> None:
        """Let time pass."""
        self._clock(now)
        if self.asleep:
            return
        if isinstance(self._role, Leader):
            self._role.beat()
        elif now >= self._role.deadline():
            self._campaign()

    def step(self, message: Message, now: float) -> None:
        """Take a message from another replica."""
        self._clock(now)
        state = self._state
        if (
            message.receiver != state.me
            or message.receiver_incarnation not in {0, state.incarnation}
            or message.sender not in state.peers
            or not 0 <= message.term <= TERM_MAX
        ):
            return
        if isinstance(message, RequestVote) and message.sender == state.leader and message.term > state.term:
            self._follow(state.term, None)  # who runs for the next term leads this one no more
        if message.term > state.term and not _asks_only(message):
            leads = isinstance(message, Append | Heartbeat)
            if not (isinstance(message, RequestVote) and self._protects_its_leader(message)):
                self._follow(message.term, message.sender if leads else None)
        if isinstance(message, RequestVote):
            self._answer_vote(message)
        elif message.term < state.term:
            self._tell_of_higher_term(message)
        else:
            self._dispatch(message)

    def propose(self, length: int, kind: Kind, now: float) -> Entry:
        """Add an entry of so many bytes to the log; the driver stamps its batch with the descriptor and keeps it."""
        self._clock(now)
        role = self._role
        if not isinstance(role, Leader):
            raise NotLeader(f"{self._state.me} does not lead", hint=self._state.leader)
        assert not role.asleep, "a sleeping group is woken first"
        return role.propose(length, kind)

    def synced(self, index: int, now: float) -> None:
        """The file is on the disk up to this entry."""
        self._clock(now)
        self._state.log.sync_to(index)
        if isinstance(self._role, Leader):
            self._role.commit()
        elif isinstance(self._role, Follower):
            self._role.synced()

    def saved(self, hard: HardState) -> None:
        """What `unsaved` was then is on the disk."""
        assert self._handed_over is None, "what `ready` names is saved when it is performed"
        self._saved = hard
        if isinstance(self._role, Candidate | Follower):
            self._role.saved(self._state.now)

    def transfer_leadership(self, target: str, now: float) -> None:
        """Hand over to another member, as soon as it has everything."""
        self._clock(now)
        if not isinstance(self._role, Leader):
            raise NotLeader(f"{self._state.me} does not lead", hint=self._state.leader)
        if target not in self._state.peers:
            raise InvalidRequest(f"{target!r} is not another member of {list(self._state.members)}")
        self._role.transfer(target)

    def look_at(self, now: float) -> None:
        """Take the time, BEFORE this replica answers as leader: one that was stopped for long is none."""
        self._clock(now)

    def campaign(self, now: float) -> None:
        """Run for leader without waiting: for the replica that was named first leader of a new group."""
        self._clock(now)
        if isinstance(self._role, Follower) and self._state.leader is None:
            self._campaign()

    def wake(self, now: float) -> None:
        """Stop sleeping, BEFORE anything else is said to this node or asked of it."""
        self._state.now = max(self._state.now, now)
        if self.asleep:
            assert not isinstance(self._role, Candidate)
            self._role.wake()
        self._clock(now)

    # --- Outputs ---

    def ready(self) -> Ready:
        """Return what is to be done; the same until `advance` says that it was."""
        if self._handed_over is None:
            state, log = self._state, self._state.log
            if isinstance(self._role, Leader):
                # Here, not at each proposal: what has gathered since goes out as one message per follower.
                self._role.replicate_all()
            self._handed_over = Ready(
                hard_state=self.unsaved,
                truncate_to=log.truncated_to,
                entries=log.take_unwritten(),
                messages=tuple(state.outbox),
                commit=log.commit,
            )
            log.truncated_to = None
            state.outbox.clear()
        return self._handed_over

    def advance(self) -> None:
        """What `ready` said was done."""
        assert self._handed_over is not None, "ready comes before advance"
        self._saved = self._handed_over.hard_state or self._saved
        self._handed_over = None

    # --- Inside: changing roles ---

    def _become(self, role: Role) -> None:
        assert role in TRANSITIONS[self._state.role], f"{self._state.role} -> {role}"
        self._state.role = role

    def _follow(self, term: int, leader: str | None) -> None:
        """Step back, or stay, and follow in a term at least as high."""
        state = self._state
        if term > state.term:
            state.enter(term)
        self._become(Role.FOLLOWER)
        state.leader = leader
        self._role = Follower(state)

    def _campaign(self) -> None:
        """Ask first whether it would win; a lame replica never does, nor one that cannot write.

        They wait for a leader, and say that they are there: it may have fallen asleep without them.
        """
        if self._state.lame or not self.able:
            self._follow(self._state.term, None)
            for peer in self._state.peers:
                self._state.send(HeartbeatResponse, peer, commit=self._state.log.commit)
            return
        self._become(Role.PRECANDIDATE)
        self._state.leader = None
        self._role = Candidate(self._state, Role.PRECANDIDATE)
        self._conclude(self._role)

    def _run(self, *, transfer: bool = False) -> None:
        state = self._state
        self._become(Role.CANDIDATE)
        state.leader = None
        state.enter(state.term + 1, state.me)
        self._role = Candidate(state, Role.CANDIDATE, transfer=transfer)
        self._conclude(self._role)

    def _conclude(self, candidate: Candidate) -> None:
        if candidate.won and self._state.role is Role.PRECANDIDATE:
            self._run()
        elif candidate.won:
            self._become(Role.LEADER)
            self._role = Leader(self._state)
        elif candidate.lost:
            self._follow(self._state.term, None)

    def _clock(self, now: float) -> None:
        """Take the time; a leader that has not heard a majority for too long is none, whatever it is asked."""
        state, role = self._state, self._role
        if now > state.now:
            state.now = now
        if isinstance(role, Leader) and now >= role.sure_until and not role.asleep and now >= role.quorum_deadline():
            self._follow(state.term, None)

    # --- Inside: messages ---

    def _dispatch(self, message: Message) -> None:
        """A message of this term that is not a request for a vote."""
        role = self._role
        if isinstance(message, Append | Heartbeat):
            assert not isinstance(role, Leader), "one leader per term"
            if isinstance(role, Candidate):
                # A leader was elected in the term that this replica ran in.
                self._follow(message.term, message.sender)
                role = self._role
            assert isinstance(role, Follower)
            if isinstance(message, Append):
                role.append(message)
            else:
                role.heartbeat(message)
        elif isinstance(message, AppendResponse | HeartbeatResponse) and isinstance(role, Leader):
            if isinstance(message, AppendResponse):
                role.append_response(message)
            else:
                role.heartbeat_response(message)
        elif isinstance(message, VoteResponse) and isinstance(role, Candidate):
            role.count(message)
            self._conclude(role)
        elif isinstance(message, TimeoutNow) and isinstance(role, Follower) and self.able and not self._state.lame:
            self._run(transfer=True)

    def _answer_vote(self, message: RequestVote) -> None:
        """Vote once per term, for a log that has all that ours has, and not against a leader that is alive (§5.4.1)."""
        state = self._state
        granted = (
            not state.lame
            and state.is_up_to_date(message.last_index, message.last_term)
            and not self._protects_its_leader(message)
            and (message.term > state.term if message.pre else self._may_vote(message))
        )
        if granted and not message.pre:
            state.enter(message.term, message.sender)
            self._role = Follower(state)  # patience begins anew (§5.2: a vote granted resets the timer)
        term = message.term if granted else state.term
        state.send(
            VoteResponse,
            message.sender,
            incarnation=message.sender_incarnation,
            term=term,
            granted=granted,
            pre=message.pre,
        )

    def _may_vote(self, message: RequestVote) -> bool:
        state = self._state
        return (
            message.term == state.term
            and state.role is Role.FOLLOWER
            and state.leader is None
            and state.hard.voted_for in {"", message.sender}
        )

    def _protects_its_leader(self, message: RequestVote) -> bool:
        if message.transfer:
            return False
        if isinstance(self._role, Leader):
            return True
        return isinstance(self._role, Follower) and (self._role.asleep or self._role.hears_a_leader())

    def _tell_of_higher_term(self, message: Message) -> None:
        """A leader of the past must learn that it is; others of the past have no business here (§5.1)."""
        state = self._state
        if isinstance(message, Append | Heartbeat):
            state.send(
                HeartbeatResponse, message.sender, incarnation=message.sender_incarnation, commit=state.log.commit
            )


def _asks_only(message: Message) -> bool:
    """A pre-vote names a term that nobody is in yet; its sender and its voters stay in theirs."""
    return (isinstance(message, RequestVote) and message.pre) or (
        isinstance(message, VoteResponse) and message.pre and message.granted
    )
