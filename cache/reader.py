"""The reader: record batches out of committed runs, ready to be sent to a Kafka client.

Runs come from the sequencer, bytes through the chunk cache, and what goes out is a gather list: 16 patched
bytes of each batch (base offset, length, leader epoch: all outside its CRC) and a view on the rest. Batches
of mixed objects are the producers' own bytes; those of Parquet objects are encoded again (`parquet_reader`);
transaction markers, which are in no object, are made from their rows.

A client's position is where the last batch that it got ends. So where an answer ends with offsets that
compaction has left empty, a batch without data (`hole_batch`) takes it past them; else it would ask for ever.

No byte of a batch that did not come from this agent's own upload leaves without its CRC checked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field

from cache.chunk import ChunkBytes, ChunkId, ChunkRef, ObjectRotten, chunks_of
from cache.chunk_cache import ChunkCache
from cache.observer import CacheObserver, NoObserver
from cache.parquet_reader import ParquetReader
from cache.selection import Placed, select_batches
from sequencer.api import ObjectKind, Run, Verdict
from tailrace.clock import Clock
from tailrace.object_store.api import Buffer, StoreError
from tailrace.record_batch import (
    MARKER_BYTES,
    InvalidBatch,
    MarkerKind,
    check_crc,
    control_batch,
    framed,
    hole_batch,
)
from tailrace.records import Record, decode_records
from tailrace.turns import Turns

BATCHES_IN_A_TURN = 1_000
"""Batches that are checked and framed in one turn of the loop."""


@dataclass(slots=True)
class ReadBatches:
    """Batches of one partition, in order: `parts` one after the other are `bytes` bytes.

    `first_offset`: where the first batch begins, perhaps before the offset asked for; -1 for none.
    `end_offset`: the offset to go on from, past compaction's holes; the one asked for if nothing was read.
    `is_complete`: all that the runs hold (below the limit) is in it.
    `record_count`: what producers wrote; markers are batches, not records.
    """

    parts: list[Buffer] = field(default_factory=list)
    bytes: int = 0
    first_offset: int = -1
    end_offset: int = 0
    batch_count: int = 0
    record_count: int = 0
    is_complete: bool = True
    client_offset: int = 0
    """Where a client will ask next: the end of the last batch. Behind `end_offset` where a hole follows."""

    def add(self, batch: memoryview, base_offset: int, end_offset: int, records: int, epoch: int) -> None:
        """Append one batch, patched."""
        if self.batch_count == 0:
            self.first_offset = base_offset
        self.parts.extend(framed(batch, base_offset, epoch))
        self.bytes += len(batch)
        self.batch_count += 1
        self.record_count += records
        self.end_offset = self.client_offset = end_offset


@dataclass(frozen=True, slots=True)
class FoundRecord:
    """A record's place, by time."""

    offset: int
    timestamp: int


_Chunks = dict[ChunkId, ChunkBytes | BaseException]


class BatchReader:
    """Reads runs through a chunk cache. Stateless but for the Parquet indexes it keeps.

    Args:
        executor: a bounded pool for decoding (Parquet, compressed records); never the loop's default one.
    """

    def __init__(
        self, cache: ChunkCache, clock: Clock, executor: Executor, observer: CacheObserver | None = None
    ) -> None:
        self._cache = cache
        self._clock = clock
        self._executor = executor
        self._observer: CacheObserver = observer if observer is not None else NoObserver()
        self._parquet = ParquetReader(cache, executor, self._observer)

    async def read(
        self,
        runs: Sequence[Run],
        offset: int,
        max_bytes: int,
        leader_epoch: int,
        *,
        minimum_one: bool = True,
        end_limit: int | None = None,
    ) -> ReadBatches:
        """The batches from the one that holds `offset` on, as many whole ones as `max_bytes` lets.

        Args:
            runs: of one partition, in order, as `find_batches` gave them.
            leader_epoch: the log's own epoch, written into each batch.
            minimum_one: give the first batch even where it is longer than `max_bytes`.
            end_limit: nothing that begins at or after this offset is given: the high watermark, or the last
                stable offset for read_committed.

        Raises ObjectMissing (plan again), StoreUnavailable, StoreRefused, ObjectRotten; none of them when
        there is something sound before the place that fails: then that is given, and the next read raises.
        """
        out = ReadBatches(end_offset=offset, client_offset=offset)
        at = 0
        while at < len(runs) and out.is_complete:
            if runs[at].kind == ObjectKind.PARQUET:
                await self._read_parquet(runs[at], max_bytes, leader_epoch, minimum_one, end_limit, out)
                at += 1
                continue
            upto = at + 1
            while upto < len(runs) and runs[upto].kind != ObjectKind.PARQUET:
                upto += 1
            await self._read_mixed(runs[at:upto], max_bytes, leader_epoch, minimum_one, end_limit, out)
            at = upto
        _close_hole(out, max_bytes, leader_epoch, minimum_one)
        self._read_ahead(runs, out.end_offset)
        return out

    async def find_timestamp(self, run: Run, timestamp: int, from_offset: int) -> FoundRecord | None:
        """The first record of the run, from `from_offset` on, at or after `timestamp`; None for none.

        A marker is no record: it is never found. Raises as `read`.
        """
        if run.kind == ObjectKind.MARKERS:
            return None
        if run.kind == ObjectKind.PARQUET:
            found = await self._parquet.find_timestamp(run, timestamp, from_offset)
            return None if found is None else FoundRecord(*found)
        selection = select_batches([run], from_offset, run.length)
        for placed in selection.batches:
            if placed.batch.max_timestamp < timestamp:
                continue
            chunks = await self._bring([placed])
            batch = await self._sound_batch(placed, chunks)
            records = await self._decode(batch, placed.batch.base_offset)
            for record in records:
                if record.timestamp >= timestamp and record.offset >= from_offset:
                    return FoundRecord(record.offset, record.timestamp)
        return None

    async def close(self) -> None:
        """Cancel and await decoding that is under way. Close the reader before its cache."""
        await self._parquet.close()

    async def _read_mixed(
        self,
        runs: Sequence[Run],
        max_bytes: int,
        leader_epoch: int,
        minimum_one: bool,
        end_limit: int | None,
        out: ReadBatches,
    ) -> None:
        """Mixed runs, and those of markers between them."""
        selection = select_batches(
            runs,
            out.end_offset,
            max(0, max_bytes - out.bytes),
            is_first_free=minimum_one and not out.batch_count,
            end_limit=end_limit,
        )
        chunks = await self._bring(selection.batches)
        turns = Turns(BATCHES_IN_A_TURN)
        for placed in selection.batches:
            await turns.did()
            try:
                batch = await self._sound_batch(placed, chunks)
            except StoreError:
                if out.batch_count:
                    out.is_complete = False
                    return
                raise
            out.add(
                batch,
                placed.batch.base_offset,
                placed.end_offset,
                0 if placed.run.kind == ObjectKind.MARKERS else placed.batch.record_count,
                leader_epoch,
            )
        out.end_offset = selection.end_offset
        out.is_complete = not selection.is_full

    async def _read_parquet(
        self,
        run: Run,
        max_bytes: int,
        leader_epoch: int,
        minimum_one: bool,
        end_limit: int | None,
        out: ReadBatches,
    ) -> None:
        try:
            async for stored in self._parquet.batches(run, out.end_offset):
                if end_limit is not None and stored.base_offset >= end_limit:
                    out.is_complete = False
                    return
                too_long = out.bytes + len(stored.data) > max_bytes
                if too_long and (out.batch_count or not minimum_one):
                    out.is_complete = False
                    return
                out.add(
                    memoryview(stored.data),
                    stored.base_offset,
                    stored.end_offset,
                    stored.record_count,
                    leader_epoch,
                )
        except StoreError:
            if out.batch_count:
                out.is_complete = False
                return
            raise
        upto = run.end_offset if end_limit is None else min(run.end_offset, end_limit)
        out.end_offset = max(out.end_offset, upto)

    def _is_catch_up(self, run: Run) -> bool:
        age_ms = self._clock.wall_ms() - run.created_ms
        return run.kind == ObjectKind.PARQUET or age_ms > self._cache.settings.catch_up_age_ms

    def _chunks_of(self, run: Run, start: int, length: int) -> list[ChunkRef]:
        chunk_bytes = self._cache.settings.chunk_bytes
        return chunks_of(run.key, start, start + length, run.object_size, chunk_bytes)

    async def _bring(self, batches: Sequence[Placed]) -> _Chunks:
        """The chunks that the batches touch, side by side; in place of one that can't be had, its error."""
        chunks: _Chunks = {}
        missing: list[tuple[ChunkRef, bool]] = []
        for placed in batches:
            if placed.run.kind == ObjectKind.MARKERS:
                continue
            is_catch_up = self._is_catch_up(placed.run)
            for chunk in self._chunks_of(placed.run, placed.start, placed.batch.length):
                if chunk.id in chunks:
                    continue
                held = self._cache.held(chunk, is_catch_up=is_catch_up)
                if held is not None:
                    chunks[chunk.id] = held
                elif not any(chunk.id == other.id for other, _ in missing):
                    missing.append((chunk, is_catch_up))
        if missing:
            brought = await asyncio.gather(
                *(self._cache.get(chunk, is_catch_up=is_catch_up) for chunk, is_catch_up in missing),
                return_exceptions=True,
            )
            for (chunk, _), found in zip(missing, brought, strict=True):
                chunks[chunk.id] = found
        return chunks

    async def _sound_batch(self, placed: Placed, chunks: _Chunks) -> memoryview:
        """The batch's bytes, CRC checked; read again from the store itself where it is wrong."""
        if placed.run.kind == ObjectKind.MARKERS:
            return _marker_batch(placed)
        refs = self._chunks_of(placed.run, placed.start, placed.batch.length)
        found = [_present(chunks[chunk.id]) for chunk in refs]
        batch = _bytes_of(placed, refs, found)
        if all(each.is_trusted or placed.start in each.checked for each in found):
            return batch
        key, start, length = placed.run.key, placed.start, placed.batch.length
        try:
            check_crc(batch)
        except InvalidBatch:
            found = [await self._cache.get_again(chunk) for chunk in refs]
            chunks.update((chunk.id, again) for chunk, again in zip(refs, found, strict=True))
            batch = _bytes_of(placed, refs, found)
            try:
                check_crc(batch)
            except InvalidBatch as still:
                self._observer.batch_rotten(key, start, length, is_repaired=False)
                raise ObjectRotten(key, start, length, str(still)) from still
            self._observer.batch_rotten(key, start, length, is_repaired=True)
        for each in found:
            each.checked.add(placed.start)
        return batch

    async def _decode(self, batch: memoryview, base_offset: int) -> list[Record]:
        patched = b"".join(framed(batch, base_offset, 0))
        return await asyncio.get_running_loop().run_in_executor(self._executor, decode_records, patched)

    def _read_ahead(self, runs: Sequence[Run], offset: int) -> None:
        """Begin to bring what a reader of old runs will ask for next."""
        most = self._cache.settings.read_ahead_chunks
        ahead: dict[ChunkId, ChunkRef] = {}
        for run in runs:
            if len(ahead) >= most:
                break
            if run.end_offset <= offset or run.kind != ObjectKind.MIXED or not self._is_catch_up(run):
                continue
            start = run.start
            for batch in run.batches:
                if batch.verdict == Verdict.STORED and batch.base_offset >= offset:
                    ahead.update((chunk.id, chunk) for chunk in self._chunks_of(run, start, batch.length))
                start += batch.length
        self._cache.read_ahead(list(ahead.values())[:most])


def _close_hole(out: ReadBatches, max_bytes: int, leader_epoch: int, minimum_one: bool) -> None:
    """Where what was read ends with a hole, take the client past it, within the budget as any batch."""
    if out.client_offset >= out.end_offset:
        return
    batch = memoryview(hole_batch(out.end_offset))
    if out.bytes + len(batch) > max_bytes and (out.batch_count or not minimum_one):
        out.is_complete = False
        return
    out.add(batch, out.end_offset - 1, out.end_offset, 0, leader_epoch)


def _marker_batch(placed: Placed) -> memoryview:
    run, batch = placed.run, placed.batch
    marker = run.markers[batch.base_offset - run.base_offset]
    assert marker.offset == batch.base_offset and batch.length == MARKER_BYTES, (
        f"a marker at {marker.offset} where one of {batch.length} bytes at {batch.base_offset} is listed"
    )
    return memoryview(
        control_batch(
            MarkerKind.COMMIT if marker.is_commit else MarkerKind.ABORT,
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            timestamp_ms=marker.timestamp,
        )
    )


def _present(chunk: ChunkBytes | BaseException) -> ChunkBytes:
    if isinstance(chunk, BaseException):
        raise chunk
    return chunk


def _bytes_of(placed: Placed, refs: Sequence[ChunkRef], chunks: Sequence[ChunkBytes]) -> memoryview:
    """A batch's bytes as one buffer: a view, but a copy for one that lies across two chunks."""
    start, end = placed.start, placed.start + placed.batch.length
    views: list[memoryview] = []
    for ref, chunk in zip(refs, chunks, strict=True):
        first = max(start, ref.start) - ref.start
        last = min(end, ref.start + ref.length) - ref.start
        views.extend(chunk.views(first, last))
    return views[0] if len(views) == 1 else memoryview(b"".join(views))
