"""Fetches of partitions from which compaction has dropped aborted records and markers."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from compactor.cycle import CompactionSettings, CompactionSummary, InProcess, run_cycle
from sequencer.api.reads import AbortedTransaction
from sequencer.api.topics import Topic
from tailrace.ids import TopicPartition
from tailrace.kafka.messages.fetch import PartitionData
from tailrace.parquet_object.verify import verify
from tailrace.parquet_object.write import SourceBatch, SourceRun, write_parquet
from tests.agent.handlers.test_fetch import fetch, request_of, rows_of
from tests.agent.handlers.test_group_offsets import located
from tests.agent.handlers.test_produce import produce
from tests.agent.handlers.test_share_fetch import Member
from tests.support.agents import AgentBench, agent_bench, batch
from tests.support.clocks import SeededEntropy
from tests.support.consumer import JavaLikeConsumer
from tests.support.transactions import TransactionalProducer


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """Numba compiles at the first use; on a busy machine that takes longer than a scenario may."""
    partition = TopicPartition(UUID(int=1), 0)
    source = [SourceBatch(batch(b"x"), 0, 0)]
    run_of = SourceRun(partition, "t", source)
    written = write_parquet([run_of], object_id=UUID(int=2), cluster_id="c", created_ms=0)
    assert written.data is not None
    assert verify(written.data, [run_of], size=written.size, crc=written.crc) == []


async def compacted(bench: AgentBench) -> CompactionSummary:
    entropy = SeededEntropy(40)
    return await run_cycle(
        bench.sequencer,
        InProcess(bench.objects, bench.clock, entropy),
        clock=bench.clock,
        entropy=entropy,
        settings=CompactionSettings(min_bytes=1, min_age_ms=0),
    )


async def started(bench: AgentBench) -> TransactionalProducer:
    producer = TransactionalProducer(bench, "tx")
    assert await producer.init() == 0
    return producer


async def fetched(
    bench: AgentBench, topic: Topic, offset: int, *, committed: bool = True, max_wait_ms: int = 0
) -> tuple[PartitionData, JavaLikeConsumer]:
    request = request_of(
        topic, (0, offset), isolation_level=int(committed), min_bytes=1, max_wait_ms=max_wait_ms
    )
    (row,) = rows_of(await fetch(bench, request))
    assert row.error_code == 0
    consumer = JavaLikeConsumer(offset, committed)
    listed = [
        AbortedTransaction(each.producer_id, each.first_offset, -1) for each in row.aborted_transactions or []
    ]
    consumer.take(bytes(row.records or b""), listed)  # type: ignore[arg-type]
    return row, consumer


async def test_committed_records_and_positions_stay_and_the_list_of_aborted_is_empty() -> None:
    async with agent_bench() as bench:
        topic = await bench.topic()
        writer = await started(bench)
        await writer.send(0, b"good")
        assert await writer.end(commit=True) == 0
        await writer.send(0, b"bad")
        assert await writer.end(commit=False) == 0
        before = (await fetched(bench, topic, 0))[1]
        assert [(each.offset, each.value) for each in before.records] == [(0, b"good")]
        summary = await compacted(bench)
        assert (summary.records, summary.aborted_records, summary.markers) == (1, 1, 2)
        for committed in (True, False):
            row, after = await fetched(bench, topic, 0, committed=committed)
            assert (after.records, after.position) == (before.records, 4)
            assert (row.high_watermark, row.last_stable_offset) == (4, 4)
            assert not row.aborted_transactions


async def test_a_client_in_a_hole_is_answered_at_once_and_then_waits_at_the_end() -> None:
    async with agent_bench() as bench:
        topic = await bench.topic()
        writer = await started(bench)
        await writer.send(0, b"bad", b"worse")
        assert await writer.end(commit=False) == 0
        await compacted(bench)
        for offset in range(3):
            _, passed = await fetched(bench, topic, offset, max_wait_ms=30_000)
            assert (passed.records, passed.position) == ([], 3)
        waiting = asyncio.ensure_future(fetched(bench, topic, 3, max_wait_ms=30_000))
        await bench.advance(0.5)
        assert not waiting.done()
        await produce(bench, (0, batch(b"next")))
        _, woken = await bench.until(waiting)
        assert [each.offset for each in woken.records] == [3]


async def test_an_open_transaction_behind_a_hole_keeps_nobody_in_it() -> None:
    async with agent_bench() as bench:
        topic = await bench.topic()
        writer = await started(bench)
        await writer.send(0, b"bad")
        assert await writer.end(commit=False) == 0
        await compacted(bench)
        await writer.send(0, b"open")
        row, consumer = await fetched(bench, topic, 0)
        assert (consumer.records, consumer.position) == ([], row.last_stable_offset) == ([], 2)


async def test_a_share_group_gets_past_a_hole_that_is_longer_than_what_its_member_asks_for() -> None:
    async with agent_bench(group_share_auto_offset_reset="earliest") as bench:
        await bench.topic("t", 1)
        await located(bench)
        writer = await started(bench)
        for commit in (False, False, False, True):
            await writer.send(0, b"x")
            assert await writer.end(commit=commit) == 0
        await compacted(bench)
        member = await Member(bench, "a").join()
        acquired = [await member.acquired(max_records=1) for _ in range(4)]

        assert [each for each in acquired if each] == [[(6, 6, 1)]]
