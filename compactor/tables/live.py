"""Lists the live Parquet objects of a topic, with the live rows of each, as of one state of the log.

A file is partly live if DeleteRecords or retention has removed some of its rows, or if another file has replaced the
runs of some of its partitions. Its footer tells which rows are live. They form few ranges, because rows are sorted by
partition and offset.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from sequencer.api.commits import ObjectDescription
from sequencer.api.errors import SequencerUnavailable
from sequencer.api.interface import Sequencer
from sequencer.api.objects import LiveFiles, LiveFilesRequest, LivePartition
from tailrace.batches.record_batch import HEADER_BYTES, read_header
from tailrace.object_store.api import ObjectStore
from tailrace.parquet_object.header import ParquetHeader, ParquetRun
from tailrace.parquet_object.read import ParquetIndex, read_index

ATTEMPTS = 10
"""How often a listing is started. A swap between two pages restarts it."""
FOOTERS_AT_ONCE = 16


class LiveRange(NamedTuple):
    """The live offsets [start, end) of a partition in a file. Some of them may have no record."""

    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A file and its live offsets by partition. `is_cut`: a log start is inside one of its runs."""

    object: ObjectDescription
    ranges: tuple[LiveRange, ...]
    is_cut: bool


@dataclass(frozen=True, slots=True)
class LivePartitionBounds:
    """The bounds of a partition's log, and how much of its stable part is not in Parquet files yet."""

    partition: int
    log_start_offset: int
    last_stable_offset: int
    uncompacted_offsets: int


@dataclass(frozen=True, slots=True)
class TopicFiles:
    """A topic's live files, sorted by key, at one commit number."""

    topic_id: UUID
    commit_number: int
    files: tuple[LiveFile, ...]
    partitions: tuple[LivePartitionBounds, ...]


class RowRange(NamedTuple):
    """Rows [start, end) of a file."""

    start: int
    end: int

    @property
    def length(self) -> int:
        return self.end - self.start


async def list_live_files(sequencer: Sequencer, topic_id: UUID) -> TopicFiles:
    """Return the topic's live files. Raises UnknownTopic, SequencerUnavailable if swaps interrupt every attempt."""
    for _ in range(ATTEMPTS):
        files = await _listed(sequencer, topic_id)
        if files is not None:
            return files
    raise SequencerUnavailable(f"compaction changed the files during each of {ATTEMPTS} listings; try again")


async def _listed(sequencer: Sequencer, topic_id: UUID) -> TopicFiles | None:
    """List all pages once; None if they are not of one state."""
    page = await sequencer.live_files(LiveFilesRequest(topic_id))
    listing = _Listing(page.commit_number)
    while listing.add(page):
        if page.next is None:
            return listing.files_of(topic_id)
        page = await sequencer.live_files(LiveFilesRequest(topic_id, page.next))
    return None


@dataclass(slots=True)
class _Listing:
    """Combines the pages of a listing."""

    commit_number: int
    objects: dict[UUID, ObjectDescription] = field(default_factory=dict)
    ranges: dict[UUID, list[LiveRange]] = field(default_factory=dict)
    cut: set[UUID] = field(default_factory=set)
    bounds: dict[int, LivePartitionBounds] = field(default_factory=dict)

    def add(self, page: LiveFiles) -> bool:
        """Add a page. Return False if it is of another state than the pages before."""
        self.objects |= {listed.description.object_id: listed.description for listed in page.objects}
        return all(self._add_partition(partition) for partition in page.partitions)

    def _add_partition(self, page: LivePartition) -> bool:
        compacted = 0
        for run in page.runs:
            if run.commit_number > self.commit_number or run.object_id not in self.objects:
                return False
            start = max(run.base_offset, page.log_start_offset)
            compacted += run.end_offset - start
            self.ranges.setdefault(run.object_id, []).append(LiveRange(page.partition, start, run.end_offset))
            if start > run.base_offset:
                self.cut.add(run.object_id)
        before = self.bounds.get(page.partition)
        stable = page.last_stable_offset - page.log_start_offset
        left = before.uncompacted_offsets if before is not None else stable
        self.bounds[page.partition] = LivePartitionBounds(
            page.partition, page.log_start_offset, page.last_stable_offset, max(0, left - compacted)
        )
        return True

    def files_of(self, topic_id: UUID) -> TopicFiles:
        files = [
            LiveFile(self.objects[object_id], tuple(ranges), object_id in self.cut)
            for object_id, ranges in self.ranges.items()
        ]
        files.sort(key=lambda file: file.object.key)
        return TopicFiles(topic_id, self.commit_number, tuple(files), tuple(self.bounds.values()))


def live_rows(header: ParquetHeader, topic_id: UUID, ranges: Iterable[LiveRange]) -> list[RowRange]:
    """Return the live rows of a file as few ranges in ascending order."""
    by_partition: dict[int, list[LiveRange]] = {}
    for live in ranges:
        by_partition.setdefault(live.partition, []).append(live)
    row_ranges: list[RowRange] = []
    for run in header.runs:
        if run.topic_id != topic_id:
            continue
        for rows in _rows_of_run(header, run, by_partition.get(run.partition, ())):
            if row_ranges and row_ranges[-1].end == rows.start:
                row_ranges[-1] = RowRange(row_ranges[-1].start, rows.end)
            else:
                row_ranges.append(rows)
    return row_ranges


def dead_rows(header: ParquetHeader, live: Sequence[RowRange]) -> list[RowRange]:
    """Return the rows of a file that are not live, as ranges."""
    starts = [0, *(rows.end for rows in live)]
    ends = [*(rows.start for rows in live), header.row_count]
    return [RowRange(start, end) for start, end in zip(starts, ends, strict=True) if start < end]


def _rows_of_run(header: ParquetHeader, run: ParquetRun, ranges: Iterable[LiveRange]) -> Iterator[RowRange]:
    for live in sorted(ranges):
        if live.start <= run.base_offset and run.end_offset <= live.end:
            rows = RowRange(run.first_row, run.first_row + run.row_count)
        else:
            rows = RowRange(_first_row_at(header, run, live.start), _first_row_at(header, run, live.end))
        if rows.length:
            yield rows


class _Batch(NamedTuple):
    """A batch of a run. `is_sparse`: it has lost records, so only its rows tell which offsets are left."""

    first_row: int
    base_offset: int
    is_sparse: bool


def _batch_reaching(header: ParquetHeader, run: ParquetRun, offset: int) -> _Batch | None:
    """Return the run's first batch that ends after the offset."""
    row = run.first_row
    for batch in range(run.first_batch, run.first_batch + run.batch_count):
        batch_header = read_header(header.batch_headers, batch * HEADER_BYTES)
        count = header.record_counts[batch]
        if batch_header.end_offset > offset:
            is_sparse = batch_header.end_offset - batch_header.base_offset != count
            return _Batch(row, batch_header.base_offset, is_sparse)
        row += count
    return None


def _first_row_at(header: ParquetHeader, run: ParquetRun, offset: int) -> int:
    """Return the run's first row at or after the offset. A sparse batch counts as a whole."""
    batch = _batch_reaching(header, run, offset)
    if batch is None:
        return run.first_row + run.row_count
    return batch.first_row + (0 if batch.is_sparse else max(0, offset - batch.base_offset))


def cuts_sparse_batch(header: ParquetHeader, topic_id: UUID, ranges: Sequence[LiveRange]) -> bool:
    """Whether a log start is inside a batch that has lost records. Then `live_rows` has all rows of the batch."""
    for run in header.runs:
        for live in ranges if run.topic_id == topic_id else ():
            if live.partition == run.partition and run.base_offset < live.start < run.end_offset:
                batch = _batch_reaching(header, run, live.start)
                if batch is not None and batch.is_sparse and batch.base_offset < live.start:
                    return True
    return False


async def read_footer(store: ObjectStore, described: ObjectDescription) -> ParquetIndex:
    """Read a file's index. Raises StoreError, InvalidParquetObject."""
    tail = await store.get_range(described.key, described.index_start, described.size - described.index_start)
    return read_index(tail, described.size, crc=described.index_crc)


@dataclass(frozen=True, slots=True)
class FileRows:
    """The number of rows in a file, and in each of its live ranges (`live`)."""

    file: LiveFile
    rows: int
    live: tuple[tuple[LiveRange, int], ...]
    dead: tuple[RowRange, ...]

    @property
    def live_count(self) -> int:
        return sum(count for _, count in self.live)


async def count_rows(store: ObjectStore, files: TopicFiles) -> list[FileRows]:
    """Count each file's rows from its footer, with one ranged read per file. Raises StoreError,
    InvalidParquetObject."""

    async def count(file: LiveFile) -> FileRows:
        header = (await read_footer(store, file.object)).header
        live = tuple(
            (live_range, sum(rows.length for rows in live_rows(header, files.topic_id, [live_range])))
            for live_range in file.ranges
        )
        dead = dead_rows(header, live_rows(header, files.topic_id, file.ranges))
        return FileRows(file, header.row_count, live, tuple(dead))

    counted: list[FileRows] = []
    for first in range(0, len(files.files), FOOTERS_AT_ONCE):
        counted += await asyncio.gather(*map(count, files.files[first : first + FOOTERS_AT_ONCE]))
    return counted
