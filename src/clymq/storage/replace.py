"""Small files that change as a whole, and folders that must be there before anybody relies on them."""

from __future__ import annotations

from collections.abc import Sequence

from clymq.storage.files import Buffer, Files


def replace(files: Files, path: str, buffers: Sequence[Buffer]) -> None:
    """Give a file new contents so that at every moment it has the old or the new ones: beside, sync, rename, sync."""
    beside = f"{path}.new"
    if files.exists(beside):  # left by a crash
        files.remove(beside)
    file = files.open(beside, create=True)
    try:
        file.write(0, buffers)
        file.sync()
    finally:
        file.close()
    files.rename(beside, path)
    files.sync_folder(parent(path))


def read_whole(files: Files, path: str) -> bytes | None:
    """Return all of a small file, or None if there is none."""
    if not files.exists(path):
        return None
    file = files.open(path)
    try:
        return file.read(0, file.size())
    finally:
        file.close()


def make_folders(files: Files, path: str) -> None:
    """Make a folder and those above it that are missing, each durable in its parent BEFORE this returns."""
    above = parent(path)
    if above != path and not files.exists(above):
        make_folders(files, above)
    if not files.exists(path):
        files.make_folder(path)
    # Also when it was there: whoever made it may have died before this.
    files.sync_folder(above)


def remove_folder(files: Files, path: str) -> None:
    """Remove a folder with the files and folders in it."""
    for name in files.names(path):
        inside = f"{path}/{name}"
        if files.names(inside):
            remove_folder(files, inside)
        else:
            files.remove(inside)
    files.remove(path)


def parent(path: str) -> str:
    """Return the folder that a path lies in."""
    return path.rpartition("/")[0] or ("/" if path.startswith("/") else ".")
