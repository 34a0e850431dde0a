"""Where Spark looks for `format("tailrace")`: a top-level module named `pyspark_*` with a `DefaultSource`."""

from compactor.spark_source.source import DefaultSource

__all__ = ["DefaultSource"]
