"""Transcripts in `tests/scenarios/*.txt`: what a few replicas are told, and all that they then do.

A scenario is a text file of commands, each followed by `----`, by what came of it, and by an empty line; lines that
begin with # are remarks. To write down what happens now, after reading what changed with `git diff`:

    PYTHONPATH=src:tests python tests/unit/raft/test_scenarios.py

Commands (a, b, c are replicas; patience is 300 ms for a, 340 for b, 380 for c):

    group 3 [window=2] [bytes=20]   begin with so many replicas; so many appends under way, so many bytes in each
    log a 1 1 2 [sealed] [term=3]   begin again with such a log on a's disk: a term for each entry, the last a SEAL
    campaign a | elect a | begin a  run for leader | and deliver, and begin | propose GENESIS, if needed, and BELEADER
    propose a 3 | seal a            propose entries of 10 bytes | a SEAL
    deliver | step a->b | lose      deliver all messages | the first from a to b | lose all that are under way
    drop a->b | drop a | heal       lose what is sent from a to b from now on | from and to a | nothing any more
    tick 100                        let milliseconds pass, delivering
    slow a | sync a                 a's disk syncs only when told to | sync it
    crash a | wipe a | start a [lame]
    transfer a b | wake a
    status                          one line for each replica
    quietly COMMAND                 any of these, and nothing written down about it
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from clymq.errors import ClymqError
from clymq.raft.messages import (
    Append,
    AppendResponse,
    Entry,
    Heartbeat,
    HeartbeatResponse,
    Kind,
    Message,
    RequestVote,
    VoteResponse,
)
from clymq.raft.node import RaftNode
from clymq.raft.state import HardState, Limits
from raft_cluster import Cluster, Disk, entries

FOLDER = Path(__file__).parents[2] / "scenarios"


class Traced(Cluster):
    """A cluster that writes down what its replicas do."""

    def __init__(self, size: int, *, limits: Limits) -> None:
        self.lines: list[str] = []
        self.known: dict[str, str] = {}
        self.known_commit: dict[str, int] = {}
        super().__init__(size, limits=limits)
        self.known = {name: self.kind_of(name) for name in self.names}

    def drawing(self, name: str) -> Callable[[int, int], int]:
        return lambda low, high: low + 40 * self.names.index(name)

    def kind_of(self, name: str) -> str:
        """What a replica is, as far as a change of it is worth a line."""
        node = self.nodes[name]
        words = [node.role.value]
        if node.leader and node.leader != name:
            words.append(f"of {node.leader}")
        words += [word for word in ("lame", "asleep") if getattr(node, word)]
        return f"{' '.join(words)}, term {node.term}"

    def perform(self, name: str) -> None:
        disk, ready, before = self.disks[name], self.nodes[name].ready(), self.disks[name].hard
        if ready.hard_state is not None:
            self.lines.append(f"  {name} saves {hard(ready.hard_state, before)}")
        if ready.truncate_to is not None and ready.truncate_to < len(disk.log):
            self.lines.append(f"  {name} cuts behind {ready.truncate_to}")
        if ready.entries:
            self.lines.append(f"  {name} writes {listed(ready.entries)}")
        for message in ready.messages:
            fate = " (lost)" if self.blocked(message) else " (nobody there)" if message.receiver in self.down else ""
            self.lines.append(f"  {described(message)}{fate}")
        self.note_commit(name, ready.commit)
        self.note_kind(name)
        super().perform(name)

    def note_commit(self, name: str, commit: int) -> None:
        if commit > self.known_commit[name]:
            self.lines.append(f"  {name} has committed {commit}")
            self.known_commit[name] = commit

    def note_kind(self, name: str) -> None:
        kind = self.kind_of(name)
        if name in self.known and kind != self.known[name]:
            self.lines.append(f"  {name} is {kind}")
            self.known[name] = kind

    def start(self, name: str, *, lame: bool = False, commit: int = 0) -> RaftNode:
        node = super().start(name, lame=lame, commit=commit)
        self.known_commit[name] = commit
        self.note_kind(name)
        return node

    def step(self, message: Message) -> None:
        incarnation = self.nodes[message.receiver]._state.incarnation
        if message.receiver not in self.down and message.receiver_incarnation not in {0, incarnation}:
            self.lines.append(f"  {described(message)} (dropped: for another process)")
        super().step(message)


def hard(state: HardState, before: HardState) -> str:
    words = [f"term {state.term}"] if state.term != before.term else []
    same = (state.term, state.voted_for) == (before.term, before.voted_for)
    words += [f"vote for {state.voted_for}"] if state.voted_for and not same else []
    words += [f"seal confirmed in {state.seal_term}"] if state.seal_term != before.seal_term else []
    return ", ".join(words)


def listed(some: tuple[Entry, ...]) -> str:
    """Entries as index/term, with the kind of those that are not data."""
    if not some:
        return "empty"
    return " ".join(f"{e.index}/{e.term}" + ("" if e.kind is Kind.DATA else f":{e.kind.name}") for e in some)


def described(message: Message) -> str:
    """Return a message in one line."""
    words = [f"{message.sender}->{message.receiver}", f"{type(message).__name__} term {message.term}"]
    match message:
        case RequestVote():
            words.append(f"last {message.last_index}/{message.last_term}")
            words += [word for word in ("pre", "transfer") if getattr(message, word)]
        case VoteResponse():
            words += ["granted" if message.granted else "refused"] + ["pre"] * message.pre
        case Append():
            words.append(f"#{message.sequence} after {message.previous_index}/{message.previous_term}")
            words += [f"[{listed(message.entries)}]"] if message.entries else []
            words.append(f"commit {message.commit}")
        case AppendResponse() if message.rejected:
            words.append(f"#{message.sequence} rejected, hint {message.hint_index}/{message.hint_term}")
        case AppendResponse():
            words.append(f"#{message.sequence} held {message.held} match {message.match}")
        case Heartbeat() | HeartbeatResponse():
            words.append(f"commit {message.commit}")
            words += [word for word in ("sleep", "asleep") if getattr(message, word, False)]
    return " ".join(words)


class Scenario:
    """Carries out commands, one after the other."""

    def __init__(self) -> None:
        self.cluster = Traced(3, limits=Limits())
        self.dropped: set[tuple[str, str]] = set()

    def run(self, command: str) -> str:
        """Return what came of a command."""
        word, *arguments = command.removeprefix("quietly ").split()
        self.cluster.lines.clear()
        try:
            getattr(self, f"do_{word}")(*arguments)
        except ClymqError as error:
            self.cluster.lines.append(f"  {error.code}: {error}")
        return "" if command.startswith("quietly ") else "".join(line + "\n" for line in self.cluster.lines)

    def do_group(self, size: str, *options: str) -> None:
        given = {name: int(value) for name, _, value in (option.partition("=") for option in options)}
        limits = Limits(window_messages=given.get("window", 64), append_bytes_max=given.get("bytes", 1 << 20))
        self.cluster = Traced(int(size), limits=limits)
        self.cluster.blocked = lambda message: (message.sender, message.receiver) in self.dropped

    def do_log(self, name: str, *words: str) -> None:
        terms = [int(word) for word in words if word.isdigit()]
        log = entries(*terms)
        if "sealed" in words:
            last = log.pop()
            log.append(Entry(last.index, last.term, last.position, last.length, Kind.SEAL))
        named = [int(word.partition("=")[2]) for word in words if word.startswith("term=")]
        self.cluster.disks[name] = Disk(log, HardState(*named or [max(terms)]))
        self.cluster.start(name)

    def do_campaign(self, name: str) -> None:
        self.cluster.nodes[name].campaign(self.cluster.now)
        self.cluster.perform(name)

    def do_elect(self, name: str) -> None:
        self.cluster.elect(name)

    def do_begin(self, name: str) -> None:
        self.cluster.begin(name)

    def do_propose(self, name: str, count: str = "1") -> None:
        self.cluster.propose(name, int(count))
        self.cluster.perform(name)

    def do_seal(self, name: str) -> None:
        self.cluster.propose(name, kind=Kind.SEAL)
        self.cluster.perform(name)

    def do_deliver(self) -> None:
        self.cluster.deliver()

    def do_step(self, link: str) -> None:
        queue = self.cluster.queue
        chosen = next(n for n, m in enumerate(queue) if f"{m.sender}->{m.receiver}" == link)
        self.cluster.step(queue.pop(chosen))

    def do_lose(self) -> None:
        self.cluster.queue.clear()

    def do_drop(self, link: str) -> None:
        sender, _, receiver = link.partition("->")
        others = [name for name in self.cluster.names if name != sender]
        self.dropped |= (
            {(sender, receiver)} if receiver else {(sender, x) for x in others} | {(x, sender) for x in others}
        )

    def do_heal(self) -> None:
        self.dropped.clear()

    def do_tick(self, milliseconds: str) -> None:
        self.cluster.pass_time(int(milliseconds))

    def do_slow(self, name: str) -> None:
        self.cluster.slow.add(name)

    def do_sync(self, name: str) -> None:
        self.cluster.slow.discard(name)
        self.cluster.sync(name)

    def do_crash(self, name: str) -> None:
        self.cluster.crash(name)

    def do_wipe(self, name: str) -> None:
        disk = self.cluster.disks[name]
        disk.log.clear()
        disk.synced = 0

    def do_start(self, name: str, lame: str = "") -> None:
        self.cluster.start(name, lame=lame == "lame")

    def do_transfer(self, name: str, target: str) -> None:
        self.cluster.nodes[name].transfer_leadership(target, self.cluster.now)
        self.cluster.perform(name)

    def do_wake(self, name: str) -> None:
        self.cluster.wake(name)
        self.cluster.perform(name)

    def do_status(self) -> None:
        for name in self.cluster.names:
            if name in self.cluster.down:
                self.cluster.lines.append(f"  {name} is down, {listed(tuple(self.cluster.disks[name].log))}")
                continue
            log = self.cluster.nodes[name].log
            self.cluster.lines.append(
                f"  {name} is {self.cluster.kind_of(name)}, commit {log.commit}, synced {log.synced}, "
                f"{listed(tuple(self.cluster.disks[name].log))}"
            )


def replayed(text: str) -> str:
    """Return the scenario again, with what comes of its commands now."""
    scenario, expectation = Scenario(), False
    out: list[str] = []
    for line in text.splitlines():
        if expectation:
            expectation = bool(line)
        elif line and not line.startswith("#"):
            out.append(f"{line}\n----\n{scenario.run(line)}\n")
            expectation = True
        else:
            out.append(f"{line}\n")
    return "".join(out).rstrip("\n") + "\n"


def scenarios() -> list[Path]:
    return sorted(FOLDER.glob("*.txt"))


@pytest.mark.parametrize("path", scenarios(), ids=lambda path: path.stem)
def test_the_replicas_do_what_the_transcript_says(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert replayed(text) == text


def test_there_is_a_transcript_for_each_part_of_the_protocol() -> None:
    assert {path.stem for path in scenarios()} >= {
        "conflicts",
        "elections",
        "lame",
        "pipelining",
        "seal",
        "sleep",
        "transfer",
    }


if __name__ == "__main__":
    for each in scenarios():
        each.write_text(replayed(each.read_text(encoding="utf-8")), encoding="utf-8")
