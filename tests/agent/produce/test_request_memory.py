"""Produce requests of very many small batches hold no more memory than there is for them."""

from __future__ import annotations

import tracemalloc
from contextlib import AbstractAsyncContextManager

import pytest

from agent.memory_budget import MemoryBudget
from agent.produce.request_memory import ELEMENT_BYTES, PART, WAIT_SECONDS
from tailrace.kafka.source_writer import STEP
from tests.agent.test_produce_fast_path import Client, produce
from tests.support.agents import AgentBench, agent_bench, batch, settle

MIB = 1 << 20
LEAST_BUDGET = 16 * MIB
MANY = 3_000
"""Partitions whose objects take more than half of what there is for such requests."""
SMALLEST = batch(b"")


def of_many(partitions: int = MANY, records: bytes = SMALLEST, acks: int = -1) -> bytes:
    """A frame with the same batch for each partition."""
    return produce(records, partitions=range(1, partitions), acks=acks)


def small_bench() -> AbstractAsyncContextManager[AgentBench]:
    return agent_bench(memory_budget_bytes=LEAST_BUDGET, max_rows_per_second=1e6)


async def test_requests_of_smallest_batches_that_end_at_once_hold_little_beside_their_frames() -> None:
    connections, partitions = 50, 2_000

    async with small_bench() as bench:
        await bench.topic(partitions=partitions)
        budget = MemoryBudget(LEAST_BUDGET)
        clients = [Client(bench, budget=budget) for _ in range(connections)]
        sent = of_many(partitions)
        for client in clients:
            client.feed(sent[:-1])
        bench.sequencer.may_commit.clear()
        tracemalloc.start()
        try:
            for client in clients:
                client.feed(sent[-1:])
                await settle(20)
            await bench.advance(1)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 2 * LEAST_BUDGET // PART, "without a bound: 100 MiB"
        bench.sequencer.may_commit.set()
        for _ in range(2 * connections):
            await bench.advance(0.3)
        assert [client.answers() for client in clients] == [[(0, number)] for number in range(connections)]
        assert budget.used == bench.services.request_memory.used == 0


@pytest.mark.parametrize("partitions", [100, MANY])
@pytest.mark.parametrize("records", [SMALLEST, b"", b"x" * 61])
@pytest.mark.parametrize("acks", [-1, 0, 2])
async def test_the_memory_of_a_request_is_released_however_it_ends(
    partitions: int, records: bytes, acks: int
) -> None:
    async with small_bench() as bench:
        await bench.topic(partitions=partitions - 1)
        client = Client(bench)
        client.feed(of_many(partitions, records, acks))  # the last partition is unknown
        await settle(200)
        await bench.advance(1)
        assert not client.connection.deferred
        assert client.budget.used == bench.services.request_memory.used == 0


@pytest.mark.parametrize("partitions", [100, MANY])
async def test_a_lost_connections_request_holds_its_memory_until_its_batches_are_stored(
    partitions: int,
) -> None:
    async with small_bench() as bench:
        await bench.topic(partitions=partitions)
        bench.sequencer.may_commit.clear()
        client = Client(bench)
        client.feed(of_many(partitions))
        await settle(200)
        client.connection.connection_lost(None)
        await settle()
        assert bench.services.request_memory.used >= partitions * (ELEMENT_BYTES - 100)
        bench.sequencer.may_commit.set()
        await bench.advance(1)
        await settle(200)
        assert client.budget.used == bench.services.request_memory.used == 0


async def full(bench: AgentBench) -> Client:
    """A client whose request has taken most of the memory, and is not answered until `may_commit`."""
    await bench.topic(partitions=MANY)
    bench.sequencer.may_commit.clear()
    client = Client(bench)
    client.feed(of_many())
    await settle(200)
    assert client.connection.deferred == 1
    return client


@pytest.mark.parametrize("partitions", [STEP // 2, MANY])
async def test_a_waiting_request_that_is_lost_gives_its_place_to_others(partitions: int) -> None:
    async with small_bench() as bench:
        first = await full(bench)
        lost, last = Client(bench), Client(bench)
        for client in (lost, last):
            client.feed(of_many(partitions))
            await settle()
            assert not client.connection.deferred
        lost.connection.connection_lost(None)
        bench.sequencer.may_commit.set()
        for _ in range(3):
            await bench.advance(0.5)
        assert len(first.answers()) == len(last.answers()) == 1 and not lost.answers()
        assert lost.budget.used == bench.services.request_memory.used == 0


async def test_a_request_that_waits_for_memory_blocks_no_small_one() -> None:
    async with small_bench() as bench:
        first = await full(bench)
        waiting, small = Client(bench), Client(bench)
        waiting.feed(of_many())
        small.feed(produce(partitions=[1]))
        await settle()
        assert first.connection.deferred == small.connection.deferred == 1
        assert not waiting.connection.deferred


async def test_a_request_that_waits_for_too_long_ends_its_connection_alone() -> None:
    async with small_bench() as bench:
        await bench.topic(partitions=MANY)
        await bench.services.request_memory.take(MANY)
        waiting = Client(bench)
        waiting.feed(of_many())
        await settle(200)
        await bench.advance(WAIT_SECONDS + 1, step=1)
        assert waiting.transport.closed and waiting.budget.used == 0
        assert not waiting.answers()
