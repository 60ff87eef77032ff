"""Batches that are ready at the same time go in one request; each is settled as if it had gone alone."""

from __future__ import annotations

import asyncio

import pytest

from clymq import Ack, AsyncProducer, Receipt
from clymq.client.accumulator import Draft
from clymq.client.numbering import NumberedBatch, Numbering
from clymq.errors import InvalidRequest, MessageTooLarge, Overloaded
from fake_cluster import FakeCluster
from unit.client.test_producer import producing

VALUES = [bytes([n]) * 600 for n in range(8)]


def pushes(producer: AsyncProducer) -> list[asyncio.Task[Receipt]]:
    """Push eight batches of one message each; the leader is not known yet, so they gather."""
    return [asyncio.create_task(producer.push("t", value)) for value in VALUES]


def test_what_gathers_while_the_leader_is_looked_for_goes_as_one_request() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        receipts = await asyncio.gather(*pushes(producer))
        assert [receipt.offset for receipt in receipts] == list(range(8))
        assert cluster.topics["t"]["0"].values() == VALUES
        assert cluster.asked["Push"] == 1

    producing(main, batch_bytes=512)


def test_a_broker_that_does_not_know_runs_gets_each_batch_alone() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        cluster.features = ()
        for broker in cluster.brokers:
            await cluster.stop(broker)
            await cluster.start(broker)
        receipts = await asyncio.gather(*pushes(producer))
        assert [receipt.offset for receipt in receipts] == list(range(8))
        assert cluster.asked["Push"] == 8

    producing(main, batch_bytes=512)


@pytest.mark.parametrize("ack", [Ack.LEADER, Ack.QUORUM])
def test_a_run_is_no_larger_than_its_bound(ack: Ack, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        receipts = await asyncio.gather(*pushes(producer))
        assert [receipt.offset for receipt in receipts] == list(range(8))
        assert cluster.topics["t"]["0"].values() == VALUES
        # Where no sync is waited for they leave as soon as there is something to send.
        assert cluster.asked["Push"] == 4 if ack == Ack.QUORUM else 4 < cluster.asked["Push"] <= 8

    for bound in ("RUN_BYTES_MAX", "EARLY_BYTES"):
        monkeypatch.setattr(f"clymq.client.sender.{bound}", 2000)  # two of them, with their headers
    producing(main, batch_bytes=512, ack=ack)


def test_the_one_that_is_refused_fails_alone() -> None:
    """The run is refused as a whole, and nobody says whose fault it was: each is sent again, alone."""

    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        partition = cluster.topics["t"]["0"]
        push_one = partition._push_one

        def refuse_the_fourth(call: object) -> None:
            if bytes(VALUES[3]) in bytes(call.payload):  # type: ignore[attr-defined]
                raise MessageTooLarge("too large here", size_bytes=600, limit_bytes=500)
            push_one(call)  # type: ignore[arg-type]

        partition._push_one = refuse_the_fourth  # type: ignore[method-assign]
        outcomes = await asyncio.gather(*pushes(producer), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [Receipt] * 3 + [MessageTooLarge] + [Receipt] * 4
        assert partition.values() == VALUES[:3] + VALUES[4:]

    producing(main, batch_bytes=512)


def test_what_was_stored_of_a_run_before_it_was_refused_is_not_stored_again() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        partition = cluster.topics["t"]["0"]
        push_one, refused = partition._push_one, [False]

        def refuse_the_sixth_once(call: object) -> None:
            if bytes(VALUES[5]) in bytes(call.payload) and not refused[0]:  # type: ignore[attr-defined]
                refused[0] = True
                raise Overloaded("not now")
            push_one(call)  # type: ignore[arg-type]

        partition._push_one = refuse_the_sixth_once  # type: ignore[method-assign]
        receipts = await asyncio.gather(*pushes(producer))
        assert refused[0]
        assert [receipt.offset for receipt in receipts] == list(range(8))
        assert partition.values() == VALUES

    producing(main, batch_bytes=512)


def test_a_broker_that_answers_fewer_batches_than_it_was_sent_is_asked_again() -> None:
    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        partition = cluster.topics["t"]["0"]
        partition.forget_more = 1
        receipts = await asyncio.gather(*pushes(producer))
        assert [receipt.offset for receipt in receipts] == list(range(8))
        assert partition.values() == VALUES

    producing(main, batch_bytes=512)


def test_a_draft_that_cannot_be_numbered_does_not_let_the_next_overtake_those_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever is told of the failure may send more at once, from inside: behind what was sent before it."""
    number, calls = Numbering.number, [0]

    def fail_the_third(self: Numbering, draft: Draft) -> NumberedBatch:
        calls[0] += 1
        if calls[0] == 3:
            raise InvalidRequest("this one cannot be written down")
        return number(self, draft)

    producers: list[AsyncProducer] = []

    def told(outcome: object) -> None:
        if isinstance(outcome, InvalidRequest):
            producers[0].send("t", bytes(600))

    async def main(cluster: FakeCluster, producer: AsyncProducer) -> None:
        producers.append(producer)
        for value in VALUES:
            producer.send("t", value)
        with pytest.raises(InvalidRequest):
            await producer.flush()
        await producer.flush()
        assert cluster.topics["t"]["0"].values() == [*VALUES[:2], *VALUES[3:], bytes(600)]

    monkeypatch.setattr(Numbering, "number", fail_the_third)
    producing(main, batch_bytes=512, on_delivery=told)
