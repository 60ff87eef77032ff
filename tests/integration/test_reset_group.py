"""Groups that are set to another place, and offsets that are found by their time, on a cluster with real sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from clymq import Ack, AsyncAdmin, AsyncProducer
from clymq.errors import ClymqError, NotSubscribed, OffsetOutOfRange
from clymq.protocol.broker import CommitOffset, FetchOffset, FindOffset, OffsetFound
from clymq.protocol.controller import ConGetBroker, ResetGroup, Sub
from clymq.protocol.hosting import PrepareSend
from clymq.testing import LocalCluster
from clymq.testing.waiting import until_asked
from clymq.types import Mode
from rows import LONG_SECONDS, Asking, refusal, roll, run


@asynccontextmanager
async def two_blocks(cluster: LocalCluster, topic: str, ack: Ack) -> AsyncIterator[Asking]:
    """Offsets 0 to 4 are sealed, 5 to 9 are not; the message at offset n has the timestamp 1,000,000 * n."""
    async with AsyncAdmin(cluster.bootstrap) as admin, Asking(cluster) as asking:
        await admin.create_topic(topic, ack=ack)
        async with AsyncProducer(cluster.bootstrap) as producer:
            for number in range(5):
                await producer.push(topic, b"", timestamp=1_000_000 * number)
            await roll(asking, topic)
            for number in range(5, 10):
                await producer.push(topic, b"", timestamp=1_000_000 * number)
        yield asking


@pytest.mark.parametrize("ack", [Ack.QUORUM, Ack.LEADER])
def test_the_first_message_of_a_time_is_found_block_by_block(clymq_cluster: LocalCluster, ack: Ack) -> None:
    async def check() -> None:
        topic = f"times-{ack.name}"
        async with two_blocks(clymq_cluster, topic, ack) as asking:
            await asking.controller(Sub(topic, "c", Mode.PSB_PULL))

            async def find(timestamp_us: int) -> int:
                """Walk the blocks as docs/protocol.md says."""
                offset = 0
                while True:
                    request = ConGetBroker(topic, "c", Mode.PSB_PULL, partition="0", offset=offset)
                    (route,) = (await asking.controller(request)).routes
                    assert route.error == ""
                    found: OffsetFound = await asking.server(
                        route.broker, FindOffset(topic, "0", route.uid, route.block, timestamp_us)
                    )
                    if found.offset >= 0 or route.end < 0:
                        return found.offset if found.offset >= 0 else found.end
                    assert found.end == route.end
                    offset = route.end

            assert [await find(seconds) for seconds in (-5, 0, 1, 4_000_000, 4_000_001, 9_000_000)] == [
                0,
                0,
                1,
                4,
                5,
                9,
            ]
            assert await find(9_000_001) == 10

    run(check())


@pytest.mark.parametrize("ack", [Ack.QUORUM, Ack.LEADER])
def test_row_77_a_group_is_set_to_an_offset_a_time_and_both_ends(clymq_cluster: LocalCluster, ack: Ack) -> None:
    """The controller's part: what the group's position is, and what `status` says of it, after each reset."""

    async def check() -> None:
        topic = f"resets-{ack.name}"
        async with two_blocks(clymq_cluster, topic, ack) as asking:
            route = await asking.route(topic)
            await asking.server(route.broker, CommitOffset(topic, "0", route.uid, "g", 2))
            for to, offset in (("7", 7), ("1970-01-01T00:00:03.5Z", 4), ("earliest", 0), ("latest", 10)):
                (stands,) = (await asking.controller(ResetGroup(topic, "g", to))).groups
                assert (stands.cursor, stands.end, stands.lag) == (offset, 10, 10 - offset)
                assert (await asking.server(route.broker, FetchOffset(topic, "0", route.uid, "g"))).offset == offset
            refused = await refusal(asking.controller(ResetGroup(topic, "g", "11")))
            assert isinstance(refused, OffsetOutOfRange)
            assert refused.end == 10
            assert isinstance(await refusal(asking.controller(ResetGroup(topic, "nobody", "latest"))), NotSubscribed)

    run(check())


def test_a_point_to_point_cursor_is_set_by_an_entry_in_the_log(clymq_cluster: LocalCluster) -> None:
    async def check() -> None:
        async with two_blocks(clymq_cluster, "cursors", Ack.QUORUM) as asking:
            route = await asking.route("cursors")
            prepare = PrepareSend("cursors", "0", route.uid, route.block, Mode.PTP_PULL, "g", "c")
            assert (await asking.server(route.broker, prepare)).offset == 0
            await asking.controller(ResetGroup("cursors", "g", "6"))
            assert (await asking.server(route.broker, prepare)).offset == 6
            # It is in the state that the next block begins with, and with the leader that it then has.
            block = await roll(asking, "cursors")
            again = PrepareSend("cursors", "0", route.uid, block, Mode.PTP_PULL, "g", "c")

            async def same() -> bool:
                try:
                    return (await asking.server(route.broker, again)).offset == 6
                except ClymqError as error:
                    if not error.retriable:
                        raise
                    return False

            await until_asked(same, "the cursor is in the next block", seconds_max=LONG_SECONDS)

    run(check())
