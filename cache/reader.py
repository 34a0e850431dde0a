"""The reader: record batches out of committed runs, ready to be sent to a Kafka client.

Runs come from the sequencer, bytes through the chunk cache, and what goes out is a gather list: of small batches
one view for each piece of a run, kept as it is sent (`cache.framed`); of a large batch 16 patched bytes (base
offset, length, leader epoch: all outside its CRC) and a view on the rest. Batches of mixed objects are the producers'
own bytes; those of Parquet objects are encoded again (`parquet_reader`); transaction markers, which are in no
object, are made from their rows.

A client's position is where the last batch that it got ends. So where an answer ends with offsets that
compaction has left empty, a batch without data (`hole_batch`) takes it past them; else it would ask for ever.

No byte of a batch that did not come from this agent's own upload leaves without its CRC checked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

from cache.chunk import ChunkRef
from cache.chunk_cache import ChunkCache
from cache.mixed_reader import MixedReader
from cache.observer import CacheObserver, NoObserver
from cache.parquet_reader import ParquetReader
from cache.read_ahead import Find, ReadAhead
from cache.read_batches import ReadBatches, ReadRequest
from sequencer.api import BatchStatus, ObjectKind, Run, RunBatch
from tailrace.clock import Clock
from tailrace.object_store.api import StoreError
from tailrace.record_batch import framed, hole_batch
from tailrace.records import InvalidRecords, Record, decode_records


@dataclass(frozen=True, slots=True)
class FoundRecord:
    """A record's place, by time."""

    offset: int
    timestamp: int


class BatchReader:
    """Reads runs through a chunk cache. Keeps Parquet indexes, and runs of small batches as they are sent.

    Args:
        executor: a bounded pool for decoding (Parquet, compressed records); never the loop's default one.
        find: `find_batches` of the sequencer, by which read-ahead learns of the runs beyond an answer's.
    """

    def __init__(
        self,
        cache: ChunkCache,
        clock: Clock,
        executor: Executor,
        observer: CacheObserver | None = None,
        find: Find | None = None,
    ) -> None:
        self._cache = cache
        self._executor = executor
        self._observer: CacheObserver = observer if observer is not None else NoObserver()
        self._mixed = MixedReader(cache, clock, self._observer)
        self._ahead = ReadAhead(cache, clock, self._chunks_ahead, find)
        self._parquet = ParquetReader(cache, executor, self._observer, self._ahead)

    async def read(self, runs: Sequence[Run], request: ReadRequest) -> ReadBatches:
        """The batches that the request asks for, of runs of one partition, in order, as `find_batches` gave them.

        Raises ObjectMissing (plan again), StoreUnavailable, StoreRefused, ObjectCorrupt; none of them when
        there is something sound before the place that fails: then that is given, and the next read raises.
        """
        out = ReadBatches(end_offset=request.offset, client_offset=request.offset)
        position = 0
        while position < len(runs) and out.is_complete:
            if runs[position].kind == ObjectKind.PARQUET:
                await self._read_parquet(runs[position], request, out)
                position += 1
                continue
            end = position + 1
            while end < len(runs) and runs[end].kind != ObjectKind.PARQUET:
                end += 1
            await self._mixed.read(runs[position:end], request, out)
            position = end
        self._end(runs, request, out, is_held=False)
        return out

    def read_held(self, runs: Sequence[Run], request: ReadRequest) -> ReadBatches | None:
        """As `read`, without waiting; None where it must wait for something."""
        out = ReadBatches(end_offset=request.offset, client_offset=request.offset)
        if not self._mixed.read_held(runs, request, out):
            return None
        self._end(runs, request, out, is_held=not out.made)
        return out

    def _end(self, runs: Sequence[Run], request: ReadRequest, out: ReadBatches, *, is_held: bool) -> None:
        _close_hole(request, out)
        if runs and self._mixed.is_catch_up(runs[0]):
            self._ahead.follow(runs, request.offset, out, is_held=is_held)

    @property
    def framed_bytes_held(self) -> int:
        """Bytes of runs kept in the form in which they are sent."""
        return self._mixed.framed.bytes_held

    @property
    def reach_bytes(self) -> int:
        """Bytes of objects over which the positions of one reader of old runs may be spread, so that the cache holds
        them until all have read them: half of the share of catch-up readers, but two chunks at least."""
        settings = self._cache.settings
        return max(2 * settings.chunk_bytes, int(settings.memory_bytes * settings.catch_up_share) // 2)

    def is_old(self, run: Run) -> bool:
        """Whether the run is of an old mixed object, which holds runs of other partitions of the same time."""
        return run.kind is ObjectKind.MIXED and self._mixed.is_catch_up(run)

    def is_fresh(self, run: Run) -> bool:
        """Whether the run, or its beginning, is in what this agent uploaded a moment ago, or in no object."""
        if run.kind == ObjectKind.MARKERS:
            return True
        return all(self._cache.is_fresh(chunk.id) for chunk in self._mixed.chunks_of(run, run.start, 1))

    def ready_bytes(self, run: Run, offset: int, end: int) -> int:
        """Bytes of the run's batches (not of a Parquet object) that end after `offset` and begin before `end`."""
        return self._mixed.framed.of(run).bytes_between(offset, end)

    def first_batch_bytes(self, run: Run, offset: int) -> int:
        """Bytes of the first batch of the run that ends after `offset`; 0 where there is none."""
        placed = self._mixed.framed.of(run)
        first = placed.first_from(offset)
        return placed.length_of(first) if first < placed.count else 0

    async def find_timestamp(self, run: Run, timestamp: int, from_offset: int) -> FoundRecord | None:
        """The first record of the run, from `from_offset` on, at or after `timestamp`; None for none.

        Passed over are markers, which are no records, and batches whose records can't be read. Raises as `read`.
        """
        if run.kind == ObjectKind.MARKERS:
            return None
        if run.kind == ObjectKind.PARQUET:
            first = await self._parquet.find_timestamp(run, timestamp, from_offset)
            return None if first is None else FoundRecord(*first)
        for start, batch in _stored_from(run, from_offset):
            if batch.max_timestamp >= timestamp:
                data = await self._mixed.batch_at(run, start, batch.length)
                for record in await self._readable(data, batch.base_offset):
                    if record.timestamp >= timestamp and record.offset >= from_offset:
                        return FoundRecord(record.offset, record.timestamp)
        return None

    async def find_latest(self, run: Run, from_offset: int) -> FoundRecord | None:
        """The first record with the largest timestamp, of those from `from_offset` on; None for none.

        Only batches that are said to have a later record than the one found are looked into; else as `find_timestamp`.
        """
        if run.kind == ObjectKind.MARKERS:
            return None
        if run.kind == ObjectKind.PARQUET:
            return await self._latest_by_halves(run, from_offset)
        latest: FoundRecord | None = None
        for start, batch in _stored_from(run, from_offset):
            if latest is None or batch.max_timestamp > latest.timestamp:
                data = await self._mixed.batch_at(run, start, batch.length)
                for record in await self._readable(data, batch.base_offset):
                    if record.offset >= from_offset and (
                        latest is None or record.timestamp > latest.timestamp
                    ):
                        latest = FoundRecord(record.offset, record.timestamp)
        return latest

    async def _latest_by_halves(self, run: Run, from_offset: int) -> FoundRecord | None:
        """The same in a Parquet run, by halving the time: 63 looks at most, each by the run's index."""
        latest, low, high = None, 0, run.max_timestamp + 1
        while low < high:
            middle = (low + high) // 2
            record = await self.find_timestamp(run, middle, from_offset)
            if record is None:
                high = middle
            else:
                latest, low = record, record.timestamp + 1
        return latest

    async def close(self) -> None:
        """Cancel and await what is under way. Close the reader before its cache."""
        await self._ahead.close()
        await self._parquet.close()

    async def _read_parquet(self, run: Run, request: ReadRequest, out: ReadBatches) -> None:
        end_limit = request.end_limit
        limit = run.end_offset if end_limit is None else min(run.end_offset, end_limit)
        try:
            async for part in self._parquet.batches(run, out.end_offset, request.leader_epoch):
                first, upto = part.select(out.end_offset, run.base_offset, limit)
                fitting = part.fitting(first, upto, max(0, request.max_bytes - out.bytes))
                if fitting == first < upto and request.minimum_one and not out.batch_count:
                    fitting += 1
                if fitting > first:
                    out.add_framed((part.view(first, fitting),), part, first, fitting)
                if fitting < part.first_at(run.end_offset):
                    out.is_complete = False
                    return
        except StoreError:
            if out.batch_count:
                out.is_complete = False
                return
            raise
        out.end_offset = max(out.end_offset, limit)

    async def _readable(self, batch: memoryview, base_offset: int) -> list[Record]:
        """The batch's records; none where they can't be read. Batches are stored as producers sent them, and one
        producer's is to stop nobody's look-up."""
        patched = b"".join(framed(batch, base_offset, 0))
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, decode_records, patched)
        except InvalidRecords:
            return []

    def _chunks_ahead(self, run: Run, offset: int) -> list[ChunkRef]:
        """The chunks of an old run from `offset` on; of a Parquet object, whose index tells the rest, the index's."""
        if run.kind is ObjectKind.MARKERS or not self._mixed.is_catch_up(run):
            return []
        if run.kind is ObjectKind.PARQUET:
            start = min(run.index_start, run.object_size)
            return self._mixed.chunks_of(run, start, run.object_size - start)
        start = run.start
        if offset > run.base_offset:
            placed = self._mixed.framed.of(run)
            first = placed.first_from(offset)
            if first == placed.count:
                return []
            start = placed.starts[first]
        return self._mixed.chunks_of(run, start, run.start + run.length - start)


def _stored_from(run: Run, from_offset: int) -> Iterator[tuple[int, RunBatch]]:
    """The stored batches of a run of a mixed object that end beyond `from_offset`, and where each begins."""
    start = run.start
    for batch in run.batches:
        if batch.status is BatchStatus.STORED and batch.base_offset + batch.record_count > from_offset:
            yield start, batch
        start += batch.length


def _close_hole(request: ReadRequest, out: ReadBatches) -> None:
    """Where what was read ends with a hole, take the client past it, within the budget as any batch."""
    if out.client_offset >= out.end_offset:
        return
    batch = memoryview(hole_batch(out.end_offset))
    if not request.has_room(out, len(batch)):
        out.is_complete = False
        return
    out.add(
        batch,
        base_offset=out.end_offset - 1,
        end_offset=out.end_offset,
        record_count=0,
        leader_epoch=request.leader_epoch,
    )
