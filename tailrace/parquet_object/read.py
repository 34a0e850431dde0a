"""Finds an offset in a Parquet object and rebuilds record batches, from byte ranges that the caller fetches.

There are three steps, none with I/O: `read_index` parses the file's last bytes, `index.row_groups_for` says which range
to fetch, and `record_batches` decodes that range. The index of an object never changes, so callers can keep it.
"""

from __future__ import annotations

import bisect
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from fastcrc.crc32 import iscsi as crc32c

from tailrace.batches.record_batch import HEADER_BYTES, BatchHeader, Compression, InvalidBatch, read_header
from tailrace.buffers import Buffer
from tailrace.ids import TopicPartition
from tailrace.parquet_object.encode import encode_records, rebuild
from tailrace.parquet_object.header import (
    METADATA_KEY,
    InvalidParquetObject,
    ParquetHeader,
    ParquetRun,
    unpack_header,
)
from tailrace.parquet_object.schema import REPLAY_COLUMNS, TIME_COLUMNS

TAIL_BYTES = 256 << 10
"""A first read of this many bytes from the end contains most footers completely."""
MAX_FOOTER_BYTES = 256 << 20
_OFFSETS = np.dtype(
    {"names": ["base", "last_delta"], "formats": [">i8", ">i4"], "offsets": [0, 23], "itemsize": HEADER_BYTES}
)
"""The fields of a batch's header from which its offsets follow."""
_END = 8
_MAGIC = b"PAR1"


class FooterNeedsMore(InvalidParquetObject):
    """The footer begins before the given bytes. Read the last `needed` bytes and try again."""

    def __init__(self, needed: int) -> None:
        super().__init__(f"the footer takes the last {needed} bytes of the object; read as many")
        self.needed = needed


@dataclass(frozen=True, slots=True)
class RowGroupRange:
    """Row group `number`: `length` bytes from `start`. Its offsets are those of the requested partition.

    In `WrittenParquet.row_groups` and `ParquetIndex.row_groups`, they are those of its first and last batch, which may
    belong to two partitions.
    """

    number: int
    start: int
    length: int
    first_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """One rebuilt record batch, ready to send: the concatenated `parts`. `end_offset` is exclusive."""

    partition: TopicPartition
    base_offset: int
    end_offset: int
    record_count: int
    max_timestamp: int
    parts: tuple[Buffer, ...]

    @property
    def length(self) -> int:
        """The size of the batch in bytes."""
        return sum(map(len, self.parts))

    @property
    def data(self) -> bytes:
        return b"".join(self.parts)


class PlainBatch(NamedTuple):
    """A batch as a Parquet object stores it: its original header, and its canonical, uncompressed records.

    `is_exact`: the original batch's records, decompressed, are exactly these bytes.
    """

    header: BatchHeader
    header_bytes: bytes
    records: memoryview
    is_exact: bool


@dataclass(frozen=True)
class ParquetIndex:
    """The parsed footer of a Parquet object."""

    size: int
    header: ParquetHeader
    metadata: Any
    footer_bytes: int

    @cached_property
    def batches(self) -> list[BatchHeader]:
        data = self.header.batch_headers
        try:
            return [read_header(data, position) for position in range(0, len(data), HEADER_BYTES)]
        except InvalidBatch as error:
            raise InvalidParquetObject(f"batch headers in the metadata: {error}") from error

    @cached_property
    def row_groups(self) -> list[RowGroupRange]:
        """Every row group with its byte range."""
        ranges: list[RowGroupRange] = []
        for number, group in enumerate(self.header.row_groups):
            start, length = self._byte_range(number)
            last = self.batches[group.first_batch + group.batch_count - 1]
            first = self.batches[group.first_batch]
            ranges.append(
                RowGroupRange(
                    number=number,
                    start=start,
                    length=length,
                    first_offset=first.base_offset,
                    end_offset=last.end_offset,
                )
            )
        return ranges

    @cached_property
    def _offsets(self) -> tuple[Any, Any]:
        """The first and end offsets of all batches, as arrays. A look-up needs no more, and no object per batch."""
        headers = np.frombuffer(self.header.batch_headers, _OFFSETS)
        return headers["base"].astype(np.int64), headers["base"] + headers["last_delta"].astype(np.int64) + 1

    @cached_property
    def _beyond(self) -> tuple[Any, Any]:
        """The rows whose time does not fit into 64-bit microseconds, and their times in ms."""
        return np.frombuffer(self.header.beyond_rows, "<u4"), np.frombuffer(self.header.beyond_times, "<i8")

    def with_own_times(self, row_group: int, table: Any) -> Any:
        """Return the row group's rows with the original times of their records."""
        group = self.header.row_groups[row_group]
        rows, times = self._beyond
        first, end = np.searchsorted(rows, [group.first_row, group.first_row + group.row_count])
        if first == end:
            return table
        places, own = rows[first:end].astype(np.int64) - group.first_row, times[first:end]
        is_created = table.column("create_timestamp").is_valid().to_numpy()[places]
        for name, is_own in zip(TIME_COLUMNS, (~is_created, is_created), strict=True):
            column = table.column(name)
            valid = column.is_valid().to_numpy()
            numbers = column.cast(pa.int64()).fill_null(0).to_numpy().copy()
            numbers[places[is_own]] = own[is_own]
            restored = pa.array(numbers, pa.int64(), mask=~valid).cast(column.type)
            table = table.set_column(table.column_names.index(name), table.field(name), restored)
        return table

    @cached_property
    def _raw_keys(self) -> tuple[Any, Any, Any]:
        """The rows and places of the header keys that are not UTF-8, and these keys."""
        raw = self.header.raw_keys
        lengths = np.frombuffer(raw.lengths, "<u4")
        ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        keys = pa.Array.from_buffers(
            pa.binary(), len(lengths), [None, pa.py_buffer(ends), pa.py_buffer(raw.keys)], null_count=0
        )
        return np.frombuffer(raw.rows, "<u4").astype(np.int64), np.frombuffer(raw.places, "<u4"), keys

    def with_own_keys(self, row_group: int, table: Any) -> Any:
        """Return the row group's rows with the original keys of their headers, some of which may not be UTF-8."""
        group = self.header.row_groups[row_group]
        rows, places, keys = self._raw_keys
        first, end = np.searchsorted(rows, [group.first_row, group.first_row + group.row_count])
        if first == end:
            return table
        headers = table.column("headers").combine_chunks()
        starts = headers.offsets.to_numpy()
        rows = rows[first:end] - group.first_row
        numbers = starts[rows] + places[first:end]
        if (numbers >= starts[rows + 1]).any():
            raise InvalidParquetObject(f"row group {row_group}: the key of a header that is not there")
        entries = headers.values
        is_raw = np.zeros(len(entries), bool)
        is_raw[numbers] = True
        own = pc.replace_with_mask(entries.field(0).cast(pa.binary()), pa.array(is_raw), keys[first:end])
        names = pa.Array.from_buffers(pa.string(), len(own), own.buffers(), null_count=0, offset=own.offset)
        kind = headers.type
        entries = pa.StructArray.from_arrays([names, entries.field(1)], fields=list(kind.value_type))
        restored = pa.ListArray.from_arrays(headers.offsets, entries, type=kind)
        return table.set_column(table.column_names.index("headers"), table.field("headers"), restored)

    @cached_property
    def _group_starts(self) -> list[int]:
        return [group.first_batch for group in self.header.row_groups]

    @cached_property
    def _runs(self) -> dict[tuple[UUID, int], ParquetRun]:
        return {(run.topic_id, run.partition): run for run in self.header.runs}

    @cached_property
    def _runs_of_batches(self) -> list[ParquetRun]:
        return [run for run in self.header.runs if run.batch_count]

    def run_of(self, topic_id: UUID, partition: int) -> ParquetRun | None:
        """Return the partition's run in the object, None if it has none."""
        return self._runs.get((topic_id, partition))

    def row_groups_for(self, topic_id: UUID, partition: int, offset: int) -> list[RowGroupRange]:
        """Return the row groups with the partition's records at or after `offset`, in offset order."""
        run = self.run_of(topic_id, partition)
        if run is None or not run.batch_count:
            return []
        end = run.first_batch + run.batch_count
        starts, ends = self._offsets
        first = run.first_batch + int(np.searchsorted(ends[run.first_batch : end], offset, side="right"))
        found: list[RowGroupRange] = []
        while first < end:
            number = bisect.bisect_right(self._group_starts, first) - 1
            group = self.header.row_groups[number]
            group_end = min(end, group.first_batch + group.batch_count)
            start, length = self._byte_range(number)
            mine = max(group.first_batch, run.first_batch)
            found.append(
                RowGroupRange(
                    number=number,
                    start=start,
                    length=length,
                    first_offset=int(starts[mine]),
                    end_offset=int(ends[group_end - 1]),
                )
            )
            first = group_end
        return found

    def rows_of(self, row_group: int, topic_id: UUID, partition: int) -> tuple[int, int]:
        """Return the first row and the number of rows of a partition in a row group that contains some of it."""
        group, run = self.header.row_groups[row_group], self._runs[topic_id, partition]
        first = max(group.first_row, run.first_row)
        end = min(group.first_row + group.row_count, run.first_row + run.row_count)
        return first - group.first_row, end - first

    def partition_of(self, batch: int) -> TopicPartition:
        """Return the partition of batch number `batch`."""
        return self._run_at(batch).topic_partition

    def is_shared(self, row_group: int) -> bool:
        """Whether the row group contains batches of several partitions."""
        group = self.header.row_groups[row_group]
        run = self._run_at(group.first_batch)
        return group.first_batch + group.batch_count > run.first_batch + run.batch_count

    def _run_at(self, batch: int) -> ParquetRun:
        runs = self._runs_of_batches
        return runs[bisect.bisect_right(runs, batch, key=lambda run: run.first_batch) - 1]

    def _byte_range(self, number: int) -> tuple[int, int]:
        return self.bytes_of(number, REPLAY_COLUMNS)

    def bytes_of(self, number: int, columns: Sequence[str]) -> tuple[int, int]:
        """Return the start and length of the bytes from the first to the last of these columns.

        For REPLAY_COLUMNS, they cover all columns.
        """
        group = self.metadata.row_group(number)
        start, end = self.size, 0
        for place in range(group.num_columns):
            column = group.column(place)
            if columns is not REPLAY_COLUMNS and column.path_in_schema.partition(".")[0] not in columns:
                continue
            begin = column.data_page_offset
            if column.has_dictionary_page:
                begin = min(begin, column.dictionary_page_offset)
            start = min(start, begin)
            end = max(end, begin + column.total_compressed_size)
        if not 0 <= start < end <= self.size:
            raise InvalidParquetObject(f"row group {number}: bytes {start} to {end} of {self.size}")
        return start, end - start


def read_index(tail: Buffer, size: int, *, crc: int = 0) -> ParquetIndex:
    """Parse the index from the last bytes of an object of `size` bytes.

    Read `min(size, TAIL_BYTES)` bytes first. If they are too few, FooterNeedsMore says how many are needed.

    Args:
        crc: CRC-32C of `tail`; 0 if it is not known. Parquet's footer has no checksum, and a corrupt one can crash
            Arrow. So a known CRC is compared before Arrow parses a byte.

    Raises InvalidParquetObject.
    """
    view = memoryview(tail)
    if crc and crc32c(view) != crc:
        raise InvalidParquetObject(
            f"an index of {len(view)} bytes of CRC {crc32c(view):#010x}; {crc:#010x} was written"
        )
    if len(view) > size or size < _END:
        raise InvalidParquetObject(f"a tail of {len(view)} bytes of an object of {size}")
    if len(view) < _END:
        raise FooterNeedsMore(min(size, TAIL_BYTES))
    if view[-4:] != _MAGIC:
        raise InvalidParquetObject(f"ends in {bytes(view[-4:])!r}; Parquet ends in {_MAGIC!r}")
    needed = int.from_bytes(view[-8:-4], "little") + _END
    if needed > min(size, MAX_FOOTER_BYTES):
        raise InvalidParquetObject(f"a footer of {needed} bytes in an object of {size}")
    if needed > len(view):
        raise FooterNeedsMore(needed)
    try:
        metadata = pq.read_metadata(pa.BufferReader(_MAGIC + bytes(view[-needed:])))
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InvalidParquetObject(f"Parquet footer: {error}") from error
    value = (metadata.metadata or {}).get(METADATA_KEY)
    if value is None:
        raise InvalidParquetObject("a Parquet file, but not one of Tailrace's: no `tailrace` metadata")
    header = unpack_header(value)
    groups = [group.row_count for group in header.row_groups]
    if [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)] != groups:
        raise InvalidParquetObject(
            f"{metadata.num_row_groups} row groups; the header describes {len(groups)}"
        )
    return ParquetIndex(size, header, metadata, needed)


def record_batches(index: ParquetIndex, row_group: int, data: Buffer) -> list[StoredBatch]:
    """Rebuild the row group's batches from all bytes of its range.

    Raises InvalidParquetObject if the bytes are not what was written. Corrupt data is reported, never served.
    """
    return stored_batches(index, row_group, row_group_records(index, row_group, data))


def stored_batches(
    index: ParquetIndex,
    row_group: int,
    records: Sequence[memoryview],
    *,
    partition: TopicPartition | None = None,
) -> list[StoredBatch]:
    """Rebuild the batches of all partitions, or of one, like `record_batches`, from the result of `row_group_records`.

    So a row group of many partitions is decoded once for all of them.
    """
    group = index.header.row_groups[row_group]
    places = range(group.first_batch, group.first_batch + group.batch_count)
    if partition is not None:
        run = index.run_of(partition.topic_id, partition.partition)
        places = range(0) if run is None else _common(places, run.first_batch, run.batch_count)
    found: list[StoredBatch] = []
    for place in places:
        header, record_count = index.batches[place], index.header.record_counts[place]
        batch = rebuild(
            header,
            index.header.batch_headers[place * HEADER_BYTES : (place + 1) * HEADER_BYTES],
            records[place - group.first_batch],
            record_count,
            is_exact=bool(index.header.exact[place]),
        )
        owner = index.partition_of(place) if partition is None else partition
        found.append(
            StoredBatch(
                owner, header.base_offset, header.end_offset, record_count, header.max_timestamp, batch
            )
        )
    return found


def plain_batches(
    index: ParquetIndex, row_group: int, records: Sequence[memoryview], run: ParquetRun
) -> Iterator[PlainBatch]:
    """Yield the run's batches in the row group, to be written to another Parquet object.

    `records` is the result of `row_group_records`. Raises InvalidParquetObject if an uncompressed batch does not match
    its CRC.
    """
    group = index.header.row_groups[row_group]
    places = range(group.first_batch, group.first_batch + group.batch_count)
    for place in _common(places, run.first_batch, run.batch_count):
        header = index.batches[place]
        batch = PlainBatch(
            header,
            index.header.batch_headers[place * HEADER_BYTES : (place + 1) * HEADER_BYTES],
            records[place - group.first_batch],
            bool(index.header.exact[place]),
        )
        if header.compression is Compression.NONE and batch.is_exact:
            rebuild(header, batch.header_bytes, batch.records, header.record_count, is_exact=True)
        yield batch


def _common(places: range, first: int, count: int) -> range:
    return range(max(places.start, first), min(places.stop, first + count))


def row_group_records(index: ParquetIndex, row_group: int, data: Buffer) -> list[memoryview]:
    """Return the canonical, uncompressed records of each batch in the row group."""
    table = row_group_table(index, row_group, data)
    group = index.header.row_groups[row_group]
    batches = range(group.first_batch, group.first_batch + group.batch_count)
    counts = index.header.record_counts[batches.start : batches.stop]
    return encode_records(table, index.batches[batches.start : batches.stop], counts)


def row_group_table(
    index: ParquetIndex, row_group: int, data: Buffer, columns: Sequence[str] = REPLAY_COLUMNS
) -> pa.Table:
    """Read the row group's rows. `data` are the bytes of `index.bytes_of(row_group, columns)`.

    With REPLAY_COLUMNS, times and keys of headers are the records' own. Otherwise they are those in the file: times fit
    into microseconds, and keys are UTF-8.
    """
    start, length = index.bytes_of(row_group, columns)
    if len(data) != length:
        raise InvalidParquetObject(f"row group {row_group} has {length} bytes; {len(data)} were given")
    try:
        file = pq.ParquetFile(
            pa.PythonFile(PartialFile(memoryview(data), start, index.size), mode="r"),
            metadata=index.metadata,
            page_checksum_verification=True,
            pre_buffer=False,
        )
        table = file.read_row_group(row_group, columns=list(columns), use_threads=False)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InvalidParquetObject(f"row group {row_group} cannot be read: {error}") from error
    if columns is not REPLAY_COLUMNS:
        return table
    return index.with_own_keys(row_group, index.with_own_times(row_group, table))


class PartialFile(io.RawIOBase):
    """A file of `size` bytes that contains only `data`, at `start`: the bytes that a row group needs."""

    def __init__(self, data: memoryview, start: int, size: int) -> None:
        self._data = data
        self._start = start
        self._size = size
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = base + offset
        return self._position

    def read(self, size: int = -1) -> memoryview:
        """Return a view; Arrow accepts any buffer."""
        begin = self._position - self._start
        if begin < 0 or size < 0 or begin + size > len(self._data):
            raise OSError(f"bytes {self._position} to {self._position + size} are not of this row group")
        self._position += size
        return self._data[begin : begin + size]
