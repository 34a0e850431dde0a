"""The columns of a Parquet object, and how they are stored.

`timestamp` is the time that a consumer sees: the producer's, or the broker's if the topic uses LogAppendTime. In that
case `create_timestamp` keeps the producer's time, which is needed to rebuild the batch. Otherwise it is null and takes
no space. A time that does not fit into 64-bit microseconds is stored in both columns as the nearest one that does, and
the object's header has the record's original time. `batch` numbers the batches of the file: rows with the same number
were one batch.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

HEADERS_TYPE = pa.list_(
    pa.field(
        "element",
        pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())]),
        nullable=False,
    )
)

SCHEMA = pa.schema(
    [
        pa.field("topic", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("ms", tz="UTC"), nullable=False),
        pa.field("timestamp_type", pa.int8(), nullable=False),
        pa.field("create_timestamp", pa.timestamp("ms", tz="UTC")),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS_TYPE, nullable=False),
        pa.field("batch", pa.int32(), nullable=False),
    ]
)

LOG_SCHEMA = SCHEMA.set(SCHEMA.get_field_index("topic"), pa.field("topic", pa.string(), nullable=False))
"""The schema without the dictionary type, which Iceberg does not have. The files keep their dictionaries."""

REPLAY_COLUMNS = ["offset", "timestamp", "create_timestamp", "key", "value", "headers"]
"""The columns that are needed to rebuild batches. The rest is in the header."""

_DICTIONARY = ["topic", "partition", "timestamp_type", "headers.list.element.key"]
_ENCODINGS = {
    "offset": "DELTA_BINARY_PACKED",
    "timestamp": "DELTA_BINARY_PACKED",
    "create_timestamp": "DELTA_BINARY_PACKED",
    "batch": "DELTA_BINARY_PACKED",
    "key": "DELTA_LENGTH_BYTE_ARRAY",
    "value": "DELTA_LENGTH_BYTE_ARRAY",
    "headers.list.element.value": "DELTA_LENGTH_BYTE_ARRAY",
}
TIME_COLUMNS = ("timestamp", "create_timestamp")
LEAST_TIME_MS, GREATEST_TIME_MS = -9_223_372_022_400_000, 9_223_372_036_854_775
"""The range of times that 64-bit microseconds hold in Iceberg, Arrow, Spark and DuckDB; DuckDB's starts a little
later."""

COLUMNS_WITH_BOUNDS = ["topic", "partition", "offset", "timestamp", "timestamp_type", "key", "batch"]


_KEY_FILTER = {"key": {"ndv": 1 << 17, "fpp": 0.05}}
"""Each row group has a Bloom filter of its keys. It takes 128 KiB while it is written, and is then folded to 1 to 1.6
bytes per distinct key. With more than 131,072 keys it has more false positives."""


def within_microseconds(times: Any) -> Any:
    """Clip a column of times in milliseconds to the range that 64-bit microseconds hold."""
    numbers = times.cast(pa.int64())
    ends = pc.min_max(numbers).as_py()
    if ends["min"] is None or (ends["min"] >= LEAST_TIME_MS and ends["max"] <= GREATEST_TIME_MS):
        return times
    bounded = pc.min_element_wise(numbers, GREATEST_TIME_MS, skip_nulls=False)
    return pc.max_element_wise(bounded, LEAST_TIME_MS, skip_nulls=False).cast(times.type)


def writer(sink: Any) -> pq.ParquetWriter:
    """Return a Parquet writer with Tailrace's settings."""
    sorting = [pq.SortingColumn(SCHEMA.get_field_index(name)) for name in ("topic", "partition", "offset")]
    return pq.ParquetWriter(
        sink,
        SCHEMA,
        compression="zstd",
        compression_level=1,
        use_dictionary=_DICTIONARY,
        column_encoding=_ENCODINGS,
        write_statistics=COLUMNS_WITH_BOUNDS,
        write_page_index=True,
        write_page_checksum=True,
        sorting_columns=sorting,
        bloom_filter_options=_KEY_FILTER,
    )
