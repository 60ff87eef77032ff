"""What lies on a broker's disk and is not named by the tree: left from a time when it was.

A topic may have been deleted, and made anew, while this broker was away; a block may have left by retention. What is
hosted is found by names that carry ids which are never used twice, so nothing of this is ever opened. A partition's
folder that is not named is also renamed to `*.orphan`, so that everybody who looks can see what it is; it is deleted a
while later, as are blocks that are not named in a partition that is.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Final

from clymq.storage.files import Files
from clymq.storage.replace import parent, remove_folder

ORPHAN: Final = ".orphan"
_BLOCK: Final = "Block_"

log = logging.getLogger("clymq.broker")


def set_aside_strays(files: Files, data: str, uids: Collection[str]) -> list[str]:
    """Rename the folders of partitions that are none of these; return all that are set aside, by now or before."""
    orphans = []
    for topic in (f"{data}/{name}" for name in files.names(data) if "~" in name):
        for name in [name for name in files.names(topic) if "~" in name]:
            path = f"{topic}/{name}"
            if not name.endswith(ORPHAN):
                if name.rpartition("~")[2] in uids:
                    continue
                path = _set_aside(files, path)
            orphans.append(path)
    return orphans


def remove_orphan(files: Files, path: str) -> None:
    """Delete a folder that was set aside, and that of its topic if nothing else is in it."""
    topic = parent(path)
    remove_folder(files, path)
    files.sync_folder(topic)
    log.info("%s is deleted", path)
    if not any("~" in name for name in files.names(topic)):
        remove_folder(files, topic)
        files.sync_folder(parent(topic))


def forgotten_blocks(files: Files, partition: str, numbers: Collection[int]) -> list[int]:
    """Return the blocks in a partition's folder that are none of these."""
    names = [name.removeprefix(_BLOCK) for name in files.names(partition) if name.startswith(_BLOCK)]
    return sorted(int(digits) for digits in names if digits.isdigit() and int(digits) not in numbers)


def blocks_on_disk(files: Files, data: str) -> set[tuple[str, int]]:
    """Return uid and number of every block that has a folder, set aside or not."""
    found: set[tuple[str, int]] = set()
    for topic in (f"{data}/{name}" for name in files.names(data) if "~" in name):
        for name in (name for name in files.names(topic) if "~" in name):
            uid = name.rpartition("~")[2].partition(".")[0]
            found |= {(uid, number) for number in forgotten_blocks(files, f"{topic}/{name}", ())}
    return found


def _set_aside(files: Files, path: str) -> str:
    """Give a folder its new name; one that was set aside before, and came back, has a number as well."""
    new, count = f"{path}{ORPHAN}", 1
    while files.exists(new):
        count += 1
        new = f"{path}.{count}{ORPHAN}"
    files.rename(path, new)
    files.sync_folder(parent(path))
    log.warning("%s is not named by the tree; it is %s now", path, new)
    return new
