"""A fetch counts as available the bytes that it would send, given enough memory."""

from __future__ import annotations

import asyncio
from itertools import accumulate, product

from agent.fetch.fetch_sessions import PartitionKey, RequestedPartition
from agent.fetch.partition_fetch import PartitionFetch
from agent.handlers.fetch import fill
from agent.memory_budget import release
from sequencer.api.topics import Topic
from tailrace.batches.record_batch import split
from tailrace.kafka.messages.fetch import FetchRequest, PartitionData
from tests.agent.handlers.test_fetch import fetch, request_of, rows_of
from tests.agent.handlers.test_produce import produce
from tests.support.agents import AgentBench, agent_bench, batch
from tests.support.transactions import TransactionalProducer

LARGE = 1 << 20


async def with_an_open_transaction(bench: AgentBench) -> Topic:
    """A topic whose partition 0 has runs of two or three batches, and an open transaction within the fourth."""
    topic = await bench.topic()
    producer = TransactionalProducer(bench)
    await producer.init()
    for number in range(6):
        first, last = (produce(bench, (0, batch(b"x" * (10 * number + each), b"y"))) for each in range(2))
        between = [producer.send(0, b"open")] if number == 3 else []
        await asyncio.gather(first, *between, last)
    return topic


async def filled(bench: AgentBench, topic: Topic, offset: int, max_bytes: int, limit: int) -> PartitionFetch:
    """Partition 0 after a fetch of its committed records."""
    partition = PartitionFetch(
        RequestedPartition(PartitionKey("", topic.topic_id, 0), offset, max_bytes, -1, -1),
        bench.services.catalog.snapshot.by_name[topic.name],
        PartitionData(0, aborted_transactions=[]),
        read_committed=True,
        limit=limit,
    )
    release(await fill(bench.services, FetchRequest(max_wait_ms=0, max_bytes=LARGE), [partition]))
    return partition


async def test_the_last_stable_offset_bounds_them_wherever_it_is_among_the_runs() -> None:
    async with agent_bench() as bench:
        topic = await with_an_open_transaction(bench)
        (row,) = rows_of(await fetch(bench, request_of(topic, (0, 0))))
        log = [(header, len(data)) for header, data in split(memoryview(bytes(row.records or b"")))]  # type: ignore[arg-type]
        stable = row.last_stable_offset
        for offset, limit, most in product(range(stable), (stable - 4, stable, LARGE), (1, 200, 350, LARGE)):
            partition = await filled(bench, topic, offset, max_bytes=most, limit=limit)
            assert partition.found is not None and partition.found.inner_bytes >= 0
            end = min(stable, limit, partition.found.runs[-1].end_offset)
            wanted = [size for each, size in log if each.end_offset > offset and each.base_offset < end]
            sizes = wanted if offset < end else []
            fitting = sum(upto <= most for upto in accumulate(sizes))
            assert partition.available_bytes == min(sum(sizes), most), (offset, limit, most)
            assert partition.read_bytes == sum(sizes[: max(fitting, 1)]), (offset, limit, most)
        runs = (await filled(bench, topic, 0, max_bytes=LARGE, limit=LARGE)).found.runs  # type: ignore[union-attr]
        assert any(each.base_offset < stable < each.end_offset for each in runs[1:-1]), "within a run"
        assert all(len(each.batches) > 1 for each in runs)
