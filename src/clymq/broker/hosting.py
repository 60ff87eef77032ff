"""What this broker hosts: the blocks that the tree names it for, opened, begun, ended and mended to match.

`apply` takes what `BroGetConfig` answered and is repeatable: whatever a crash or a lost nudge left undone is done at
the next call. An active block runs as a Raft group; when the chain has moved on it becomes a sealed one, which is
served if it is whole and mended if it is not. What the tree no longer names is closed here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from clymq.broker.active_block import ActiveBlock
from clymq.broker.fenced_block import FencedBlock
from clymq.broker.fetch_block import FetchBlock
from clymq.broker.hosted_partition import HostedPartition
from clymq.broker.neighbours import Neighbours
from clymq.broker.raft_block import RaftBlock
from clymq.broker.sealed_block import SealedBlock
from clymq.broker.sources import LocalSource, RemoteSource
from clymq.broker.strays import blocks_on_disk, forgotten_blocks, remove_orphan, set_aside_strays
from clymq.clock import Clock, Turns, pause
from clymq.config import Config, for_topic
from clymq.errors import ClymqError, CorruptBatch, ReplicaLost, StaleEpoch, StorageError, UnknownPartition
from clymq.protocol.controller import BrokerConfig, HostedBlock
from clymq.protocol.hosting import PrepareAccept, ReplicaPlace
from clymq.record.batch import Batch
from clymq.record.layout import FORMAT_BYTES_MAX
from clymq.replication.consensus_links import ConsensusLinks
from clymq.replication.entries import Genesis, Seal, decode
from clymq.replication.fetch_host import FetchHost
from clymq.replication.fetch_replica import FetchReplica
from clymq.replication.fetch_surroundings import FetchGroup
from clymq.replication.hosted import Hosted
from clymq.replication.machine import PartitionMachine
from clymq.replication.mend import Source
from clymq.replication.raft_host import RaftHost
from clymq.replication.raft_partition import RaftPartition
from clymq.replication.replica import Replica
from clymq.rpc.lasting import log_if_failed
from clymq.storage.files import Files
from clymq.storage.folder import DataFolder
from clymq.storage.replace import remove_folder
from clymq.types import Ack

log = logging.getLogger("clymq.broker")

R = TypeVar("R", bound=Replica)
B = TypeVar("B", bound=FetchBlock)

RETRY_MS = 200.0
RETRY_MS_MAX = 5_000.0
# A broker with an empty disk may have thousands of blocks to mend; others need descriptors and neighbours as well.
MENDS_MAX = 16
# A broker that matches the tree lets others have a turn after so long.
TURN_MS_MAX = 10.0


class Reports:
    """What hosting has to tell the controller; the broker fills these in."""

    def begins(self, partition: HostedPartition) -> None:
        """The partition has another active block here; nothing has happened to it yet."""

    def ends(self, partition: HostedPartition, block: ActiveBlock) -> None:
        """A block is not active here any more."""

    def elected(self, partition: HostedPartition, block: int, term: int) -> None:
        """A group here has a leader: this broker."""

    def whole(self, partition: HostedPartition, block: int) -> None:
        """A replica of a sealed block here is whole."""

    def replica_down(self, partition: HostedPartition, block: int, reason: str) -> None:
        """A replica here is lost."""

    def needs_move(self, partition: HostedPartition, block: int, reason: str) -> None:
        """The partition needs its next block."""

    def lost(self, partition: HostedPartition, block: int, messages: int) -> None:
        """Messages that were acknowledged here are not in the block that the chain has sealed."""


class Hosting:
    """All partitions of this broker."""

    def __init__(
        self,
        name: str,
        disk_id: str,
        *,
        files: Files,
        folder: DataFolder,
        clock: Clock,
        config: Config,
        raft: RaftHost,
        fetch: FetchHost,
        links: ConsensusLinks,
        neighbours: Neighbours,
        reports: Reports,
        session: Callable[[], str],
    ) -> None:
        """`session`: the id of this process's session with the store; empty while it has none."""
        self._name = name
        self._disk_id = disk_id
        self._files = files
        self._folder = folder
        self._clock = clock
        self._config = config
        self._raft = raft
        self._fetch = fetch
        self._links = links
        self._neighbours = neighbours
        self._reports = reports
        self._session = session
        self._hosted = Hosted.open(files, f"{folder.path}/hosted")
        self._partitions: dict[str, HostedPartition] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._lost: set[tuple[str, int]] = set()
        self._down: set[tuple[str, int]] = set()
        self._named: set[tuple[str, int]] = set()
        self._looked_for_strays = False
        self._closed = False
        self._mending = asyncio.Semaphore(MENDS_MAX)

    @property
    def partitions(self) -> list[HostedPartition]:
        """Those that are here."""
        return list(self._partitions.values())

    def partition(self, topic: str, partition: str, uid: str) -> HostedPartition:
        """Return a partition that is here; another uid is another partition."""
        found = self._partitions.get(uid)
        if found is None:
            raise UnknownPartition(f"{topic}/{partition} ({uid}) is not hosted by {self._name}")
        return found

    # --- Matching the tree ---

    def prepare(self, request: PrepareAccept) -> None:
        """Be ready for a block: its partition's folder is there, and there is room. Not for a move that is past."""
        known = self._partitions.get(request.uid)
        if known is not None and request.epoch < known.epoch:
            raise StaleEpoch(f"epoch {request.epoch} of {known.topic}/{known.name} is past: {known.epoch}")
        self._folder.partition(request.topic, request.topic_id, request.partition, request.uid)
        self._folder.space.claim(0)

    async def apply(self, config: BrokerConfig) -> None:
        """Host what is named and nothing else.

        There may be thousands of blocks, and each that begins or ends waits for the disk: others have their turn in
        between, or this broker would be silent for so long that its groups elect away from it.
        """
        self._neighbours.know(config.addresses)
        for peer, address in config.addresses.items():
            if peer != self._name:
                self._links.join(peer, address)
        # BEFORE anything is hosted: what an earlier config had let go of is not deleted under its hands.
        self._named = named = {(place.uid, place.block) for place in config.blocks}
        turns = Turns(self._clock, TURN_MS_MAX)
        for place in sorted(config.blocks, key=lambda place: (place.uid, place.block)):
            self._host(place)
            await turns.give_way()
        for partition in self.partitions:
            self._release(partition, named)
            await turns.give_way()
        self._lost &= named
        self._down &= named
        if not self._looked_for_strays:
            self._looked_for_strays = True
            self._delete_strays()

    def _host(self, place: HostedBlock) -> None:
        partition = self._partitions.get(place.uid)
        if partition is None:
            path = self._folder.partition(place.topic, place.topic_id, place.partition, place.uid)
            partition = self._partitions[place.uid] = HostedPartition(place, path, self._config)
        partition.epoch = max(partition.epoch, place.epoch)
        partition.config = for_topic(self._config, place.settings)
        try:
            if place.sealed:
                self._host_sealed(partition, place)
            else:
                self._host_active(partition, place)
        except ClymqError as error:
            self._report_lost(partition, place.block, error)
        except Exception as error:
            # One block that nobody understands must not keep this broker from all the others.
            log.exception("%s/%s: block %d cannot be hosted", place.topic, place.partition, place.block)
            self._report_lost(partition, place.block, ReplicaLost(f"{type(error).__name__}: {error}"))

    def _host_active(self, partition: HostedPartition, place: HostedBlock) -> None:
        partition.before = place.before
        if partition.active is not None and partition.active.number >= place.block:
            return
        if (place.uid, place.block) in self._lost:
            return
        if partition.active is not None:
            # The tree has let go of it before this broker heard that it has ended: nothing else will come for it.
            number = partition.active.number
            self._stop(partition)
            self._delete_later(partition, number)
        if place.mode == Ack.QUORUM:
            self._host_raft(partition, place)
        else:
            self._host_fetch(partition, place)

    def _open_replica(self, kind: type[R], partition: HostedPartition, place: HostedBlock) -> R:
        replica = kind(
            self._files, f"{partition.path}/Block_{place.block}", self._config, self._folder.handles, self._folder.space
        )
        named_here = any((r.broker, r.disk_id) == (self._name, self._disk_id) for r in place.replicas)
        replica.begin(
            self._hosted,
            f"{place.uid}/{place.block}",
            named_here=named_here,
            start_offset=place.start,
            verify=False,
            durable=partition.path,
        )
        return replica

    def _host_fetch(self, partition: HostedPartition, place: HostedBlock) -> None:
        self._host_as(FetchBlock, self._open_replica(FetchReplica, partition, place), partition, place)

    def _fence(self, partition: HostedPartition, place: HostedBlock, epoch: int) -> FencedBlock:
        """Take the replica of a Raft block out of its group; the epoch is durable BEFORE anything is told of it."""
        if epoch <= place.epoch:
            raise StaleEpoch(f"block {place.block} of {place.topic}/{place.partition} is of epoch {place.epoch}")
        self._stop(partition)
        try:
            return self._host_fenced(partition, place, epoch)
        except ClymqError as error:
            self._report_lost(partition, place.block, error)
            raise

    def _host_fenced(self, partition: HostedPartition, place: HostedBlock, epoch: int) -> FencedBlock:
        replica = self._open_replica(FetchReplica, partition, place)
        try:
            if epoch > replica.fence_epoch:
                replica.fence(epoch)
        except ClymqError:
            replica.close()
            raise
        return self._host_as(FencedBlock, replica, partition, place)

    def _host_as(self, kind: type[B], replica: FetchReplica, partition: HostedPartition, place: HostedBlock) -> B:
        machine = self._machine()
        block = kind(self._name, place, machine, self._clock, _News(self._reports, partition, place.block))
        leads = place.leader == self._name
        group = FetchGroup(
            place.topic,
            place.partition,
            place.uid,
            place.block,
            place.epoch,
            tuple(each.broker for each in place.replicas),
            place.leader,
            # Made leader for one life and one session: in another one this process is none, though it is the same.
            place.leader_incarnation if place.leader_session in {"", self._session()} or not leads else 0,
            was_raft=place.mode == Ack.QUORUM,
        )
        partition.active = block
        self._reports.begins(partition)
        self._fetch.add(
            group,
            replica,
            machine,
            block,
            lambda done: self._begin(partition, place, done),
            config=partition.config,
            on_made=block.attach,
        )
        return block

    def _machine(self) -> PartitionMachine:
        config = self._config
        return PartitionMachine(producers_max=config.producers_max, producer_idle_ms_max=config.producer_idle_ms_max)

    def _host_raft(self, partition: HostedPartition, place: HostedBlock) -> None:
        replica = self._open_replica(Replica, partition, place)
        if replica.fence_epoch > place.epoch:
            replica.close()
            self._host_fenced(partition, place, replica.fence_epoch)
            return
        machine = self._machine()
        owner = RaftPartition(self._name, machine, self._clock, lambda done: self._begin(partition, place, done))
        owner.on_elected = lambda term: self._reports.elected(partition, place.block, term)
        owner.on_stop = lambda error: self._report_lost(partition, place.block, error)
        members = [replica_place.broker for replica_place in place.replicas]
        driver = self._raft.add(f"{place.uid}/{place.block}", members, replica, machine, owner)
        owner.attach(driver)
        partition.active = RaftBlock(
            place, owner, driver, self._clock, lambda epoch: self._fence(partition, place, epoch)
        )
        self._reports.begins(partition)
        if place.leader == self._name and replica.block.last_index == 0:
            driver.campaign()

    def _host_sealed(self, partition: HostedPartition, place: HostedBlock) -> None:
        block = partition.sealed.get(place.block)
        if block is not None and block.is_open:
            # Whoever it was to mend from at first may have left.
            block.replicas = place.replicas
            if (place.copy or place.down) and block.whole:
                self._reports.whole(partition, block.number)  # said before it was asked for, nobody took note of it
            return
        if partition.active is not None and partition.active.number == place.block:
            self._stop(partition)
        if block is None:
            path = f"{partition.path}/Block_{place.block}"
            block = SealedBlock(place, path, self._files, self._folder, self._config)
            partition.keep(block)
        self._hosted.add(f"{place.uid}/{place.block}")
        whole, lost = block.open()
        if lost:
            self._reports.lost(partition, block.number, lost)
        was_down = (place.uid, place.block) in self._down
        self._down.discard((place.uid, place.block))
        if not whole:
            self._spawn(self._mend(partition, block))
        elif place.copy or place.down or was_down:
            self._reports.whole(partition, block.number)

    def _release(self, partition: HostedPartition, named: set[tuple[str, int]]) -> None:
        """Let go of what the tree does not name any more; the bytes go a while later."""
        active = partition.active
        if active is not None and (partition.uid, active.number) not in named:
            self._stop(partition)
            self._delete_later(partition, active.number)
        for number in [number for number in partition.sealed if (partition.uid, number) not in named]:
            partition.drop(number).close()
            self._delete_later(partition, number)
        if partition.active is None and not partition.sealed:
            del self._partitions[partition.uid]

    def _delete_strays(self) -> None:
        """Let go of what an earlier life of this broker has left, and the tree does not name any more."""
        try:
            orphans = set_aside_strays(self._files, self._folder.path, {uid for uid, _ in self._named})
            for partition in self.partitions:
                numbers = {number for uid, number in self._named if uid == partition.uid}
                for number in forgotten_blocks(self._files, partition.path, numbers):
                    self._delete_later(partition, number)
        except StorageError as error:
            log.warning("%s: strays are left alone: %s", self._folder.path, error)
            return
        for path in orphans:
            self._clock.call_later(self._config.delete_delay_ms, partial(self._delete_orphan, path))
        self._clock.call_later(self._config.delete_delay_ms, self._forget_what_is_gone)

    def _forget_what_is_gone(self) -> None:
        """Take off the list what the tree does not name any more and no folder holds: it would only ever grow."""
        if self._closed:
            return
        try:
            kept = self._named | blocks_on_disk(self._files, self._folder.path)
            self._hosted.remove(*(name for name in self._hosted if _key_of(name) not in kept))
        except StorageError as error:
            log.warning("%s: the list of hosted blocks stays as it is: %s", self._folder.path, error)

    def _delete_orphan(self, path: str) -> None:
        if self._closed or not self._files.exists(path):
            return
        try:
            remove_orphan(self._files, path)
        except StorageError as error:
            log.warning("%s: not deleted: %s", path, error)

    def _delete_later(self, partition: HostedPartition, number: int) -> None:
        self._clock.call_later(self._config.delete_delay_ms, lambda: self._delete(partition, number))

    def _delete(self, partition: HostedPartition, number: int) -> None:
        """Remove a block's folder, unless the tree has named it again meanwhile, or this broker is closed."""
        path = f"{partition.path}/Block_{number}"
        if (partition.uid, number) in self._named or self._closed:
            return
        try:
            if self._files.exists(path):
                remove_folder(self._files, path)
                self._files.sync_folder(partition.path)
            # Last: a block that is on the list and not on the disk is lost, one that is on neither may begin anew.
            self._hosted.remove(f"{partition.uid}/{number}")
            log.info("%s/%s: block %d is deleted", partition.topic, partition.name, number)
            if partition.uid not in self._partitions and self._is_empty(partition.path):
                remove_orphan(self._files, partition.path)
        except StorageError as error:
            log.warning("%s: not deleted: %s", path, error)

    def _is_empty(self, path: str) -> bool:
        return self._files.exists(path) and not forgotten_blocks(self._files, path, ())

    def _stop(self, partition: HostedPartition) -> None:
        active, partition.active = partition.active, None
        if isinstance(active, RaftBlock):
            self._raft.remove(active.driver.group)
        elif isinstance(active, FetchBlock):
            self._fetch.remove(active.driver.group.name)
            active.let_go()
        if active is not None:
            self._reports.ends(partition, active)

    def _report_lost(self, partition: HostedPartition, block: int, error: ClymqError) -> None:
        log.error("%s/%s block %d: %s", partition.topic, partition.name, block, error)
        if block in partition.sealed:
            self._down.add((partition.uid, block))  # it is opened anew when the tree is asked next
        elif isinstance(error, ReplicaLost):
            self._lost.add((partition.uid, block))
        if partition.active is not None and partition.active.number == block:
            partition.active = None
        self._reports.replica_down(partition, block, str(error))

    # --- From block to block ---

    def _begin(self, partition: HostedPartition, place: HostedBlock, done: Callable[[Genesis], None]) -> None:
        """Find the state that a new block begins with: that of the SEAL before, or none for the first block."""
        uid = bytes.fromhex(place.uid)
        if place.before is None:
            done(Genesis(uid=uid))
            return
        self._spawn(self._begin_after(partition, place, uid, done))

    async def _begin_after(
        self,
        partition: HostedPartition,
        place: HostedBlock,
        uid: bytes,
        done: Callable[[Genesis], None],
    ) -> None:
        while partition.active is not None and partition.active.number == place.block:
            before = partition.before or place.before
            assert before is not None, "the first block begins with nothing"
            local = partition.sealed.get(before.block)
            sources: list[Source] = [LocalSource(local)] if local is not None and local.whole else []
            sources += self._sources(partition, before.block, before.replicas)
            for source in sources:
                try:
                    batch = Batch.parse(await source.read(-1, 1), batch_bytes_max=FORMAT_BYTES_MAX)
                    if (batch.index, batch.header_crc) != (before.seal_index, before.seal_crc):
                        raise CorruptBatch("header_crc", "that is another SEAL")
                    seal = decode(batch.payload())
                    if not isinstance(seal, Seal):
                        raise CorruptBatch("payload", "that is no SEAL")
                    done(Genesis(uid=uid, snapshot=seal.snapshot, leases=seal.leases))
                    return
                except ClymqError as error:
                    log.warning("%s/%s: the SEAL of block %d: %s", place.topic, place.partition, before.block, error)
                except Exception as error:
                    # A leader that never begins would keep the others from leading: it leaves.
                    log.exception("%s/%s: block %d cannot begin", place.topic, place.partition, place.block)
                    self._stop(partition)
                    self._report_lost(partition, place.block, ReplicaLost(f"{type(error).__name__}: {error}"))
                    return
            await pause(self._clock, RETRY_MS)

    async def _mend(self, partition: HostedPartition, block: SealedBlock) -> None:
        """Make a sealed block whole, however often it takes, as long as its disk can be written to."""
        pause_ms = RETRY_MS
        while partition.sealed.get(block.number) is block and not block.whole:
            try:
                async with self._mending:
                    await block.mend(
                        self._sources(partition, block.number, block.replicas),
                        lambda messages: self._reports.lost(partition, block.number, messages),
                    )
                log.info("%s/%s: block %d is whole", partition.topic, partition.name, block.number)
                self._reports.whole(partition, block.number)
            except ClymqError as error:
                if isinstance(error, ReplicaLost) or block.failure is not None:
                    block.close()
                    self._report_lost(partition, block.number, error)
                    return
                log.warning(
                    "%s/%s: block %d cannot be mended yet: %s", partition.topic, partition.name, block.number, error
                )
                await pause(self._clock, pause_ms)
                pause_ms = min(2 * pause_ms, RETRY_MS_MAX)
            except Exception as error:
                # It must not stay half mended for ever: it is opened anew when the tree is asked next.
                log.exception("%s/%s: block %d cannot be mended", partition.topic, partition.name, block.number)
                block.close()
                self._report_lost(partition, block.number, ReplicaLost(f"{type(error).__name__}: {error}"))
                return

    def _sources(self, partition: HostedPartition, block: int, replicas: tuple[ReplicaPlace, ...]) -> list[Source]:
        others = [replica.broker for replica in replicas if replica.broker != self._name]
        return [RemoteSource(self._neighbours, name, partition, block, self._name) for name in others]

    # --- Tasks ---

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        task.add_done_callback(log_if_failed)

    async def close(self) -> None:
        """Stop mending and let go of every block."""
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for partition in self.partitions:
            for block in partition.sealed.values():
                block.close()
        self._partitions.clear()


def _key_of(name: str) -> tuple[str, int]:
    """Return uid and number of a block on the list of hosted ones."""
    uid, _, number = name.partition("/")
    return uid, int(number)


class _News:
    """What one fetch block has to tell the controller."""

    def __init__(self, reports: Reports, partition: HostedPartition, block: int) -> None:
        self._reports = reports
        self._partition = partition
        self._block = block

    def began(self, term: int) -> None:
        self._reports.elected(self._partition, self._block, term)

    def needs_move(self, reason: str) -> None:
        self._reports.needs_move(self._partition, self._block, reason)

    def replica_down(self, error: ClymqError) -> None:
        self._reports.replica_down(self._partition, self._block, str(error))
