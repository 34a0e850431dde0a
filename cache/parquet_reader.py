"""Record batches out of Parquet objects: index and row groups through the chunk cache, decoding on a pool.

An index (the decoded footer) never changes, so some are kept, within a budget of bytes; and a row group is decoded
once for the many fetches of a replay. pyarrow and numba are imported in the pool, by the first Parquet run that is
read: an agent that never meets one starts, and lives, without them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from cache.chunk import ChunkBytes, ChunkRef, ObjectCorrupt, chunks_of
from cache.chunk_cache import ChunkCache
from cache.eviction import S3Fifo
from cache.observer import CacheObserver
from cache.read_ahead import ReadAhead
from cache.single_flight import SingleFlight
from sequencer.api import Run
from tailrace.buffers import Buffer
from tailrace.ids import TopicPartition
from tailrace.parquet_object.header import InvalidParquetObject
from tailrace.record_batch import InvalidBatch, check_crc, read_header
from tailrace.records import InvalidRecords, Record, decode_records

if TYPE_CHECKING:
    from tailrace.parquet_object.read import ParquetIndex, RowGroupRange, StoredBatch

T = TypeVar("T")

BATCH_IN_MEMORY_BYTES = 400
"""About what an index needs for each batch, beside its footer: the header as a struct with its numbers."""


class DecodedBatch(NamedTuple):
    """A rebuilt record batch, of offsets from `base_offset` to before `end_offset`."""

    base_offset: int
    end_offset: int
    record_count: int
    max_timestamp: int
    data: bytes


class _GroupId(NamedTuple):
    key: str
    number: int
    partition: TopicPartition


class ParquetReader:
    """Reads Parquet runs. `executor` is a bounded pool: decoding never runs on the loop."""

    def __init__(
        self, cache: ChunkCache, executor: Executor, observer: CacheObserver, ahead: ReadAhead
    ) -> None:
        self._cache = cache
        self._ahead = ahead
        self._executor = executor
        self._observer = observer
        self._indexes: S3Fifo[str, ParquetIndex] = S3Fifo(cache.settings.index_bytes)
        self._decoded: S3Fifo[_GroupId, list[DecodedBatch]] = S3Fifo(cache.settings.decoded_bytes)
        self._index_flights: SingleFlight[str, ParquetIndex] = SingleFlight()
        self._group_flights: SingleFlight[_GroupId, list[DecodedBatch]] = SingleFlight()

    async def batches(self, run: Run, offset: int) -> AsyncIterator[DecodedBatch]:
        """The run's batches from the one that holds `offset` on. Raises ObjectMissing, ObjectCorrupt, ..."""
        index = await self._index(run)
        groups = index.row_groups_for(run.topic_id, run.partition, offset)
        for place, group in enumerate(groups):
            self._read_ahead(run, groups[place + 1 :])
            for batch in await self._group(run, index, group):
                if batch.end_offset > offset and run.base_offset <= batch.base_offset < run.end_offset:
                    yield batch

    async def find_timestamp(self, run: Run, timestamp: int, from_offset: int) -> tuple[int, int] | None:
        """Offset and timestamp of the first record from `from_offset` on, at or after `timestamp`."""
        index = await self._index(run)
        for group in index.row_groups_for(run.topic_id, run.partition, from_offset):
            held = index.header.row_groups[group.number]
            places = range(held.first_batch, held.first_batch + held.batch_count)
            if all(index.batches[place].max_timestamp < timestamp for place in places):
                continue
            for batch in await self._group(run, index, group):
                if batch.max_timestamp < timestamp or not from_offset < batch.end_offset:
                    continue
                for record in await self._records(run, batch):
                    if record.timestamp >= timestamp and from_offset <= record.offset < run.end_offset:
                        return record.offset, record.timestamp
        return None

    async def close(self) -> None:
        """Cancel and await whatever is under way."""
        await self._group_flights.close()
        await self._index_flights.close()

    async def _index(self, run: Run) -> ParquetIndex:
        held = self._indexes.get(run.key)
        if held is not None:
            return held
        return await self._index_flights.do(run.key, lambda: self._read_index(run))

    async def _read_index(self, run: Run) -> ParquetIndex:
        index: ParquetIndex | int = min(run.index_start, run.object_size)
        crc = run.index_crc
        while isinstance(index, int):
            index = await self._decode_range(
                run, index, run.object_size, partial(_parse_index, size=run.object_size, crc=crc)
            )
            crc = 0  # that of the bytes from `index_start` on, which were not enough
        self._indexes.put(
            run.key, index, index.footer_bytes + BATCH_IN_MEMORY_BYTES * index.header.batch_count
        )
        return index

    async def _group(self, run: Run, index: ParquetIndex, group: RowGroupRange) -> list[DecodedBatch]:
        partition = TopicPartition(run.topic_id, run.partition)
        group_id = _GroupId(run.key, group.number, partition)
        held = self._decoded.get(group_id)
        if held is not None:
            return held

        async def decode() -> list[DecodedBatch]:
            batches = await self._decode_range(
                run,
                group.start,
                group.start + group.length,
                lambda data: _rebuild(index, group.number, data, partition),
            )
            self._decoded.put(group_id, batches, sum(len(batch.data) for batch in batches))
            return batches

        return await self._group_flights.do(group_id, decode)

    async def _decode_range(self, run: Run, start: int, end: int, decode: Callable[[Buffer], T]) -> T:
        """Bytes [start, end) of the object, decoded in the pool; read again from the store where they are corrupt."""
        loop = asyncio.get_running_loop()
        chunks = self._chunks_of(run, start, end)
        held = await asyncio.gather(*(self._cache.get(chunk, is_catch_up=True) for chunk in chunks))
        try:
            return await loop.run_in_executor(self._executor, decode, _cut(chunks, held, start, end))
        except InvalidParquetObject:
            held = await asyncio.gather(*(self._cache.reread(chunk) for chunk in chunks))
        try:
            sound = await loop.run_in_executor(self._executor, decode, _cut(chunks, held, start, end))
        except InvalidParquetObject as error:
            self._observer.batch_corrupt(run.key, start, end - start, is_repaired=False)
            raise ObjectCorrupt(run.key, start, end - start, str(error)) from error
        self._observer.batch_corrupt(run.key, start, end - start, is_repaired=True)
        return sound

    async def _records(self, run: Run, batch: DecodedBatch) -> list[Record]:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._executor, decode_records, batch.data)
        except (InvalidRecords, InvalidBatch) as error:
            raise ObjectCorrupt(run.key, run.start, run.length, str(error)) from error

    def _read_ahead(self, run: Run, groups: list[RowGroupRange]) -> None:
        """Fetch the row groups that follow, up to `read_ahead_chunks`."""
        most = self._cache.settings.read_ahead_chunks
        ahead: list[ChunkRef] = []
        for group in groups:
            if len(ahead) >= most:
                break
            ahead += self._chunks_of(run, group.start, group.start + group.length)
        self._ahead.chunks(ahead[:most])

    def _chunks_of(self, run: Run, start: int, end: int) -> list[ChunkRef]:
        chunk_bytes = self._cache.settings.chunk_bytes
        return chunks_of(run.key, start=start, end=end, object_size=run.object_size, chunk_bytes=chunk_bytes)


def _cut(refs: list[ChunkRef], chunks: list[ChunkBytes], start: int, end: int) -> Buffer:
    views: list[memoryview] = []
    for ref, chunk in zip(refs, chunks, strict=True):
        views.extend(chunk.views(max(start - ref.start, 0), min(end - ref.start, ref.length)))
    return views[0] if len(views) == 1 else b"".join(views)


def _parse_index(tail: Buffer, size: int, crc: int) -> ParquetIndex | int:
    """The index; or, where the tail is too short for it, the byte at which the footer begins."""
    from tailrace.parquet_object.read import FooterNeedsMore, read_index
    from tailrace.parquet_object.schema import SCHEMA

    try:
        index = read_index(tail, size, crc=crc)
    except FooterNeedsMore as error:
        if error.needed <= len(tail):
            raise
        return size - error.needed
    # Without a CRC (objects of old), a corrupt footer may still parse. What it claims is looked at here, where
    # a wrong claim is read again from the store, and where the loop need not wait for it.
    try:
        names = index.metadata.schema.to_arrow_schema().names
    except UnicodeDecodeError as error:
        raise InvalidParquetObject(f"a column's name is no text: {error}") from error
    if names != SCHEMA.names:
        raise InvalidParquetObject(f"columns {names}; expected {SCHEMA.names}")
    assert len(index.batches) == index.header.batch_count
    assert len(index.row_groups) == len(index.header.row_groups)
    return index


def _rebuild(
    index: ParquetIndex, row_group: int, data: Buffer, partition: TopicPartition
) -> list[DecodedBatch]:
    from tailrace.parquet_object.read import record_batches

    stored = record_batches(index, row_group, data, partition=partition)
    return [_decoded(batch) for batch in stored]


def _decoded(batch: StoredBatch) -> DecodedBatch:
    try:
        check_crc(batch.data)
        count = read_header(batch.data).record_count
    except InvalidBatch as error:
        raise InvalidParquetObject(f"batch at offset {batch.base_offset}: {error}") from error
    return DecodedBatch(
        base_offset=batch.base_offset,
        end_offset=batch.end_offset,
        record_count=count,
        max_timestamp=batch.max_timestamp,
        data=batch.data,
    )
