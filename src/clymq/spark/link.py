"""The way from Spark's Python workers to the cluster: one event loop in a thread, one set of connections per address.

Spark's workers live longer than a task and are not tied to a partition, so connections are kept for the whole life of
the process. They are made in the process that uses them: a worker is forked before any of this runs, and if somebody
forks later, the child makes its own.
"""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, Final, TypeVar

from pyspark import TaskContext

from clymq.client.cluster import Cluster
from clymq.client.identity import default_name
from clymq.client.surroundings import Surroundings
from clymq.client.waiting import Deadline
from clymq.errors import RequestTimeout

T = TypeVar("T")

# What is asked has limits of its own; this one is for when they do not hold.
GRACE_SECONDS: Final = 60.0


class Link:
    """What one process says to one cluster."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.cluster = Cluster(bootstrap, name=default_name(), role="spark", surroundings=Surroundings())
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="clymq-spark", daemon=True)
        self._thread.start()

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin work on the event loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def wait(self, future: Future[T], timeout: float) -> T:
        """Wait for work; it ends by its own limits, and in any case."""
        try:
            return future.result(timeout + GRACE_SECONDS)
        except FutureTimeout:
            future.cancel()
            raise RequestTimeout(f"no answer within {timeout + GRACE_SECONDS:g} s") from None

    def run(self, work: Callable[[Cluster, Deadline], Coroutine[Any, Any, T]], timeout: float) -> T:
        """Do work that has so many seconds."""

        async def limited() -> T:
            return await work(self.cluster, Deadline(self.cluster.clock, timeout))

        return self.wait(self.begin(limited()), timeout)

    def close(self) -> None:
        """Close all connections and end the thread."""
        self.wait(self.begin(self.cluster.close()), GRACE_SECONDS)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


_lock = threading.Lock()
_links: dict[tuple[int, str], Link] = {}


def link_to(bootstrap: str) -> Link:
    """Return this process's link to a cluster."""
    key = os.getpid(), bootstrap
    with _lock:
        found = _links.get(key)
        if found is None:
            found = _links[key] = Link(bootstrap)
            _spare_what_was_imported()
        return found


def _spare_what_was_imported() -> None:
    """PySpark's worker looks for garbage after each task, in all that it has ever imported; none of that is any.

    On the driver nothing is changed: the program there is somebody else's.
    """
    if TaskContext.get() is not None:
        gc.freeze()


def close_links() -> None:
    """Close the links of this process; the next use makes new ones."""
    with _lock:
        mine = [key for key in _links if key[0] == os.getpid()]
        links = [_links.pop(key) for key in mine]
    for link in links:
        link.close()
