"""Encodes Arrow columns as record batches, with their original boundaries, headers and offsets.

A batch whose records were uncompressed and canonical is rebuilt byte for byte. Its old CRC must match the new bytes;
otherwise the rows are corrupt. Any other batch is rebuilt record for record: its records are encoded canonically and
compressed with the same codec, and CRC and length are computed again, because recompression does not give the same
bytes. Offsets, last offset delta, timestamps, producer, sequence and delete horizon always come from the header.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Any

import numpy as np
from fastcrc.crc32 import iscsi as crc32c

from tailrace.batches.compression import compress
from tailrace.batches.record_batch import CRC_START, HEADER_BYTES, BatchHeader, Compression, assemble_like
from tailrace.buffers import Buffer
from tailrace.parquet_object import kernels
from tailrace.parquet_object.header import InvalidParquetObject

Array = Any
_NOTHING = np.frombuffer(b"", np.uint8)
_OWN_ROWS = np.empty(0, np.int64)
_CRC = Struct(">I")


def encode_records(
    table: Any, headers: Sequence[BatchHeader], record_counts: Sequence[int], *, places: Array = _OWN_ROWS
) -> list[memoryview]:
    """Encode the canonical, uncompressed records of each batch. `table` has exactly their rows, in order.

    `places` (int64): the row of `table` in which each record has its key and its value, if not in its own.

    Raises InvalidParquetObject if the number of rows differs from the batches' record counts.
    """
    rows = sum(record_counts)
    if table.num_rows != rows:
        raise InvalidParquetObject(f"{table.num_rows} rows; the batches count {rows}")
    if not rows:
        return [memoryview(b"") for _ in headers]
    keys, values = _binary(_column(table, "key")), _binary(_column(table, "value"))
    listed = _column(table, "headers")
    header_offsets = _slice(listed.buffers()[1], np.int32, listed.offset, rows + 1)
    entries = listed.values
    names, header_values = _binary(entries.field(0)), _binary(entries.field(1))
    assert entries.offset == 0, "Parquet gives whole arrays"
    first_rows = np.zeros(len(headers) + 1, np.int64)
    np.cumsum(record_counts, out=first_rows[1:])
    data_bytes = sum(int(offsets[-1]) for offsets, _, _ in (keys, values, names, header_values))
    target = np.empty(kernels.bound(rows, len(entries), data_bytes), np.uint8)
    starts = np.empty(len(headers) + 1, np.int64)
    kernels.encode(
        target,
        starts,
        first_rows,
        np.array([header.base_offset for header in headers], np.int64),
        np.array([header.base_timestamp for header in headers], np.int64),
        np.array([header.timestamp_type for header in headers], np.uint8),
        _numbers(_column(table, "offset")),
        _numbers(_column(table, "timestamp")),
        _numbers(_column(table, "create_timestamp")),
        places,
        *keys,
        *values,
        header_offsets,
        *names[:2],
        *header_values,
    )
    view = memoryview(target.data)
    return [view[start:end] for start, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)]


def rebuild(
    header: BatchHeader, header_bytes: bytes, records: memoryview, record_count: int, *, is_exact: bool
) -> tuple[Buffer, ...]:
    """Rebuild one batch, as parts, from its old header (parsed and as bytes) and its canonical records.

    Raises InvalidParquetObject.
    """
    if header.compression is Compression.NONE and is_exact:
        crc = crc32c(records, crc32c(memoryview(header_bytes)[CRC_START:]))
        if crc != header.crc or header.length != HEADER_BYTES + len(records):
            raise InvalidParquetObject(
                f"batch at offset {header.base_offset}: rows give {HEADER_BYTES + len(records)} bytes of CRC "
                f"{crc:#010x}; its header says {header.length} of {header.crc:#010x}"
            )
        return header_bytes, records
    return (assemble_like(header, compress(header.compression, records), record_count),)


def _column(table: Any, name: str) -> Array:
    column = table.column(name)
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _slice(buffer: Any, kind: Any, start: int, count: int) -> Array:
    width = np.dtype(kind).itemsize
    return np.frombuffer(buffer, kind, count=count, offset=start * width)


def _numbers(array: Array) -> Array:
    return _slice(array.buffers()[1], np.int64, array.offset, len(array))


def _binary(array: Array) -> tuple[Array, Array, Array]:
    valid, offsets, data = array.buffers()
    if array.offset:
        return _binary(_compact(array))
    if len(array) == 0 or offsets is None:
        return np.frombuffer(bytes(4), np.int32), _NOTHING, _NOTHING
    return (
        _slice(offsets, np.int32, 0, len(array) + 1),
        _NOTHING if data is None else np.frombuffer(data, np.uint8),
        np.frombuffer(valid, np.uint8) if valid is not None and array.null_count else _NOTHING,
    )


def _compact(array: Array) -> Array:
    """Copy the array's values into new buffers that start with them."""
    return array.take(np.arange(len(array)))
