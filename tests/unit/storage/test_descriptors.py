"""How many files a broker holds open: those that are written to, and a bounded number of others."""

from __future__ import annotations

from pathlib import Path

import msgspec

from clymq.storage.block import Block
from clymq.storage.files import RealFiles
from clymq.storage.handles import Handles
from clymq.storage.vote import Vote, VoteFile
from factory import SMALL, control, following, values_of

BLOCKS = 30
OPEN_MAX = 8


def held(folder: Path) -> list[str]:
    """Return the files below a folder that this process has open."""
    return [target for target in map(_target, Path("/proc/self/fd").iterdir()) if target.startswith(f"{folder}/")]


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except FileNotFoundError:
        return ""  # the descriptor that lists the others


def made(folder: Path, files: RealFiles, handles: Handles) -> list[Block]:
    config = msgspec.structs.replace(SMALL, open_files_max=OPEN_MAX)
    return [
        Block.create(files, f"{folder}/Block_{number}", start_offset=0, config=config, handles=handles)
        for number in range(1, BLOCKS + 1)
    ]


def write(block: Block, value: bytes) -> None:
    block.append([following(block, [value])])
    block.sync()
    block.commit_all()


def test_blocks_that_rest_hold_no_file_and_take_it_up_again_when_they_are_written_to(tmp_path: Path) -> None:
    files = RealFiles()
    handles = Handles(files, OPEN_MAX)
    blocks = made(tmp_path, files, handles)
    for block in blocks:
        write(block, b"1")
    assert len([path for path in held(tmp_path) if path.endswith("/batches")]) == BLOCKS
    for block in blocks:
        block.write_checkpoint(block.last_index, b"state")
    assert len(held(tmp_path)) <= OPEN_MAX
    for block in blocks:
        assert values_of(block) == [b"1"]
    assert len(held(tmp_path)) <= OPEN_MAX
    for block in blocks[:3]:
        write(block, b"2")
        assert values_of(block) == [b"1", b"2"]
    assert len(held(tmp_path)) <= OPEN_MAX + 3
    for block in blocks:
        block.close()
    assert held(tmp_path) == []
    files.close()


def test_sealed_blocks_hold_no_file(tmp_path: Path) -> None:
    files = RealFiles()
    handles = Handles(files, OPEN_MAX)
    blocks = made(tmp_path, files, handles)
    for block in blocks:
        write(block, b"1")
        block.seal(control(block, seal=True))
        block.commit_all()
        block.rest()
    for block in blocks:
        assert values_of(block) == [b"1"]
    assert len(held(tmp_path)) <= OPEN_MAX
    handles.close()
    files.close()


def test_a_vote_file_is_open_only_while_it_is_written(tmp_path: Path) -> None:
    files = RealFiles()
    vote = VoteFile.open(files, f"{tmp_path}/vote", create=True)
    vote.save(Vote(1, "a"))
    assert held(tmp_path) == []
    assert VoteFile.open(files, f"{tmp_path}/vote").vote == Vote(1, "a")
    files.close()
