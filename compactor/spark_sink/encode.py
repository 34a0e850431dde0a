"""Encodes rows as record batches, sorted by topic and partition. Pure.

Rows of a partition keep their order. A batch ends at `BATCH_BYTES` of records, or at its topic's limit if that is less.
All records of one call have the same timestamp.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from compactor.spark_sink.rows import InvalidRow, SinkRows, Target
from tailrace.batches.compression import compress
from tailrace.batches.mixed_object import BatchCoordinates, RunInput, coordinates
from tailrace.batches.record_batch import (
    HEADER_BYTES,
    LOG_APPEND_TIME_FLAG,
    MAGIC,
    BatchHeader,
    Compression,
    head_like,
    read_header,
)
from tailrace.buffers import Buffer
from tailrace.ids import TopicPartition
from tailrace.parquet_object.encode import encode_records

BATCH_BYTES = 1 << 20
GATHERED_BYTES = 256
"""Keys and values of rows of at least this mean size are encoded from where they are. Shorter ones are copied into
order first, because to read them from many places costs more than the copy."""
_RECORD_BYTES = 27
"""The most bytes of a record's lengths and deltas."""
_HEADER_BYTES = 10
"""The most bytes of a header's two lengths."""
Array = Any
EncodedBatch = tuple[BatchCoordinates, tuple[Buffer, Buffer]]
"""A batch's coordinates, its header and its records."""


def encode_rows(rows: SinkRows, compression: Compression, now_ms: int) -> list[RunInput]:
    """Encode rows as the runs of one object. Raises InvalidRow for a record that its topic does not accept."""
    order = np.lexsort((rows.partitions, rows.topics))
    partition_keys = (rows.topics.astype(np.int64) << 32 | rows.partitions)[order]
    sizes = _most_bytes(rows)[order]
    cuts = list(_cuts(partition_keys, sizes, rows))
    headers = [
        _unfinished_header(rows.targets[partition_key >> 32], start, now_ms)
        for partition_key, start, _ in cuts
    ]
    counts = [end - start for _, start, end in cuts]
    if sizes.sum() >= GATHERED_BYTES * len(rows):
        encoded = encode_records(_columns(rows, order, now_ms), headers, counts, places=order)
    else:
        taken = replace(rows, key=rows.key.take(order), value=rows.value.take(order))
        encoded = encode_records(_columns(taken, order, now_ms), headers, counts)
    runs: dict[int, list[EncodedBatch]] = {}
    for (partition_key, start, end), header, records in zip(cuts, headers, encoded, strict=True):
        batch = _encoded_batch(records, header, end - start, compression)
        size, target = batch[0].length, rows.targets[partition_key >> 32]
        if size > target.settings.max_message_bytes:
            row = rows.first + int(order[start])
            raise InvalidRow(
                f"row {row} of its task is a record batch of {size} bytes; max.message.bytes of topic"
                f" {target.topic.name!r} is {target.settings.max_message_bytes}"
            )
        runs.setdefault(partition_key, []).append(batch)
    return [
        _run(rows.targets[partition_key >> 32], partition_key & 0xFFFFFFFF, batches)
        for partition_key, batches in runs.items()
    ]


def _run(target: Target, partition: int, batches: list[EncodedBatch]) -> RunInput:
    return TopicPartition(target.topic.topic_id, partition), target.topic.name, batches


def _most_bytes(rows: SinkRows) -> Array:
    """Return the most uncompressed bytes of each record."""
    sizes = np.full(len(rows), _RECORD_BYTES, np.int64)
    for column in (rows.key, rows.value):
        sizes += np.asarray(pc.fill_null(pc.binary_length(column), 0))
    if rows.headers.null_count < len(rows):
        parents = np.asarray(pc.list_parent_indices(rows.headers))
        fields = pc.list_flatten(rows.headers)
        for name in (0, 1):
            lengths = np.asarray(pc.fill_null(pc.binary_length(fields.field(name)), 0))
            sizes += np.bincount(parents, lengths, len(rows)).astype(np.int64)
        sizes += np.bincount(parents, minlength=len(rows)) * _HEADER_BYTES
    return sizes


def _cuts(partition_keys: Array, sizes: Array, rows: SinkRows) -> Iterator[tuple[int, int, int]]:
    """Yield the partition key, first row and end of each batch. A single record may exceed the limit; its batch is
    checked later."""
    if not len(partition_keys):
        return
    ends = np.append(np.flatnonzero(partition_keys[1:] != partition_keys[:-1]) + 1, len(partition_keys))
    sums = np.cumsum(sizes)
    start = 0
    for group_end in ends.tolist():
        partition_key = int(partition_keys[start])
        most = rows.targets[partition_key >> 32].settings.max_message_bytes - HEADER_BYTES
        bound = min(BATCH_BYTES, most)
        while start < group_end:
            before = int(sums[start - 1]) if start else 0
            end = int(np.searchsorted(sums, before + bound, "right"))
            end = min(max(end, start + 1), group_end)
            yield partition_key, start, end
            start = end


def _unfinished_header(target: Target, first_row: int, now_ms: int) -> BatchHeader:
    """Return a header with the fields that encoding needs. Row numbers serve as offsets."""
    return BatchHeader(
        base_offset=first_row,
        length=0,
        leader_epoch=-1,
        magic=MAGIC,
        crc=0,
        attributes=LOG_APPEND_TIME_FLAG if target.settings.log_append_time else 0,
        last_offset_delta=0,
        base_timestamp=now_ms,
        max_timestamp=now_ms,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        record_count=0,
    )


def _columns(rows: SinkRows, order: Array, now_ms: int) -> Any:
    """Return the columns that `encode_records` takes: keys and values as they are, all others in this order."""
    times = pa.array(np.full(len(rows), now_ms, np.int64))
    return pa.table(
        {
            "key": rows.key,
            "value": rows.value,
            "headers": rows.headers.take(order),
            "offset": pa.array(np.arange(len(rows), dtype=np.int64)),
            "timestamp": times,
            "create_timestamp": times,
        }
    )


def _encoded_batch(
    records: memoryview, header: BatchHeader, count: int, compression: Compression
) -> EncodedBatch:
    """Return the batch. It stays uncompressed, and is not copied, if compression does not make it smaller."""
    body: Buffer = records
    codec = Compression.NONE
    if compression is not Compression.NONE:
        packed = compress(compression, records)
        if len(packed) < len(records):
            body, codec = packed, compression
    header = msgspec.structs.replace(
        header, base_offset=0, attributes=header.attributes | codec, last_offset_delta=count - 1
    )
    head = head_like(header, body, count)
    return coordinates(read_header(head)), (head, body)
