"""Reading while the committer writes: what is answered is of one commit number."""

from __future__ import annotations

import asyncio
from uuid import UUID

from sequencer.api.agents import AgentInfo
from sequencer.api.commits import CommitRequest, ObjectDescription, ObjectKind, OpenSession, RunProposal
from sequencer.api.compaction import ReplacementRun, SwapRequest, TakeLease
from sequencer.api.producers import InitProducer
from sequencer.api.reads import FindPartition, FindRequest, PartitionError
from sequencer.api.topics import CreateTopic
from sequencer.api.transactions import EndTransaction, TransactionRef, TransactionState
from sequencer.engine.committer import Committer
from sequencer.reading.queries import _active_producer
from sequencer.settings import SequencerSettings
from sequencer.store.batch_table import NO_OBJECT
from sequencer.store.memory import MemoryRowStore
from sequencer.store.rows import Changes, OpenRangeRow, ProducerRow, RememberedBatch, TransactionRow
from sequencer.store.state import HotState, replace_row
from tailrace.batches.mixed_object import BatchCoordinates
from tailrace.batches.record_batch import TRANSACTIONAL_FLAG
from tests.support.clocks import ManualClock, SeededEntropy
from tests.support.patience import PATIENCE_SECONDS
from tests.support.sequencer_bench import Bench, batch
from tests.support.sequencers import Opened


class SlowAnswer(MemoryRowStore):
    """Its writes are there for a while before the writer hears of it, as a database's may be."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.heard: asyncio.Event | None = None
        self.written = asyncio.Event()

    async def write(self, changes: Changes, committer_epoch: int) -> None:
        await super().write(changes, committer_epoch)
        if self.heard is not None:
            self.written.set()
            await self.heard.wait()


async def test_aborted_ranges_are_those_of_the_runs_that_are_answered() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        clock = ManualClock()
        store = SlowAnswer(clock)
        sequencer = Committer(store, clock, SeededEntropy(1), SequencerSettings(max_feed_runs=1))
        await sequencer.start()
        agent = await sequencer.register_agent(AgentInfo("a", 1, "a", 0, 0, "z", "0", UUID(int=1)))
        session = await sequencer.open_session(OpenSession(agent.broker_id, agent.epoch))
        topic = await sequencer.create_topic(CreateTopic("t", 1, {}))
        granted = await sequencer.init_producer(InitProducer(-1, -1, "tx", 1_000))
        described = ObjectDescription(
            UUID(int=7), ObjectKind.MIXED, f"{session.prefix}0", 1_000, 0, 500, clock.wall_ms()
        )
        batch = BatchCoordinates(100, 2, 0, 0, granted.producer_id, 0, 0, TRANSACTIONAL_FLAG)
        proposal = RunProposal(topic.topic_id, 0, 8, 100, [batch])
        await sequencer.commit(CommitRequest(session.session_id, 0, 0, described, [proposal]))
        ref = TransactionRef("tx", granted.producer_id, 0)
        await sequencer.end_transaction(EndTransaction(ref, False, True))
        lease = await sequencer.take_lease(TakeLease("compactor", "me", 0, 60_000))
        parquet = await sequencer.open_session(OpenSession(-1, lease.epoch))
        made = ObjectDescription(
            UUID(int=9), ObjectKind.PARQUET, f"{parquet.prefix}0", 500, 0, 400, clock.wall_ms()
        )
        replaced = [(0, described.object_id), (2, NO_OBJECT)]
        swap = SwapRequest(
            UUID(int=5), lease.epoch, parquet.session_id, made,
            [ReplacementRun(topic.topic_id, 0, 0, 3, -1, 0, replaced)],
        )  # fmt: skip
        asked = FindRequest([FindPartition(topic.topic_id, 0, 0, 1 << 30)])
        before = await sequencer.find_batches(asked)
        assert [len(before.partitions[0].runs), len(before.partitions[0].aborted)] == [2, 1]

        store.heard = asyncio.Event()
        swapping = asyncio.create_task(sequencer.swap(swap))
        await store.written.wait()
        reading = asyncio.create_task(sequencer.find_batches(asked))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not reading.done()  # the rows are new, the ranges would be old
        store.heard.set()
        answer = await swapping
        found = await reading
        assert found.commit_number == answer.commit_number
        assert [run.kind for run in found.partitions[0].runs] == [ObjectKind.PARQUET]
        assert found.partitions[0].aborted == []
        await sequencer.close()


async def test_an_offset_that_another_server_shows_already_is_not_out_of_range() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        clock = ManualClock()
        store = SlowAnswer(clock)
        bench = Bench(Opened(Committer(store, clock, SeededEntropy(1)), clock))
        await bench.sequencer.start()  # type: ignore[attr-defined]
        await bench.prepare()
        await bench.commit(batch(3))

        store.heard = asyncio.Event()
        committing = asyncio.create_task(bench.commit(batch(3)))
        await store.written.wait()  # from here on a follower may show it
        reading = asyncio.create_task(bench.find(6))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not reading.done()
        store.heard.set()
        await committing
        found = await reading
        assert (found.error, found.high_watermark) == (PartitionError.NONE, 6)
        assert (await bench.find(7)).error is PartitionError.OFFSET_OUT_OF_RANGE
        await bench.sequencer.close()  # type: ignore[attr-defined]


def test_an_open_transaction_is_reported_with_the_epoch_in_which_it_is_open() -> None:
    topic_id, named = UUID(int=1), TransactionRow.new("a", producer_id=7, timeout_ms=1, now_ms=0)
    ongoing = replace_row(named, producer_epoch=2, state=TransactionState.ONGOING)
    state = HotState({TransactionRow: [ongoing], OpenRangeRow: [OpenRangeRow(topic_id, 0, 7, 19)]})
    read_before = ProducerRow(topic_id, 0, 7, 0, [RememberedBatch(0, 2, 10)], -1, 8)

    told = _active_producer(state, read_before)

    assert (told.producer_epoch, told.transaction_start_offset) == (2, 19)
