"""Inputs that once did harm, each found by `scripts/fuzz`: they are refused by name."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from crc32c import crc32c

from clymq.client.admin import partition_names
from clymq.clock import ManualClock
from clymq.config import load
from clymq.errors import ConfigError, CorruptBatch, CorruptBlock, InvalidRequest
from clymq.pipeline.files import load_definition
from clymq.protocol.as_json import message_of
from clymq.protocol.broker import ConInfo, ConsumerKnown
from clymq.protocol.controller import DescribeTopic, PartitionStatus, TopicDescription
from clymq.protocol.verbs import encode
from clymq.replication.entries import decode
from clymq.replication.handed_over import decode_group
from clymq.replication.hosted import Hosted
from clymq.replication.machine import PartitionMachine
from clymq.rpc import Server, connect
from clymq.rpc.memory import MemoryNetwork
from clymq.simulation.fuzz.clients import Clients
from clymq.simulation.fuzz.running import opened as ready
from clymq.storage.block import Block
from clymq.storage.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from clymq.storage.end import End
from clymq.storage.folder import DataFolder
from clymq.storage.memory import MemoryFiles
from clymq.storage.replace import checksum
from clymq.storage.vote import SLOT_BYTES, Vote, VoteFile
from factory import SMALL, built, fill, new_block, reopened, stamped
from rpc_pair import endpoint, feed, hello, opened, until, virtually, wire

NO_UTF8 = b"\xc3\x28"
NESTED = b"\x91" * 5000


def write(files: MemoryFiles, path: str, data: bytes) -> None:
    file = files.open(path, create=True)
    file.truncate(0)
    file.write(0, [data])
    file.close()


# --- Control entries and states ---


@pytest.mark.parametrize("read", [decode, PartitionMachine().restore, decode_group], ids=["entry", "state", "leases"])
@pytest.mark.parametrize("data", [b"\x81\xa2" + NO_UTF8 + b"\x00", b"\x81\xa1x" + NESTED], ids=["no UTF-8", "nested"])
def test_msgpack_that_is_no_text_or_has_no_end_is_a_corrupt_batch(read: Callable[[bytes], object], data: bytes) -> None:
    with pytest.raises(CorruptBatch):
        read(data)


# --- Small files with right checksums ---


def test_a_line_and_a_list_that_are_no_text_are_damage() -> None:
    files = MemoryFiles()
    folder = DataFolder.open(files, "/data", SMALL)
    write(files, "/data/disk", checksum(NO_UTF8) + b" " + NO_UTF8)
    with pytest.raises(CorruptBlock, match="is no text"):
        folder.identity(lambda: "x")
    write(files, "/data/hosted", checksum(NO_UTF8) + b"\n" + NO_UTF8)
    with pytest.raises(CorruptBlock, match="is no text"):
        Hosted.open(files, "/data/hosted")


@pytest.mark.parametrize("spoil", ["name", "sequence"])
def test_a_vote_for_no_name_or_with_the_last_of_all_numbers_is_no_whole_slot(spoil: str) -> None:
    files = MemoryFiles()
    VoteFile.open(files, "/vote", create=True).save(Vote(1, "Broker0"))
    slots = []
    for at in (0, SLOT_BYTES):
        slot = bytearray(files.contents("/vote")[at : at + SLOT_BYTES])
        if spoil == "name":
            slot[44:46] = NO_UTF8
            slot[40:44] = struct.pack("<I", 2)
        else:
            slot[8:16] = b"\xff" * 8
        slots.append(bytes(slot[:-4]) + struct.pack("<I", crc32c(bytes(slot[:-4]))))
    write(files, "/vote", b"".join(slots))
    with pytest.raises(CorruptBlock, match="no slot"):
        VoteFile.open(files, "/vote")


@pytest.mark.parametrize(
    "absurd",
    [
        {"index_entries": 2**63},
        {"position": 2**64 - 1, "index": 1},
        {"end_offset": 2**64 - 2},
        {"start_offset": 5, "end_offset": 4},
        {"commit_index": 2**64 - 1},
        {"missing_through": 2**63},
    ],
)
def test_a_checkpoint_that_is_true_of_no_block_is_damage(absurd: dict[str, int]) -> None:
    files = MemoryFiles()
    empty = {name: getattr(Checkpoint.empty(0), name) for name in Checkpoint.__slots__}
    write_checkpoint(files, "/checkpoint", Checkpoint(**(empty | absurd)))
    with pytest.raises(CorruptBlock, match="true of no block"):
        read_checkpoint(files, "/checkpoint")


def test_a_block_that_begins_beyond_all_offsets_and_has_no_checkpoint_is_damage() -> None:
    files = MemoryFiles()
    block = new_block(files)
    fill(block, 1)
    block.close()
    write(files, "/data/Block_1/batches", bytes(stamped(built([b"x"]), index=1, offset=2**64 - 1).buffer))
    files.remove("/data/Block_1/checkpoint")
    with pytest.raises(CorruptBlock, match="beyond all offsets"):
        reopened(files)


def test_nothing_is_appended_behind_the_last_offset_that_a_checkpoint_can_say() -> None:
    end = End(2**63 - 1)
    with pytest.raises(CorruptBatch, match="beyond all offsets"):
        end.take(stamped(built([b"x"]), index=1, offset=2**63 - 1))
    block = new_block(MemoryFiles())
    assert isinstance(block, Block)
    assert fill(block, 2)


# --- Connections ---


def test_garbage_right_behind_a_handshake_and_a_request_ends_that_connection_alone() -> None:
    """In one read: what comes before the garbage is answered, and whoever looks after all connections goes on."""

    async def main(clock: ManualClock, network: MemoryNetwork) -> None:
        handlers = {ConInfo: lambda call: call.reply(ConsumerKnown(1))}
        server = Server(network.transport("server"), endpoint(clock, "server", handlers, idle_ping_ms=100))
        await server.start("server:1")
        good = await connect(network.transport("good"), "server:1", endpoint(clock, "good"))
        bad = await network.transport("bad").connect("server:1", 1000)
        dialer, _ = opened()
        greeting, _ = hello("bad"), bad.start(Silent())
        first = wire(type(dialer)(greeting).hello())
        request = wire(dialer.ask(1, ConInfo("c")))
        bad.write([first + request + b"garbage" * 10], len(first + request) + 70)
        await until(lambda: server.connections == 1, clock)
        began = clock.monotonic_ms()
        await until(lambda: clock.monotonic_ms() > began + 1000, clock)
        assert (await good.ask(ConInfo("good"), timeout_ms=1000)).reply == ConsumerKnown(1)
        good.close()
        await server.close()

    virtually(main)


class Silent:
    """Receives, and says nothing."""

    def get_buffer(self) -> memoryview:
        return memoryview(bytearray(4096))

    def received(self, count: int) -> None:
        pass

    def closed(self, error: object) -> None:
        pass


def test_a_broken_connection_still_answers_what_came_before() -> None:
    dialer, acceptor = opened()
    feed(acceptor, wire(dialer.ask(1, ConInfo("c"))) + b"garbage" * 10)
    assert wire(acceptor.ping(1))


def test_text_that_is_no_unicode_and_numbers_beyond_64_bits_are_invalid_requests() -> None:
    dialer, _ = opened()
    with pytest.raises(InvalidRequest, match="DescribeTopic cannot be written down"):
        dialer.ask(1, DescribeTopic("\udcff"))


# --- Clients ---


def test_a_hundred_million_partitions_are_refused_before_a_name_is_made_for_each() -> None:
    with pytest.raises(InvalidRequest, match="must be from 0 to 1000000"):
        partition_names(170_558_479)


def lie(verb: str, header: bytes) -> bytes:
    return verb.encode() + b"\0R" + struct.pack("<I", len(header)) + header


@pytest.mark.parametrize(
    ("operation", "told"),
    [
        ("create", lie("DescribeTopic", encode(TopicDescription("t", "i", {}, (PartitionStatus("t", "0", 77),))))),
        ("send", lie("DescribeTopic", encode(TopicDescription("t", "i", {}, (PartitionStatus("t", "", 1),))))),
        (
            "share pushed",
            lie(
                "Pub",
                encode({
                    "subscription": 1, "topic": "t", "partition": "0", "range": [0, 3], "leases": [],
                    "locator": {"block": 1, "broker": "B", "address": "s:1", "end": 3},
                }),
            ),
        ),
    ],
    ids=["an ack that is none", "a partition without a name", "a delivery without a lease"],
)  # fmt: skip
def test_a_client_that_is_lied_to_says_so_and_does_not_wait_for_ever(operation: str, told: bytes) -> None:
    clients = Clients()
    with ready(clients):
        assert clients.run((operation.encode(), told)) in {"refused", "done"}


# --- Files of settings and pipelines ---


@pytest.mark.parametrize("text", ["a = " + "[" * 5000, "log = 1" + "0" * 5000, "window_bytes = 0x1" + "0" * 4000])
def test_settings_that_python_cannot_read_are_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "clymq.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as refused:
        load(file=file)
    assert len(str(refused.value)) < 2000


def test_settings_that_are_no_unicode_are_refused() -> None:
    with pytest.raises(ConfigError, match="mirror_ms"):
        load(environment={"CLYMQ_MIRROR_MS": "\udc91"})


def test_a_file_of_settings_without_end_is_not_read_to_its_end() -> None:
    with pytest.raises(ConfigError, match="more than 1048576 bytes"):
        load(file="/dev/zero")


GOOD = "name: p\ncheckpoint: c\nsources: {s: {topic: t}}\nsinks: [{kind: console, from: s}]\n"


def bomb(levels: int) -> str:
    parts = ["&b0 [1, 2, 3]"] + [f"&b{n} [{', '.join([f'*b{n - 1}'] * 9)}]" for n in range(1, levels)]
    return f"{GOOD}settings:\n  x: [{', '.join(parts)}]\n"


@pytest.mark.parametrize(
    "text",
    [
        bomb(30),
        GOOD + "settings: &a {x: *a}\n",
        GOOD + "settings: {x: 2024-99-99}\n",
        GOOD + "settings: {x: !!timestamp x}\n",
        GOOD + "settings: {x: !!int x}\n",
        GOOD + "settings: {x: " + "[" * 5000,
        GOOD.replace("topic: t", "topic: a/b"),
        GOOD.replace("{topic: t}", '{topics: ["\\ud83d"]}'),
    ],
    ids=["aliases of aliases", "itself", "no date", "no time", "no number", "nested", "no name", "no text"],
)
def test_a_pipeline_file_that_means_harm_is_refused_at_once(tmp_path: Path, text: str) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(text)
    began = time.process_time()
    with pytest.raises(ConfigError) as refused:
        load_definition(file)
    assert len(str(refused.value)) < 5000
    assert time.process_time() - began < 10


def test_an_alias_in_a_pipeline_file_is_no_bomb(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(bomb(4))
    assert load_definition(file).name == "p"


def test_fields_of_a_call_that_are_no_unicode_are_no_json() -> None:
    with pytest.raises(InvalidRequest, match="not JSON"):
        message_of("ListTopics", "\udcff")
