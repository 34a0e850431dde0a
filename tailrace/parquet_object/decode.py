"""Decodes record batches into Arrow columns, directly into the buffers that Arrow keeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tailrace.batches.compression import MAX_UNPACKED_BYTES, CannotUnpack, decompress
from tailrace.batches.record_batch import HEADER_BYTES, BatchHeader
from tailrace.batches.records import InvalidRecords
from tailrace.buffers import Buffer
from tailrace.parquet_object import kernels
from tailrace.parquet_object.header import RawHeaderKeys
from tailrace.parquet_object.schema import HEADERS_TYPE

Array = Any
"""A numpy or pyarrow array; mypy does not check either library's types."""

_MIN_RECORD_BYTES = 7


@dataclass(frozen=True, slots=True)
class UnpackedBatch:
    """A batch with decompressed records. `header` has the assigned offsets."""

    header: BatchHeader
    records: Buffer


@dataclass(frozen=True, slots=True)
class DecodedRows:
    """The records of some batches as columns, in the batches' order.

    `exact[b]` is 1 if batch b's records are canonical: encoding the rows again, with `raw_keys`, gives the same bytes.
    `raw_keys`: the header keys that are not UTF-8. The columns have U+FFFD in place of their wrong bytes.
    """

    columns: dict[str, Array]
    row_count: int
    record_counts: list[int]
    exact: bytes
    raw_keys: RawHeaderKeys


def unpack(header: BatchHeader, batch: Buffer, *, max_bytes: int = MAX_UNPACKED_BYTES) -> UnpackedBatch:
    """Decompress one batch's records. Raises InvalidRecords."""
    try:
        body = memoryview(batch)[HEADER_BYTES:]
        return UnpackedBatch(header, decompress(header.compression, body, max_bytes=max_bytes))
    except CannotUnpack as error:
        raise InvalidRecords(f"batch at offset {header.base_offset}: {error}") from error


def decode_batches(batches: Sequence[UnpackedBatch]) -> DecodedRows:
    """Decode the records of all batches. They must be less than 2 GiB in total (Arrow's 32-bit offsets).

    Raises InvalidRecords with the batch if records do not match the batch's header.
    """
    headers = [batch.header for batch in batches]
    _check_counts(batches)
    source = np.frombuffer(b"".join(batch.records for batch in batches), np.uint8)
    size = len(source)
    assert size < 1 << 31, f"{size} bytes at once; decode fewer batches"
    starts = np.zeros(len(batches) + 1, np.int64)
    np.cumsum([len(batch.records) for batch in batches], out=starts[1:])
    counts = np.array([header.record_count for header in headers], np.int64)
    has_append_time = np.array([header.timestamp_type for header in headers], np.uint8)
    rows = _Rows(int(counts.sum()), size)
    exact = np.zeros(len(batches), np.uint8)
    totals = np.zeros(kernels.TOTALS, np.int64)
    reason, which = kernels.decode(
        source,
        starts,
        counts,
        np.array([header.base_offset for header in headers], np.int64),
        np.array([header.last_offset_delta for header in headers], np.int64),
        np.array([header.base_timestamp for header in headers], np.int64),
        np.array([header.max_timestamp for header in headers], np.int64),
        has_append_time,
        rows.offsets,
        rows.timestamps,
        rows.created,
        rows.kinds,
        rows.keys.offsets,
        rows.keys.data,
        rows.keys.valid,
        rows.values.offsets,
        rows.values.data,
        rows.values.valid,
        rows.header_offsets,
        rows.names.offsets,
        rows.names.data,
        rows.header_values.offsets,
        rows.header_values.data,
        rows.header_values.valid,
        exact,
        totals,
    )
    if reason != kernels.OK:
        raise InvalidRecords(f"batch at offset {headers[which].base_offset}: {kernels.REASONS[reason]}")
    columns = rows.columns(totals, counts, has_append_time)
    return DecodedRows(
        columns=columns,
        row_count=rows.count,
        record_counts=counts.tolist(),
        exact=exact.tobytes(),
        raw_keys=rows.raw_keys,
    )


def _check_counts(batches: Sequence[UnpackedBatch]) -> None:
    """Raise InvalidRecords if a batch declares more records than its bytes can contain. Nothing is allocated before."""
    for batch in batches:
        if batch.header.record_count * _MIN_RECORD_BYTES > len(batch.records):
            raise InvalidRecords(
                f"batch at offset {batch.header.base_offset}: {batch.header.record_count} records "
                f"in {len(batch.records)} bytes"
            )


class _Rows:
    """Buffers for the columns of `count` records in `size` bytes, which the kernel fills.

    They have the size of the worst case. The system maps only written pages, so unused ones cost nothing.
    """

    def __init__(self, count: int, size: int) -> None:
        self.count = count
        self.offsets, self.timestamps, self.created = (np.empty(count, np.int64) for _ in range(3))
        self.kinds = np.empty(count, np.int8)
        self.keys, self.values = _Binary(count, size), _Binary(count, size)
        most_headers = size // 2 + 1
        self.header_offsets = np.empty(count + 1, np.int32)
        self.names, self.header_values = _Binary(most_headers, size, 0), _Binary(most_headers, size, 0)
        self.raw_keys = RawHeaderKeys()

    def columns(self, totals: Array, counts: Array, has_append_time: Array) -> dict[str, Array]:
        """Return the columns by name. `totals` come from the kernel; the other arguments have a value per batch."""
        return {
            "offset": _numbers(self.offsets, pa.int64()),
            "timestamp": _numbers(self.timestamps, pa.timestamp("ms", tz="UTC")),
            "timestamp_type": _numbers(self.kinds, pa.int8()),
            "create_timestamp": _created(self.created, counts, has_append_time),
            "key": self.keys.array(pa.binary(), self.count, int(totals[kernels.KEY_NULLS])),
            "value": self.values.array(pa.binary(), self.count, int(totals[kernels.VALUE_NULLS])),
            "headers": self._headers(totals),
        }

    def _headers(self, totals: Array) -> Array:
        count = int(totals[kernels.HEADER_COUNT])
        self.header_values.valid = ~self.header_values.valid[: (count + 7) // 8]
        names = self.names.array(pa.string(), count, 0)
        if totals[kernels.NOT_ASCII] and not _is_utf8(names):
            names = self._as_text(self.names.array(pa.binary(), count, 0))
        values = self.header_values.array(pa.binary(), count, int(totals[kernels.HEADER_NULLS]))
        entries = pa.StructArray.from_arrays([names, values], fields=list(HEADERS_TYPE.value_type))
        offsets = pa.py_buffer(self.header_offsets)
        return pa.Array.from_buffers(
            HEADERS_TYPE, self.count, [None, offsets], null_count=0, children=[entries]
        )

    def _as_text(self, names: Array) -> Array:
        """Return header keys with U+FFFD in place of bytes that are not UTF-8. Sets `raw_keys`."""
        encoded = names.dictionary_encode()
        keys = encoded.dictionary.to_pylist()
        texts = [key.decode(errors="replace") for key in keys]
        numbers = encoded.indices.to_numpy()
        is_raw = np.array([text.encode() != key for text, key in zip(texts, keys, strict=True)])
        raw = np.flatnonzero(is_raw[numbers])
        rows = np.searchsorted(self.header_offsets, raw, "right") - 1
        lengths = self.names.offsets[raw + 1] - self.names.offsets[raw]
        self.raw_keys = RawHeaderKeys(
            rows.astype("<u4").tobytes(),
            (raw - self.header_offsets[rows]).astype("<u4").tobytes(),
            lengths.astype("<u4").tobytes(),
            b"".join([keys[number] for number in numbers[raw]]),
        )
        return pa.array(texts, pa.string()).take(encoded.indices)


class _Binary:
    """Buffers for a column of byte strings: offsets, data, and a validity bitmap."""

    __slots__ = ("data", "offsets", "valid")

    def __init__(self, count: int, size: int, fill: int = 255) -> None:
        self.offsets: Array = np.empty(count + 1, np.int32)
        self.data: Array = np.empty(size, np.uint8)
        bitmap_bytes = (count + 7) // 8
        self.valid: Array = (
            np.full(bitmap_bytes, fill, np.uint8) if fill else np.zeros(bitmap_bytes, np.uint8)
        )

    def array(self, kind: Any, count: int, nulls: int) -> Array:
        used = int(self.offsets[count])
        buffers = [
            pa.py_buffer(self.valid[: (count + 7) // 8]) if nulls else None,
            pa.py_buffer(self.offsets[: count + 1]),
            pa.py_buffer(self.data[:used]),
        ]
        return pa.Array.from_buffers(kind, count, buffers, null_count=nulls)


def _numbers(values: Array, kind: Any) -> Array:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)], null_count=0)


def _created(created: Array, counts: Array, has_append_time: Array) -> Array:
    kind = pa.timestamp("ms", tz="UTC")
    if not has_append_time.any():
        return pa.nulls(len(created), kind)
    is_null = np.repeat(has_append_time == 0, counts)
    return pa.array(np.where(is_null, 0, created), pa.int64(), mask=is_null).cast(kind)


def _is_utf8(names: Array) -> bool:
    try:
        names.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True
