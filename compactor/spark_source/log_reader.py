"""Reads topics' logs as columns, one range of offsets at a time, from mixed objects and Parquet objects alike.

It returns what a read_committed consumer sees: each record from the log start offset to the last stable offset once,
without records of aborted transactions and markers. It requests a range's runs from the sequencer when it reads the
range, so a swap or a collection between planning and reading has no effect.

If records to read are gone (retention, DeleteRecords, a topic that was deleted or created again, a log that is shorter
after a recovery), it raises `DataLost`, unless the reader was told to skip them. A range belongs to one topic id, so a
topic that was created again under the same name is another topic.
"""

from __future__ import annotations

import asyncio
import bisect
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import structlog

from compactor.lru_cache import LruCache
from compactor.plan import Piece
from compactor.rewrite import AbortedRanges, ByteRange, ranges_to_read
from compactor.spark_source.columns import COLUMNS
from compactor.spark_source.log_index import LogIndex
from compactor.spark_source.pushdown import EVERYTHING, IntegerRange, Limits
from sequencer.api.commits import BatchStatus, ObjectKind
from sequencer.api.groups import FetchOffsets
from sequencer.api.reads import (
    AbortedTransaction,
    FindPartition,
    FindRequest,
    OffsetQuery,
    PartitionError,
    Run,
)
from sequencer.api.topics import Topic
from sequencer.pages import all_offsets
from tailrace.batches.record_batch import BatchHeader, InvalidBatch, check_crc, split
from tailrace.batches.records import InvalidRecords
from tailrace.limits import INT64_MAX
from tailrace.object_store.api import ObjectMissing, ObjectStore
from tailrace.parquet_object.decode import UnpackedBatch, decode_batches, unpack
from tailrace.parquet_object.header import InvalidParquetObject
from tailrace.parquet_object.read import ParquetIndex, RowGroupRange, read_index, row_group_table
from tailrace.parquet_object.schema import GREATEST_TIME_MS, TIME_COLUMNS, within_microseconds

log = structlog.get_logger("tailrace.spark")

DECODE_BYTES = 64 << 20
TASK_BYTES = 64 << 20
"""The stored bytes that a task of a scan reads. Spark's overhead per task equals reading some megabytes."""
SPLITS = 4_096
"""Before a scan is divided among tasks, runs are joined into pieces of up to 1 / SPLITS of its bytes."""
JOINED_BYTES = 4 << 20
"""Smaller record batches are joined up to this size. A record batch costs Spark as much as thousands of rows."""
JOINED_BATCHES = 1_000
"""The most record batches that are joined. Each takes 12 KB of memory in addition to its `nbytes`."""
KEPT_FOOTER_BYTES, KEPT_GROUP_BYTES = 4 << 20, 32 << 20
"""The most stored bytes of footers, and the most bytes of row groups, to keep of Parquet objects that many partitions
share. Footers take about ten times as much in memory."""
AHEAD_BYTES, AHEAD_GAP_BYTES, AHEAD_READS = 32 << 20, 64 << 10, 8
"""A task reads runs of mixed objects ahead for several partitions at once: up to this many bytes, with gaps of up to
this many bytes in one request, and this many concurrent requests."""
PARTITIONS_AT_ONCE = 1_000
"""The most partitions in one call to the sequencer."""
_ALL = 1 << 50
_ATTEMPTS = 5


class DataLost(Exception):
    """Records to read are gone; the message says which, and what to do."""


class DamagedRecords(Exception):
    """An object is corrupt or missing; the message says which records it had.

    `damage`: the message without the advice for Spark.
    """

    def __init__(self, damage: str, advice: str) -> None:
        super().__init__(damage, advice)  # both, for pickle
        self.damage = damage
        self._advice = advice

    def __str__(self) -> str:
        return f"{self.damage}. {self._advice}"


class UnreadableRecords(Exception):
    """Records can't be decoded although they are stored as their producer sent them; the message says which."""


class LogPartition(NamedTuple):
    """A partition of a topic, by the topic's name and id."""

    topic: str
    topic_id: UUID
    number: int


class OffsetRange(NamedTuple):
    """Offsets [start, end) of one partition."""

    partition: LogPartition
    start: int
    end: int


Bounds = Mapping[LogPartition, tuple[int, int]]
"""The readable range of each partition: (log start offset, last stable offset)."""


@dataclass(frozen=True, slots=True)
class _LogRuns:
    log_start: int
    stable: int
    runs: list[Run]
    aborted: list[AbortedTransaction]


class LogReader:
    """Reads logs. The caller closes `index` and `store`.

    `limits`: the requested offsets and times; the caller passes only ranges of requested partitions.
    `passes_over_lost`: skip records that are gone, in place of DataLost. `passes_over_unreadable`: skip batches that
    can't be decoded with a warning, in place of UnreadableRecords. `unreadable`: the number of offsets skipped this
    way.
    """

    def __init__(
        self,
        index: LogIndex,
        store: ObjectStore,
        columns: Sequence[str],
        *,
        limits: Limits | None = None,
        passes_over_lost: bool = False,
        passes_over_unreadable: bool = False,
    ) -> None:
        self._index = index
        self._store = store
        self._schema = pa.schema([pa.field(name, COLUMNS[name].arrow) for name in columns])
        self._limits = limits or Limits()
        stored = {COLUMNS[name].stored for name in columns} - {"topic", "partition"}
        times_us = self._limits.times_us
        if times_us != EVERYTHING:
            stored.add("timestamp")
        self._needs_own_times = times_us.first > GREATEST_TIME_MS * 1000
        if self._needs_own_times:
            stored.add("create_timestamp")
        self._stored = sorted(stored | {"offset"})
        self._passes_over_lost = passes_over_lost
        self._passes_over_unreadable = passes_over_unreadable
        self.unreadable = 0
        self._indexes = LruCache[str, ParquetIndex](KEPT_FOOTER_BYTES)
        self._shared = LruCache[tuple[str, int], Any](KEPT_GROUP_BYTES)
        self._ahead: dict[tuple[str, int], memoryview] = {}
        """The bytes of runs of mixed objects that were read ahead, by key and start."""

    async def bounds(self, topics: Iterable[Topic]) -> Bounds:
        """Return the current readable range of the topics' partitions, without topics that were deleted since."""
        partitions = [
            LogPartition(topic.name, topic.topic_id, number)
            for topic in topics
            for number in range(topic.partitions)
        ]
        positions = await self._find_all([(partition, 0) for partition in partitions], max_bytes=1)
        return {
            partition: (bounds.log_start, bounds.stable)
            for partition, bounds in zip(partitions, positions, strict=True)
            if bounds is not None
        }

    async def offsets_at(self, times_ms: Mapping[LogPartition, int]) -> dict[LogPartition, int | None]:
        """Return for each partition the first offset with a record at or after the time; None if there is none."""
        offsets: dict[LogPartition, int | None] = dict.fromkeys(times_ms)
        queries = {
            partition: OffsetQuery(partition.topic_id, partition.number, time_ms, True)
            for partition, time_ms in times_ms.items()
        }
        while queries:
            results = await all_offsets(self._index, list(queries.values()))
            results_of = dict(zip(queries, results, strict=True))
            for partition, result in results_of.items():
                query, run = queries.pop(partition), result.run
                if run is None:
                    continue
                first = max(result.log_start_offset, run.base_offset)
                end = min(run.end_offset, result.last_stable_offset)
                within = OffsetRange(partition, first, end)
                offsets[partition] = await self._first_at(within, query.timestamp)
                if offsets[partition] is None:  # that record was aborted, but another may follow
                    queries[partition] = msgspec.structs.replace(query, from_offset=run.end_offset)
        return offsets

    async def committed(self, group: str, partitions: Iterable[LogPartition]) -> dict[LogPartition, int]:
        """Return the offsets that a consumer group has committed for these partitions, if any."""
        remaining = list(partitions)
        offsets: dict[LogPartition, int] = {}
        while remaining:
            request = FetchOffsets(group, [(key.topic_id, key.number) for key in remaining])
            positions = (await self._index.fetch_offsets(request)).positions
            pairs = zip(remaining, positions, strict=False)  # a response may have fewer
            offsets |= {key: position.offset for key, position in pairs if position.offset >= 0}
            remaining = remaining[len(positions) :]
        return offsets

    async def _first_at(self, within: OffsetRange, time_ms: int) -> int | None:
        timed = LogReader(
            self._index,
            self._store,
            ["offset"],
            limits=Limits(times_us=IntegerRange(first=time_ms * 1000)),
            passes_over_lost=True,
            passes_over_unreadable=self._passes_over_unreadable,
        )
        async for batch in timed.read(within):
            return int(batch.column("offset")[0].as_py())
        return None

    async def cut(
        self, ranges: Sequence[OffsetRange], *, task_bytes: int = TASK_BYTES, min_tasks: int = 1
    ) -> list[list[OffsetRange]]:
        """Divide the ranges into tasks of about `task_bytes`, or less to get `min_tasks`. It splits between runs, and
        large files between row groups.

        Raises DataLost.
        """
        pieces = Splits(task_bytes)
        async for piece, size in self._pieces(ranges, task_bytes):
            pieces.add(piece, size)
        total = pieces.total_bytes
        limit = max(1, min(task_bytes, -(-total // max(1, min_tasks))))
        tasks: list[list[OffsetRange]] = []
        size = limit
        for piece, piece_bytes in sorted(pieces.held, key=lambda sized: sized[0]):
            if size >= limit:
                tasks.append([])
                size = 0
            size += piece_bytes
            last = tasks[-1][-1] if tasks[-1] else None
            if last is not None and (last.partition, last.end) == (piece.partition, piece.start):
                tasks[-1][-1] = last._replace(end=piece.end)
            else:
                tasks[-1].append(piece)
        return tasks

    async def _pieces(
        self, ranges: Sequence[OffsetRange], task_bytes: int
    ) -> AsyncIterator[tuple[OffsetRange, int]]:
        """Yield the part of the ranges in each run, with its stored bytes."""
        left = {
            offset_range.partition: offset_range
            for offset_range in ranges
            if offset_range.start < offset_range.end
        }
        while left:
            part = list(left.values())[:PARTITIONS_AT_ONCE]
            logs = await self._find_all(
                [(offset_range.partition, offset_range.start) for offset_range in part]
            )
            for offset_range, log in zip(part, logs, strict=True):
                start = self._first_left(offset_range, log)
                if log is not None:
                    for run in log.runs:
                        end = min(run.end_offset, offset_range.end, log.stable)
                        if start >= end:
                            continue
                        if not self._is_too_old(run):
                            for piece, size in await self._of_run(run, start, end, task_bytes):
                                yield offset_range._replace(start=piece[0], end=piece[1]), size
                        start = end
                # Added again at the end, so that ranges for which the response had no room are requested first.
                del left[offset_range.partition]
                if start < offset_range.end:
                    left[offset_range.partition] = offset_range._replace(start=start)

    async def _of_run(
        self, run: Run, start: int, end: int, task_bytes: int
    ) -> list[tuple[tuple[int, int], int]]:
        """Return the run's offsets from `start` to `end` in parts, with the bytes of each."""
        if run.kind is not ObjectKind.PARQUET or run.length <= task_bytes:
            return [((start, end), run.length)]
        try:
            index = await self._parquet_index(run)
        except (ObjectMissing, InvalidParquetObject):  # it was compacted again, or its task reports the error
            return [((start, end), run.length)]
        groups = [
            group
            for group in index.row_groups_for(run.topic_id, run.partition, start)
            if group.first_offset < end
        ]
        cuts = [start, *(group.first_offset for group in groups[1:]), end]
        return [((cuts[number], cuts[number + 1]), group.length) for number, group in enumerate(groups)]

    def _is_too_old(self, run: Run) -> bool:
        return run.kind is ObjectKind.MARKERS or run.max_timestamp * 1000 < self._limits.times_us.first

    async def read_all(self, ranges: Sequence[OffsetRange]) -> AsyncIterator[Any]:
        """Read many ranges one after another, like `read`. Few calls look up the first runs of all ranges, and small
        record batches are joined."""
        joined = BatchCoalescer()
        async for batch in self._read_each(ranges):
            for ready in joined.add(batch):
                yield ready
        for ready in joined.rest():
            yield ready

    async def _read_each(self, ranges: Sequence[OffsetRange]) -> AsyncIterator[Any]:
        for first in range(0, len(ranges), PARTITIONS_AT_ONCE):
            part = ranges[first : first + PARTITIONS_AT_ONCE]
            logs = await self._find_all(
                [(offset_range.partition, offset_range.start) for offset_range in part]
            )
            for group in self._together(list(zip(part, logs, strict=True))):
                self._ahead = await self._read_ahead([run for *_, runs in group for run in runs])
                for offset_range, log, _ in group:
                    async for batch in self.read(offset_range, log):
                        yield batch

    def _together(
        self, pairs: Sequence[tuple[OffsetRange, _LogRuns | None]]
    ) -> Iterator[list[tuple[OffsetRange, _LogRuns | None, list[Run]]]]:
        """Group the ranges, with the runs of each that are read ahead: those of mixed objects, unless they are many."""
        group: list[tuple[OffsetRange, _LogRuns | None, list[Run]]] = []
        held = 0
        for offset_range, log in pairs:
            runs = [] if log is None else self._mixed_runs(offset_range, log)
            size = sum(run.length + AHEAD_GAP_BYTES for run in runs)
            if size > AHEAD_BYTES:
                runs, size = [], 0
            if held + size > AHEAD_BYTES:
                yield group
                group, held = [], 0
            group.append((offset_range, log, runs))
            held += size
        yield group

    def _mixed_runs(self, offset_range: OffsetRange, log: _LogRuns) -> list[Run]:
        end = min(offset_range.end, log.stable)
        return [
            run
            for run in log.runs
            if run.kind is ObjectKind.MIXED
            and run.base_offset < end
            and run.end_offset > offset_range.start
            and not self._is_too_old(run)
        ]

    async def _read_ahead(self, runs: list[Run]) -> dict[tuple[str, int], memoryview]:
        """Read the runs' bytes with few requests. Skips an object that is gone: it was compacted since."""
        gate = asyncio.Semaphore(AHEAD_READS)

        async def read(byte_range: ByteRange) -> bytes | bytearray:
            async with gate:
                return await self._store.get_range(
                    byte_range.key, byte_range.start, byte_range.end - byte_range.start
                )

        ranges = ranges_to_read([Piece(0, runs, [])], max_gap=AHEAD_GAP_BYTES)
        answers = await asyncio.gather(*map(read, ranges), return_exceptions=True)
        ahead: dict[tuple[str, int], memoryview] = {}
        for run in runs:
            index = bisect.bisect_right(ranges, (run.key, run.start), key=lambda held: held[:2]) - 1
            answer = answers[index]
            if isinstance(answer, BaseException):
                if not isinstance(answer, ObjectMissing):
                    raise answer
                continue
            start = run.start - ranges[index].start
            ahead[run.key, run.start] = memoryview(answer)[start : start + run.length]
        return ahead

    async def read(
        self, offset_range: OffsetRange, log_at_start: _LogRuns | None = None
    ) -> AsyncIterator[Any]:
        """Yield the range's records as Arrow record batches in order. Raises DataLost, DamagedRecords,
        UnreadableRecords.

        `log_at_start`: the result of a look-up at the range's start. If it has no runs, because the response had no
        room for them, they are looked up again.
        """
        position, attempts = offset_range.start, 0
        while position < offset_range.end:
            log, log_at_start = log_at_start if log_at_start and log_at_start.runs else None, None
            if log is None:
                (log,) = await self._find_all([(offset_range.partition, position)])
            position = self._first_left(offset_range._replace(start=position), log)
            if log is None:
                return
            try:
                for run in log.runs:
                    upto = min(run.end_offset, offset_range.end, log.stable)
                    if position >= upto:
                        continue
                    within = offset_range._replace(start=position, end=upto)
                    async for table in self._read_sound(run, within, log.aborted):
                        last = table.column("offset")[-1].as_py() if table.num_rows else position - 1
                        for batch in self._shaped(table, offset_range.partition):
                            yield batch
                        position = max(position, last + 1)
                    position = max(position, upto)
                    attempts = 0
            except ObjectMissing as error:
                # The object was compacted and collected after the look-up, so look up again.
                attempts += 1
                if attempts == _ATTEMPTS:
                    raise _damaged(within._replace(start=position), error) from error

    def _first_left(self, offset_range: OffsetRange, log: _LogRuns | None) -> int:
        """Return the first offset of the range that is left. Raises DataLost if that is not its start."""
        if log is None:
            return self._lost(offset_range, offset_range.end, "the topic or the partition was deleted")
        if log.log_start > offset_range.start:
            end = min(log.log_start, offset_range.end)
            return self._lost(
                offset_range, end, f"retention or DeleteRecords moved the log start to {log.log_start}"
            )
        if log.stable < offset_range.end:
            rest = offset_range._replace(start=max(offset_range.start, log.stable))
            end = self._lost(
                rest, offset_range.end, f"the log is shorter than it was and ends at {log.stable}"
            )
            return end if offset_range.start >= log.stable else offset_range.start
        return offset_range.start

    def _lost(self, offset_range: OffsetRange, end: int, why: str) -> int:
        if self._passes_over_lost:
            return end
        partition = offset_range.partition
        raise DataLost(
            f"topic {partition.topic!r}, partition {partition.number}: offsets {offset_range.start} to"
            f" {end - 1} are lost, as {why}. Start a new query (a stream: with a new checkpoint), or give option"
            " failOnDataLoss=false to continue without them"
        )

    async def _find_all(
        self, positions: Sequence[tuple[LogPartition, int]], *, max_bytes: int = _ALL
    ) -> list[_LogRuns | None]:
        """Look up (partition, offset) pairs, many in one call; None for a partition that does not exist any more."""
        logs: list[_LogRuns | None] = []
        for first in range(0, len(positions), PARTITIONS_AT_ONCE):
            queries = [
                FindPartition(partition.topic_id, partition.number, offset, max_bytes)
                for partition, offset in positions[first : first + PARTITIONS_AT_ONCE]
            ]
            logs += [
                None
                if partition.error is PartitionError.UNKNOWN_TOPIC_OR_PARTITION
                else _LogRuns(
                    partition.log_start_offset,
                    partition.last_stable_offset,
                    partition.runs,
                    partition.aborted,
                )
                for partition in (await self._index.find_batches(FindRequest(queries))).partitions
            ]
        return logs

    async def _read_sound(
        self, run: Run, within: OffsetRange, aborted: Sequence[AbortedTransaction]
    ) -> AsyncIterator[Any]:
        try:
            async for table in self._read_run(run, within, aborted):
                yield table
        except (InvalidBatch, InvalidParquetObject) as error:
            raise _damaged(within, f"object {run.key!r}: {error}") from error

    async def _read_run(
        self, run: Run, within: OffsetRange, aborted: Sequence[AbortedTransaction]
    ) -> AsyncIterator[Any]:
        _, start, end = within
        if self._is_too_old(run):
            return
        if run.kind is ObjectKind.PARQUET:
            index = await self._parquet_index(run)
            for group in index.row_groups_for(run.topic_id, run.partition, start):
                if group.first_offset < end and self._may_hold_wanted(index, group):
                    yield await self._row_group(run, index=index, group=group, start=start, end=end)
            return
        ended_badly = AbortedRanges(aborted)
        data = self._ahead.pop((run.key, run.start), None)
        if data is None:
            data = memoryview(await self._store.get_range(run.key, run.start, run.length))
        stored = list(split(data))
        if len(stored) != len(run.batches):
            raise InvalidBatch(f"{len(stored)} record batches where {len(run.batches)} were written")
        pending: list[UnpackedBatch] = []
        size = 0
        for batch, (header, view) in zip(run.batches, stored, strict=True):
            if batch.status is not BatchStatus.STORED or not (
                batch.base_offset < end and start < batch.base_offset + batch.record_count
            ):
                continue
            check_crc(view)
            if ended_badly.holds(header, batch.base_offset):
                continue
            header = msgspec.structs.replace(header, base_offset=batch.base_offset)
            try:
                pending.append(unpack(header, view))
            except InvalidRecords as error:
                self._pass_over(within, header, error)
                continue
            size += len(pending[-1].records)
            if size >= DECODE_BYTES:
                for table in self._decoded(within, pending):
                    yield _between(table, start, end)
                pending, size = [], 0
        for table in self._decoded(within, pending):
            yield _between(table, start, end)

    def _decoded(self, within: OffsetRange, batches: Sequence[UnpackedBatch]) -> Iterator[Any]:
        """Decode the batches' records, all at once or, if that fails, one by one."""
        if not batches:
            return
        try:
            yield pa.table(decode_batches(batches).columns)
        except InvalidRecords as error:
            if len(batches) == 1:
                self._pass_over(within, batches[0].header, error)
                return
            for batch in batches:
                yield from self._decoded(within, [batch])

    def _pass_over(self, within: OffsetRange, header: BatchHeader, error: InvalidRecords) -> None:
        """Count the offsets in this range of a batch that can't be decoded; another range may have the rest of it.

        Raises UnreadableRecords.
        """
        partition = within.partition
        what = (
            f"topic {partition.topic!r}, partition {partition.number}: offsets {header.base_offset} to"
            f" {header.end_offset - 1} can't be decoded: {error}"
        )
        if not self._passes_over_unreadable:
            raise UnreadableRecords(f"{what}. Give option failOnUnreadable=false to continue without them")
        self.unreadable += min(header.end_offset, within.end) - max(header.base_offset, within.start)
        log.warning("skipped records", records=what, unreadable_offsets=self.unreadable)

    async def _parquet_index(self, run: Run) -> ParquetIndex:
        held = self._indexes.get(run.key)
        if held is None:
            tail = await self._store.get_range(run.key, run.index_start, run.object_size - run.index_start)
            held = read_index(tail, run.object_size, crc=run.index_crc)
            self._indexes.keep(run.key, held, held.footer_bytes)
        return held

    def _may_hold_wanted(self, index: ParquetIndex, group: RowGroupRange) -> bool:
        """Whether the row group may contain requested times, by the least and greatest time of all its partitions."""
        times_us = self._limits.times_us
        if times_us == EVERYTHING:
            return True
        column = index.metadata.schema.names.index("timestamp")
        statistics = index.metadata.row_group(group.number).column(column).statistics
        if statistics is None or not statistics.has_min_max:
            return True
        least, greatest = statistics.min_raw * 1000, statistics.max_raw * 1000
        return bool(least <= times_us.last and greatest >= min(times_us.first, GREATEST_TIME_MS * 1000))

    async def _row_group(
        self, run: Run, index: ParquetIndex, group: RowGroupRange, start: int, end: int
    ) -> Any:
        table = self._shared.get((run.key, group.number))
        if table is None:
            begin, length = index.bytes_of(group.number, self._stored)
            data = await self._store.get_range(run.key, begin, length)
            table = row_group_table(index, group.number, data, self._stored)
            if self._needs_own_times:
                table = index.with_own_times(group.number, table)
            if index.is_shared(group.number):
                self._shared.keep((run.key, group.number), table, table.nbytes)
        first, count = index.rows_of(group.number, run.topic_id, run.partition)
        return _between(table.slice(first, count), start, end)

    def _shaped(self, table: Any, partition: LogPartition) -> list[Any]:
        times_us = self._limits.times_us
        if times_us != EVERYTHING and table.num_rows:
            times = table.column("timestamp").cast(pa.int64())  # ms
            first_ms = max(-(-times_us.first // 1000), -INT64_MAX - 1)
            last_ms = min(times_us.last // 1000, INT64_MAX)
            table = table.filter(pc.and_(pc.greater_equal(times, first_ms), pc.less_equal(times, last_ms)))
        for name in set(TIME_COLUMNS).intersection(table.column_names):
            column_index = table.column_names.index(name)
            table = table.set_column(column_index, table.field(name), within_microseconds(table.column(name)))
        rows = table.num_rows
        if not rows:
            return []
        columns: list[Any] = []
        for field in self._schema:
            if field.name == "topic":
                columns.append(pa.repeat(pa.scalar(partition.topic), rows))
            elif field.name == "partition":
                columns.append(pa.repeat(pa.scalar(partition.number, pa.int32()), rows))
            else:
                columns.append(table.column(COLUMNS[field.name].stored).cast(field.type))
        return list(pa.Table.from_arrays(columns, schema=self._schema).combine_chunks().to_batches())


def _damaged(unread: OffsetRange, why: object) -> DamagedRecords:
    partition = unread.partition
    return DamagedRecords(
        f"topic {partition.topic!r}, partition {partition.number}: offsets {unread.start} to {unread.end - 1} are"
        f" damaged in the store: {why}",
        "Restore the object and start again; or go on behind them by startingOffsets,"
        f" with offset {unread.end} (a stream: with a new checkpoint)",
    )


class Splits:
    """The ranges that are distributed to tasks, with the bytes of each.

    Adjacent ranges are joined while they are a small part of all, so that a million runs become some tens of thousands
    of pieces. `most_bytes`: the most bytes of a joined piece.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self.held: list[tuple[OffsetRange, int]] = []
        self.total_bytes = 0

    def add(self, piece: OffsetRange, size: int) -> None:
        """Add the next range."""
        self.total_bytes += size
        if self.held:
            last, last_size = self.held[-1]
            if (last.partition, last.end) == (piece.partition, piece.start) and (
                last_size + size <= min(self.total_bytes // SPLITS, self._most_bytes)
            ):
                self.held[-1] = last._replace(end=piece.end), last_size + size
                return
        self.held.append((piece, size))


class BatchCoalescer:
    """Joins small record batches to larger ones."""

    def __init__(self) -> None:
        self._held: list[Any] = []
        self._bytes = 0

    def add(self, batch: Any) -> Iterator[Any]:
        """Add a batch. Yield the batches that are ready, in order. A large batch is not copied."""
        is_large = batch.nbytes >= JOINED_BYTES
        if is_large or self._bytes >= JOINED_BYTES or len(self._held) == JOINED_BATCHES:
            yield from self.rest()
        self._held.append(batch)
        self._bytes += batch.nbytes
        if is_large:
            yield from self.rest()

    def rest(self) -> Iterator[Any]:
        """Yield the remaining batches as one."""
        if self._held:
            yield self._held[0] if len(self._held) == 1 else pa.concat_batches(self._held)
        self._held, self._bytes = [], 0


def _between(table: Any, start: int, end: int) -> Any:
    """Return a view of the rows with these offsets. The rows' offsets ascend."""
    first, stop = np.searchsorted(table.column("offset").to_numpy(), (start, end)).tolist()
    return table.slice(first, stop - first)
