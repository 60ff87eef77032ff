"""Settings from files, from the environment, from flags and of topics."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from random import Random
from typing import Any, Final

from clymq.config import Config, load, settings, topic_settings
from clymq.errors import ConfigError
from clymq.simulation.fuzz.mutation import BYTES, FLOATS, TEXTS, anything, number, spoilt
from clymq.simulation.fuzz.target import Input, MiB, Target, Violated

_NAMES: Final = tuple(setting.name for setting in settings())
_WORDS: Final = tuple(word for setting in settings() for word in setting.allowed.removeprefix("one of ").split(", "))
_TOML: Final = (
    'log = "debug"\nmessage_bytes_max = 1000\nbatch_bytes_max = 0x10_000\n',
    "election_ms_min = 100\nelection_ms_max = 200\nheartbeat_ms = 50\n",
    'fsync = "commit"\nretention_ms = -1\n[table]\na = [1, 2.5, "x", {b = 1979-05-27T07:32:00Z}]\n',
    "fsync_threads = +4\nlog = '''info'''\n",
)
_TOML_PIECES: Final = (
    "[[a]]", "[a.b.c]", "a = ", "= 1", '"""', "'''", "\\u0000", "inf", "nan", "1e400", "0x" + "f" * 300, "9" * 5000,
    "2024-13-45", "[" * 300, "{" * 50, "[" * 5000, "\r", "\0", "#", "a.b.c.d = 1",
)  # fmt: skip
_ERROR_CHARACTERS_MAX: Final = 20_000
FILE: Final = b"file"
NO_FILE: Final = b"no file"


class Settings(Target):
    """Parts: whether there is a file, what is in it; then `name=value`, of the environment, a flag or a topic."""

    name = "config"
    full = 20_000
    usual = 4_000
    bytes_max = 8 * MiB
    wanted = ("taken", "refused")

    def open(self) -> None:
        """Make a place for the file."""
        self._folder = tempfile.TemporaryDirectory(prefix="clymq-fuzz-")
        self._path = Path(self._folder.name) / "clymq.toml"

    def close(self) -> None:
        """Remove it."""
        self._folder.cleanup()

    def make(self, chance: Random) -> Input:
        """Write a file and some values."""
        kinds = chance.choices((b"environment", b"flag", b"topic"), k=chance.choice((0, 1, 1, 3)))
        values = [b"%s %s=%s" % (kind, _name(chance), _text(chance)) for kind in kinds]
        return (FILE if chance.random() < 0.6 else NO_FILE), _toml(chance), *values

    def run(self, given: Input) -> str:
        """Load it, as the command does."""
        there, content, *values = (*given, b"", b"")[: max(2, len(given))]
        self._path.write_bytes(content)
        try:
            config = load(
                file=self._path if there == FILE else None,
                environment=_of(values, b"environment"),
                flags=_typed(_of(values, b"flag")),
            )
            topic_settings(_typed(_of(values, b"topic")), config)
        except ConfigError as error:
            if len(str(error)) > _ERROR_CHARACTERS_MAX + len(error.setting):
                raise Violated(f"an error of {len(str(error))} characters") from error
            return "refused"
        if not isinstance(config, Config):
            raise Violated("these are no settings")
        return "taken"


def _of(values: list[bytes], kind: bytes) -> dict[str, str]:
    """Return the values of one origin; as Python reads the environment, bytes that are no UTF-8 included."""
    found = {}
    for value in values:
        origin, _, rest = value.partition(b" ")
        name, _, text = rest.partition(b"=")
        if origin == kind:
            key = os.fsdecode(name)
            found[f"CLYMQ_{key.upper()}" if kind == b"environment" and key != "VERBOSE" else key] = os.fsdecode(text)
    return found


def _typed(values: dict[str, str]) -> dict[str, object]:
    """Give some of them the type that a caller in Python might."""
    odd: tuple[Any, ...] = (*FLOATS, None, True, b"\xff", [], {}, [[]], 2**70, object())
    return {name: odd[len(text) % len(odd)] if text.startswith("odd") else text for name, text in values.items()}


def _name(chance: Random) -> bytes:
    if chance.random() < 0.85:
        return chance.choice(_NAMES).encode()
    return chance.choice((b"VERBOSE", b"", chance.choice(TEXTS).encode(), b"log\xff", b"bootstrap"))


def _text(chance: Random) -> bytes:
    way = chance.random()
    if way < 0.35:
        return str(chance.choice((0, 1, 100, 1000, 65536, 2**20, 2**30))).encode()
    if way < 0.5:
        return str(number(chance)).encode()
    if way < 0.6:
        return b"odd" + b"." * chance.randrange(30)
    if way < 0.75:
        return chance.choice(_WORDS).encode()
    return chance.choice((chance.choice(TEXTS).encode(), chance.choice(BYTES)))


def _toml(chance: Random) -> bytes:
    text = chance.choice(_TOML)
    for _ in range(chance.choice((0, 0, 1, 2, 4))):
        value = chance.choice((str(number(chance)), repr(anything(chance)), f'"{chance.choice(TEXTS)}"', "true"))
        text += f"{chance.choice(_NAMES)} = {value}\n"
    data = text.encode()
    if chance.random() < 0.3:
        at = chance.randrange(len(data))
        data = data[:at] + chance.choice(_TOML_PIECES).encode() + data[at:]
    return spoilt(chance, data) if chance.random() < 0.3 else data
