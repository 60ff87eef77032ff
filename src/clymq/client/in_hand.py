"""What an iteration has pulled and not yet yielded.

Messages are made of a whole run at once and yielded from a list, so that each costs next to nothing; how far the user
has come is asked of the list's iterator when somebody wants to know. Whoever leaves the loop leaves the rest here: the
next iteration, or `pull`, goes on with it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from operator import length_hint

from clymq.client.messages import Message, Messages, Run


class InHand:
    """See the module. `is_good` says whether a run may still be yielded: its lease may have ended meanwhile."""

    def __init__(self, is_good: Callable[[Run], bool]) -> None:
        self._is_good = is_good
        self._runs: deque[Run] = deque()
        self._current: Run | None = None
        self._yielding: Iterator[Message] = iter(())

    def put(self, messages: Messages) -> None:
        """Take what was pulled."""
        self._runs += messages.runs

    def next_run(self) -> Iterator[Message] | None:
        """Return the messages of the next run, to be yielded; None: there is none."""
        self._keep_rest()
        while self._runs:
            run = self._runs.popleft()
            if self._is_good(run):
                self._current, self._yielding = run, iter(list(Messages([run])))
                return self._yielding
        return None

    def take(self, messages_max: int) -> list[Run]:
        """Take out messages, at most so many; a loop that was about to yield them does not."""
        self._keep_rest()
        taken: list[Run] = []
        while self._runs and messages_max > 0:
            run = self._runs.popleft()
            if not self._is_good(run):
                continue
            if run.end - run.start > messages_max:
                middle = run.start + messages_max
                self._runs.appendleft(replace(run, start=middle))
                run = replace(run, end=middle)
            taken.append(run)
            messages_max -= run.end - run.start
        return taken

    def drop(self, topic: str | None = None, partition: str | None = None) -> list[Run]:
        """Forget what is left of a partition, of a topic, or of all; return what that was."""
        self._keep_rest()
        runs, self._runs = self._runs, deque()
        dropped: list[Run] = []
        for run in runs:
            is_meant = topic in {None, run.topic} and partition in {None, run.partition}
            (dropped if is_meant else self._runs).append(run)
        return dropped

    def position(self, topic: str, partition: str) -> int | None:
        """Return the next offset of a partition that is going to be yielded; None: nothing of it is here."""
        run = self._current
        if run is not None and (run.topic, run.partition) == (topic, partition):
            left = length_hint(self._yielding)
            if left:
                return run.end - left
        return next((each.start for each in self._runs if (each.topic, each.partition) == (topic, partition)), None)

    def _keep_rest(self) -> None:
        """Put back what the current run has not yielded; whoever iterates over it finds it at its end."""
        run, left = self._current, length_hint(self._yielding)
        self._current = None
        if run is not None and left:
            deque(self._yielding, maxlen=0)
            self._runs.appendleft(replace(run, start=run.end - left))
