"""Random histories of a partition: replicas agree to the byte, no command is stored twice, cursors keep their word."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from clymq.errors import OutOfSequence, ProducerFenced
from clymq.record import Batch, Kind
from clymq.replication.cursors import ACKED, Cursor
from clymq.replication.entries import Ack, Commit, Done, EndedLease, Prepare, Range, Reset, Timeout
from clymq.replication.machine import PartitionMachine
from clymq.replication.producers import KEPT_BATCHES, Duplicate, Initialised
from unit.replication.leader import DAY_US, Leader, named

SMALL = st.integers(0, 15)
IN_FLIGHT_MAX = 8

# --- (a) The same entries give the same bytes. ---

Action = Callable[[Leader, int, int], object]

# Lists are long on purpose: left alone, hypothesis draws five elements on average, and nothing is ever in flight.
LONG = {"min_size": 50, "max_size": 150}


def push(leader: Leader, who: int, number: int, *, sparse: bool = False) -> None:
    known = leader.machine.producer(named(f"p{who % 3}"))
    if known:
        cmdindex = known.last + 1 + (number if sparse else 0)
        leader.push(f"p{who % 3}", cmdindex, 1 + number % 3, epoch=known.epoch, sparse=sparse)


def wait(leader: Leader, who: int, number: int) -> None:
    leader.now += number * DAY_US


def group(who: int) -> str:
    return f"g{who % 2}"


def offsets(who: int, number: int) -> Range:
    return Range(who, who + 1 + number % 4)


ACTIONS: dict[str, Action] = {
    "init": lambda it, who, number: it.init(f"p{who % 3}"),
    "push": push,
    "push sparse": partial(push, sparse=True),
    "prepare": lambda it, who, number: it.propose(Prepare(group=group(who), offset=number)),
    "reset": lambda it, who, number: it.propose(Reset(group=group(who), offset=number)),
    "ack": lambda it, who, number: it.propose(Ack(group=group(who), ranges=(offsets(who, number),))),
    "fail": lambda it, who, number: it.propose(Timeout(ended=(EndedLease(group(who), offsets(who, number)),))),
    "commit": lambda it, who, number: it.propose(Commit(group=group(who), offset=number)),
    "dead": lambda it, who, number: it.propose(it.machine.dead(group(who), offsets(who, number), "poison")),
    "done": lambda it, who, number: it.propose(Done(group=group(who), seq=1 + number % 3)),
    "wait": wait,
    "elect": lambda it, who, number: it.elect(),
    "roll": lambda it, who, number: it.next_block(it.seal(leases=(b"lease",) * (number % 3))),
}
HISTORIES = st.lists(st.tuples(st.sampled_from(sorted(ACTIONS)), SMALL, SMALL), **LONG)


@given(HISTORIES, st.randoms(use_true_random=False))
def test_replicas_agree_to_the_byte_wherever_they_are_restarted(
    history: list[tuple[str, int, int]], chance: Random
) -> None:
    blocks = [Leader()]
    for action, who, number in history:
        made = ACTIONS[action](blocks[-1], who, number)
        blocks[-1].apply()
        if isinstance(made, Leader):
            blocks.append(made)
    for block in blocks:
        steady, restarted = PartitionMachine(), PartitionMachine(producers_max=1)
        for batch in block.log:
            answers = steady.apply(batch.index, batch), restarted.apply(batch.index, batch)
            assert answers[0] == answers[1]
            if chance.random() < 0.3:
                state = restarted.checkpoint()
                restarted = PartitionMachine()
                restarted.restore(state)
        assert steady.checkpoint() == restarted.checkpoint() == block.machine.checkpoint()


# --- (b) De-duplication, against clients that try everything. ---


@dataclass
class Sent:
    """A batch that a client holds until it is answered; `messages` say what is in it, whatever its number."""

    messages: tuple[int, ...]
    cmdindex: int


@dataclass
class Client:
    """One process of a producer. Several may use one name: all but the newest are zombies."""

    name: str
    epoch: int = 0
    next: int = 1
    unanswered: list[Sent] = field(default_factory=list)
    fenced: bool = False
    initialising: bool = False


@dataclass
class Waiting:
    """An answer that is due when entry `index` is applied."""

    index: int
    client: Client
    sent: Sent | None
    base_offset: int = -1


class Partition:
    """A leader, its clients, and what the log should hold."""

    def __init__(self) -> None:
        self.leader = Leader()
        self.messages: dict[int, tuple[int, ...]] = {}  # by index of the batch
        self.clients: list[Client] = []
        self.waiting: list[Waiting] = []
        self.answered: dict[int, int] = {}  # offset by message
        self.made = 0

    def start_process(self, who: int) -> None:
        client = Client(f"p{who % 2}")
        self.clients.append(client)
        self.initialise(client)

    def initialise(self, client: Client) -> None:
        if not client.initialising and not client.fenced:
            machine = self.leader.machine
            index = self.leader.propose(machine.init_producer(named(client.name), now=self.leader.now))
            client.initialising = True
            self.waiting.append(Waiting(index, client, None))

    def push_new(self, client: Client, count: int) -> None:
        if client.epoch and not client.initialising and len(client.unanswered) < IN_FLIGHT_MAX:
            messages = tuple(range(self.made, self.made + count))
            self.made += count
            client.unanswered.append(Sent(messages, client.next))
            client.next += count
            self.push(client, client.unanswered[-1])

    def push_again(self, client: Client) -> None:
        """Send the same bytes, in order, from the lowest that is unanswered."""
        if not client.initialising:
            for sent in list(client.unanswered):
                self.push(client, sent)

    def push(self, client: Client, sent: Sent) -> None:
        if client.fenced:
            return
        leader = self.leader
        try:
            result = leader.push(client.name, sent.cmdindex, len(sent.messages), epoch=client.epoch)
        except ProducerFenced:
            client.fenced = True
        except OutOfSequence:
            # An earlier batch went with a leader; it is sent again first. (`finish` proves that this comes to an end.)
            assert self.leader.term > 1
        else:
            if isinstance(result, Batch):
                self.messages[result.index] = sent.messages
            self.waiting.append(Waiting(result.index, client, sent, result.base_offset))
            assert isinstance(result, Batch) or self.was_stored(sent), "a duplicate of nothing"

    def was_stored(self, sent: Sent) -> bool:
        return any(sent.messages == each for each in self.messages.values())

    def apply(self, count: int) -> None:
        for batch in self.leader.log[self.leader.machine.applied :][:count]:
            answer = self.leader.machine.apply(batch.index, batch)
            for waiting in self.waiting:
                if waiting.index == batch.index and waiting.sent is None:
                    assert isinstance(answer, Initialised)
                    self.initialised(waiting.client, answer)
        self.answer_pushes()

    def answer_pushes(self) -> None:
        applied = self.leader.machine.applied
        due = [each for each in self.waiting if each.index <= applied]
        self.waiting = [each for each in self.waiting if each.index > applied]
        for waiting in due:
            if waiting.sent is not None:
                self.answer(waiting.client, waiting.sent, waiting.base_offset)

    def answer(self, client: Client, sent: Sent, base_offset: int) -> None:
        client.unanswered = [each for each in client.unanswered if each is not sent]
        if base_offset != -1:
            for offset, message in enumerate(sent.messages, base_offset):
                assert self.answered.setdefault(message, offset) == offset

    def initialised(self, client: Client, answer: Initialised) -> None:
        """What is below `next` is stored; the rest is renumbered under the new epoch."""
        where = {each.cmdindex: each.base_offset for each in answer.kept}
        for sent in [each for each in client.unanswered if each.cmdindex < answer.next]:
            self.answer(client, sent, where.get(sent.cmdindex, -1))
        client.epoch, client.next, client.initialising = answer.epoch, answer.next, False
        client.unanswered = [Sent(each.messages, 0) for each in client.unanswered]
        for sent in client.unanswered:
            sent.cmdindex = client.next
            client.next += len(sent.messages)

    def change_leader(self, keep: int) -> None:
        self.leader.lose_leadership(keep=keep)
        end = len(self.leader.log)
        self.messages = {index: each for index, each in self.messages.items() if index <= end}
        self.waiting = []
        for client in self.clients:
            client.initialising = False
        self.leader.elect()

    def check(self) -> None:
        """Never a command twice, never a gap, and every answer is true."""
        stored = [message for index in sorted(self.messages) for message in self.messages[index]]
        assert len(stored) == len(set(stored)), "a message is in the log twice"
        last = dict.fromkeys((named(client.name) for client in self.clients), 0)
        for batch in self.leader.log:
            if batch.kind == Kind.DATA:
                assert batch.cmdindex == last[batch.producer] + 1
                last[batch.producer] += batch.count
                assert tuple(stored[batch.base_offset : batch.end_offset]) == self.messages[batch.index]
        assert all(stored[offset] == message for message, offset in self.answered.items()), "an answer was a lie"


STEPS = ("process", "initialise", *["new"] * 4, "again", "again", *["apply"] * 3, "change leader")
RUNS = st.lists(st.tuples(st.sampled_from(STEPS), SMALL, SMALL), **LONG)


@given(RUNS)
def test_no_command_is_stored_twice_or_left_out_and_every_answer_is_true(run: list[tuple[str, int, int]]) -> None:
    partition = Partition()
    partition.start_process(0)
    partition.start_process(1)
    for step, who, number in run:
        client = partition.clients[who % len(partition.clients)]
        match step:
            case "process" if number < 4:
                partition.start_process(who)
            case "initialise" if client.epoch:
                partition.initialise(client)
            case "new":
                partition.push_new(client, 1 + number % 3)
            case "again":
                partition.push_again(client)
            case "apply":
                partition.apply(number)
            case "change leader":
                partition.change_leader(number)
    partition.check()
    finish(partition)
    partition.check()


def finish(partition: Partition) -> None:
    """Let everybody have an answer: the newest process of each name has all of its messages in the log."""
    for client in partition.clients:
        if not client.epoch:
            partition.initialise(client)
    partition.apply(1000)
    for client in partition.clients:
        partition.push_again(client)
    partition.apply(1000)
    submitted = partition.leader.machine._submitted
    assert submitted is not None
    assert submitted.producers == partition.leader.machine._state.producers
    newest = {client.name: client for client in partition.clients if not client.fenced}
    assert all(not client.unanswered for client in newest.values())


@given(st.lists(st.integers(1, 4), min_size=1, max_size=20), st.integers(0, 20))
def test_a_duplicate_is_told_its_original_offset_applied_or_in_flight(counts: list[int], applied: int) -> None:
    leader = Leader()
    leader.init("p")
    sent, cmdindex = [], 1
    for count in counts:
        batch = leader.push("p", cmdindex, count)
        assert isinstance(batch, Batch)
        sent.append(batch)
        cmdindex += count
    leader.apply(applied)
    for age, batch in enumerate(reversed(sent)):
        again = leader.push("p", batch.cmdindex, batch.count)
        assert isinstance(again, Duplicate)
        assert again.base_offset == (batch.base_offset if age < KEPT_BATCHES else -1)
        waits_for = batch.index if batch.index > leader.machine.applied else 0
        assert again.index == waits_for or again.index <= leader.machine.applied >= batch.index


# --- (c) A cursor against sets of offsets. ---

OFFSETS = st.tuples(st.booleans(), st.integers(0, 40), st.integers(1, 8))


@given(st.lists(OFFSETS, min_size=10, max_size=60))
def test_a_cursor_says_the_same_as_a_set_of_acked_offsets(operations: list[tuple[bool, int, int]]) -> None:
    cursor, finished, deliveries = Cursor(), set[int](), dict.fromkeys(range(60), 0)
    for is_ack, start, length in operations:
        offsets = range(start, start + length)
        if is_ack:
            assert cursor.ack(start, start + length)
            finished.update(offsets)
        else:
            cursor.fail(start, start + length)
            for offset in set(offsets) - finished:
                deliveries[offset] += 1
        assert cursor.low == min(set(range(60)) - finished)
    told = {n: each.deliveries for each in cursor.unfinished(0, 60) for n in range(each.start, each.end)}
    assert told == {offset: count for offset, count in deliveries.items() if offset not in finished}
    above = {n for each in cursor.segments if each.deliveries == ACKED for n in range(each.start, each.end)}
    assert above == {offset for offset in finished if offset >= cursor.low}


@given(st.lists(OFFSETS, min_size=10, max_size=30), st.randoms(use_true_random=False))
def test_equal_cursors_have_equal_segments_whatever_the_order(
    operations: list[tuple[bool, int, int]], chance: Random
) -> None:
    """Failures first, then acks: a failure counts only what is not acked yet, all else commutes."""
    failures = [(start, start + length) for is_ack, start, length in operations if not is_ack]
    acks = [(start, start + length) for is_ack, start, length in operations if is_ack]
    cursors = []
    for _ in range(2):
        cursor = Cursor()
        chance.shuffle(failures)
        chance.shuffle(acks)
        for start, end in failures:
            cursor.fail(start, end)
        for start, end in acks:
            cursor.ack(start, end)
        cursors.append(cursor)
    assert cursors[0] == cursors[1]
