"""The public surface as `docs/reference.md` has it is the one that there is."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

import clymq
from clymq.cli.commands import Commands
from clymq.cli.main import cli

PAGE = (Path(__file__).parents[1] / "docs/reference.md").read_text()
OF_ALL_COMMANDS = {"--bootstrap", "--timeout", "--json", "--help"}
OF_ALL_CLIENTS = {"start", "close"}
# Documented with the pipelines.
ELSEWHERE = {"pipeline"}


def rows(table: str) -> list[list[str]]:
    """Return the cells of a table of the page."""
    text = PAGE.split(f"<!-- table: {table} -->\n")[1].split("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()[2:]]


def written(function: Any) -> str:
    """Return parameters as the page writes them."""
    parts: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name in {"self", "surroundings"}:
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in parts:
            parts.append("*")
        default = parameter.default
        shown = str(default) if isinstance(default, enum.Enum) else repr(default)
        if isinstance(default, enum.Enum):
            shown = f"{type(default).__name__}.{default.name}"
        parts.append(parameter.name if default is parameter.empty else f"{parameter.name}={shown}")
    return ", ".join(parts)


METHODS = {name.strip("`"): parameters.strip("`") for name, parameters, _ in rows("methods")}


@pytest.mark.parametrize("kind", ["Admin", "Producer", "Consumer"])
@pytest.mark.parametrize("prefix", ["", "Async"])
def test_classes_have_the_methods_and_parameters_of_the_table(prefix: str, kind: str) -> None:
    found = getattr(clymq, prefix + kind)
    documented = {name.partition(".")[2] for name in METHODS if name.startswith(f"{kind}.")}
    there = {name for name, value in inspect.getmembers(found, inspect.isfunction) if not name.startswith("_")}
    assert documented == there - OF_ALL_CLIENTS
    assert METHODS[kind] == written(found.__init__)
    for name in documented:
        assert METHODS[f"{kind}.{name}"] == written(getattr(found, name)), name


def test_every_root_export_is_named() -> None:
    exports = re.findall(r"\w+", PAGE.split("From `clymq`: `")[1].split("`")[0])
    assert sorted(exports) == sorted(clymq.__all__)


@pytest.mark.parametrize(("name", "fields"), [(row[0].strip("`"), row[1]) for row in rows("fields")])
def test_records_have_the_fields_of_the_table(name: str, fields: str) -> None:
    documented = re.findall(r"`([^`]+)`", fields)
    kind: Any = getattr(clymq, name)
    if issubclass(kind, enum.IntEnum):
        assert sorted(documented) == sorted(f"{each.name}={each.value}" for each in kind)
    elif dataclasses.is_dataclass(kind):
        assert documented == [field.name for field in dataclasses.fields(kind)]
    else:
        assert documented == list(kind._fields)


def commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        for name, each in (command.load_all() if isinstance(command, Commands) else command.commands).items():
            yield from commands(each, (*path, name))
    elif path[0] not in ELSEWHERE:
        yield " ".join(path), command


def flags_of(command: click.Command) -> dict[str, str]:
    """Return each flag with its default as the page writes it; empty: none."""
    found = {}
    for option in command.params:
        if isinstance(option, click.Option) and not OF_ALL_COMMANDS & set(option.opts):
            shown = option.to_info_dict()["default"]
            found[option.opts[0]] = "" if shown in (None, False, ()) else str(shown)
    return found


def test_commands_and_their_flags_are_those_of_the_table() -> None:
    documented = {}
    for cell, flags, _ in rows("commands"):
        words = cell.strip("`").split()
        name = " ".join(word for word in words if word.islower())
        documented[name] = dict(re.findall(r"`(--[\w-]+)`(?: \(([^)]*)\))?", flags))
    assert documented == {name: flags_of(command) for name, command in commands(cli)}


def test_commands_take_the_arguments_of_the_table() -> None:
    there = dict(commands(cli))
    for cell, _, _ in rows("commands"):
        words = cell.strip("`").split()
        name = " ".join(word for word in words if word.islower())
        arguments = [each for each in there[name].params if isinstance(each, click.Argument)]
        optional = [word.startswith("[") for word in words if not word.islower()]
        assert optional == [not each.required for each in arguments], name


def test_every_command_that_asks_a_cluster_says_where_how_long_and_in_json() -> None:
    alone = {"zkserver", "broker", "zookeeper", "up", "dump", "call", "completion"}
    for name, command in commands(cli):
        flags = {flag for option in command.params for flag in option.opts}
        assert flags >= {"--bootstrap", "--timeout", "--json"} or name in alone, name
