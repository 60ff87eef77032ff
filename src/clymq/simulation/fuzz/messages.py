"""Headers of messages, drawn by the types of their fields: plausible, absurd, or of another type altogether.

A header is made as plain values and then encoded, not as a struct: a hostile peer has no structs.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from random import Random
from typing import Annotated, Any, Final, Union, get_args, get_origin, get_type_hints

from clymq.protocol.verbs import Verb, all_verbs, encode
from clymq.simulation.fuzz.mutation import BYTES, FLOATS, TEXTS, anything, number, spoilt

VERBS: Final[tuple[Verb, ...]] = tuple(all_verbs())

Plausible = Mapping[str, Sequence[Any]]
"""By the name of a field: values that lead further than chance would."""


class Drawing:
    """Draws headers. `absurd`: how likely each field is to have a value that nobody would send."""

    def __init__(self, plausible: Plausible, *, absurd: float = 0.15, wrong_type: float = 0.03) -> None:
        self._plausible = plausible
        self._absurd = absurd
        self._wrong_type = wrong_type

    def header(self, chance: Random, kind: type) -> bytes:
        """Return the header of a message or a reply; now and then one that is no msgpack of it."""
        made = encode(self.fields(chance, kind))
        return spoilt(chance, made, front=60) if chance.random() < self._wrong_type else made

    def fields(self, chance: Random, kind: type) -> Any:
        """Return a struct as plain values: a map, or a list where its form on the wire is one."""
        shape = _shape(kind)
        chosen: dict[str, Any] = {}
        for name, hint, has_default in shape.fields:
            if has_default and not shape.is_list and chance.random() < 0.4:
                continue
            chosen[name] = self._field(chance, name, hint)
        if shape.tag is not None:
            chosen = {shape.tag[0]: shape.tag[1], **chosen}
        if chance.random() < self._wrong_type:
            _disturb(chance, chosen)
        return list(chosen.values()) if shape.is_list else chosen

    def _field(self, chance: Random, name: str, hint: Any) -> Any:
        if chance.random() < self._wrong_type:
            return anything(chance)
        if name in self._plausible and chance.random() >= self._absurd:
            return chance.choice(self._plausible[name])
        return self._value(chance, hint)

    def _value(self, chance: Random, hint: Any) -> Any:
        inner = get_args(hint)
        ways: dict[Any, Callable[[], Any]] = {
            Annotated: lambda: self._value(chance, inner[0]),
            Union: lambda: self._value(chance, chance.choice(inner)),
            types.UnionType: lambda: self._value(chance, chance.choice(inner)),
            tuple: lambda: [self._value(chance, inner[0]) for _ in range(chance.choice((0, 1, 1, 2, 5, 100)))],
            dict: lambda: {
                self._value(chance, inner[0]): self._value(chance, inner[1]) for _ in range(chance.randrange(4))
            },
        }
        way = ways.get(get_origin(hint))
        if way is not None:
            return way()
        return self.fields(chance, hint) if hasattr(hint, "__struct_fields__") else self._simple(chance, hint)

    def _simple(self, chance: Random, hint: Any) -> Any:
        small = chance.random() >= self._absurd
        drawn: dict[Any, Callable[[], Any]] = {
            int: lambda: chance.choice((0, 1, 1, 2, 3, 10, 1000)) if small else number(chance),
            str: lambda: chance.choice(("a", "b", "t", "0")) if small else chance.choice(TEXTS),
            float: lambda: chance.random() if small else chance.choice(FLOATS),
            bool: lambda: chance.random() < 0.5,
            bytes: lambda: chance.choice(BYTES),
            type(None): lambda: None,
        }
        return drawn[hint]() if hint in drawn else anything(chance)


class _Shape:
    """A struct, as far as its header goes."""

    def __init__(self, kind: Any) -> None:
        hints = get_type_hints(kind, include_extras=True)
        names = kind.__struct_fields__
        required = len(names) - len(kind.__struct_defaults__)
        config = kind.__struct_config__
        self.fields = [(name, hints[name], at >= required) for at, name in enumerate(names)]
        self.is_list = config.array_like
        self.tag = None if config.tag is None else (config.tag_field, config.tag)


_shape: Final = cache(_Shape)


def _disturb(chance: Random, fields: dict[str, Any]) -> None:
    """Leave a field out, or add one that nobody knows."""
    if fields and chance.random() < 0.5:
        del fields[chance.choice(list(fields))]
    else:
        fields[chance.choice(TEXTS)] = anything(chance)
