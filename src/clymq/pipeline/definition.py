"""What a pipeline file says: read from plain dictionaries, checked to the last key, and nothing of Spark in it.

A mistake is an error that names where it is (`sources.calls.decode`) and what is allowed there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

from clymq.errors import ClymqError, ConfigError, InvalidName
from clymq.spark.options import duration_ms, source_options
from clymq.types import check_name

DECODERS: Final = ("json", "csv", "text", "raw")
ONCE: Final = "once"
_WORD: Final = "letters, digits and _, not beginning with a digit"


@dataclass(frozen=True, slots=True)
class Watermark:
    """How late rows may come by a column's time."""

    column: str
    delay: str


@dataclass(frozen=True, slots=True)
class Source:
    """A view over topics."""

    name: str
    topics: tuple[str, ...] = ()
    pattern: str = ""
    decode: str = "raw"
    schema: str | None = None
    """None: raw and text need none, JSON is looked at."""
    dead_letter: str | None = None
    watermark: Watermark | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    decode_options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Step:
    """A view made by SQL of the views before it."""

    name: str
    sql: str
    watermark: Watermark | None = None


@dataclass(frozen=True, slots=True)
class Sink:
    """Where a view goes; what is in `fields` depends on the kind."""

    name: str
    view: str
    kind: str
    mode: str
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Definition:
    """A whole pipeline."""

    name: str
    bootstrap: str | None
    checkpoint: str
    trigger: str
    """`once`, or an interval."""
    settings: Mapping[str, str]
    sources: tuple[Source, ...]
    steps: tuple[Step, ...]
    sinks: tuple[Sink, ...]

    @property
    def dead_letters(self) -> tuple[Source, ...]:
        """Sources whose bad rows are kept."""
        return tuple(source for source in self.sources if source.dead_letter)


SinkCheck = Callable[[str, Mapping[str, Any], str], Mapping[str, Any]]
"""(where it stands, what is there, the output mode) -> what is taken over."""


def parse_definition(document: Any, sinks: Mapping[str, SinkCheck]) -> Definition:
    """Return what a document means; `sinks` are the kinds that there are."""
    top = _Section("", document)
    top.only("name", "bootstrap", "checkpoint", "trigger", "settings", "sources", "steps", "sinks")
    views: list[str] = []
    sources = tuple(_source(name, section, views) for name, section in top.sections("sources"))
    steps = tuple(_step(section, views) for section in top.items("steps", required=False))
    trigger = top.text("trigger", ONCE)
    if trigger != ONCE:
        top.checked("trigger", lambda: duration_ms(trigger))
    return Definition(
        name=top.name("name"),
        bootstrap=top.text("bootstrap", None),
        checkpoint=top.text("checkpoint"),
        trigger=trigger,
        settings=top.texts("settings"),
        sources=sources,
        steps=steps,
        sinks=_sinks(top, views, sinks),
    )


def _source(name: str, section: _Section, views: list[str]) -> Source:
    section.only(
        "topic", "topics", "pattern", "decode", "schema", "dead_letter", "watermark", "options", "decode_options"
    )
    given = [key for key in ("topic", "topics", "pattern") if section.has(key)]
    if len(given) != 1:
        section.refuse("topic", "exactly one of topic, topics and pattern is required")
    decode = section.one_of("decode", DECODERS, "raw")
    schema = section.text("schema", None)
    if decode == "csv" and schema is None:
        section.refuse("schema", "is required for csv")
    if decode in {"text", "raw"} and schema is not None:
        section.refuse("schema", f"means nothing with decode {decode}")
    if decode == "raw" and section.has("dead_letter"):
        section.refuse("dead_letter", "means nothing with decode raw: every row decodes")
    _new_view(section.at("name"), name, views)
    given_topics = section.strings("topics") if section.has("topics") else (section.text("topic", ""),)
    topics = tuple(section.named(given[0], topic) for topic in given_topics if topic)
    pattern = section.text("pattern", "")
    _check_options(section, {"subscribePattern": pattern} if pattern else {"subscribe": ",".join(topics)})
    return Source(
        name=name,
        topics=topics,
        pattern=pattern,
        decode=decode,
        schema=schema,
        dead_letter=section.name("dead_letter") if section.has("dead_letter") else None,
        watermark=_watermark(section),
        options=section.texts("options"),
        decode_options=section.texts("decode_options"),
    )


def _check_options(section: _Section, subscription: Mapping[str, str]) -> None:
    """Refuse what the source would refuse when the query starts."""
    try:
        source_options({"bootstrap.servers": "-", **section.texts("options"), **subscription}, "stream")
    except ConfigError as error:
        place = section.at("options") if error.setting not in subscription else section.place
        raise ConfigError(f"{place}.{error.setting}", error.value, error.allowed) from None
    except InvalidName as error:
        raise ConfigError(section.at("options"), section.texts("options"), str(error)) from None


def _step(section: _Section, views: list[str]) -> Step:
    section.only("name", "sql", "watermark")
    name = section.text("name")
    _new_view(section.at("name"), name, views)
    return Step(name, section.text("sql"), _watermark(section))


def _sinks(top: _Section, views: list[str], kinds: Mapping[str, SinkCheck]) -> tuple[Sink, ...]:
    found: list[Sink] = []
    for section in top.items("sinks"):
        kind = section.one_of("kind", tuple(kinds))
        view = section.one_of("from", tuple(views))
        name = section.text("name", f"{view}-{kind}")
        section.checked("name", lambda name=name: check_name(name, "sink"))  # type: ignore[misc]
        if name in {each.name for each in found}:
            section.refuse("name", f"{name} is there twice")
        mode = section.one_of("mode", ("append", "update", "complete"), "append")
        rest = section.without("kind", "from", "name", "mode")
        found.append(Sink(name, view, kind, mode, kinds[kind](section.place, rest, mode)))
    return tuple(found)


def _watermark(section: _Section) -> Watermark | None:
    if not section.has("watermark"):
        return None
    inner = section.section("watermark")
    inner.only("column", "delay")
    delay = inner.text("delay")
    inner.checked("delay", lambda: duration_ms(delay))
    return Watermark(inner.text("column"), delay)


def _new_view(where: str, name: str, views: list[str]) -> None:
    if not name.isidentifier():
        raise ConfigError(where, name, f"a view's name has {_WORD}")
    if name in views:
        raise ConfigError(where, name, "is the name of another view")
    views.append(name)


class _Section:
    """A dictionary of the file, and where it stands."""

    def __init__(self, place: str, given: Any) -> None:
        self.place = place
        if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in given):
            raise ConfigError(place or "pipeline", given, "must be a table of names and values")
        self._given = given

    def at(self, key: str) -> str:
        return f"{self.place}.{key}" if self.place else key

    def refuse(self, key: str, why: str) -> NoReturn:
        raise ConfigError(self.at(key), self._given.get(key), why)

    def has(self, key: str) -> bool:
        return key in self._given

    def only(self, *keys: str) -> None:
        for key in self._given:
            if key not in keys:
                self.refuse(key, f"is not known; allowed are {', '.join(keys)}")

    def checked(self, key: str, check: Callable[[], object]) -> None:
        try:
            check()
        except (ValueError, ClymqError) as error:
            raise ConfigError(self.at(key), self._given.get(key), str(error)) from None

    def text(self, key: str, default: Any = ...) -> Any:
        value = self._given.get(key, default)
        if value is ...:
            self.refuse(key, "is required")
        if value is not default and (not isinstance(value, str) or not value.strip()):
            self.refuse(key, "must be text")
        return value

    def name(self, key: str) -> str:
        return self.named(key, str(self.text(key)))

    def named(self, key: str, value: str) -> str:
        self.checked(key, lambda: check_name(value, key))
        return value

    def one_of(self, key: str, words: tuple[str, ...], default: Any = ...) -> str:
        value = self.text(key, default)
        if value not in words:
            self.refuse(key, f"must be one of {', '.join(words)}")
        return str(value)

    def strings(self, key: str) -> tuple[str, ...]:
        value = self._given[key]
        if not isinstance(value, list) or not value or not all(isinstance(each, str) for each in value):
            self.refuse(key, "must be a list of names")
        return tuple(value)

    def texts(self, key: str) -> dict[str, str]:
        """Return names and values as options are given to Spark."""
        value = self._given.get(key) or {}
        if not isinstance(value, Mapping):
            self.refuse(key, "must be a table of names and values")
        return {str(name): _option(each) for name, each in value.items()}

    def section(self, key: str) -> _Section:
        return _Section(self.at(key), self._given[key])

    def sections(self, key: str) -> list[tuple[str, _Section]]:
        value = self._given.get(key)
        if not isinstance(value, Mapping) or not value:
            self.refuse(key, "is required: a table of at least one")
        return [(str(name), _Section(f"{self.at(key)}.{name}", each)) for name, each in value.items()]

    def items(self, key: str, *, required: bool = True) -> list[_Section]:
        value = self._given.get(key)
        if value is None and not required:
            return []
        if not isinstance(value, list) or not value:
            self.refuse(key, "is required: a list of at least one")
        return [_Section(f"{self.at(key)}[{at}]", each) for at, each in enumerate(value)]

    def without(self, *keys: str) -> dict[str, Any]:
        return {key: value for key, value in self._given.items() if key not in keys}


def _option(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
