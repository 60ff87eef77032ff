"""`clymq pipeline`: a file that says what comes from where, what is made of it and where it goes, run by Spark.

PySpark is loaded only when a pipeline runs: the command is there without it, and says what is missing.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, Final

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table

from clymq.cli.asking import Asker, client_command
from clymq.cli.printing import json_text, show_table
from clymq.client.cluster import Cluster
from clymq.client.identity import default_name
from clymq.client.surroundings import Surroundings
from clymq.errors import ConfigError
from clymq.pipeline.checkpoints import QueryStatus, pipeline_status
from clymq.pipeline.definition import Definition
from clymq.pipeline.files import load_definition
from clymq.pipeline.progress import Figures, figures

# Spark's own types have their door elsewhere.
Session = Any
Query = Any

STATUS_COLUMNS: Final = ("query", "batch", "topic", "partition", "offset", "end", "lag")


@click.group()
def pipeline() -> None:
    """Run queries from topics through Spark to topics and files, as a file describes them."""


@pipeline.command()
@click.argument("file", type=click.Path())
@click.option("--master", default="local[*]", show_default=True, help="Where Spark runs.")
@click.option("--once", is_flag=True, help="Do what is there and end, whatever trigger the file has.")
@client_command
def run(asker: Asker, file: str, master: str, once: bool) -> None:
    """Run the pipeline in FILE until it is done, or until SIGINT or SIGTERM."""
    definition = load_definition(file)
    stop = _Stop()
    spark = _spark(definition, master)
    try:
        last = _run(definition, spark, _bootstrap(asker, definition), stop, once=once, quiet=asker.as_json)
    finally:
        spark.stop()
    words = "stopped" if stop.heard else "done"
    asker.answer({"pipeline": definition.name, "queries": [asdict(each) for each in last]}, words)


@pipeline.command()
@click.argument("file", type=click.Path())
@click.option("--no-spark", is_flag=True, help="Look at the file only, not at its SQL.")
@client_command
def validate(asker: Asker, file: str, no_spark: bool) -> None:
    """Check FILE: what it says, and with Spark also its schemas and SQL. Nothing is read or written."""
    definition = load_definition(file)
    if not no_spark:
        spark = _spark(definition, "local[1]")
        try:
            _running(definition, spark, _bootstrap(asker, definition)).writers()
        finally:
            spark.stop()
    counts = {name: len(getattr(definition, name)) for name in ("sources", "steps", "sinks")}
    asker.answer({"pipeline": definition.name, "valid": True, **counts}, f"pipeline {definition.name} is valid")


@pipeline.command()
@click.argument("file", type=click.Path())
@client_command
def status(asker: Asker, file: str) -> None:
    """Show how far the pipeline in FILE is: its last batches, and what waits for it in the cluster."""
    definition = load_definition(file)
    bootstrap = _bootstrap(asker, definition)

    async def ask() -> list[QueryStatus]:
        surroundings = Surroundings(config=asker.config)
        cluster = Cluster(bootstrap, name=default_name(), role="admin", surroundings=surroundings)
        try:
            return await pipeline_status(definition, cluster, asker.timeout)
        finally:
            await cluster.close()

    found = Asker(bootstrap, asker.timeout, asker.as_json, asker.config).run(ask)
    if asker.as_json:
        queries = [{**asdict(each), "lag": each.lag} for each in found]
        click.echo(json_text({"pipeline": definition.name, "queries": queries}))
        return
    rows: list[Sequence[object]] = []
    for each in found:
        batch = each.batch if each.batch >= 0 else "-"
        rows += [[each.query, batch, *(part[name] for name in STATUS_COLUMNS[2:])] for part in each.partitions]
        if not each.partitions:
            rows.append([each.query, batch, "-", "-", "-", "-", "-"])
    show_table(STATUS_COLUMNS, rows)


class _Stop:
    """Whether somebody has said to stop. Signals are heard from when it is made."""

    def __init__(self) -> None:
        self.heard = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._hear)

    def _hear(self, *_: object) -> None:
        self.heard = True


def _bootstrap(asker: Asker, definition: Definition) -> str:
    """Return the address: as it was typed, else as the file says."""
    source = click.get_current_context().get_parameter_source("bootstrap")
    typed = source is not None and source.name != "DEFAULT"
    return asker.bootstrap if typed else definition.bootstrap or asker.bootstrap


def _spark(definition: Definition, master: str) -> Session:
    try:
        from clymq.spark.session import say_nothing, spark_session  # noqa: PLC0415 see the module
    except ImportError:
        raise ConfigError(
            "pyspark", "missing", "pipelines need PySpark and Java 17: pip install 'clymq[spark]'"
        ) from None
    settings = {"spark.ui.showConsoleProgress": "false", **definition.settings}
    session = spark_session(definition.name, master=master, settings=settings)
    # What goes wrong is reported here, once.
    say_nothing(session)
    return session


def _running(definition: Definition, spark: Session, bootstrap: str) -> Any:
    from clymq.pipeline.running import Running  # noqa: PLC0415 see the module

    return Running(spark, definition, bootstrap)


def _run(
    definition: Definition, spark: Session, bootstrap: str, stop: _Stop, *, once: bool, quiet: bool
) -> list[Figures]:
    running = _running(replace(definition, trigger="once") if once else definition, spark, bootstrap)
    shown = _Shown(quiet=quiet)
    with shown:
        running.start()
        running.wait(lambda: stop.heard, shown.look)
    return shown.last


class _Shown:
    """The queries as they run: a live table on a terminal, a line for each batch elsewhere; always on stderr."""

    def __init__(self, *, quiet: bool) -> None:
        self.last: list[Figures] = []
        self._console = Console(stderr=True)
        self._live = Live(console=self._console, auto_refresh=False) if sys.stderr.isatty() and not quiet else None
        self._quiet = quiet
        self._seen: dict[str, int] = {}

    def __enter__(self) -> _Shown:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def look(self, queries: dict[str, Query]) -> None:
        """Show where the queries are."""
        self.last = [_figures(name, query) for name, query in queries.items()]
        if self._live is not None:
            self._live.update(_table(self.last), refresh=True)
        elif not self._quiet:
            for each in self.last:
                if each.batch > self._seen.get(each.query, -1):
                    self._seen[each.query] = each.batch
                    click.echo(_line(each), err=True)


def _figures(name: str, query: Query) -> Figures:
    progress = query.lastProgress
    if query.isActive:
        state = "running" if query.status["isDataAvailable"] or query.status["isTriggerActive"] else "waiting"
    else:
        state = "failed" if query.exception() else "ended"
    return figures(name, state, None if progress is None else json.loads(progress.json))


def _table(rows: list[Figures]) -> Table:
    table = Table()
    for heading in ("query", "state", "batch", "rows", "rows/s", "lag", "batch ms"):
        table.add_column(heading, justify="left" if heading in {"query", "state"} else "right")
    for each in rows:
        batch = str(each.batch) if each.batch >= 0 else "-"
        rate = f"{each.rows_per_second:,.0f}"
        table.add_row(each.query, each.state, batch, f"{each.rows:,}", rate, f"{each.lag:,}", f"{each.batch_ms:,}")
    return table


def _line(each: Figures) -> str:
    return (
        f"{each.query}: batch {each.batch}, {each.rows} rows, {each.rows_per_second:.0f} rows/s, lag {each.lag}, "
        f"{each.batch_ms} ms"
    )
