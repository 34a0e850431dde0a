"""The module in which Spark finds `format("tailrace")`: it searches top-level `pyspark_*` modules for
`DefaultSource`."""

from compactor.spark_source.source import DefaultSource

__all__ = ["DefaultSource"]
