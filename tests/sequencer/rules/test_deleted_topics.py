"""Rows of a deleted topic are invisible and deleted in bounded steps, also by a later committer."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import pytest

from sequencer.api.agents import AgentInfo
from sequencer.api.commits import CommitRequest, ObjectDescription, ObjectKind, OpenSession, RunProposal
from sequencer.api.compaction import MarkClean, TakeLease
from sequencer.api.errors import RequestFailed
from sequencer.api.groups import (
    SHARE_GROUP,
    CommitOffsets,
    FetchOffsets,
    GroupRef,
    GroupState,
    LagsRequest,
    LocateGroup,
    OffsetPosition,
    SaveGroup,
)
from sequencer.api.producers import InitProducer
from sequencer.api.share_groups import ShareLimits, ShareRequest, ShareWork
from sequencer.api.topics import CreateTopic, DeleteTopic
from sequencer.api.transactions import AddToTransaction, EndTransaction, TransactionRef, TransactionsRequest
from sequencer.api.values import Empty
from sequencer.engine.committer import Committer
from sequencer.recovery.invariants import check_hot_rows
from sequencer.rules import deleted_topics
from sequencer.rules.deleted_topics import TOPIC_IN_KEY, emptied_partitions
from sequencer.rules.upload_sessions import COMPACTOR_LEASE
from sequencer.settings import SequencerSettings
from sequencer.store.draft import Draft
from sequencer.store.rows import (
    AbortedRow,
    CleanedRow,
    GroupOffsetRow,
    OpenRangeRow,
    PartitionRow,
    PendingOffsetRow,
    Row,
    ShareRow,
    TopicRow,
)
from sequencer.store.state import HotState
from tailrace.background_tasks import cancel_and_wait
from tailrace.batches.mixed_object import BatchCoordinates
from tailrace.batches.record_batch import TRANSACTIONAL_FLAG
from tests.support.clocks import ManualClock, SeededEntropy
from tests.support.hooked_rows import HookedRowStore

PARTITIONS = 6
KINDS: tuple[type[Row], ...] = (*TOPIC_IN_KEY, PartitionRow, GroupOffsetRow)


class World:
    """A committer with a topic of which there is everything that can be kept of a topic."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = HookedRowStore(self.clock)
        self.sequencer = self.another(1)
        self.topic = UUID(int=0)
        self.open = TransactionRef("open", -1, -1)

    def another(self, seed: int, removal_step: int = 4) -> Committer:
        settings = SequencerSettings(removal_step=removal_step)
        return Committer(self.store, self.clock, SeededEntropy(seed), settings)

    async def fill(self) -> None:
        sequencer = self.sequencer
        compacted = {"cleanup.policy": "compact,delete"}
        self.topic = (await sequencer.create_topic(CreateTopic("t", PARTITIONS, compacted))).topic_id
        places = [(self.topic, partition) for partition in range(PARTITIONS)]
        agent = await sequencer.register_agent(AgentInfo("a", 1, "a", 0, 0, "z", "0", UUID(int=1)))
        session = await sequencer.open_session(OpenSession(agent.broker_id, agent.epoch))
        for number, name in enumerate(("aborted", "open")):
            granted = await sequencer.init_producer(InitProducer(-1, -1, name, 60_000))
            ref = TransactionRef(name, granted.producer_id, granted.producer_epoch)
            await sequencer.add_to_transaction(AddToTransaction(ref, places))
            batch = BatchCoordinates(100, 1, 1, 1, granted.producer_id, 0, 0, TRANSACTIONAL_FLAG)
            runs = [RunProposal(self.topic, partition, 8, 100, [batch], [1]) for partition in range(4)]
            key = f"{session.prefix}{number}"
            described = ObjectDescription(UUID(int=9 + number), ObjectKind.MIXED, key, 4096, 0, 2048, 1)
            await sequencer.commit(CommitRequest(session.session_id, number, 0, described, runs))
            where = [OffsetPosition(*place, 1, 0, "") for place in places]
            await sequencer.commit_offsets(CommitOffsets(f"g{number}", -1, -1, -1, "", where))
            await sequencer.commit_offsets(
                CommitOffsets("g0", -1, -1, -1, "", where, transaction=ref, joins=True)
            )
            if name == "aborted":
                await sequencer.end_transaction(EndTransaction(ref, False, False))
            self.open = ref
        shared = GroupState("s", 1, "Stable", "share", ["m"], b"x", type=SHARE_GROUP)
        await sequencer.locate_group(LocateGroup("s", [agent.broker_id]))
        await sequencer.save_group(SaveGroup(agent.broker_id, agent.epoch, shared))
        await sequencer.share_records(ShareRequest("s", "m", ShareLimits(), [ShareWork(self.topic, 0)]))
        lease = await sequencer.take_lease(TakeLease(COMPACTOR_LEASE, "c", 0, 60_000))
        await sequencer.mark_clean(MarkClean(lease.epoch, self.topic, 0, 0, 1, 9))

    async def rows_of(self, topic: UUID) -> dict[str, int]:
        """How many rows there are of each kind that is kept under the topic's id."""
        loaded = {
            **await self.store.load(),
            GroupOffsetRow: await self.store.rows_after(GroupOffsetRow, None, 1_000),
        }
        counts = {
            kind.__name__: sum(getattr(row, "topic_id", None) == topic for row in loaded[kind])
            for kind in KINDS
        }
        return {name: count for name, count in counts.items() if count}


@asynccontextmanager
async def a_world() -> AsyncIterator[World]:
    world = World()
    await world.sequencer.start()
    await world.fill()
    yield world
    await world.sequencer.close()


async def test_a_deletion_is_one_row_and_nothing_of_the_topic_is_seen_after_it() -> None:
    async with a_world() as world:
        sequencer, topic = world.sequencer, world.topic
        assert (await world.rows_of(topic)).keys() == {kind.__name__ for kind in KINDS}
        kept = await world.rows_of(topic)
        await sequencer.delete_topic(DeleteTopic(topic))
        assert await world.rows_of(topic) == kept
        assert not any(row.topic_id == topic for row in sequencer._view.state.all(TopicRow))
        assert not (await sequencer.fetch_offsets(FetchOffsets("g0", None))).positions
        named = (await sequencer.fetch_offsets(FetchOffsets("g0", [(topic, 0)]))).positions
        assert named == [OffsetPosition(topic, 0, -1, -1, "", is_unknown=True)]
        assert not (await sequencer.lags(LagsRequest())).lags
        described = (await sequencer.transactions(TransactionsRequest(["open"]))).transactions
        assert [each.partitions for each in described] == [[]]
        assert check_hot_rows(sequencer._view.state) == []


async def test_a_transaction_that_is_open_across_the_deletion_ends_and_leaves_no_position() -> None:
    async with a_world() as world:
        await world.sequencer.delete_topic(DeleteTopic(world.topic))
        await world.sequencer.end_transaction(EndTransaction(world.open, True, False))
        left = await world.rows_of(world.topic)
        assert "OpenRangeRow" not in left and "PendingOffsetRow" not in left
        await world.sequencer.apply_retention(Empty())
        assert not await world.rows_of(world.topic)


async def test_rows_of_a_deleted_topic_go_in_bounded_steps_and_its_partitions_last() -> None:
    async with a_world() as world:
        await world.sequencer.delete_topic(DeleteTopic(world.topic))
        written = world.store.writes
        kept = sum((await world.rows_of(world.topic)).values())
        seen: list[dict[str, int]] = []
        removing = asyncio.create_task(world.sequencer.apply_retention(Empty()))
        while not removing.done():
            left = await world.rows_of(world.topic)
            assert left.get("PartitionRow") == PARTITIONS or left.keys() <= {"PartitionRow"}
            assert check_hot_rows(world.sequencer._view.state) == []
            seen.append(left)
            await asyncio.sleep(0)
        await removing
        assert not await world.rows_of(world.topic)
        assert world.store.writes - written >= kept // 4
        totals = [sum(left.values()) for left in seen]
        assert max(before - after for before, after in itertools.pairwise(totals)) <= 4


async def test_a_deletion_visits_no_partition_of_other_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once all have been visited at the beginning of the term."""

    async with a_world() as world:
        sequencer, state = world.sequencer, world.sequencer._view.state
        other = await sequencer.create_topic(CreateTopic("other", 3, {}))
        await sequencer.apply_retention(Empty())
        later = await sequencer.create_topic(CreateTopic("later", 2, {}))
        visited: list[type[Row]] = []
        for name in ("keys", "all", "by_key"):
            visit = getattr(state, name)
            monkeypatch.setattr(state, name, lambda kind, visit=visit: (visited.append(kind), visit(kind))[1])
        for topic_id in (world.topic, later.topic_id):
            await sequencer.delete_topic(DeleteTopic(topic_id))
            for _ in range(2):
                await sequencer.apply_retention(Empty())
            assert not await world.rows_of(topic_id)
        assert PartitionRow not in visited
        assert await world.rows_of(other.topic_id) == {"PartitionRow": 3}
        assert sequencer._view.maintenance.deleted_topics == {}


def test_of_other_topics_no_row_is_visited_but_the_positions_of_open_transactions() -> None:
    gone, other = UUID(int=1), UUID(int=2)
    rows: dict[type[Row], list[Row]] = {
        AbortedRow: [
            AbortedRow(topic, 0, 1, offset, offset) for topic in (gone, other) for offset in range(9)
        ],
        CleanedRow: [CleanedRow(topic, 0, 1, 1, 1) for topic in (gone, other)],
        OpenRangeRow: [OpenRangeRow(topic, 0, 1, 1) for topic in (gone, other)],
        ShareRow: [ShareRow("g", topic, 0, 0, [], [], [], 0) for topic in (gone, other)],
        PendingOffsetRow: [PendingOffsetRow("g", topic, 0, 1, 1, 0, "", 0, None) for topic in (gone, other)],
    }
    state = HotState(rows)
    found = asyncio.run(deleted_topics.rows_of(state, {gone: 1}))
    assert {kind for kind, _ in found} == TOPIC_IN_KEY.keys()
    assert all(deleted_topics.topic_of(row) == gone for row in found) and len(found) == 13
    looked_through: list[type[Row]] = []
    keys = state.keys
    state.keys = lambda kind: looked_through.append(kind) or keys(kind)  # type: ignore[method-assign,func-returns-value]
    asyncio.run(deleted_topics.rows_of(state, {gone: 1}))
    assert looked_through == [PendingOffsetRow]


async def test_a_topic_with_a_row_that_cannot_be_removed_keeps_its_partitions_and_others_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remove = deleted_topics.remove

    async with a_world() as world:
        stuck, topic = world.topic, (await world.sequencer.create_topic(CreateTopic("u", 3, {}))).topic_id

        def contradicts(draft: Draft, rows: Sequence[deleted_topics.RowKey]) -> Any:
            assert (CleanedRow, (stuck, 0)) not in rows, "the rows contradict each other"
            return remove(draft, rows)

        monkeypatch.setattr(deleted_topics, "remove", contradicts)
        for gone in (stuck, topic):
            await world.sequencer.delete_topic(DeleteTopic(gone))
        for _ in range(4):
            with pytest.raises(RequestFailed, match="contradict"):
                await world.sequencer.apply_retention(Empty())
        assert not await world.rows_of(topic)
        left = await world.rows_of(stuck)
        assert left["PartitionRow"] == PARTITIONS and left["CleanedRow"] == 1


async def test_a_partition_stays_as_long_as_it_has_runs() -> None:
    async with a_world() as world:
        await world.sequencer.delete_topic(DeleteTopic(world.topic))
        state, gone = world.sequencer._view.state, {world.topic: PARTITIONS}
        empty = [(PartitionRow, (world.topic, number)) for number in (4, 5)]
        assert await emptied_partitions(state, world.store, gone) == empty
        await world.sequencer.apply_retention(Empty())
        assert await emptied_partitions(state, world.store, gone) == []
        assert not (await world.store.statistics()).runs


async def test_a_later_committer_finds_what_the_one_before_left() -> None:
    async with a_world() as world:
        await world.sequencer.delete_topic(DeleteTopic(world.topic))
        removing = asyncio.create_task(world.sequencer.apply_retention(Empty()))
        kept = await world.rows_of(world.topic)
        while (left := await world.rows_of(world.topic)) == kept:
            await asyncio.sleep(0)
        assert left
        await cancel_and_wait(removing)
        await world.sequencer.close()
        world.sequencer = world.another(2)
        await world.sequencer.start()
        await world.sequencer.apply_retention(Empty())
        assert not await world.rows_of(world.topic)
        held = await world.sequencer.statistics(Empty())
        counted = await world.store.statistics()
        assert (held.runs, held.objects) == (counted.runs, counted.objects)
        assert held.runs == 0


async def test_a_topic_of_the_same_name_keeps_what_is_its_own() -> None:
    async with a_world() as world:
        gone = world.topic
        await world.sequencer.delete_topic(DeleteTopic(gone))
        again = await world.sequencer.create_topic(CreateTopic("t", PARTITIONS, {}))
        where = [OffsetPosition(again.topic_id, 0, 0, 0, "")]
        await world.sequencer.commit_offsets(CommitOffsets("g0", -1, -1, -1, "", where))
        page = await world.sequencer.fetch_offsets(FetchOffsets("g0", None))
        assert [(each.topic_id, each.offset) for each in page.positions] == [(again.topic_id, 0)]
        await world.sequencer.apply_retention(Empty())
        assert not await world.rows_of(gone)
        assert await world.rows_of(again.topic_id) == {"PartitionRow": PARTITIONS, "GroupOffsetRow": 1}
        assert (await world.sequencer.fetch_offsets(FetchOffsets("g0", None))) == page


async def test_rows_deleted_together_with_other_writes_are_found_too() -> None:
    async with a_world() as world:
        where = [OffsetPosition(world.topic, 5, 7, 0, "")]
        await asyncio.gather(
            world.sequencer.commit_offsets(CommitOffsets("late", -1, -1, -1, "", where)),
            world.sequencer.delete_topic(DeleteTopic(world.topic)),
            world.sequencer.delete_group(GroupRef("g1")),
        )
        await world.sequencer.apply_retention(Empty())
        assert not await world.rows_of(world.topic)
