"""Messages to columns: what decodes goes on, what does not is kept with the reason.

The columns of a decoded row are those of its schema, and with a leading underscore those of the message: `_key`,
`_topic`, `_partition`, `_offset`, `_timestamp`. A row that does not decode has its reason in `_problem`.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 as everybody writes it
from pyspark.sql.types import StringType, StructField, StructType

from clymq.pipeline.definition import Source

PROBLEM: Final = "_problem"
_CORRUPT: Final = "_corrupt"
_DECODED: Final = "_decoded"
_OF_MESSAGE: Final = ("key", "topic", "partition", "offset", "timestamp")


def good_rows(messages: DataFrame, source: Source, schema: StructType | None) -> DataFrame:
    """Return the rows that decode."""
    if source.decode == "raw":
        return messages
    judged = _judged(messages, source, schema)
    good = judged.where(F.col(PROBLEM).isNull())
    decoded = [F.col(f"{_DECODED}.{name}") for name in schema.fieldNames()] if schema is not None else []
    if source.decode == "text":
        decoded = [F.col(_DECODED).alias("value")]
    return good.select(*decoded, *(F.col(name).alias(f"_{name}") for name in _OF_MESSAGE))


def bad_rows(messages: DataFrame, source: Source, schema: StructType | None) -> DataFrame:
    """Return the rows that do not decode, as messages for the dead letters: as they were, with the reason beside."""
    bad = _judged(messages, source, schema).where(F.col(PROBLEM).isNotNull())
    headers = {
        "reason": F.col(PROBLEM),
        "topic": F.col("topic"),
        "partition": F.col("partition"),
        "offset": F.col("offset").cast("string"),
    }
    pairs = [F.struct(F.lit(name).alias("key"), value.cast("binary").alias("value")) for name, value in headers.items()]
    return bad.select("key", "value", "timestamp", F.array(*pairs).alias("headers"))


def _judged(messages: DataFrame, source: Source, schema: StructType | None) -> DataFrame:
    """Add what was decoded, and the problem if there is one."""
    text = F.col("value").cast("string")
    valid = F.expr("is_valid_utf8(value)")
    problem: Column
    if source.decode == "text":
        decoded, problem = text, F.lit(None).cast("string")
    else:
        assert schema is not None
        asked = StructType([*schema.fields, StructField(_CORRUPT, StringType())])
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT, **source.decode_options}
        read = F.from_json(text, asked, options) if source.decode == "json" else F.from_csv(text, _ddl(asked), options)
        decoded = read
        fits = F.lit(f"does not fit the schema as {source.decode}")
        problem = F.when(F.col(f"{_DECODED}.{_CORRUPT}").isNotNull(), fits).when(F.col(_DECODED).isNull(), fits)
    with_decoded = messages.withColumn(_DECODED, decoded)
    return with_decoded.withColumn(PROBLEM, F.when(~valid, F.lit("is not UTF-8")).otherwise(problem))


def _ddl(schema: StructType) -> str:
    return ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in schema.fields)
