"""A topic's log as columns: hot tail and Parquet as one table, a range of offsets at a time.

What a consumer with read_committed would see: at or above log start, below the last stable offset, each record
once, none of an aborted transaction and no marker. A range is read by asking the sequencer for its runs when it is
read, so that a swap or a collection between planning and reading changes nothing.

Records that were to be read and are gone (retention, DeleteRecords, a topic that was deleted or made again, a log that
is shorter after a recovery) are an error, `DataLost`, unless the reader is told to pass over them. A range is of one
topic id, so a topic that is made again under its name is another.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from compactor.rewrite import AbortedRanges
from sequencer.api import (
    AbortedTransaction,
    BatchStatus,
    FindAnswer,
    FindPartition,
    FindRequest,
    MetadataRequest,
    ObjectKind,
    PartitionError,
    Run,
    Sequencer,
)
from sequencer.client import SequencerClient
from sequencer.queries import Reader
from sequencer.recent_runs import RecentRuns
from sequencer.store.rows import TopicRow
from sequencer.store.sql.store import SqlRowStore
from sequencer.store.state import HotState
from tailrace.clock import Clock, Entropy
from tailrace.object_store.api import ObjectMissing, ObjectStore
from tailrace.parquet_object.decode import UnpackedBatch, decode_batches, unpack
from tailrace.parquet_object.read import ParquetIndex, PartialFile, RowGroupRange, read_index
from tailrace.record_batch import check_crc, split
from tailrace.rpc import RpcSecurity

COLUMNS = {
    "topic": (pa.string(), "string"),
    "partition": (pa.int32(), "int"),
    "offset": (pa.int64(), "bigint"),
    "timestamp": (pa.timestamp("us", tz="UTC"), "timestamp"),
    "timestamp_type": (pa.int8(), "tinyint"),
    "create_timestamp": (pa.timestamp("us", tz="UTC"), "timestamp"),
    "key": (pa.binary(), "binary"),
    "value": (pa.binary(), "binary"),
    "headers": (
        pa.list_(pa.struct([pa.field("key", pa.string(), False), pa.field("value", pa.binary())])),
        "array<struct<key: string, value: binary>>",
    ),
}
"""Each column's Arrow type and Spark's."""

DECODE_BYTES = 64 << 20
TASK_BYTES = 64 << 20
"""A task of a scan reads about as many stored bytes: Spark's own cost of a task is that of reading some megabytes."""
PARTITIONS_AT_ONCE = 1_000
"""Partitions that one call to the sequencer asks about."""
_ALL = 1 << 50
_ATTEMPTS = 5


class UnknownLog(Exception):
    """There is no such topic or partition; the message says which."""


class DataLost(Exception):
    """Records that were to be read are gone; the message says which, and what to do."""


class OffsetRange(msgspec.Struct, frozen=True, array_like=True):
    """Offsets [start, end) of one partition."""

    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class TopicBounds:
    """What can be read of a topic: (log start, last stable offset) of each partition."""

    topic_id: UUID
    ends: dict[int, tuple[int, int]]


class LogIndex(Protocol):
    """As much of a sequencer as reading needs."""

    async def topic(self, name: str) -> tuple[UUID, int]:
        """Id and number of partitions. Raises UnknownLog."""
        ...

    async def find(self, request: FindRequest) -> FindAnswer: ...

    async def close(self) -> None: ...


class AskedIndex:
    """A running sequencer's."""

    def __init__(self, sequencer: Sequencer) -> None:
        self._sequencer = sequencer

    async def topic(self, name: str) -> tuple[UUID, int]:
        for topic in (await self._sequencer.metadata(MetadataRequest())).topics or []:
            if topic.name == name:
                return topic.topic_id, topic.partitions
        raise UnknownLog(f"no topic {name!r}")

    async def find(self, request: FindRequest) -> FindAnswer:
        return await self._sequencer.find_batches(request)

    async def close(self) -> None:
        await self._sequencer.close()


class DatabaseIndex:
    """Read from the database itself, without a committer: one look at it per question."""

    def __init__(self, url: str, clock: Clock, entropy: Entropy) -> None:
        self._store = SqlRowStore(url, clock=clock, entropy=entropy, auto_migrate=False)
        self._is_open = False

    async def _state(self) -> HotState:
        if not self._is_open:
            await self._store.open()
            self._is_open = True
        return HotState(await self._store.load())

    async def topic(self, name: str) -> tuple[UUID, int]:
        for row in (await self._state()).all(TopicRow):
            if row.name == name:
                return row.topic_id, row.partitions
        raise UnknownLog(f"no topic {name!r}")

    async def find(self, request: FindRequest) -> FindAnswer:
        state = await self._state()

        async def look_again() -> None:
            nonlocal state
            state = await self._state()

        return await Reader(self._store, lambda: state, look_again, RecentRuns(0)).find_batches(request)

    async def close(self) -> None:
        await self._store.close()


def open_index(
    sequencers: Sequence[str], database: str, *, security: RpcSecurity, clock: Clock, entropy: Entropy
) -> LogIndex:
    """The index of running sequencers ('host:port') or, where none are given, of their database."""
    if sequencers:
        remote = SequencerClient(sequencers, clock=clock, entropy=entropy, security=security)
        return AskedIndex(remote.sequencer)
    return DatabaseIndex(database, clock, entropy)


@dataclass(frozen=True, slots=True)
class _Found:
    log_start: int
    stable: int
    runs: list[Run]
    aborted: list[AbortedTransaction]


class LogReader:
    """Reads one topic. `index` and `store` stay with whoever opened them.

    `passes_over_lost`: go on without records that are gone, in place of DataLost.
    """

    def __init__(
        self,
        index: LogIndex,
        store: ObjectStore,
        topic: str,
        columns: Sequence[str],
        *,
        passes_over_lost: bool = False,
    ) -> None:
        self._index = index
        self._store = store
        self._topic = topic
        self._columns = list(columns)
        self._schema = pa.schema([pa.field(name, COLUMNS[name][0]) for name in columns])
        self._passes_over_lost = passes_over_lost

    async def bounds(self) -> TopicBounds:
        """The topic as it is now. Raises UnknownLog."""
        topic_id, partitions = await self._index.topic(self._topic)
        ends: dict[int, tuple[int, int]] = {}
        for first in range(0, partitions, PARTITIONS_AT_ONCE):
            asked = range(first, min(first + PARTITIONS_AT_ONCE, partitions))
            found = await self._find_all(topic_id, [(partition, 0) for partition in asked], max_bytes=1)
            for partition, each in zip(asked, found, strict=True):
                if each is None:
                    raise UnknownLog(f"no partition {partition} of topic {self._topic!r}")
                ends[partition] = (each.log_start, each.stable)
        return TopicBounds(topic_id, ends)

    async def cut(
        self,
        topic_id: UUID,
        wanted: Sequence[OffsetRange],
        *,
        task_bytes: int = TASK_BYTES,
        min_tasks: int = 1,
    ) -> list[list[OffsetRange]]:
        """The ranges as tasks of about `task_bytes`, or less for `min_tasks` of them; cut between runs.

        Raises DataLost.
        """
        pieces = [piece async for piece in self._pieces(topic_id, wanted)]
        total = sum(size for _, size in pieces)
        limit = max(1, min(task_bytes, -(-total // max(1, min_tasks))))
        tasks: list[list[OffsetRange]] = []
        size = limit
        for piece, piece_bytes in sorted(pieces, key=lambda each: (each[0].partition, each[0].start)):
            if size >= limit:
                tasks.append([])
                size = 0
            size += piece_bytes
            last = tasks[-1][-1] if tasks[-1] else None
            if last is not None and (last.partition, last.end) == (piece.partition, piece.start):
                tasks[-1][-1] = OffsetRange(piece.partition, last.start, piece.end)
            else:
                tasks[-1].append(piece)
        return tasks

    async def _pieces(
        self, topic_id: UUID, wanted: Sequence[OffsetRange]
    ) -> AsyncIterator[tuple[OffsetRange, int]]:
        """What of the ranges lies in each run, and the run's bytes."""
        left = {each.partition: each for each in wanted if each.start < each.end}
        while left:
            asked = list(left.values())[:PARTITIONS_AT_ONCE]
            found = await self._find_all(topic_id, [(each.partition, each.start) for each in asked])
            for here, each in zip(asked, found, strict=True):
                start = self._first_left(here, each)
                if each is not None:
                    for run in each.runs:
                        end = min(run.end_offset, here.end, each.stable)
                        if start < end:
                            yield OffsetRange(here.partition, start, end), run.length
                            start = end
                # In this order, so that those that there was no room for are asked first.
                del left[here.partition]
                if start < here.end:
                    left[here.partition] = OffsetRange(here.partition, start, here.end)

    async def read(self, topic_id: UUID, wanted: OffsetRange) -> AsyncIterator[Any]:
        """The range's records as Arrow record batches, in order. Raises DataLost."""
        position, attempts = wanted.start, 0
        while position < wanted.end:
            (found,) = await self._find_all(topic_id, [(wanted.partition, position)])
            position = self._first_left(OffsetRange(wanted.partition, position, wanted.end), found)
            if found is None:
                return
            try:
                for run in found.runs:
                    upto = min(run.end_offset, wanted.end, found.stable)
                    if position >= upto:
                        continue
                    async for table in self._read_run(run, position, upto, found.aborted):
                        for batch in self._shaped(table, run.partition):
                            yield batch
                        last = table.column("offset")[-1].as_py() if table.num_rows else position - 1
                        position = max(position, last + 1)
                    position = max(position, upto)
                    attempts = 0
            except ObjectMissing:
                # Compacted and collected since the sequencer was asked: ask again.
                attempts += 1
                if attempts == _ATTEMPTS:
                    raise

    def _first_left(self, wanted: OffsetRange, found: _Found | None) -> int:
        """Where the range is to be read on. Raises DataLost where that is not its start."""
        if found is None:
            return self._lost(wanted, wanted.end, "the topic or the partition was deleted")
        if found.log_start > wanted.start:
            end = min(found.log_start, wanted.end)
            return self._lost(
                wanted, end, f"retention or DeleteRecords moved the log start to {found.log_start}"
            )
        if found.stable < wanted.end:
            rest = OffsetRange(wanted.partition, max(wanted.start, found.stable), wanted.end)
            end = self._lost(rest, wanted.end, f"the log is shorter than it was and ends at {found.stable}")
            return end if wanted.start >= found.stable else wanted.start
        return wanted.start

    def _lost(self, wanted: OffsetRange, end: int, why: str) -> int:
        if self._passes_over_lost:
            return end
        raise DataLost(
            f"topic {self._topic!r}, partition {wanted.partition}: offsets {wanted.start} to {end - 1} are lost, as"
            f" {why}. Start a new query (a stream: with a new checkpoint), or give option failOnDataLoss=false to go on"
            " without them"
        )

    async def _find_all(
        self, topic_id: UUID, positions: Sequence[tuple[int, int]], *, max_bytes: int = _ALL
    ) -> list[_Found | None]:
        """(partition, offset) looked up by one call; None where there is no such partition any more."""
        asked = [FindPartition(topic_id, partition, offset, max_bytes) for partition, offset in positions]
        answer = await self._index.find(FindRequest(asked))
        return [
            None
            if each.error is PartitionError.UNKNOWN_TOPIC_OR_PARTITION
            else _Found(each.log_start_offset, each.last_stable_offset, each.runs, each.aborted)
            for each in answer.partitions
        ]

    async def _read_run(
        self, run: Run, start: int, end: int, aborted: Sequence[AbortedTransaction]
    ) -> AsyncIterator[Any]:
        if run.kind is ObjectKind.PARQUET:
            index = await self._parquet_index(run)
            for group in index.row_groups_for(run.topic_id, run.partition, start):
                if group.first_offset < end:
                    yield await self._row_group(run, index=index, group=group, start=start, end=end)
            return
        if run.kind is ObjectKind.MARKERS:
            return
        ended_badly = AbortedRanges(aborted)
        data = await self._store.get_range(run.key, run.start, run.length)
        pending: list[UnpackedBatch] = []
        size = 0
        for batch, (header, view) in zip(run.batches, split(memoryview(data)), strict=True):
            if batch.status is not BatchStatus.STORED or not (
                batch.base_offset < end and start < batch.base_offset + batch.record_count
            ):
                continue
            check_crc(view)
            if ended_badly.holds(header, batch.base_offset):
                continue
            pending.append(unpack(msgspec.structs.replace(header, base_offset=batch.base_offset), view))
            size += len(pending[-1].records)
            if size >= DECODE_BYTES:
                yield _between(_decoded(pending), start, end)
                pending, size = [], 0
        if pending:
            yield _between(_decoded(pending), start, end)

    async def _parquet_index(self, run: Run) -> ParquetIndex:
        tail = await self._store.get_range(run.key, run.index_start, run.object_size - run.index_start)
        return read_index(tail, run.object_size, crc=run.index_crc)

    async def _row_group(
        self, run: Run, index: ParquetIndex, group: RowGroupRange, start: int, end: int
    ) -> Any:
        data = await self._store.get_range(run.key, group.start, group.length)
        file = pq.ParquetFile(
            pa.PythonFile(PartialFile(memoryview(data), group.start, index.size), mode="r"),
            metadata=index.metadata,
            page_checksum_verification=True,
            pre_buffer=False,
        )
        columns = [name for name in self._columns if name not in ("topic", "partition", "offset")]
        table = file.read_row_group(
            group.number, columns=["topic", "partition", "offset", *columns], use_threads=False
        )
        mine = table.filter(pc.equal(table.column("partition"), run.partition))
        return _between(mine, start, end)

    def _shaped(self, table: Any, partition: int) -> list[Any]:
        rows = table.num_rows
        columns: list[Any] = []
        for field in self._schema:
            if field.name == "topic":
                columns.append(pa.repeat(pa.scalar(self._topic), rows))
            elif field.name == "partition":
                columns.append(pa.repeat(pa.scalar(partition, pa.int32()), rows))
            else:
                columns.append(table.column(field.name).cast(field.type))
        if not rows:
            return []
        return list(pa.Table.from_arrays(columns, schema=self._schema).combine_chunks().to_batches())


def _decoded(batches: Sequence[UnpackedBatch]) -> Any:
    return pa.table(decode_batches(batches).columns)


def _between(table: Any, start: int, end: int) -> Any:
    offsets = table.column("offset")
    return table.filter(pc.and_(pc.greater_equal(offsets, start), pc.less(offsets, end)))
