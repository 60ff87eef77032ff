"""A process that hosts bare Raft groups: the driver, real disks and real sockets, and nothing above them.

    python -m clymq.testing.raft_node --name a --listen HOST:PORT --peer b=HOST:PORT --peer c=HOST:PORT --data DIR

It serves `Push`, `InitProducer` and `Pull` for groups named `0`, `1`, ... (as the topic), so that fault tests and
benchmarks can ask of consensus alone what a broker will be asked. It prints `ready NAME HOST:PORT` when it serves.

The data folder has an id, random and made with it, in the file `disk`. `--disk-id` is the one that the groups name as
this replica's: on any other disk nothing is begun, a replica that is missing is lost. Not given: any disk is the right
one, as it is when groups are new.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import random
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from clymq.broker.raft_block import answer_epoch, answer_push, checked_batches
from clymq.clock import SystemClock
from clymq.config import Config, load
from clymq.errors import ClymqError, NotReady, UnknownPartition
from clymq.node.collector import calm_collector
from clymq.protocol.broker import PUSH_RUNS, InitProducer, Pull, Pulled, Push
from clymq.record import producer_id
from clymq.replication.consensus_links import ConsensusLinks, handlers
from clymq.replication.entries import Genesis
from clymq.replication.hosted import Hosted
from clymq.replication.machine import PartitionMachine
from clymq.replication.producers import Claim
from clymq.replication.raft_driver import INCARNATION_MAX
from clymq.replication.raft_host import RaftHost
from clymq.replication.raft_partition import RaftPartition
from clymq.replication.replica import Replica
from clymq.rpc.endpoint import Endpoint
from clymq.rpc.peer import Call
from clymq.rpc.server import Server
from clymq.rpc.transport import TcpTransport
from clymq.storage.files import RealFiles
from clymq.storage.folder import DataFolder
from clymq.storage.replace import read_whole, replace

DISK_FILE: Final = "disk"


class RaftProcess:
    """The groups of one process, and the server in front of them."""

    def __init__(
        self, name: str, data: str, peers: Mapping[str, str], groups: int, config: Config, *, disk_id: str | None = None
    ) -> None:
        self.name = name
        self._config = config
        self._peers = peers
        self._groups = groups
        self._disk_id = disk_id
        self._chance = random.SystemRandom()
        self._clock = SystemClock()
        self._files = RealFiles(sync_threads=config.fsync_threads)
        self._folder = DataFolder.open(self._files, data, config)
        self._partitions: dict[str, RaftPartition] = {}
        incarnation = self._chance.randint(1, INCARNATION_MAX)
        transport = TcpTransport(local=config.local_sockets == "true")
        self._endpoint = Endpoint(
            self._clock, config, name=name, role="broker", incarnation=incarnation, features=(PUSH_RUNS,)
        )
        self._links = ConsensusLinks(transport, self._endpoint, chance=self._chance.random)
        self._host = RaftHost(
            name,
            clock=self._clock,
            config=config,
            links=self._links,
            draw=self._chance.randint,
            incarnation=incarnation,
        )
        self._links.on_open = self._host.reached
        self._endpoint.on_settled = self._host.settle
        self._server = Server(transport, self._endpoint)
        self._endpoint.handlers.update(handlers(self._host))
        self._endpoint.handlers.update({Push: self._push, InitProducer: self._init_producer, Pull: self._pull})

    async def start(self, address: str) -> str:
        """Open every group, listen, and return where."""
        await self._server.start(address)
        hosted = Hosted.open(self._files, f"{self._folder.path}/hosted")
        named_here = self._disk_id in {None, self._disk()}
        for number in range(self._groups):
            self._open(str(number), hosted, named_here=named_here)
        for peer, at in self._peers.items():
            self._links.join(peer, at)
        self._host.start()
        return self._server.address

    async def close(self) -> None:
        """Hand over, then leave."""
        if self._host.hand_over():
            handed = asyncio.Event()
            self._clock.call_later(self._config.election_ms_max, handed.set)
            await handed.wait()
        await self._server.close()
        await self._links.close()
        self._host.close()
        self._files.close()
        self._folder.close()

    def _disk(self) -> str:
        """Return the id of the disk, made and durable BEFORE anything is promised on it."""
        path = f"{self._folder.path}/{DISK_FILE}"
        kept = read_whole(self._files, path)
        if kept is None:
            kept = b"%032x" % self._chance.getrandbits(128)
            replace(self._files, path, [kept])
        return kept.decode()

    def _open(self, group: str, hosted: Hosted, *, named_here: bool) -> None:
        try:
            replica = Replica.open(
                self._files,
                f"{self._folder.path}/{group}/Block_1",
                config=self._config,
                handles=self._folder.handles,
                space=self._folder.space,
                hosted=hosted,
                name=f"{group}/Block_1",
                named_here=named_here,
            )
        except ClymqError as error:
            logging.getLogger("clymq.testing").error("group %s stays out: %s", group, error)
            return
        machine = PartitionMachine()
        partition = RaftPartition(self.name, machine, self._clock, lambda done: done(Genesis(uid=b"u" * 16)))
        driver = self._host.add(group, sorted({self.name, *self._peers}), replica, machine, partition)
        partition.attach(driver)
        self._partitions[group] = partition

    # --- Verbs ---

    def _partition(self, topic: str) -> RaftPartition:
        partition = self._partitions.get(topic)
        if partition is None:
            raise UnknownPartition(f"group {topic} is not here")
        return partition

    def _push(self, call: Call) -> None:
        partition = self._partition(call.request.topic)
        batches = checked_batches(call, self._config)
        partition.push(batches, lambda outcome: answer_push(call, batches, outcome))

    def _init_producer(self, call: Call) -> None:
        request: InitProducer = call.request
        claim = Claim(request.life, request.epoch)
        partition = self._partition(request.topic)
        partition.init_producer(producer_id(request.producer), lambda outcome: answer_epoch(call, outcome), claim)

    def _pull(self, call: Call) -> None:
        """Read what is committed, from the leader only: nothing here waits."""
        request: Pull = call.request
        partition = self._partition(request.topic)
        partition.driver.check_leading()
        if not partition.machine.leading:
            raise NotReady("what earlier terms have committed is not known here yet", hint="try again")
        block = partition.driver.replica.block
        end = block.end_at(min(block.commit_index, block.last_index)).offset
        data = partition.driver.read(request.offset, request.bytes_max) if request.offset < end else memoryview(b"")
        call.reply(Pulled(high_watermark=end, log_start=block.start_offset, block=1), [data] if data else ())


async def serve(arguments: argparse.Namespace, config: Config) -> None:
    """Serve until a signal says that it is enough."""
    peers = dict(peer.split("=", 1) for peer in arguments.peer)
    process = RaftProcess(arguments.name, arguments.data, peers, arguments.groups, config, disk_id=arguments.disk_id)
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    sys.stdout.write(f"ready {arguments.name} {await process.start(arguments.listen)}\n")
    sys.stdout.flush()
    await stopping.wait()
    await process.close()


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the arguments and serve."""
    parser = argparse.ArgumentParser(
        prog="python -m clymq.testing.raft_node", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--name", required=True)
    parser.add_argument("--listen", default="127.0.0.1:0")
    parser.add_argument("--peer", action="append", default=[], help="NAME=HOST:PORT, once for each other member")
    parser.add_argument("--groups", type=int, default=1)
    parser.add_argument("--data", required=True)
    parser.add_argument("--disk-id", help="the disk that the groups name as this replica's")
    parsed = parser.parse_args(arguments)
    config = load(environment=os.environ)
    logging.basicConfig(stream=sys.stderr, level=config.log.upper(), format="%(asctime)s %(levelname)s %(message)s")
    calm_collector()
    asyncio.run(serve(parsed, config))


if __name__ == "__main__":
    main()
