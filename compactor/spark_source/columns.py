"""The source's columns, with the names, order and types of Spark's own Kafka source."""

from __future__ import annotations

from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc


class Column(NamedTuple):
    """A column's Arrow type, Spark type, and name in our Parquet objects."""

    arrow: Any
    spark: str
    stored: str


COLUMNS = {
    "key": Column(pa.binary(), "binary", "key"),
    "value": Column(pa.binary(), "binary", "value"),
    "topic": Column(pa.string(), "string", "topic"),
    "partition": Column(pa.int32(), "int", "partition"),
    "offset": Column(pa.int64(), "bigint", "offset"),
    "timestamp": Column(pa.timestamp("us", tz="UTC"), "timestamp_ltz", "timestamp"),
    "timestampType": Column(pa.int32(), "int", "timestamp_type"),
    "headers": Column(
        pa.list_(pa.struct([pa.field("key", pa.string(), False), pa.field("value", pa.binary())])),
        "array<struct<key: string, value: binary>>",
        "headers",
    ),
    "createTimestamp": Column(pa.timestamp("us", tz="UTC"), "timestamp_ltz", "create_timestamp"),
}
"""`createTimestamp` is an addition: the producer's time if the topic's timestamps are the broker's, else null. In DDL,
`timestamp` would be the type that the setting `spark.sql.timestampType` names."""

KAFKA_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
"""The columns of a query by default."""
NEVER_NULL = frozenset({"topic", "partition", "offset", "timestamp", "timestampType"})


def with_kafkas_headers(batch: Any) -> Any:
    """Return the record batch with null in place of empty headers, like Spark's Kafka source."""
    index = batch.schema.get_field_index("headers")
    if index < 0:
        return batch
    headers = batch.column(index)
    is_empty = pc.equal(pc.fill_null(pc.list_value_length(headers), 0), 0)
    if not pc.any(is_empty).as_py():
        return batch
    nulled = pc.if_else(is_empty, pa.scalar(None, headers.type), headers)
    return batch.set_column(index, batch.schema.field(index), nulled)


def spark_schema(columns: tuple[str, ...]) -> str:
    return ", ".join(f"{name} {COLUMNS[name].spark}" for name in columns)
