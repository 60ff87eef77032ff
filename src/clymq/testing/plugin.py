"""Fixtures of pytest for programs that use ClyMQ: a cluster for the whole session, made when a test first asks for it.

    async def test_orders_are_stored(clymq_bootstrap):
        async with AsyncProducer(clymq_bootstrap) as producer: ...

Topics outlive the test that made them: give each test one of its own. A test that kills servers makes its own cluster.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from clymq.testing.local_cluster import LocalCluster


@pytest.fixture(scope="session")
def clymq_cluster() -> Iterator[LocalCluster]:
    """A `LocalCluster` with one broker."""
    # Here and not above: pytest loads this in every session, and most have no use for it.
    from clymq.testing.local_cluster import LocalCluster  # noqa: PLC0415

    with LocalCluster() as cluster:
        yield cluster


@pytest.fixture
def clymq_bootstrap(clymq_cluster: LocalCluster) -> str:
    """Where clients reach the cluster of the session."""
    return clymq_cluster.bootstrap
