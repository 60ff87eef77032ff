"""Pipeline files: YAML or TOML, by the name's ending."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from clymq.config import read_text
from clymq.errors import ConfigError
from clymq.pipeline.definition import Definition, parse_definition
from clymq.pipeline.kinds import CHECKS

NODES_MAX: Final = 100_000
_UNDER_WAY: Final = -1
# What PyYAML lets through when a value is not what its tag says: a date without a month, a number without digits.
_NOT_YAML: Final = (ValueError, TypeError, AttributeError, KeyError, IndexError, OverflowError, RecursionError)


def load_definition(path: str | Path) -> Definition:
    """Read a pipeline file; relative folders in it are meant from where the file is."""
    place = Path(path)
    found = parse_definition(_document(place), CHECKS)
    folder = place.resolve().parent
    sinks = tuple(
        replace(sink, fields={**sink.fields, "path": _absolute(folder, sink.fields["path"])})
        if "path" in sink.fields
        else sink
        for sink in found.sinks
    )
    return replace(found, checkpoint=_absolute(folder, found.checkpoint), sinks=sinks)


def _absolute(folder: Path, path: str) -> str:
    return path if "://" in path else str(folder / path)


def _document(place: Path) -> Any:
    try:
        text = read_text(place)
    except (OSError, ValueError) as error:
        raise ConfigError("FILE", str(place), f"cannot be read: {error}") from None
    if place.suffix == ".toml":
        try:
            return tomllib.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigError("FILE", str(place), f"is not TOML: {error}") from None
    if place.suffix not in {".yaml", ".yml"}:
        raise ConfigError("FILE", str(place), "must end in .yaml, .yml or .toml")
    try:
        import yaml  # noqa: PLC0415 TOML works without it
    except ImportError:
        raise ConfigError("FILE", str(place), "needs PyYAML: pip install 'clymq[spark]', or write it in TOML") from None
    try:
        return _loaded(yaml.SafeLoader(text))
    except (yaml.YAMLError, *_NOT_YAML) as error:
        raise ConfigError("FILE", str(place), f"is not YAML: {' '.join(str(error).split())}") from None


def _loaded(loader: Any) -> Any:
    """Return what a document says; names in it that stand for each other must not come to more than it could say."""
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        if _size(node, {}) > NODES_MAX:
            raise ValueError(f"with every alias replaced it has more than {NODES_MAX} values")
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _size(node: Any, known: dict[int, int]) -> int:
    """Count a node and those in it, as often as they are named."""
    if isinstance(node.value, str):
        return 1
    if known.get(id(node)) == _UNDER_WAY:
        raise ValueError("a value is part of itself")
    if id(node) not in known:
        known[id(node)] = _UNDER_WAY
        inside = [each for entry in node.value for each in (entry if isinstance(entry, tuple) else (entry,))]
        known[id(node)] = 1 + sum(_size(each, known) for each in inside)
    return known[id(node)]
