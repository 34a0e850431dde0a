"""A row group of many partitions is decoded once, and each partition gets its own batches."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock
from uuid import UUID

import pytest

import cache.parquet_reader as parquet_reader
from cache.chunk_cache import ChunkCache
from cache.read_batches import ReadRequest
from cache.reader import BatchReader
from cache.ring import ZoneRing
from cache.settings import CacheSettings
from sequencer.api.agents import Ring
from sequencer.api.commits import ObjectKind
from sequencer.api.reads import Run
from tailrace.batches.record_batch import Compression, check_crc, split
from tailrace.batches.records import NewRecord, decode_records, encode_batch
from tailrace.ids import TopicPartition
from tailrace.object_store.memory import MemoryStore
from tailrace.parquet_object.write import SourceBatch, SourceRun, WrittenParquet, write_parquet
from tests.support.agents import settle
from tests.support.clocks import ManualClock
from tests.support.row_samples import sample_run

TOPIC = UUID(int=5)
POOL = ThreadPoolExecutor(2)
PARTITIONS = 12
BATCHES = 6


def value(partition: int, batch: int, record: int) -> bytes:
    return b"%d-%d-%d" % (partition, batch, record) * 20


def batch_of(partition: int, number: int) -> bytes:
    codec = Compression.ZSTD if (partition + number) % 3 == 0 else Compression.NONE
    records = [NewRecord(b"k", value(partition, number, place)) for place in range(3)]
    return encode_batch(records, timestamps=[100 * number] * 3, compression=codec)


@pytest.fixture(scope="module")
def shared() -> WrittenParquet:
    """Twelve partitions of six batches, in row groups that hold some of them each."""
    runs = [
        SourceRun(
            TopicPartition(TOPIC, partition),
            "t",
            [SourceBatch(batch_of(partition, number), 3 * number, 0) for number in range(BATCHES)],
        )
        for partition in range(PARTITIONS)
    ]
    return write_parquet(runs, object_id=UUID(int=1), cluster_id="c", created_ms=0, row_group_bytes=6000)


def run_of(written: WrittenParquet, partition: int) -> Run:
    return sample_run(
        0,
        3 * BATCHES,
        topic_id=TOPIC,
        partition=partition,
        object_id=UUID(int=1),
        kind=ObjectKind.PARQUET,
        key="p/1",
        object_size=written.size,
        index_start=written.index_start,
        length=written.size // PARTITIONS,
        max_timestamp=500,
        index_crc=written.index_crc,
    )


async def reader_of(written: WrittenParquet, **changed: int) -> BatchReader:
    clock = ManualClock()
    store = MemoryStore(clock)
    assert written.data is not None
    await store.put("p/1", [written.data])
    settings = CacheSettings(chunk_bytes=4096, memory_bytes=1 << 20).changed(**changed)
    return BatchReader(ChunkCache(store, settings, lambda: ZoneRing(Ring(1, []), "a", 1)), clock, POOL)


async def read_whole(reader: BatchReader, run: Run, max_bytes: int, leader_epoch: int) -> list[bytes | None]:
    """The values of all records, asked for in steps of `max_bytes`."""
    values: list[bytes | None] = []
    offset = 0
    while offset < run.end_offset:
        found = await reader.read(
            [run], ReadRequest(offset=offset, max_bytes=max_bytes, leader_epoch=leader_epoch)
        )
        for header, batch in split(memoryview(b"".join(found.parts))):
            check_crc(batch)
            assert (header.base_offset, header.leader_epoch) == (len(values), leader_epoch)
            values += [record.value for record in decode_records(batch)]
        offset = found.end_offset
    return values


def written_values(partition: int) -> list[bytes]:
    return [value(partition, number, place) for number in range(BATCHES) for place in range(3)]


async def test_readers_of_all_partitions_decode_each_row_group_once(shared: WrittenParquet) -> None:
    groups = shared.index.header.row_groups
    assert 1 < len(groups) < PARTITIONS, "partitions share row groups, and some lie in two"

    reader = await reader_of(shared)
    decode = mock.Mock(wraps=parquet_reader._records_of)
    with mock.patch.object(parquet_reader, "_records_of", decode):
        runs = [run_of(shared, partition) for partition in range(PARTITIONS)]
        read = await asyncio.gather(*(read_whole(reader, run, 700, 4) for run in runs))
    assert read == [written_values(partition) for partition in range(PARTITIONS)]
    assert decode.call_count == len(groups)
    await reader.close()


async def test_a_cached_run_is_sent_with_the_requested_epoch(shared: WrittenParquet) -> None:
    reader = await reader_of(shared)
    for leader_epoch in (4, 5, 4):
        assert await read_whole(reader, run_of(shared, 7), 1 << 20, leader_epoch) == written_values(7)
    await reader.close()


async def test_decoded_row_groups_are_kept_within_their_budget(shared: WrittenParquet) -> None:
    reader = await reader_of(shared, decoded_bytes=16_000)
    for partition in range(PARTITIONS):
        assert await read_whole(reader, run_of(shared, partition), 700, 4) == written_values(partition)
        assert 0 < reader._parquet._decoded.bytes_held <= 16_000
    await reader.close()


async def test_while_the_pool_is_busy_few_row_groups_are_fetched(shared: WrittenParquet) -> None:
    reader = await reader_of(shared, catch_up_gets=2, memory_bytes=0, chunk_bytes=64)
    await reader._parquet._index(run_of(shared, 0))
    store = reader._cache._store
    is_free = threading.Event()

    def decode_late(*given: Any) -> Any:
        is_free.wait()
        return decode(*given)

    decode = parquet_reader._records_of
    fetch = mock.AsyncMock(wraps=store.get_range)
    with (
        mock.patch.object(parquet_reader, "_records_of", decode_late),
        mock.patch.object(store, "get_range", fetch),
    ):
        runs = [run_of(shared, partition) for partition in range(PARTITIONS)]
        reading = asyncio.gather(*(read_whole(reader, run, 700, 4) for run in runs))
        await settle(500)
        fetched = {call.args[1] for call in fetch.await_args_list}
        is_free.set()
        assert await reading == [written_values(partition) for partition in range(PARTITIONS)]
    middles = [group.start + group.length // 2 for group in shared.index.row_groups]
    assert sum(middle - middle % 64 in fetched for middle in middles) == 2 < len(middles)
    await reader.close()
