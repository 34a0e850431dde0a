"""Verifies that a Parquet object is sound, and that it returns its sources, before what it replaces is deleted."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fastcrc.crc32 import iscsi as crc32c

from tailrace.batches.record_batch import (
    HEADER_BYTES,
    BatchHeader,
    Compression,
    InvalidBatch,
    check_crc,
    framed,
    read_header,
)
from tailrace.batches.records import InvalidRecords
from tailrace.buffers import Buffer
from tailrace.ids import TopicPartition
from tailrace.parquet_object.decode import UnpackedBatch, decode_batches, unpack
from tailrace.parquet_object.encode import rebuild
from tailrace.parquet_object.header import InvalidParquetObject
from tailrace.parquet_object.read import (
    ParquetIndex,
    PlainBatch,
    read_index,
    record_batches,
    row_group_records,
)
from tailrace.parquet_object.write import SourceBatch, SourceRun


def audit(data: Buffer) -> list[str]:
    """Rebuild every row group's batches and verify their CRCs. Return the first problem found, if any."""
    try:
        index = read_index(data, len(data))
    except InvalidParquetObject as error:
        return [str(error)]
    return audit_rows(data, index)


def audit_rows(data: Buffer, index: ParquetIndex) -> list[str]:
    """Audit like `audit` an object whose index has been read."""
    view = memoryview(data)
    try:
        for group in index.row_groups:
            record_batches(index, group.number, view[group.start : group.start + group.length])
    except (InvalidParquetObject, InvalidBatch, InvalidRecords) as error:
        return [str(error)]
    return []


def verify(data: Buffer, runs: Sequence[SourceRun], *, size: int, crc: int) -> list[str]:
    """Return one sentence per problem of an object; empty if it may replace `runs`.

    Args:
        data: the whole object, as read back from the store.
        runs: the runs given to `write_parquet`, with `batches` that can be iterated again.
        size, crc: as the writer reported them.

    Compares size and checksum, row count, each partition's offsets, and every batch. Canonical batches are compared
    byte for byte if they are uncompressed, and by their decompressed records if not. All others are compared field by
    field.
    """
    if len(data) != size or crc32c(data) != crc:
        return [f"{len(data)} bytes of CRC {crc32c(data):#010x}; written were {size} of {crc:#010x}"]
    view = memoryview(data)
    try:
        index = read_index(view, size)
        return verify_index(index, lambda start, length: view[start : start + length], runs)
    except (InvalidParquetObject, InvalidBatch, InvalidRecords) as error:
        return [str(error)]


def verify_index(
    index: ParquetIndex, fetch: Callable[[int, int], Buffer], runs: Sequence[SourceRun]
) -> list[str]:
    """Verify like `verify`, one row group at a time. `fetch(start, length)` reads back a range."""
    problems: list[str] = []
    rebuilt = _Rebuilt(index, fetch)
    expected_rows = 0
    for run in sorted(
        runs, key=lambda run: (run.topic_name, run.partition.topic_id.int, run.partition.partition)
    ):
        held = index.run_of(*run.partition)
        batch_count = 0
        for batch in run.batches:
            record_count = _header_of(batch).record_count
            if not record_count:
                continue
            expected_rows += record_count
            if held is not None and batch_count < held.batch_count:
                place = held.first_batch + batch_count
                problem = _compare(run.partition, batch, *rebuilt.batch(place))
                if problem:
                    problems.append(problem)
            batch_count += 1
        if held is None:
            if batch_count:
                problems.append(f"{run.partition} is missing")
        elif held.batch_count != batch_count:
            problems.append(f"{run.partition}: {held.batch_count} batches of {batch_count}")
    if expected_rows != index.header.row_count or expected_rows != index.metadata.num_rows:
        problems.append(f"{index.metadata.num_rows} rows; the batches hold {expected_rows}")
    return problems


class _Rebuilt:
    """The object's rebuilt batches, with one row group in memory at a time."""

    def __init__(self, index: ParquetIndex, fetch: Callable[[int, int], Buffer]) -> None:
        self._index = index
        self._fetch = fetch
        self._first = 0
        self._number = -1
        self._records: list[memoryview] = []

    def batch(self, place: int) -> tuple[bytes, memoryview, bool]:
        """Return batch `place`: header bytes, canonical records, and whether the object says that they are exact."""
        while place >= self._first + len(self._records):
            self._first += len(self._records)
            self._number += 1
            group = self._index.row_groups[self._number]
            self._records = row_group_records(
                self._index, self._number, self._fetch(group.start, group.length)
            )
        header = self._index.header
        return (
            header.batch_headers[place * HEADER_BYTES : (place + 1) * HEADER_BYTES],
            self._records[place - self._first],
            bool(header.exact[place]),
        )


def _header_of(batch: SourceBatch | PlainBatch) -> BatchHeader:
    return batch.header if isinstance(batch, PlainBatch) else read_header(batch.data)


def _compare(
    partition: TopicPartition,
    source: SourceBatch | PlainBatch,
    header_bytes: bytes,
    records: memoryview,
    is_exact: bool,
) -> str | None:
    """Describe how a source differs from the batch in the object; None if it does not."""
    if isinstance(source, PlainBatch):
        where = f"{partition}, batch at offset {source.header.base_offset}"
        if (source.header_bytes, source.is_exact) != (header_bytes, is_exact):
            return f"{where}: its header differs"
        return None if _are_same(source.records, records) else f"{where}: its records differ"
    return _compare_stored(
        partition=partition, source=source, header_bytes=header_bytes, records=records, is_exact=is_exact
    )


def _compare_stored(
    partition: TopicPartition, source: SourceBatch, header_bytes: bytes, records: memoryview, is_exact: bool
) -> str | None:
    where = f"{partition}, batch at offset {source.base_offset}"
    data = memoryview(source.data)
    head, rest = framed(data, source.base_offset, source.leader_epoch)
    if header_bytes != b"".join((head, rest[: HEADER_BYTES - len(head)])):
        return f"{where}: its header differs"
    header = read_header(header_bytes)
    if header.compression is Compression.NONE and is_exact:
        return None if _are_same(records, data[HEADER_BYTES:]) else f"{where}: its bytes differ"
    unpacked = unpack(header, data)
    if _are_same(records, unpacked.records):
        return None
    if is_exact:
        return f"{where}: its records differ"
    check_crc(b"".join(rebuild(header, header_bytes, records, header.record_count, is_exact=False)))
    before = decode_batches([unpacked])
    after = decode_batches([UnpackedBatch(header, records)])
    differing = [name for name, column in before.columns.items() if not column.equals(after.columns[name])]
    if before.raw_keys != after.raw_keys:
        differing.append("header keys")
    return f"{where}: {', '.join(differing)} differ" if differing else None


def _are_same(one: Buffer, other: Buffer) -> bool:
    """Whether the bytes are equal. Python compares views item by item at 290 MiB/s; with a copy it does 13 GiB/s."""
    return bytes(one) == bytes(other)
