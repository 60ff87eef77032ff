"""Pipeline files, in YAML and in TOML."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any, Final

from clymq.errors import ConfigError
from clymq.pipeline.files import load_definition
from clymq.simulation.fuzz.mutation import TEXTS, anything, spoilt
from clymq.simulation.fuzz.target import Input, MiB, Target, Violated

_GOOD: Final[dict[str, Any]] = {
    "name": "calls",
    "bootstrap": "127.0.0.1:7878",
    "checkpoint": "state",
    "trigger": "10 seconds",
    "settings": {"spark.sql.shuffle.partitions": 4, "spark.ui.enabled": False},
    "sources": {
        "calls": {
            "topic": "calls",
            "decode": "json",
            "schema": "number STRING, seconds INT",
            "dead_letter": "calls.bad",
            "watermark": {"column": "timestamp", "delay": "1 minute"},
            "options": {"startingOffsets": "earliest"},
        },
        "lines": {"topics": ["a", "b"], "decode": "text"},
        "all": {"pattern": ".*", "decode": "csv", "schema": "a INT", "decode_options": {"sep": ";"}},
    },
    "steps": [{"name": "long_calls", "sql": "SELECT * FROM calls WHERE seconds > 60"}],
    "sinks": [
        {"kind": "topic", "from": "long_calls", "topic": "long", "key": "number"},
        {"kind": "parquet", "from": "calls", "name": "lake", "path": "lake", "partition_by": ["number"]},
        {"kind": "json", "from": "lines", "path": "s3://bucket/lines", "mode": "append"},
        {"kind": "console", "from": "all", "options": {"numRows": 5}},
    ],
}
_YAML: Final = (
    "name: calls\ncheckpoint: state\nsources: {calls: {topic: calls}}\nsinks: [{kind: console, from: calls}]\n",
    "name: &n calls\ncheckpoint: *n\nsources:\n  calls: &c {topic: calls}\n  other: *c\n"
    "sinks:\n- <<: {kind: console}\n  from: calls\n",
)
_PIECES: Final = (
    "&a [*a]", "*nobody", "!!python/object:os.system x", "!!binary x", "!!int x", "!!float x", "!!timestamp x", "!!set",
    "!!omap [1]", "!!bool maybe", "!!null x", "!!merge x", "2024-99-99", "2024-01-01 99:99:99", "0b", "0o9", "1:99:99",
    "190:20:30.15", ".inf", ".nan", "9" * 5000, "? {a: b}\n: c", "? [1]\n: c", "<<: 1", "<<: [1]", "<<: *a", "- ",
    "%YAML 9.9\n---",
    "---\n---", "...", "\t", "\0", "\x07", "|\n", ">9\n", "[" * 400, "[" * 700, "{a: " * 400, "!<!>", "!!str {}", "'",
    '"',
    '"\\x"', '"\\ud800"', "@", "`", "\u2028", "~", "yes", "=",
)  # fmt: skip
YAML: Final = b".yaml"
TOML: Final = b".toml"


class PipelineFiles(Target):
    """Two parts: how the file's name ends, and what is in it."""

    name = "pipeline"
    full = 20_000
    usual = 1_000
    # PyYAML is slow with brackets in brackets, up to its limit.
    seconds_max = 20.0
    bytes_max = 16 * MiB
    wanted = ("taken", "refused")

    def open(self) -> None:
        """Make a place for the file."""
        self._folder = tempfile.TemporaryDirectory(prefix="clymq-fuzz-")

    def close(self) -> None:
        """Remove it."""
        self._folder.cleanup()

    def make(self, chance: Random) -> Input:
        """Change what a good file says, or how it says it."""
        ending = chance.choice((YAML, YAML, TOML, b".yml"))
        document = deepcopy(_GOOD)
        for _ in range(chance.choice((0, 1, 1, 2, 5))):
            _change(chance, document)
        data = (_as_toml(document) if ending == TOML else _as_yaml(chance, document)).encode("utf-8", "surrogatepass")
        if ending != TOML and chance.random() < 0.5:
            data = _yaml_piece(chance, data)
        if chance.random() < 0.3:
            data = spoilt(chance, data, front=3000)
        return (chance.choice((b".json", b"", b".YAML")) if chance.random() < 0.02 else ending), data

    def run(self, given: Input) -> str:
        """Load it, as `clymq pipeline validate` does."""
        ending, data = (*given, b"", b"")[:2]
        path = Path(self._folder.name) / f"pipeline{ending.decode('utf-8', 'replace').replace('/', '')}"
        path.write_bytes(data)
        try:
            found = load_definition(path)
        except ConfigError as error:
            if len(str(error)) > 20_000 + 10 * len(data):
                raise Violated(f"an error of {len(str(error))} characters") from error
            return "refused"
        finally:
            path.unlink()
        if not found.sources or not found.sinks:
            raise Violated("a pipeline from nowhere, or to nowhere")
        return "taken"


def _change(chance: Random, document: Any) -> None:
    """Give some place another value, take it away, or add one."""
    place = document
    while True:
        keys: Any = list(place) if isinstance(place, dict) else range(len(place))
        if not keys:
            return
        key = chance.choice(keys)
        if not isinstance(place[key], dict | list) or chance.random() < 0.3:
            break
        place = place[key]
    ways: tuple[Callable[[], Any], ...] = (
        lambda: place.__setitem__(key, _plain(anything(chance))),
        lambda: place.__setitem__(key, chance.choice(TEXTS)),
        lambda: place.__delitem__(key),
        lambda: place.__setitem__(chance.choice(TEXTS), 1) if isinstance(place, dict) else place.append(place[key]),
    )
    chance.choice(ways)()


def _plain(value: Any) -> Any:
    """Return a value that JSON can say."""
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return {str(name): _plain(each) for name, each in value.items()} if isinstance(value, dict) else value


def _as_yaml(chance: Random, document: Any) -> str:
    """JSON is YAML; now and then a bomb of names for names for names."""
    text = chance.choice(_YAML) if chance.random() < 0.2 else json.dumps(document, indent=1)
    if chance.random() < 0.05:
        bomb = "\n".join(f"b{n}: &b{n} [{', '.join([f'*b{n - 1}'] * 9)}]" for n in range(1, chance.choice((4, 9, 30))))
        where = chance.choice(("settings: {x: *b3}", "steps: *b3", "name: *b3", "", "<<: {settings: {x: *b3}}"))
        text = f"b0: &b0 [1, 2]\n{bomb}\n{where}\n" + chance.choice(_YAML)
    if chance.random() < 0.05:
        text = chance.choice(_YAML) + f"settings:\n  x: {_bomb_in_place(chance.choice((3, 8, 30)))}\n"
    return text


def _bomb_in_place(depth: int) -> str:
    """Return one value, small as a text, large once every name in it is replaced."""
    parts = ["&b0 [1, 2, 3]"] + [f"&b{n} [{', '.join([f'*b{n - 1}'] * 9)}]" for n in range(1, depth)]
    return f"[{', '.join(parts)}]"


def _yaml_piece(chance: Random, data: bytes) -> bytes:
    """Put something that only YAML has in the place of a value."""
    ends = [at for at, byte in enumerate(data) if byte in b":[,{\n"]
    if not ends:
        return data
    at = chance.choice(ends) + 1
    behind = min((end for end in ends if end >= at), default=len(data))
    return data[:at] + b" " + chance.choice(_PIECES).encode() + (data[behind:] if chance.random() < 0.7 else data[at:])


def _as_toml(document: Any) -> str:
    return "".join(f"{_toml_key(name)} = {_toml_value(value)}\n" for name, value in document.items())


def _toml_key(name: str) -> str:
    return json.dumps(name)


def _toml_value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_toml_key(name)} = {_toml_value(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml_value, value))}]"
    return "{}" if value is None else json.dumps(value)
