"""A broker: verbs in, what it hosts behind them, and its conversation with the controller.

What to host is asked for, not told: at the start, every `config_ms`, after a lost session, and at once when nudged.
What the controller is told (who leads, what is lost, how far blocks have come) is repeated until it is heard, or told
again with the next change: nothing is decided by a report that got lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from clymq.broker.active_block import ActiveBlock, roll_due
from clymq.broker.consumption import Consumption
from clymq.broker.hosted_partition import HostedPartition
from clymq.broker.hosting import Hosting, Reports
from clymq.broker.neighbours import ActiveController, Neighbours
from clymq.broker.positions import find_offset, refusal, set_group_position
from clymq.broker.raft_block import RaftBlock
from clymq.broker.scrubber import Scrubber
from clymq.broker.sealed_block import SealedBlock
from clymq.clock import Clock, pause
from clymq.config import Config
from clymq.errors import BlockSealed, ClymqError, InvalidRequest, NotHosted, StaleEpoch
from clymq.protocol.broker import (
    CommitOffset,
    CommittedOffset,
    FetchOffset,
    FindOffset,
    InitProducer,
    Pull,
    Pulled,
    Push,
)
from clymq.protocol.controller import (
    BecomeLeader,
    BroGetConfig,
    ControllerFound,
    FindController,
    ReplicaDown,
    RollBlock,
    UpdateDup,
)
from clymq.protocol.hosting import (
    AddFetchPartition,
    AddRaftPartition,
    BlockClosed,
    CloseAccept,
    CloseFetchPartition,
    CloseRaftPartition,
    PartitionFound,
    PrepareAccept,
    PrepareSend,
    PrepareState,
    SendPrepared,
    SetGroupPosition,
)
from clymq.protocol.verbs import Done, Reply, Request
from clymq.replication.entries import Commit, Prepare
from clymq.rpc.handlers import answering
from clymq.rpc.lasting import lasting, log_if_failed
from clymq.rpc.peer import Call
from clymq.types import Mode

log = logging.getLogger("clymq.broker")

ASK_MS = 5_000.0
RETRY_MS = 200.0
MIRRORED_AT_ONCE = 32


class Broker(Reports):
    """The verbs of a broker. Made by `clymq.node.broker`, which gives it its parts."""

    def __init__(
        self,
        name: str,
        disk_id: str,
        incarnation: int,
        *,
        hosting: Callable[[Reports], Hosting],
        controller: ActiveController,
        neighbours: Neighbours,
        find_controller: Callable[[], Coroutine[Any, Any, ControllerFound]],
        clock: Clock,
        config: Config,
    ) -> None:
        self.name = name
        self.hosting = hosting(self)
        self.consumption = Consumption(name, self.hosting.partition, controller, neighbours, clock, config)
        self.scrubber = Scrubber(lambda: self.hosting.partitions, clock, config, seed=incarnation)
        self._disk_id = disk_id
        self._incarnation = incarnation
        self._controller = controller
        self._find_controller = find_controller
        self._clock = clock
        self._config = config
        self._nudged = asyncio.Event()
        self._configured = asyncio.Event()
        self._preparing = asyncio.Lock()
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._told: dict[tuple[str, int], int] = {}
        self._telling: dict[Request[Reply], Callable[[], bool]] = {}
        self.on_failure: Callable[[ClymqError], None] = lambda _: None
        """Hears that this broker can do its work no more; filled in by whoever runs it."""
        self.lost_messages: dict[tuple[str, int], int] = {}
        """By uid and block: what was acknowledged here, is not in the block, and was found since this process began."""

    def handlers(self) -> Mapping[type, Callable[[Call], None]]:
        """Return what handles each verb."""
        return {
            Push: self._push,
            InitProducer: self._init_producer,
            Pull: self._pull,
            CommitOffset: self._commit_offset,
            FetchOffset: self._fetch_offset,
            FindOffset: lambda call: find_offset(self._of(call), call),
            SetGroupPosition: lambda call: set_group_position(self._of(call), call),
            PrepareAccept: answering(self._prepare_accept),
            CloseAccept: self._close_accept,
            PrepareState: self._prepare_state,
            PrepareSend: self._prepare_send,
            AddRaftPartition: self._nudge,
            CloseRaftPartition: self._nudge,
            AddFetchPartition: self._nudge,
            CloseFetchPartition: self._nudge,
            FindController: answering(lambda _: self._find_controller()),
            **self.consumption.handlers(),
        }

    async def start(self) -> None:
        """Begin to ask what to host; return when it has been heard once."""
        loops = ("hosting", self._keep_configured), ("reporting", self._report_ends), ("scrubbing", self.scrubber.run)
        for what, work in loops:
            self._spawn(lasting(f"{self.name}: {what}", work, self._clock, self.on_failure))
        await self._configured.wait()

    async def close(self) -> None:
        """Stop talking to the controller, and let go of what is hosted."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.consumption.close()
        await self.hosting.close()

    def ask_again(self) -> None:
        """Ask at once what to host."""
        self._nudged.set()

    # --- Producers and consumers ---

    def _push(self, call: Call) -> None:
        request: Push = call.request
        partition = self.hosting.partition(request.topic, request.partition, request.uid)
        self._active(partition).push(call, partition.config)

    def _init_producer(self, call: Call) -> None:
        request: InitProducer = call.request
        self._active(self.hosting.partition(request.topic, request.partition, request.uid)).init_producer(call)

    def _pull(self, call: Call) -> None:
        request = call.request = _within_a_frame(call)
        partition = self.hosting.partition(request.topic, request.partition, request.uid)
        if request.replica:
            self._pull_by_position(partition, call)
            return
        if request.mode in {Mode.PTP_PULL, Mode.PTP_PUSH}:
            self.consumption.pull(call)
            return
        block = partition.holding(request.offset)
        if not isinstance(block, SealedBlock):
            block.pull(call)
            return
        data = block.read(request.offset, request.bytes_max)
        call.reply(Pulled(high_watermark=block.end, log_start=block.start, block=block.number), [data])

    def _pull_by_position(self, partition: HostedPartition, call: Call) -> None:
        """Give bytes of a block to another replica of it, or to one that begins the next block."""
        request: Pull = call.request
        sealed, active = partition.sealed.get(request.block), partition.active
        if sealed is not None:
            data = sealed.read_at(request.position, request.bytes_max)
            reply = Pulled(high_watermark=sealed.end, log_start=sealed.start, block=sealed.number)
            call.reply(reply, [data])
        elif active is not None and active.number == request.block:
            active.pull_by_position(call)
        else:
            raise NotHosted(f"block {request.block} of {partition.topic}/{partition.name} is not here")

    def _commit_offset(self, call: Call) -> None:
        request: CommitOffset = call.request
        partition = self.hosting.partition(request.topic, request.partition, request.uid)

        def answer(outcome: object) -> None:
            refused = refusal(outcome)
            if refused is not None:
                call.fail(refused)
            else:
                call.reply(Done())

        self._active(partition).write(Commit(group=request.group, offset=request.offset), answer)

    def _fetch_offset(self, call: Call) -> None:
        request: FetchOffset = call.request
        owner = self._active(self.hosting.partition(request.topic, request.partition, request.uid))
        # Not `check_reading`: a former leader, and one that does not know yet how its block begins, would name a
        # position that the group has long left, or none at all.
        owner.check_sharing()
        call.reply(CommittedOffset(owner.machine.position(request.group)))

    def _of(self, call: Call) -> HostedPartition:
        """Return the partition that a request names."""
        request = call.request
        return self.hosting.partition(request.topic, request.partition, request.uid)

    def _active(self, partition: HostedPartition) -> ActiveBlock:
        if partition.active is None:
            last = max(partition.sealed, default=0)
            raise BlockSealed(f"block {last} of {partition.topic}/{partition.name} is sealed", hint="ask who leads now")
        return partition.active

    # --- The controller ---

    async def _prepare_accept(self, call: Call) -> Done:
        """Be ready for a block. Each of many that come at once waits for the disk; others have a turn in between."""
        request: PrepareAccept = call.request
        if request.disk_id != self._disk_id:
            raise InvalidRequest(f"{self.name} has disk {self._disk_id}, not {request.disk_id}")
        async with self._preparing:
            self.hosting.prepare(request)
            await pause(self._clock, 0)
        return Done()

    def _close_accept(self, call: Call) -> None:
        request: CloseAccept = call.request
        partition = self.hosting.partition(request.topic, request.partition, request.uid)
        if request.epoch < partition.epoch:
            raise StaleEpoch(f"epoch {request.epoch} of {partition.topic}/{partition.name} is past: {partition.epoch}")
        if request.block in partition.sealed:
            call.reply(partition.sealed[request.block].closed())
            return
        active = partition.active
        if active is None or active.number != request.block:
            raise NotHosted(f"block {request.block} of {partition.topic}/{partition.name} is not here")
        partition.epoch = request.epoch

        def answer(outcome: BlockClosed | ClymqError) -> None:
            if isinstance(outcome, ClymqError):
                call.fail(outcome)
            else:
                call.reply(outcome)

        active.close_accept(request, answer)

    def _prepare_state(self, call: Call) -> None:
        request: PrepareState = call.request
        partition = self.hosting.partition(request.topic, request.partition, request.uid)
        active = self._active(partition)
        call.reply(
            PartitionFound(
                state=request.state,
                block=active.number,
                epoch=partition.epoch,
                end=active.end,
                leader=active.leader or "",
            )
        )

    def _prepare_send(self, call: Call) -> None:
        """Be ready for a consumer: publish-subscribe needs its offset here, point to point a cursor in the log."""
        request: PrepareSend = call.request
        partition = self.hosting.partition(request.topic, request.partition, request.uid)
        if request.mode in {Mode.PSB_PUSH, Mode.PSB_PULL}:
            partition.holding(request.offset)
            call.reply(SendPrepared(request.offset))
            return
        owner = self._active(partition)
        owner.check_reading()
        cursor = owner.machine.cursor(request.group)
        if cursor is not None:
            call.reply(SendPrepared(cursor.low))
            return

        def answer(outcome: object) -> None:
            made, refused = owner.machine.cursor(request.group), refusal(outcome)
            if refused is not None:
                call.fail(refused)
            else:
                assert made is not None, "a cursor is there once its entry is applied"
                call.reply(SendPrepared(made.low))

        owner.write(Prepare(group=request.group, offset=request.offset), answer)

    def _nudge(self, call: Call) -> None:
        self.ask_again()
        call.reply(Done())

    async def _keep_configured(self) -> None:
        """Ask what to host, now and then and whenever nudged."""
        while True:
            self._nudged.clear()
            delay_ms: float = self._config.config_ms
            try:
                wanted = await self._controller.ask(BroGetConfig(self.name, self._disk_id), timeout_ms=ASK_MS)
                await self.hosting.apply(wanted)
                self._configured.set()
            except ClymqError as error:
                log.info("%s: what to host is not known yet: %s", self.name, error)
                delay_ms = RETRY_MS
            timer = self._clock.call_later(delay_ms, self._nudged.set)
            try:
                await self._nudged.wait()
            finally:
                timer.cancel()

    # --- Reports ---

    def begins(self, partition: HostedPartition) -> None:
        """A partition has another active block here."""
        self.consumption.begins(partition)

    def ends(self, partition: HostedPartition, block: ActiveBlock) -> None:
        """A block is not active here any more."""
        self.consumption.ends(partition, block)

    def elected(self, partition: HostedPartition, block: int, term: int) -> None:
        """This broker leads a block: the tree is told, until it is another's turn."""
        active = partition.active
        report = BecomeLeader(partition.topic, partition.name, partition.uid, block, self.name, term, self._incarnation)

        def still_true() -> bool:
            if isinstance(active, RaftBlock) and active.driver.node.term != term:
                return False
            return partition.active is active

        self._tell_until_heard(report, still_true)

    def whole(self, partition: HostedPartition, block: int) -> None:
        """A replica of a sealed block is whole: it may be counted on."""
        sealed = partition.sealed[block]
        report = UpdateDup(
            partition.topic,
            partition.name,
            partition.uid,
            block,
            self.name,
            sealed.end,
            disk_id=self._disk_id,
            whole=True,
        )
        self._tell_until_heard(report, lambda: partition.sealed.get(block) is sealed)

    def replica_down(self, partition: HostedPartition, block: int, reason: str) -> None:
        """A replica here is lost."""
        report = ReplicaDown(partition.topic, partition.name, partition.uid, block, self.name, self._disk_id, reason)

        def still_true() -> bool:
            if block in partition.sealed:
                return not partition.sealed[block].whole
            return partition.active is None or partition.active.number == block

        self._tell_until_heard(report, still_true)

    def needs_move(self, partition: HostedPartition, block: int, reason: str) -> None:
        """A partition needs its next block."""
        report = RollBlock(partition.topic, partition.name, partition.uid, block, partition.epoch, self.name, reason)
        self._tell_until_heard(report, lambda: partition.active is not None and partition.active.number == block)

    def lost(self, partition: HostedPartition, block: int, messages: int) -> None:
        """Acknowledged messages are not in a sealed block; they are kept aside."""
        key = (partition.uid, block)
        self.lost_messages[key] = max(messages, self.lost_messages.get(key, 0))
        report = UpdateDup(
            partition.topic,
            partition.name,
            partition.uid,
            block,
            self.name,
            partition.sealed[block].end,
            disk_id=self._disk_id,
            lost_messages=messages,
        )
        self._tell_until_heard(report, lambda: True)

    def _tell_until_heard(self, report: Request[Reply], still_true: Callable[[], bool]) -> None:
        """Tell the controller; what comes up again before it was heard is still told once."""
        is_told = report in self._telling
        self._telling[report] = still_true
        if not is_told:
            self._spawn(self._tell(report))

    async def _tell(self, report: Request[Reply]) -> None:
        try:
            await self._tell_while_true(report)
        finally:
            del self._telling[report]

    async def _tell_while_true(self, report: Request[Reply]) -> None:
        while self._telling[report]():
            try:
                await self._controller.ask(report, timeout_ms=ASK_MS)
                return
            except ClymqError as error:
                if not error.retriable:
                    log.warning("%s: %s is refused: %s", self.name, type(report).__name__, error)
                    return
                await pause(self._clock, RETRY_MS)

    async def _report_ends(self) -> None:
        """Look about once a second at the blocks that are led here: roll what is due, mirror how far they have come.

        Mirroring is a task of its own, and one answer that is late holds up neither a roll nor other blocks' ends.
        """
        mirroring: asyncio.Task[None] | None = None
        while True:
            await pause(self._clock, self._config.mirror_ms)
            led = self._led()
            for partition, active in led:
                self._roll_if_due(partition, active)
            if mirroring is None or mirroring.done():
                mirroring = self._spawn(self._mirror(led))

    def _led(self) -> list[tuple[HostedPartition, ActiveBlock]]:
        led = []
        for partition in self.hosting.partitions:
            active = partition.active
            if active is not None and active.leader == self.name:
                led.append((partition, active))
        return led

    async def _mirror(self, led: Sequence[tuple[HostedPartition, ActiveBlock]]) -> None:
        """Tell the ends that have changed since they were told last, and where the groups are."""
        ends = {(partition.uid, active.number): active.end for partition, active in led}
        self._told = {key: end for key, end in self._told.items() if key in ends}
        reports = [
            UpdateDup(partition.topic, partition.name, partition.uid, active.number, self.name, end, leader=True)
            for (partition, active), (key, end) in zip(led, ends.items(), strict=True)
            if self._told.get(key) != end
        ]
        room = asyncio.Semaphore(MIRRORED_AT_ONCE)
        await asyncio.gather(*(self._mirror_end(report, room) for report in reports))
        await self.consumption.tell_cursors()

    async def _mirror_end(self, report: UpdateDup, room: asyncio.Semaphore) -> None:
        async with room:
            try:
                await self._controller.ask(report, timeout_ms=ASK_MS)
                self._told[report.uid, report.block] = report.end
            except ClymqError as error:
                log.debug("%s: an end is not mirrored: %s", self.name, error)

    def _roll_if_due(self, partition: HostedPartition, active: ActiveBlock) -> None:
        """Ask for the next block when this one is large or old; it goes on until the chain has moved."""
        early = int(partition.uid[:4] or "0", 16) / 0x10000
        try:
            reason = roll_due(active.file, partition.config, self._clock.wall_us(), early)
        except ClymqError as error:
            # What is wrong with the file its own driver finds out; the other blocks' ends are still to be told.
            log.warning("%s/%s: how old block %d is: %s", partition.topic, partition.name, active.number, error)
            return
        if reason is not None and not active.machine.sealed:
            self.needs_move(partition, active.number, reason)

    # --- Tasks ---

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        task.add_done_callback(log_if_failed)
        return task


def _within_a_frame(call: Call) -> Pull:
    """Return a pull that asks for no more than its answer can carry: a reader need not know how much that is."""
    request: Pull = call.request
    bytes_max = call.peer.payload_bytes_max
    return request.within(bytes_max) if request.bytes_max > bytes_max else request
