"""Pipeline files: YAML or TOML, by the name's ending."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

from clymq.errors import ConfigError
from clymq.pipeline.definition import Definition, parse_definition
from clymq.pipeline.kinds import CHECKS


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
        text = place.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("FILE", str(place), f"cannot be read: {error}") from None
    if place.suffix == ".toml":
        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ConfigError("FILE", str(place), f"is not TOML: {error}") from None
    if place.suffix not in {".yaml", ".yml"}:
        raise ConfigError("FILE", str(place), "must end in .yaml, .yml or .toml")
    try:
        import yaml  # noqa: PLC0415 TOML works without it
    except ImportError:
        raise ConfigError("FILE", str(place), "needs PyYAML: pip install 'clymq[spark]', or write it in TOML") from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError("FILE", str(place), f"is not YAML: {' '.join(str(error).split())}") from None
