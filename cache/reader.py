"""The reader: turns committed runs into record batches that are ready to send to a Kafka client.

The sequencer names the runs, and the chunk cache supplies the bytes. The result is a gather list. A run of small
batches contributes one view per piece, kept ready to send (`cache.framed`). A large batch contributes a patched header
of 16 bytes (base offset, length, leader epoch: all outside its CRC) and a view of the rest. Batches of mixed objects
are the producers' own bytes. Batches of Parquet objects are encoded again (`parquet_reader`). Transaction markers are
in no object and are built from their rows.

A client continues at the end of the last batch that it got. If an answer ends with offsets that compaction left empty,
a batch without data (`hole_batch`) moves the client past them; otherwise it would request them forever.

The CRC of every batch is checked before it is sent, except for batches that this agent uploaded itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from functools import partial

from cache.chunk import ChunkRef
from cache.chunk_cache import ChunkCache
from cache.mixed_reader import MixedReader
from cache.observer import CacheObserver
from cache.parquet_reader import ParquetReader
from cache.read_ahead import Find, ReadAhead
from cache.read_batches import ReadBatches, ReadRequest
from cache.record_times import OffsetAndTimestamp, first_reaching, latest
from sequencer.api.commits import BatchStatus, ObjectKind
from sequencer.api.reads import Run, RunBatch
from tailrace.batches.record_batch import framed, hole_batch
from tailrace.batches.records import InvalidRecords
from tailrace.clock import Clock
from tailrace.object_store.api import StoreError


class BatchReader:
    """Reads runs through a chunk cache. Keeps Parquet indexes, and runs of small batches that are ready to send.

    Args:
        executor: a bounded pool for decoding Parquet and compressed records; never the loop's default executor.
        find: `find_batches` of the sequencer; read-ahead uses it to find the runs after those of an answer.
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
        self._observer = observer or CacheObserver()
        self._mixed = MixedReader(cache, clock, self._observer)
        self._ahead = ReadAhead(cache, clock, self._chunks_ahead, find)
        self._parquet = ParquetReader(cache, executor, self._observer, self._ahead)

    async def read(self, runs: Sequence[Run], request: ReadRequest) -> ReadBatches:
        """Read the requested batches. `runs` are of one partition, in the order in which `find_batches` returned them.

        Raises ObjectMissing (find the runs again), StoreUnavailable, StoreRefused, ObjectCorrupt. If sound batches
        precede the failure, they are returned instead, and the next read raises the error.
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
        """Like `read`, but without waiting; return None if it would have to wait."""
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
        """Total size of the runs that are kept ready to send."""
        return self._mixed.framed.bytes_held

    @property
    def reach_bytes(self) -> int:
        """How far apart in objects, in bytes, the positions of one reader of old runs may be for the cache to hold the
        objects between them until all positions have passed: half of the catch-up share, but at least two chunks."""
        settings = self._cache.settings
        return max(2 * settings.chunk_bytes, int(settings.memory_bytes * settings.catch_up_share) // 2)

    def is_old(self, run: Run) -> bool:
        """Whether the run is in an old mixed object, which also holds runs of other partitions of the same time."""
        return run.kind is ObjectKind.MIXED and self._mixed.is_catch_up(run)

    def is_fresh(self, run: Run) -> bool:
        """Whether the run needs no request: its first chunk is from a recent upload of this agent, or it is in no
        object."""
        if run.kind == ObjectKind.MARKERS:
            return True
        return all(self._cache.is_fresh(chunk.id) for chunk in self._mixed.chunks_of(run, run.start, 1))

    def ready_bytes(self, run: Run, offset: int, end: int) -> int:
        """Return the size of the run's batches that end after `offset` and begin before `end`. Not for Parquet runs."""
        return self._mixed.framed.of(run).bytes_between(offset, end)

    def first_batch_bytes(self, run: Run, offset: int) -> int:
        """Return the size of the run's first batch that ends after `offset`; 0 if there is none."""
        placed = self._mixed.framed.of(run)
        first = placed.first_from(offset)
        return placed.length_of(first) if first < placed.count else 0

    async def find_timestamp(self, run: Run, timestamp: int, from_offset: int) -> OffsetAndTimestamp | None:
        """Find the first record of the run at or after both `from_offset` and `timestamp`; None if there is none.

        Skips markers, which are not records, and batches whose records can't be decoded. Raises like `read`.
        """
        if run.kind == ObjectKind.MARKERS:
            return None
        if run.kind == ObjectKind.PARQUET:
            return await self._parquet.find_timestamp(run, timestamp, from_offset)
        find = partial(
            first_reaching, timestamp=timestamp, from_offset=from_offset, end_offset=run.end_offset
        )
        for start, batch in _stored_from(run, from_offset):
            if batch.max_timestamp >= timestamp:
                data = await self._mixed.batch_at(run, start, batch.length)
                found = await self._found_in(data, batch.base_offset, find)
                if found is not None:
                    return found
        return None

    async def find_latest(self, run: Run, from_offset: int) -> OffsetAndTimestamp | None:
        """Find the first record with the largest timestamp among those from `from_offset` on; None if there is none.

        Reads only batches whose header states a later timestamp than the record found so far. Skips and raises like
        `find_timestamp`.
        """
        if run.kind == ObjectKind.MARKERS:
            return None
        if run.kind == ObjectKind.PARQUET:
            return await self._latest_by_halves(run, from_offset)
        best: OffsetAndTimestamp | None = None
        find = partial(latest, from_offset=from_offset)
        for start, batch in _stored_from(run, from_offset):
            if best is None or batch.max_timestamp > best.timestamp:
                data = await self._mixed.batch_at(run, start, batch.length)
                found = await self._found_in(data, batch.base_offset, find)
                if found is not None and (best is None or found.timestamp > best.timestamp):
                    best = found
        return best

    async def _latest_by_halves(self, run: Run, from_offset: int) -> OffsetAndTimestamp | None:
        """`find_latest` for a Parquet run: bisect the timestamp with at most 63 look-ups through the run's index."""
        best, low, high = None, 0, run.max_timestamp + 1
        while low < high:
            middle = (low + high) // 2
            record = await self.find_timestamp(run, middle, from_offset)
            if record is None:
                high = middle
            else:
                best, low = record, record.timestamp + 1
        return best

    async def close(self) -> None:
        """Cancel and await the requests in progress. Close the reader before its cache."""
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

    async def _found_in(
        self, batch: memoryview, base_offset: int, find: Callable[[bytes], OffsetAndTimestamp | None]
    ) -> OffsetAndTimestamp | None:
        """Return what `find` finds in the batch; None if its records can't be decoded. Batches are stored as producers
        sent them, and a bad batch must not make a look-up fail for everybody."""
        patched = b"".join(framed(batch, base_offset, 0))
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, find, patched)
        except InvalidRecords:
            return None

    def _chunks_ahead(self, run: Run, offset: int) -> list[ChunkRef]:
        """Return the chunks of an old run from `offset` on; of a Parquet object only those of its index, which leads to
        the rest."""
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
    """Yield the start and the entry of each stored batch of a mixed object's run that ends after `from_offset`."""
    start = run.start
    for batch in run.batches:
        if batch.status is BatchStatus.STORED and batch.base_offset + batch.record_count > from_offset:
            yield start, batch
        start += batch.length


def _close_hole(request: ReadRequest, out: ReadBatches) -> None:
    """If the answer ends with a hole, append a batch that moves the client past it. It must fit like any other
    batch."""
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
