"""What expires together fails alone: a step that can't be carried out keeps no other step from being done."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest

from sequencer.api.agents import AgentInfo
from sequencer.api.errors import RequestFailed
from sequencer.api.groups import CommitOffsets, OffsetPosition
from sequencer.api.producers import InitProducer
from sequencer.api.retention import DeleteRecords, DeleteRecordsPartition
from sequencer.api.topics import MetadataRequest
from sequencer.api.transactions import AddToTransaction, TransactionRef
from sequencer.api.values import Empty
from sequencer.engine.committer import Committer
from sequencer.rules import groups, transactions
from sequencer.settings import SequencerSettings
from sequencer.store.draft import Draft
from sequencer.store.memory import MemoryRowStore
from sequencer.store.rows import TransactionRow
from tests.support.backlog import TOPIC, fill
from tests.support.clocks import ManualClock, SeededEntropy

SETTINGS = SequencerSettings(default_retention_ms=-1)


def contradicts(*_: Any, **__: Any) -> Any:
    raise AssertionError("the rows contradict each other")


def test_a_transaction_that_cannot_be_aborted_keeps_no_other_open_and_no_dead_agent_in_the_ring(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    finish = transactions._finish

    def contradicts_of_first(draft: Draft, row: TransactionRow, *, is_commit: bool) -> Any:
        return (contradicts if row.transactional_id == "first" else finish)(draft, row, is_commit=is_commit)

    monkeypatch.setattr(transactions, "_finish", contradicts_of_first)

    async def scenario() -> None:
        clock = ManualClock()
        store = MemoryRowStore(clock)
        await fill(store, partitions=1, runs=1)
        sequencer = Committer(store, clock, SeededEntropy(1), SETTINGS)
        await sequencer.start()
        agent = await sequencer.register_agent(AgentInfo("h", 9092, "p", 0, 0, "z", "0", UUID(int=1)))
        for name in ("first", "second", "third"):
            producer = await sequencer.init_producer(InitProducer(-1, -1, name, 1_000))
            named = TransactionRef(name, producer.producer_id, producer.producer_epoch)
            await sequencer.add_to_transaction(AddToTransaction(named, [(TOPIC, 0)]))
        for _ in range(agent.lease_ms // 500 + 4):
            clock.advance(0.5)
            for _ in range(50):
                await asyncio.sleep(0)
        assert [*sequencer._context.state.open_transactions] == ["first"]
        ring = (await sequencer.metadata(MetadataRequest(-1))).ring
        assert ring is not None and ring.members == []
        await sequencer.close()

    asyncio.run(scenario())


def test_a_group_that_cannot_expire_keeps_no_run_from_being_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "expire_groups", contradicts)

    async def scenario() -> None:
        clock = ManualClock()
        store = MemoryRowStore(clock)
        await fill(store, partitions=1, runs=3)
        settings = SETTINGS.model_copy(update={"offsets_retention_ms": 1, "empty_group_ms": 1})
        sequencer = Committer(store, clock, SeededEntropy(1), settings)
        await sequencer.start()
        await sequencer.commit_offsets(
            CommitOffsets("g", -1, -1, -1, "", [OffsetPosition(TOPIC, 0, 2, -1, "")])
        )
        await sequencer.delete_records(DeleteRecords([DeleteRecordsPartition(TOPIC, 0, 10)]))
        for _ in range(3):
            clock.advance(0.5)
            with pytest.raises(RequestFailed, match="contradict"):
                while True:  # the group expires in steps: first its position, then itself
                    await sequencer.apply_retention(Empty())
                    clock.advance(0.5)
        assert [run.base_offset for run in await store.runs_from(TOPIC, 0, 0, 1 << 40)] == [10]
        await sequencer.close()

    asyncio.run(scenario())
