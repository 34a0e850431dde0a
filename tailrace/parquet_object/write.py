"""Writes record batches into one Parquet file, in memory or at a path.

Rows are sorted by topic, partition and offset. A row group ends only between batches, so that replay needs one row
group for any offset. A row group of more than SHARED_GROUP_BYTES contains only one partition, so a replay of a
partition decodes little else.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from fastcrc.crc32 import iscsi as crc32c

from tailrace.batches.record_batch import (
    HEADER_BYTES,
    BatchHeader,
    TruncatedBatch,
    check_crc,
    framed,
    read_header,
)
from tailrace.buffers import Buffer
from tailrace.ids import TopicPartition
from tailrace.parquet_object.decode import UnpackedBatch, decode_batches, unpack
from tailrace.parquet_object.header import (
    METADATA_KEY,
    VERSION,
    ParquetHeader,
    ParquetRun,
    RawHeaderKeys,
    RowGroupBatches,
    pack_header,
)
from tailrace.parquet_object.read import ParquetIndex, PlainBatch, RowGroupRange, read_index
from tailrace.parquet_object.schema import SCHEMA, TIME_COLUMNS, within_microseconds, writer

ROW_GROUP_BYTES = 16 << 20
MAX_BATCH_BYTES = 128 << 20
"""The most decompressed bytes of one batch. Some kilobytes can decompress to half a gigabyte, too much for a task."""
SHARED_GROUP_BYTES = 1 << 20
"""Partitions with fewer bytes share row groups of about this size, because each row group costs some 2 KB of footer."""
_READ_BACK_BYTES = 1 << 20


class SourceBatch(NamedTuple):
    """A stored batch, with the base offset and epoch that its commit assigned."""

    data: Buffer
    base_offset: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class SourceRun:
    """The input from one partition. `batches` ascend in offset and are iterated once. They are stored batches, or come
    from other Parquet objects.

    `base_offset` and `end_offset` (exclusive) are the range that the object replaces, if it is larger than the range of
    the batches, because aborted ones are missing. None means from the first batch to the last.
    """

    partition: TopicPartition
    topic_name: str
    batches: Iterable[SourceBatch | PlainBatch]
    base_offset: int | None = None
    end_offset: int | None = None


@dataclass(frozen=True, slots=True)
class WrittenParquet:
    """The result of a write. `data`: the file, if no path was given. `crc`: the CRC-32C of the whole file. `index_crc`:
    that of the bytes from `index_start` on."""

    path: str | None
    data: Buffer | None
    size: int
    crc: int
    row_count: int
    runs: list[ParquetRun]
    row_groups: list[RowGroupRange]
    index: ParquetIndex
    index_crc: int

    @property
    def index_start(self) -> int:
        """The byte at which the footer begins. A reader first fetches the bytes from here to the end."""
        return self.size - self.index.footer_bytes


def write_parquet(
    runs: Sequence[SourceRun],
    *,
    object_id: UUID,
    cluster_id: str,
    created_ms: int,
    path: str | None = None,
    row_group_bytes: int = ROW_GROUP_BYTES,
) -> WrittenParquet:
    """Write the runs' records, sorted by topic and partition. Each partition must occur once.

    Args:
        path: a local file; None keeps the file in memory.
        row_group_bytes: the most decompressed bytes of records in a row group, unless one batch has more.

    Raises InvalidBatch or InvalidRecords for an invalid batch, ValueError for a partition that occurs twice or offsets
    that do not ascend.
    """
    ordered = sorted(
        runs, key=lambda run: (run.topic_name, run.partition.topic_id.int, run.partition.partition)
    )
    if len({run.partition for run in ordered}) != len(ordered):
        raise ValueError("a partition occurs twice; give all its batches as one run")
    sink: Any = pa.BufferOutputStream() if path is None else path
    with writer(sink) as parquet:
        sheet = _ParquetOutput(parquet, row_group_bytes)
        for run in ordered:
            sheet.add_run(run)
        sheet.cut()
        header = sheet.header(cluster_id, object_id, created_ms)
        parquet.add_key_value_metadata({METADATA_KEY: pack_header(header)})
    data: memoryview | None = None
    if path is None:
        data = tail = memoryview(sink.getvalue())
        size, crc = len(data), int(crc32c(data))
    else:
        size, crc, tail = _sum_up(path)
    index = read_index(tail, size)
    return WrittenParquet(
        path=path,
        data=data,
        size=size,
        crc=crc,
        row_count=header.row_count,
        runs=header.runs,
        row_groups=index.row_groups,
        index=index,
        index_crc=int(crc32c(tail[len(tail) - index.footer_bytes :])),
    )


def _sum_up(path: str) -> tuple[int, int, memoryview]:
    """Return the size, CRC-32C and footer of the written file."""
    size = crc = 0
    with open(path, "rb") as file:
        while piece := file.read(_READ_BACK_BYTES):
            size += len(piece)
            crc = crc32c(piece, crc) if size > len(piece) else crc32c(piece)
        file.seek(max(0, size - 8))
        footer_bytes = int.from_bytes(file.read(4), "little") + 8
        file.seek(max(0, size - footer_bytes))
        return size, int(crc), memoryview(file.read())


class _Pending(NamedTuple):
    """A batch that is not written to a row group yet."""

    topic_name: str
    partition: int
    unpacked: UnpackedBatch
    may_be_exact: bool


@dataclass(slots=True)
class _ParquetOutput:
    """The file while it is written. Batches wait in `pending` until they fill a row group. `others`: how many pending
    batches belong to runs before the current one."""

    parquet: Any
    row_group_bytes: int
    pending: list[_Pending] = field(default_factory=list)
    pending_bytes: int = 0
    others: int = 0
    rows_added: int = 0
    rows_written: int = 0
    runs: list[ParquetRun] = field(default_factory=list)
    row_groups: list[RowGroupBatches] = field(default_factory=list)
    headers: list[bytes] = field(default_factory=list)
    record_counts: list[int] = field(default_factory=list)
    exact: list[bytes] = field(default_factory=list)
    beyond_rows: list[bytes] = field(default_factory=list)
    beyond_times: list[bytes] = field(default_factory=list)
    raw_keys: list[RawHeaderKeys] = field(default_factory=list)

    def add_run(self, run: SourceRun) -> None:
        first_row, first_batch = self.rows_added, len(self.headers)
        base_offset, end_offset, max_timestamp = run.base_offset, run.end_offset, -1
        position = -1 if base_offset is None else base_offset
        self.others = len(self.pending)
        for batch in run.batches:
            header = self._add(run, batch)
            if header.base_offset < position:
                raise ValueError(f"{run.partition}: offset {header.base_offset} after {position}")
            position = header.end_offset
            base_offset = header.base_offset if base_offset is None else base_offset
            max_timestamp = max(max_timestamp, header.max_timestamp)
        end_offset = position if end_offset is None else end_offset
        if base_offset is None:
            return
        if end_offset < position:
            raise ValueError(f"{run.partition}: offsets up to {position}, said to end at {end_offset}")
        self.runs.append(
            ParquetRun(
                topic_id=run.partition.topic_id,
                topic_name=run.topic_name,
                partition=run.partition.partition,
                first_row=first_row,
                row_count=self.rows_added - first_row,
                first_batch=first_batch,
                batch_count=len(self.headers) - first_batch,
                base_offset=base_offset,
                end_offset=end_offset,
                max_timestamp=max_timestamp,
            )
        )

    def _add(self, run: SourceRun, batch: SourceBatch | PlainBatch) -> BatchHeader:
        """Add one batch, unless it has no records. Return its header."""
        if isinstance(batch, PlainBatch):
            header, header_bytes, records, may_be_exact = batch
            unpacked = UnpackedBatch(header, records)
        else:
            header, header_bytes = _stored_header(batch)
            if not header.record_count:
                return header
            unpacked = unpack(header, memoryview(batch.data), max_bytes=MAX_BATCH_BYTES)
            may_be_exact = True
        size = self.pending_bytes + len(unpacked.records)
        if self.others and size > min(SHARED_GROUP_BYTES, self.row_group_bytes):
            self._cut(self.others)
        if self.pending_bytes + len(unpacked.records) > self.row_group_bytes:
            self.cut()
        self.pending.append(_Pending(run.topic_name, run.partition.partition, unpacked, may_be_exact))
        self.pending_bytes += len(unpacked.records)
        self.rows_added += header.record_count
        self.headers.append(header_bytes)
        self.record_counts.append(header.record_count)
        return header

    def header(self, cluster_id: str, object_id: UUID, created_ms: int) -> ParquetHeader:
        """Return the object's description, once all rows are written."""
        return ParquetHeader(
            version=VERSION,
            cluster_id=cluster_id,
            object_id=object_id,
            created_ms=created_ms,
            row_count=self.rows_written,
            runs=self.runs,
            row_groups=self.row_groups,
            batch_headers=b"".join(self.headers),
            record_counts=self.record_counts,
            exact=b"".join(self.exact),
            beyond_rows=b"".join(self.beyond_rows),
            beyond_times=b"".join(self.beyond_times),
            raw_keys=RawHeaderKeys(
                *map(b"".join, zip(*map(msgspec.structs.astuple, self.raw_keys), strict=True))
            ),
        )

    def cut(self) -> None:
        """Write all pending batches as one row group."""
        if self.pending:
            self._cut(len(self.pending))

    def _cut(self, count: int) -> None:
        """Write the first `count` pending batches as one row group."""
        batches = self.pending[:count]
        rows = decode_batches([batch.unpacked for batch in batches])
        first_batch = len(self.headers) - len(self.pending)
        numbers = np.arange(first_batch, first_batch + count, dtype=np.int32)
        names = sorted({batch.topic_name for batch in batches})
        topic_indexes = np.array([names.index(batch.topic_name) for batch in batches], np.int32)
        partitions = np.array([batch.partition for batch in batches], np.int32)
        topics = pa.array(np.repeat(topic_indexes, rows.record_counts))
        columns = {
            **self._bounded(rows.columns),
            "topic": pa.DictionaryArray.from_arrays(topics, pa.array(names)),
            "partition": pa.array(np.repeat(partitions, rows.record_counts)),
            "batch": pa.array(np.repeat(numbers, rows.record_counts)),
        }
        table = pa.Table.from_arrays([columns[name] for name in SCHEMA.names], schema=SCHEMA)
        self.parquet.write_table(table, row_group_size=rows.row_count)
        self.row_groups.append(RowGroupBatches(first_batch, count, self.rows_written, rows.row_count))
        if rows.raw_keys.rows:
            in_file = np.frombuffer(rows.raw_keys.rows, "<u4") + np.uint32(self.rows_written)
            self.raw_keys.append(msgspec.structs.replace(rows.raw_keys, rows=in_file.tobytes()))
        self.rows_written += rows.row_count
        self.exact.append(bytes(map(operator.and_, rows.exact, (batch.may_be_exact for batch in batches))))
        del self.pending[:count]
        self.pending_bytes = sum(len(batch.unpacked.records) for batch in self.pending)
        self.others = 0

    def _bounded(self, columns: dict[str, Any]) -> dict[str, Any]:
        """Clip the next rows' times to microseconds, and note the original time of each row that does not fit."""
        bounded = {name: within_microseconds(columns[name]) for name in TIME_COLUMNS}
        if any(bounded[name] is not columns[name] for name in TIME_COLUMNS):
            own = pc.coalesce(columns["create_timestamp"], columns["timestamp"])
            times = own.cast(pa.int64()).to_numpy()
            rows = np.flatnonzero(times != within_microseconds(own).cast(pa.int64()).to_numpy())
            self.beyond_rows.append((self.rows_written + rows).astype("<u4").tobytes())
            self.beyond_times.append(times[rows].astype("<i8").tobytes())
        return {**columns, **bounded}


def _stored_header(batch: SourceBatch) -> tuple[BatchHeader, bytes]:
    """Return the header with the commit's offset and epoch, parsed and as bytes. Raises InvalidBatch."""
    data = memoryview(batch.data)
    check_crc(data)
    stored = read_header(data)
    if stored.length != len(data):
        raise TruncatedBatch(f"batch says {stored.length} bytes; {len(data)} are there")
    head, rest = framed(data, batch.base_offset, batch.leader_epoch)
    header_bytes = b"".join((head, rest[: HEADER_BYTES - len(head)]))
    return read_header(header_bytes), header_bytes
