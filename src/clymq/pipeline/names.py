"""What the queries of a pipeline are called; their checkpoints lie in folders of these names."""

from __future__ import annotations

from clymq.pipeline.definition import Definition, Source


def dead_letter_query(source: str) -> str:
    """Return the name of the query that keeps what does not decode."""
    return f"{source}-dead-letters"


def queries_of(definition: Definition) -> dict[str, tuple[Source, ...]]:
    """Return the queries and the sources that each may read."""
    queries = {sink.name: definition.sources for sink in definition.sinks}
    return queries | {dead_letter_query(source.name): (source,) for source in definition.dead_letters}
