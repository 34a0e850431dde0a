"""Nothing that is asked of the sequencer holds its loop for long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

from sequencer.api import (
    AddToTransaction,
    AgentInfo,
    BatchError,
    CommitRequest,
    DeleteRecords,
    DeleteRecordsPartition,
    Empty,
    FindPartition,
    FindRequest,
    InitProducer,
    ObjectDescription,
    ObjectKind,
    OpenSession,
    RunProposal,
    SessionGrant,
    StampQuery,
    StampRequest,
    TransactionRef,
)
from sequencer.committer import LocalSequencer
from sequencer.memory import MemoryRowStore
from sequencer.rows import Changes, ProducerRow
from tailrace.clock import ManualClock, SeededEntropy
from tailrace.mixed_object import BatchCoordinates
from tailrace.record_batch import TRANSACTIONAL_FLAG
from tests.support.backlog import TOPIC, fill
from tests.support.turns import measured_turns

HELD_SECONDS = 0.2
"""Four times the 50 ms that are meant: a slower or busier machine takes longer for the same work."""
PARTITIONS = 2_000
PLAIN = BatchCoordinates(100, 1, 1, 1, -1, -1, -1, 0)


@asynccontextmanager
async def a_wide_topic() -> AsyncIterator[tuple[LocalSequencer, SessionGrant]]:
    clock = ManualClock()
    store = MemoryRowStore(clock)
    await fill(store, partitions=PARTITIONS, runs=1, batches=1)
    sequencer = LocalSequencer(store, clock, SeededEntropy(1))
    await sequencer.start()
    agent = await sequencer.register_agent(AgentInfo("a", 1, "a", 0, 0, "z", "0", UUID(int=1)))
    session = await sequencer.open_session(OpenSession(agent.broker_id, agent.epoch))
    try:
        yield sequencer, session
    finally:
        await sequencer.close()


def commit_of(
    session: SessionGrant, number: int, batches: list[BatchCoordinates], transactions: list[int]
) -> CommitRequest:
    described = ObjectDescription(
        UUID(int=1 + number), ObjectKind.MIXED, f"{session.prefix}{number}", 8 << 20, 0, 7 << 20, 1
    )
    length = sum(batch.length for batch in batches)
    runs = [
        RunProposal(TOPIC, partition, 8, length, batches, transactions) for partition in range(PARTITIONS)
    ]
    return CommitRequest(session.session_id, number, 0, described, runs)


def test_a_commit_of_2_000_runs_leaves_the_loop_to_others() -> None:
    async def scenario() -> None:
        async with a_wide_topic() as (sequencer, session):
            with measured_turns() as turns:
                answer = await sequencer.commit(commit_of(session, 0, [PLAIN] * 10, []))
            assert len(answer.runs) == PARTITIONS
            assert turns.seconds < HELD_SECONDS, str(turns)

    asyncio.run(scenario())


def test_a_transaction_of_2_000_partitions_leaves_the_loop_to_others() -> None:
    async def scenario() -> None:
        async with a_wide_topic() as (sequencer, session):
            granted = await sequencer.init_producer(InitProducer(-1, -1, "tx", 60_000))
            ref = TransactionRef("tx", granted.producer_id, granted.producer_epoch)
            places = [(TOPIC, partition) for partition in range(PARTITIONS)]
            batch = BatchCoordinates(100, 1, 1, 1, granted.producer_id, 0, 0, TRANSACTIONAL_FLAG)
            stamps = StampRequest([StampQuery(*place, granted.producer_id, 0) for place in places])
            with measured_turns() as turns:
                await sequencer.add_to_transaction(AddToTransaction(ref, places))
                stamped = await sequencer.stamp_batches(stamps)
                answer = await sequencer.commit(commit_of(session, 0, [batch], [1]))
            assert {stamp.number for stamp in stamped.stamps} == {1}
            assert {one.error for run in answer.runs for one in run.outcomes} == {BatchError.NONE}
            assert turns.seconds < HELD_SECONDS, str(turns)

    asyncio.run(scenario())


def test_bounds_and_log_starts_of_2_000_partitions_leave_the_loop_to_others() -> None:
    async def scenario() -> None:
        async with a_wide_topic() as (sequencer, session):
            await sequencer.commit(commit_of(session, 0, [PLAIN], []))
            asked = [FindPartition(TOPIC, partition, 1, 1 << 20) for partition in range(PARTITIONS)]
            ends = [DeleteRecordsPartition(TOPIC, partition, -1) for partition in range(PARTITIONS)]
            with measured_turns() as turns:
                found = await sequencer.find_batches(FindRequest(asked))
                done = await sequencer.delete_records(DeleteRecords(ends[:500]))  # as an agent asks
            assert {each.high_watermark for each in found.partitions} == {2}
            assert done.log_start_offsets == [2] * 500
            assert turns.seconds < HELD_SECONDS, str(turns)

    asyncio.run(scenario())


def test_producers_that_expire_together_are_forgotten_in_steps() -> None:
    async def scenario() -> None:
        clock = ManualClock()
        store = MemoryRowStore(clock)
        await fill(store, partitions=1, runs=1, batches=1)
        epoch = await store.take_committer_lease("more", "", 1_000)
        changes = Changes()
        for number in range(12_000):
            changes.put(
                ProducerRow(
                    topic_id=TOPIC, partition=0, producer_id=number, producer_epoch=0, recent=[(0, 0, 0)],
                    last_timestamp=0, updated_ms=0 if number % 4 else clock.wall_ms(),
                )
            )  # fmt: skip
        await store.write(changes, epoch or 0)
        await store.release_committer_lease(epoch or 0)
        sequencer = LocalSequencer(store, clock, SeededEntropy(1))
        await sequencer.start()
        written = store.writes
        with measured_turns() as turns:
            summary = await sequencer.apply_retention(Empty())
        assert summary.producers_expired == 9_000
        assert store.writes - written >= 9  # a thousand at a time
        assert (await sequencer.statistics(Empty())).producers == 3_000
        assert turns.seconds < HELD_SECONDS, str(turns)
        await sequencer.close()

    asyncio.run(scenario())
