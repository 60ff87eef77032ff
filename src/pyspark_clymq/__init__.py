"""Found by Spark by its name: with this module on the path, `format("clymq")` needs no registration."""

from clymq.spark.source import ClymqDataSource as DefaultSource

__all__ = ["DefaultSource"]
