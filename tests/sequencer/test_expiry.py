"""What expires together fails alone: a step that can't be carried out keeps no other step from being done."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from uuid import UUID

import pytest

from sequencer.api.agents import AgentInfo
from sequencer.api.errors import RequestFailed
from sequencer.api.groups import CommitOffsets, OffsetPosition
from sequencer.api.producers import InitProducer
from sequencer.api.retention import DeleteRecords, DeleteRecordsPartition
from sequencer.api.topics import DeleteTopic, MetadataRequest
from sequencer.api.transactions import AddToTransaction, TransactionRef
from sequencer.api.values import Empty
from sequencer.engine.committer import Committer
from sequencer.rules import groups, time_to_live, transactions
from sequencer.rules.leases import new_group
from sequencer.settings import SequencerSettings
from sequencer.store.draft import Draft
from sequencer.store.memory import MemoryRowStore
from sequencer.store.rows import GroupRow, PartitionRow, Row, ShareRow, TransactionRow
from sequencer.store.state import HotState, Key, replace_row
from tailrace.turns import at_once
from tests.support.backlog import TOPIC, fill
from tests.support.clocks import ManualClock, SeededEntropy

SETTINGS = SequencerSettings(default_retention_ms=-1)


def contradicts(*_: Any, **__: Any) -> Any:
    raise AssertionError("the rows contradict each other")


async def test_a_transaction_that_cannot_be_aborted_keeps_no_other_open_and_no_dead_agent_in_the_ring(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    finish = transactions._finish

    def contradicts_of_first(draft: Draft, row: TransactionRow, *, is_commit: bool) -> Any:
        return (contradicts if row.transactional_id == "first" else finish)(draft, row, is_commit=is_commit)

    monkeypatch.setattr(transactions, "_finish", contradicts_of_first)

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


async def forgetting_groups(*, runs: int) -> tuple[ManualClock, MemoryRowStore, Committer]:
    """Start a committer on a partition of so many runs, that forgets positions and empty groups after 1 ms."""
    clock = ManualClock()
    store = MemoryRowStore(clock)
    await fill(store, partitions=1, runs=runs)
    settings = SETTINGS.model_copy(update={"offsets_retention_ms": 1, "empty_group_ms": 1})
    sequencer = Committer(store, clock, SeededEntropy(1), settings)
    await sequencer.start()
    return clock, store, sequencer


async def test_a_group_that_cannot_expire_keeps_no_run_from_being_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(groups, "expire_groups", contradicts)

    clock, store, sequencer = await forgetting_groups(runs=3)
    await sequencer.commit_offsets(CommitOffsets("g", -1, -1, -1, "", [OffsetPosition(TOPIC, 0, 2, -1, "")]))
    await sequencer.delete_records(DeleteRecords([DeleteRecordsPartition(TOPIC, 0, 10)]))
    for _ in range(3):
        clock.advance(0.5)
        with pytest.raises(RequestFailed, match="contradict"):
            while True:  # the group expires in steps: first its position, then itself
                await sequencer.apply_retention(Empty())
                clock.advance(0.5)
    assert [run.base_offset for run in await store.runs_from(TOPIC, 0, 0, 1 << 40)] == [10]
    await sequencer.close()


async def test_a_group_that_cannot_expire_keeps_no_other_from_expiring(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    may_have_pending = Draft.may_have_pending

    def contradicts_of_one(draft: Draft, group_id: str) -> bool:
        return bool((contradicts if group_id == "g3" else may_have_pending)(draft, group_id))

    clock, _, sequencer = await forgetting_groups(runs=1)
    for number in range(9):
        position = OffsetPosition(TOPIC, 0, 2, -1, "")
        await sequencer.commit_offsets(CommitOffsets(f"g{number}", -1, -1, -1, "", [position]))
    monkeypatch.setattr(Draft, "may_have_pending", contradicts_of_one)
    for _ in range(3):
        clock.advance(0.5)
        with suppress(RequestFailed):
            await sequencer.apply_retention(Empty())
    assert [group.group_id for group in sequencer._context.state.all(GroupRow)] == ["g3"]
    await sequencer.close()


async def test_a_row_that_cannot_be_forgotten_keeps_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    forget = time_to_live.forget

    def contradicts_of_one(draft: Draft, kind: type[Row], keys: Sequence[Key], lifetime: Any) -> Any:
        return (contradicts if ("t2",) in keys else forget)(draft, kind, keys, lifetime)

    monkeypatch.setattr(time_to_live, "forget", contradicts_of_one)

    clock = ManualClock()
    settings = SETTINGS.model_copy(update={"transactional_id_expiration_ms": 1})
    sequencer = Committer(MemoryRowStore(clock), clock, SeededEntropy(1), settings)
    await sequencer.start()
    for number in range(5):
        await sequencer.init_producer(InitProducer(-1, -1, f"t{number}", 1_000))
    for _ in range(2):
        clock.advance(10)
        with pytest.raises(RequestFailed, match="contradict"):
            await sequencer.apply_retention(Empty())
        assert [row.transactional_id for row in sequencer._context.state.all(TransactionRow)] == ["t2"]
    await sequencer.close()


def test_a_share_group_of_many_partitions_is_forgotten_some_at_a_time() -> None:
    settings = SETTINGS.model_copy(update={"share_offsets_retention_ms": 1, "empty_group_ms": 1})
    row = new_group(Draft(HotState({}), 0), "g", settings)
    shares = [ShareRow("g", TOPIC, number, 0, [], [], [], 0) for number in range(100)]
    state = HotState({GroupRow: [row], ShareRow: shares})
    deleted: list[int] = []
    while state.get(GroupRow, "g") is not None:
        draft = Draft(state, 1_000)
        draft.delete(ShareRow, "g", TOPIC, 7)  # by another decision of its transaction
        assert len(draft.shares_of("g", 11)) <= 12
        at_once(groups.expire_groups(draft, ["g"], settings, max_partitions=10))
        deleted.append(list(draft.changes.by_kind[ShareRow].values()).count(None))
        state.apply(draft.changes)
    assert max(deleted) <= 11 and not state.shares_of


@pytest.mark.parametrize("is_deleted", [False, True])
async def test_a_run_whose_object_has_no_row_is_removed_like_any_other(is_deleted: bool) -> None:
    clock = ManualClock()
    store = MemoryRowStore(clock)
    await fill(store, partitions=3, runs=3)
    lost = next(iter(store._objects))
    del store._objects[lost]
    sequencer = Committer(store, clock, SeededEntropy(1), SETTINGS)
    await sequencer.start()
    if is_deleted:
        await sequencer.delete_topic(DeleteTopic(TOPIC))
    else:
        whole = [DeleteRecordsPartition(TOPIC, number, -1) for number in range(3)]
        await sequencer.delete_records(DeleteRecords(whole))
    removed = await sequencer.apply_retention(Empty())
    assert (removed.runs_removed, removed.objects_retired) == (9, 2)
    assert not store._runs
    assert sequencer._context.state.count(PartitionRow) == (0 if is_deleted else 3)
    await sequencer.close()


async def test_a_partition_whose_runs_cannot_be_removed_keeps_no_other_from_losing_its_own() -> None:
    clock = ManualClock()
    store = MemoryRowStore(clock)
    await fill(store, partitions=5, runs=2)
    miscount(store)
    sequencer = Committer(store, clock, SeededEntropy(1), SETTINGS)
    await sequencer.start()
    await sequencer.delete_records(
        DeleteRecords([DeleteRecordsPartition(TOPIC, number, -1) for number in range(5)])
    )
    with pytest.raises(RequestFailed, match="runs of"):
        await sequencer.apply_retention(Empty())
    assert {key[1] for key in store._runs} == {2}
    await sequencer.apply_retention(Empty())  # the partition is put off
    clock.advance(61)
    with pytest.raises(RequestFailed, match="runs of"):
        await sequencer.apply_retention(Empty())
    await sequencer.close()


def miscount(store: MemoryRowStore) -> None:
    """Let the third partition's runs name an object that counts no run."""
    object_id = UUID(int=99)
    stored = replace_row(
        next(iter(store._objects.values())), object_id=object_id, key="miscounted", live_runs=0
    )
    runs = store._runs[TOPIC, 2]
    store._runs[TOPIC, 2] = [replace_row(run, object_id=object_id) for run in runs]
    store._objects[object_id] = stored
