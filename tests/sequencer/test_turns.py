"""Nothing that is asked of the sequencer holds its loop for long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from tempfile import TemporaryDirectory
from typing import Any, TypeVar
from uuid import UUID

import pytest
from msgspec.structs import astuple

import sequencer.engine.group_commit as group_commit
from sequencer.api.agents import AgentInfo
from sequencer.api.commits import (
    BatchError,
    CommitRequest,
    ObjectDescription,
    ObjectKind,
    OpenSession,
    RunProposal,
    SessionGrant,
)
from sequencer.api.groups import (
    CommitOffsets,
    DeleteOffsets,
    FetchOffsets,
    GroupRef,
    LagsRequest,
    OffsetPosition,
)
from sequencer.api.objects import SizesRequest
from sequencer.api.producers import InitProducer
from sequencer.api.reads import (
    FeedRequest,
    FindPartition,
    FindRequest,
    OffsetQuery,
    OffsetSpec,
    OffsetsRequest,
)
from sequencer.api.retention import DeleteRecords, DeleteRecordsPartition
from sequencer.api.security import CreateAcls, DeleteAcls
from sequencer.api.topics import CreateTopic, DeleteTopic
from sequencer.api.transactions import (
    AddToTransaction,
    CurrentTransactionQuery,
    CurrentTransactionsRequest,
    EndTransaction,
    TransactionRef,
)
from sequencer.api.values import Empty
from sequencer.checkpoint.checkpointer import Checkpointer
from sequencer.engine.committer import Committer
from sequencer.pages import all_groups
from sequencer.rules.tokens import MAX_RENEWERS
from sequencer.store.rows import (
    AbortedRow,
    Changes,
    CounterRow,
    DelegationTokenRow,
    LogEpoch,
    PartitionRow,
    ProducerRow,
    RememberedBatch,
    TopicRow,
)
from sequencer.store.sql.store import SqlRowStore
from sequencer.store.state import HotState, replace_row
from sequencer.store.sums import PRODUCERS
from tailrace.batches.mixed_object import BatchCoordinates
from tailrace.batches.record_batch import TRANSACTIONAL_FLAG
from tailrace.object_store.memory import MemoryStore
from tailrace.security.acls import Acl, AclFilter, Operation, PatternType, Permission, ResourceType
from tests.support.backlog import TOPIC, fill
from tests.support.clocks import ManualClock, SeededEntropy
from tests.support.hooked_rows import HookedRowStore
from tests.support.short_turns import HELD_SECONDS
from tests.support.turns import least_of_three, measured_turns

T = TypeVar("T")
PARTITIONS = 10_000
PLAIN = BatchCoordinates(100, 1, 1, 1, -1, -1, -1, 0)
PLACES = [(TOPIC, partition) for partition in range(PARTITIONS)]


@asynccontextmanager
async def a_wide_topic() -> AsyncIterator[tuple[Committer, SessionGrant, ManualClock]]:
    clock = ManualClock()
    with TemporaryDirectory() as folder:
        store = SqlRowStore(f"sqlite:///{folder}/rows.db", clock=clock, entropy=SeededEntropy(2))
        await fill(store, partitions=PARTITIONS, runs=1, batches=1)
        sequencer = Committer(store, clock, SeededEntropy(1))
        await sequencer.start()
        agent = await sequencer.register_agent(AgentInfo("a", 1, "a", 0, 0, "z", "0", UUID(int=1)))
        session = await sequencer.open_session(OpenSession(agent.broker_id, agent.epoch))
        try:
            yield sequencer, session, clock
        finally:
            await sequencer.close()
            await store.close()


async def asked(request: Coroutine[Any, Any, T]) -> T:
    """The answer to a request, whose first turn is measured too."""
    return await asyncio.create_task(request)


async def begun(
    sequencer: Committer, session: SessionGrant, number: int = 0, sequence: int = 0
) -> TransactionRef:
    """A transaction with a record in every partition."""
    granted = await sequencer.init_producer(InitProducer(-1, -1, f"tx {number}", 60_000))
    ref = TransactionRef(f"tx {number}", granted.producer_id, granted.producer_epoch)
    await asked(sequencer.add_to_transaction(AddToTransaction(ref, PLACES)))
    batch = BatchCoordinates(100, 1, 1, 1, granted.producer_id, 0, sequence, TRANSACTIONAL_FLAG)
    answer = await asked(sequencer.commit(commit_of(session, number, [batch], [1])))
    assert {one.error for run in answer.runs for one in run.outcomes} == {BatchError.NONE}
    return ref


def positions(offset: int) -> list[OffsetPosition]:
    return [OffsetPosition(*place, offset, 0, "") for place in PLACES]


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


@least_of_three
async def test_a_commit_of_10_000_runs_leaves_the_loop_to_others() -> None:
    async with a_wide_topic() as (sequencer, session, _):
        with measured_turns() as turns:
            answer = await asked(sequencer.commit(commit_of(session, 0, [PLAIN] * 10, [])))
        assert len(answer.runs) == PARTITIONS
        turns.check(HELD_SECONDS)


@pytest.mark.parametrize("is_commit", [True, False])
@least_of_three
async def test_a_transaction_of_10_000_partitions_leaves_the_loop_to_others(is_commit: bool) -> None:
    async with a_wide_topic() as (sequencer, session, _):
        with measured_turns() as turns:
            ref = await begun(sequencer, session)
            request = CurrentTransactionsRequest(
                [CurrentTransactionQuery(*place, ref.producer_id, 0) for place in PLACES]
            )
            current = await asked(sequencer.current_transactions(request))
            await asked(sequencer.end_transaction(EndTransaction(ref, is_commit, False)))
        assert {transaction.number for transaction in current.transactions} == {1}
        turns.check(HELD_SECONDS)


@least_of_three
async def test_transactions_that_time_out_leave_the_loop_to_others_and_are_ended_some_at_a_time() -> None:
    async with a_wide_topic() as (sequencer, session, clock):
        for number in range(2):
            await begun(sequencer, session, number)
        before = sequencer.known.commit
        with measured_turns() as turns:
            clock.advance(61)
            while sequencer.known.commit < before + 2:
                clock.advance(1)  # what ran out is looked for now and then
                await asyncio.sleep(0.01)
        assert not (await sequencer.statistics(Empty())).open_transactions
        turns.check(HELD_SECONDS)


async def test_the_end_of_a_transaction_is_shown_in_one_turn() -> None:
    async with a_wide_topic() as (sequencer, session, _):
        ref = await begun(sequencer, session)
        ending = asyncio.create_task(sequencer.end_transaction(EndTransaction(ref, False, False)))
        seen: set[tuple[int, ...]] = set()
        while not ending.done():
            await asyncio.sleep(0)
            state = sequencer._view.state
            rows = [state.live_partition(*place) for place in PLACES[::97]]
            shown = {(row.end_offset, state.last_stable_offset(row)) for row in rows if row is not None}
            assert len(shown) == 1, f"some partitions' transaction is over, others' is not: {shown}"
            seen |= shown
        await ending
        assert seen == {(2, 1), (3, 3)}


async def test_a_group_whose_changes_are_many_ends_there_and_the_rest_is_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_commit, "ROWS_OF_A_GROUP", 30)

    clock = ManualClock()
    store = HookedRowStore(clock)
    await fill(store, partitions=10, runs=1, batches=1)
    sequencer = Committer(store, clock, SeededEntropy(1))
    await sequencer.start()
    written = store.writes
    where = [OffsetPosition(TOPIC, partition, 7, 0, "") for partition in range(10)]
    commits = [CommitOffsets(f"g{number}", -1, -1, -1, "", where) for number in range(9)]
    answers = await asyncio.gather(*(sequencer.commit_offsets(each) for each in commits))
    assert store.writes - written == 3
    numbers = [answer.commit_number for answer in answers]
    assert numbers == sorted(numbers) and len(set(numbers)) == 3
    assert len(await all_groups(sequencer)) == 9
    await sequencer.close()


@least_of_three
async def test_positions_of_10_000_partitions_leave_the_loop_to_others() -> None:
    async with a_wide_topic() as (sequencer, _, _):
        granted = await sequencer.init_producer(InitProducer(-1, -1, "tx", 60_000))
        ref = TransactionRef("tx", granted.producer_id, granted.producer_epoch)
        plain = CommitOffsets("g", -1, -1, -1, "", positions(1))
        pending = CommitOffsets("g", -1, -1, -1, "", positions(2), transaction=ref, joins=True)
        with measured_turns() as turns:
            await asked(sequencer.commit_offsets(plain))
            await asked(sequencer.commit_offsets(pending))
            await asked(sequencer.end_transaction(EndTransaction(ref, True, False)))
            found = await asked(sequencer.fetch_offsets(FetchOffsets("g", PLACES[:5_000])))
            await asked(sequencer.fetch_offsets(FetchOffsets("g", None)))
            await asked(sequencer.lags(LagsRequest()))
            await asked(sequencer.delete_offsets(DeleteOffsets("g", PLACES[::2])))
            await asked(sequencer.delete_group(GroupRef("g")))
        assert {position.offset for position in found.positions} == {2}
        turns.check(HELD_SECONDS)


@least_of_three
async def test_5_000_acls_and_filters_of_200_leave_the_loop_to_others() -> None:
    clock = ManualClock()
    sequencer = Committer(HookedRowStore(clock), clock, SeededEntropy(1))
    await sequencer.start()
    acls = [
        Acl(ResourceType.TOPIC, f"t{each}", PatternType.LITERAL, "User:u", "*", Operation.READ, Permission.ALLOW)
        for each in range(5_000)
    ]  # fmt: skip
    wide = [AclFilter(resource_name=f"t{each}") for each in range(100)]
    named = [AclFilter(*astuple(acl)) for acl in acls[100:200]]
    with measured_turns() as turns:
        for first in range(0, len(acls), 1_000):
            await asked(sequencer.create_acls(CreateAcls(acls[first : first + 1_000])))
        left = [*wide, *named]
        deleted = 0
        while left:
            answer = await asked(sequencer.delete_acls(DeleteAcls(left, takes_parts=True)))
            deleted += sum(map(len, answer.matches))
            left = left[answer.done :]
    await sequencer.close()
    assert deleted == 200
    turns.check(HELD_SECONDS)


@least_of_three
async def test_10_000_groups_are_listed_in_pages_that_leave_the_loop_to_others() -> None:
    async with a_wide_topic() as (sequencer, _, _):
        where = [OffsetPosition(TOPIC, 0, 1, 0, "")]
        for first in range(0, 10_000, 1_000):
            commits = [
                sequencer.commit_offsets(CommitOffsets(f"g{number}", -1, -1, -1, "", where))
                for number in range(first, first + 1_000)
            ]
            await asyncio.gather(*commits)
        with measured_turns() as turns:
            listed = await asked(all_groups(sequencer))
            await asked(sequencer.lags(LagsRequest(("g5", TOPIC, 0))))
        assert len(listed) == 10_000
        turns.check(HELD_SECONDS)


@least_of_three
async def test_topics_of_10_000_partitions_come_and_go_and_leave_the_loop_to_others() -> None:
    async with a_wide_topic() as (sequencer, session, _):
        ref = await begun(sequencer, session)
        await sequencer.end_transaction(EndTransaction(ref, False, False))
        await sequencer.commit_offsets(CommitOffsets("g", -1, -1, -1, "", positions(1)))
        with measured_turns() as turns:
            await asked(sequencer.create_topic(CreateTopic("new", PARTITIONS, {})))
            await asyncio.gather(
                *(sequencer.create_topic(CreateTopic(f"n{each}", 100, {})) for each in range(100))
            )
            await asked(sequencer.sizes(SizesRequest(None)))
        turns.check(HELD_SECONDS)
        with measured_turns() as turns:
            await asked(sequencer.delete_topic(DeleteTopic(TOPIC)))
        assert not (await sequencer.fetch_offsets(FetchOffsets("g", None))).positions
        turns.check(HELD_SECONDS)
        with measured_turns() as turns:
            await asked(sequencer.apply_retention(Empty()))
        assert (await sequencer.statistics(Empty())).producers == 0
        turns.check(HELD_SECONDS)


@least_of_three
async def test_bounds_and_log_starts_of_10_000_partitions_leave_the_loop_to_others() -> None:
    async with a_wide_topic() as (sequencer, session, _):
        await sequencer.commit(commit_of(session, 0, [PLAIN], []))
        wanted = FindRequest([FindPartition(*place, 1, 1 << 20) for place in PLACES])
        latest = OffsetsRequest([OffsetQuery(*place, OffsetSpec.LATEST) for place in PLACES])
        ends = [DeleteRecordsPartition(*place, -1) for place in PLACES]
        with measured_turns() as turns:
            found = await asked(sequencer.find_batches(wanted))
            offsets = await asked(sequencer.list_offsets(latest))
            done = await asked(sequencer.delete_records(DeleteRecords(ends)))
            told = await asked(sequencer.feed(FeedRequest(sequencer.known.commit - 1, [], 0)))
        assert {each.high_watermark for each in found.partitions} == {2}
        assert {each.offset for each in offsets.results} == {2}
        assert done.log_start_offsets == [2] * PARTITIONS
        assert len(told.updates) == PARTITIONS
        turns.check(HELD_SECONDS)


@least_of_three
async def test_50_000_aborted_transactions_below_the_log_start_leave_the_loop_to_others() -> None:
    clock = ManualClock()
    store = HookedRowStore(clock)
    ranges, end = 50_000, 100_000
    await fill(store, partitions=1, runs=100, batches=end // 100)
    epoch = await store.take_committer_lease("fill", "", 1_000)
    assert epoch is not None
    changes = Changes()
    for number in range(ranges):
        changes.put(AbortedRow(TOPIC, 0, number, 2 * number, 2 * number + 1))
    await store.write(changes, epoch)
    await store.release_committer_lease(epoch)
    sequencer = Committer(store, clock, SeededEntropy(1))
    await sequencer.start()
    with measured_turns() as turns:
        moved = await asked(
            sequencer.delete_records(DeleteRecords([DeleteRecordsPartition(TOPIC, 0, end - 10)]))
        )
        at_start = await asked(sequencer.find_batches(FindRequest([FindPartition(TOPIC, 0, end - 10, 1)])))
        await asked(sequencer.apply_retention(Empty()))
    assert moved.log_start_offsets == [end - 10]
    assert len(at_start.partitions[0].aborted) == 5
    assert not (await store.load())[AbortedRow], "they went with the runs, which were old"
    await sequencer.close()
    turns.check(HELD_SECONDS)


@least_of_three
async def test_producers_that_expire_together_are_forgotten_in_steps() -> None:
    clock = ManualClock()
    store = HookedRowStore(clock)
    await fill(store, partitions=1, runs=1, batches=1)
    epoch = await store.take_committer_lease("more", "", 1_000)
    changes = Changes()
    changes.put(CounterRow(PRODUCERS, 12_000))
    for number in range(12_000):
        changes.put(
            ProducerRow(
                topic_id=TOPIC, partition=0, producer_id=number, producer_epoch=0,
                recent=[RememberedBatch(0, 0, 0)], last_timestamp=0,
                updated_ms=0 if number % 4 else clock.wall_ms(),
            )
        )  # fmt: skip
    await store.write(changes, epoch or 0)
    await store.release_committer_lease(epoch or 0)
    sequencer = Committer(store, clock, SeededEntropy(1))
    await sequencer.start()
    written = store.writes
    with measured_turns() as turns:
        summary = await sequencer.apply_retention(Empty())
    assert summary.producers_expired == 9_000
    assert store.writes - written >= 9  # a thousand at a time
    assert (await sequencer.statistics(Empty())).producers == 3_000
    turns.check(HELD_SECONDS)
    await sequencer.close()


@least_of_three
async def test_checkpoints_of_200_000_rows_leave_the_loop_to_others() -> None:
    clock, rows = ManualClock(), 190_000
    store = HookedRowStore(clock)
    wide = [PartitionRow(TOPIC, number, 0, 1, -1, [LogEpoch(0, 0)]) for number in range(rows)]
    state = await HotState.built({TopicRow: [TopicRow(TOPIC, "t", rows, {}, 0)], PartitionRow: wide}, clock)
    exports = Checkpointer(MemoryStore(clock), store, clock, interval_ms=1_000, reservation=100)
    exports.begin(await store.identity(), 1, state)
    with measured_turns() as turns:
        await asyncio.create_task(exports.open())
    turns.check(HELD_SECONDS)
    for first in range(0, rows, 10_000):
        changes = Changes()
        for number in range(first, first + 10_000):
            changes.put(replace_row(wide[number], end_offset=5))
        state.apply(changes)
        exports.written(changes)
    with measured_turns() as turns:
        await asyncio.create_task(exports.export())
    turns.check(HELD_SECONDS)
    with measured_turns() as turns:
        await asyncio.create_task(exports.snapshot())
    turns.check(HELD_SECONDS)
    assert exports.is_saved(PartitionRow, (TOPIC, rows - 1))


@least_of_three
async def test_tokens_with_many_renewers_are_loaded_in_turns() -> None:
    renewers = [f"User:renewer-{number}" for number in range(MAX_RENEWERS)]
    rows = [
        DelegationTokenRow(f"{number:064}", f"t-{number}", "User:a", "User:b", renewers, 0, 1, 1)
        for number in range(2_000)
    ]
    with measured_turns() as turns:
        state = await asyncio.create_task(HotState.built({DelegationTokenRow: rows}, ManualClock()))
    assert len(list(state.tokens_after(renewers[-1], None))) == len(rows)
    turns.check(HELD_SECONDS)
