"""Who is active, who takes over, and what stops: row 4."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from clymq.clock import ManualClock
from clymq.controller.brokers import LinkedBrokers
from clymq.controller.controller import SERVED, Controller
from clymq.errors import ConnectFailed, InvalidRequest, NotController
from clymq.protocol.controller import CreateTopic, FindController, ListTopics, SetPartitionState, Status
from clymq.protocol.hosting import PrepareState
from clymq.protocol.verbs import all_verbs
from clymq.rpc import Endpoint, Server
from clymq.rpc.handlers import answering
from clymq.rpc.memory import MemoryNetwork
from clymq.types import Ack
from controller_world import CONFIG, World, run
from rpc_pair import virtually


def test_row_4_the_standby_takes_over_when_the_active_one_is_gone() -> None:
    async def test(world: World) -> None:
        await world.make()
        standby = await world.add_controller("ZkServer1")
        await world.sleep(100)
        assert not standby.is_active
        with pytest.raises(NotController) as refused:
            await standby.answer(CreateTopic("t"))
        assert refused.value.hint == "ZkServer0:1"
        assert (await standby.answer(FindController())).address == "ZkServer0:1"
        await world.kill_controller("ZkServer0")
        await world.until(lambda: standby.is_active, "the standby is active", within_ms=3000)
        await world.make("t", "q")
        found = await world.ask(FindController())
        assert (found.name, found.epoch) == ("ZkServer1", 2)

    run(test)


def test_row_4_one_that_starts_again_under_its_name_does_not_wait_for_its_former_session() -> None:
    async def test(world: World) -> None:
        await world.make()
        await world.kill_controller("ZkServer0")
        began_ms = world.clock.monotonic_ms()
        again = await world.add_controller("ZkServer0")
        await world.until(lambda: again.is_active, "it is active again")
        assert world.clock.monotonic_ms() - began_ms < world.config.session_timeout_ms / 2
        await world.make("t", "q")

    run(test)


def test_of_many_one_is_active() -> None:
    async def test(world: World) -> None:
        for number in range(1, 5):
            await world.add_controller(f"ZkServer{number}")
        await world.sleep(300)
        assert sum(each.is_active for each in world.controllers.values()) == 1
        status = await world.ask(Status())
        assert [each.active for each in status.zkservers] == [True, False, False, False, False]

    run(test)


def test_one_whose_session_is_lost_stops_its_moves_before_it_answers_anything() -> None:
    async def test(world: World) -> None:
        await world.make()
        spoken: list[Any] = []

        async def hold(_: str, request: Any) -> None:
            spoken.append(request)
            await world.sleep(5)

        world.brokers.before = hold
        first = world.controllers["ZkServer0"]
        asked = asyncio.ensure_future(first.answer(SetPartitionState("t", "p", Ack.LEADER)))
        await world.until(lambda: spoken, "the move is under way")
        before = len(spoken)
        first_session = world.stores["ZkServer0"].session
        await world.engine.close_session(int(first_session.id, 16))
        assert first_session.lost
        assert not first.is_active
        with pytest.raises(NotController):
            await asked
        await world.sleep(200)
        assert len(spoken) == before
        with pytest.raises(NotController):
            await first.answer(ListTopics())
        # Whoever keeps the session opens another one; then it is elected again and finishes the move.
        world.brokers.before = None
        await world.stores["ZkServer0"].open()
        view = await world.settled()
        await world.until(lambda: first.is_active, "it is active again")
        await world.until_true(lambda: finished(world), "the move is finished")
        assert view.partition.value.uid

    run(test)


async def finished(world: World) -> bool:
    view = await world.view()
    return view.now.block == 2 and view.partition.value.pending is None


def test_a_failure_that_nobody_foresaw_ends_the_tenure_and_the_next_begins_from_the_tree() -> None:
    async def test(world: World) -> None:
        await world.make()
        broken: list[Any] = []

        async def fail(*_: Any) -> None:
            if not broken:
                broken.append(True)
                raise ZeroDivisionError

        world.brokers.before = fail
        with pytest.raises((NotController, ZeroDivisionError)):
            await world.ask(SetPartitionState("t", "p", Ack.LEADER))
        await world.until(lambda: world.active, "it is active again")
        await world.until_true(lambda: finished(world), "the move is finished")

    run(test)


def test_while_nobody_is_active_that_is_what_is_said() -> None:
    async def test(world: World) -> None:
        controller = world.controllers["ZkServer0"]
        await world.until(lambda: controller.is_active, "it is active")
        await world.stores["ZkServer0"].close()
        await world.until(lambda: not controller.is_active, "it has noticed")
        with pytest.raises(NotController, match="who is, is not known"):
            await controller.answer(CreateTopic("t"))

    run(test)


def test_every_verb_of_the_controller_is_served() -> None:
    async def test(world: World) -> None:
        await world.until(lambda: world.active, "it is active")
        served = {kind.__name__ for kind in world.controllers["ZkServer0"].handlers()}
        asked = {verb.name for verb in all_verbs() if verb.message.__module__ == "clymq.protocol.controller"}
        assert asked == served
        assert len(served) == len(SERVED) + 1

    run(test)


def test_brokers_are_reached_over_the_wire_and_followed_when_they_move() -> None:
    async def test(clock: ManualClock, network: MemoryNetwork) -> None:
        async def serve(address: str) -> Server:
            async def refuse(call: Any) -> Any:
                raise InvalidRequest(f"{address} heard {call.request.topic}")

            endpoint = Endpoint(clock, CONFIG, name="b", role="broker", handlers={PrepareState: answering(refuse)})
            server = Server(network.transport(address.partition(":")[0]), endpoint)
            await server.start(address)
            return server

        servers = [await serve("b:1"), await serve("b:2")]
        endpoint = Endpoint(clock, CONFIG, name="z", role="zkserver")
        brokers = LinkedBrokers(network.transport("z"), endpoint, CONFIG, chance=lambda: 0.5)
        with pytest.raises(ConnectFailed, match="nobody knows"):
            await brokers.ask("b", PrepareState("t", "p", "u", -1, 1, 1))
        for address in ("b:1", "b:2"):
            brokers.know({"b": address})
            with pytest.raises(InvalidRequest, match=f"{address} heard t"):
                await brokers.ask("b", PrepareState("t", "p", "u", -1, 1, 1))
        await brokers.close()
        for server in servers:
            await server.close()

    virtually(test)


def test_the_verbs_come_over_the_wire() -> None:
    async def test(world: World) -> None:
        network = MemoryNetwork(world.clock)
        controller: Controller = world.controllers["ZkServer0"]
        await world.until(lambda: controller.is_active, "it is active")
        served = Endpoint(world.clock, CONFIG, name="z", role="zkserver", handlers=controller.handlers())
        server = Server(network.transport("z"), served)
        await server.start("z:1")
        client = LinkedBrokers(
            network.transport("c"), Endpoint(world.clock, CONFIG, name="c", role="test"), CONFIG, chance=lambda: 0.5
        )
        client.know({"z": "z:1"})
        assert (await client.ask("z", CreateTopic("t"))).created
        assert (await client.ask("z", ListTopics())).topics == ("t",)
        await client.close()
        await server.close()

    run(test)
