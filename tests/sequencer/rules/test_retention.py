"""Which runs retention removes, and how much it reads to find them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from uuid import UUID

import pytest
import structlog

from sequencer.api.commits import ObjectKind
from sequencer.api.reads import Run
from sequencer.api.retention import DeleteRecords, DeleteRecordsPartition
from sequencer.api.topics import (
    AlterConfig,
    ConfigChange,
    ConfigOperation,
    ConfigScope,
    CreateTopic,
    DeleteTopic,
)
from sequencer.api.values import Empty
from sequencer.engine.committer import Committer
from sequencer.rules import retention_watch, sizes
from sequencer.rules.retention import (
    RUNS_AT_ONCE,
    RetentionLimits,
    expired_end,
    limits_of,
    plan_retention,
    remove_runs,
)
from sequencer.rules.retention_watch import PartitionWatch
from sequencer.settings import SequencerSettings
from sequencer.store.draft import Draft
from sequencer.store.memory import MemoryRowStore
from sequencer.store.row_store import PartitionBytes
from sequencer.store.rows import BrokerConfigRow, Changes, LogEpoch, ObjectRow, PartitionRow, RunRow, TopicRow
from sequencer.store.state import HotState
from tests.support.backlog import TOPIC, CountingStore, fill
from tests.support.clocks import ManualClock, SeededEntropy
from tests.support.hooked_rows import counted_deletions
from tests.support.row_samples import sample_run
from tests.support.turns import passes_of


def run(base: int, at: int, length: int = 100, created: int = 0, kind: ObjectKind = ObjectKind.MIXED) -> Run:
    return sample_run(base, base + 1, kind=kind, length=length, max_timestamp=at, created_ms=created)


def test_time_stops_at_the_first_run_that_is_young() -> None:
    runs = [run(0, 10), run(1, 90), run(2, 10)]
    assert expired_end(runs, 300, RetentionLimits(50, -1), now_ms=100) == 1


def test_bytes_leave_at_least_what_is_promised() -> None:
    runs = [run(base, 100) for base in range(4)]
    assert expired_end(runs, 400, RetentionLimits(-1, 250), now_ms=100) == 1
    assert expired_end(runs, 400, RetentionLimits(-1, 0), now_ms=100) == 4
    assert expired_end(runs, 400, RetentionLimits(-1, 400), now_ms=100) is None


def test_records_without_a_time_age_from_their_commit() -> None:
    assert expired_end([run(0, -1, created=90)], 100, RetentionLimits(50, -1), now_ms=100) is None
    assert expired_end([run(0, -1, created=10)], 100, RetentionLimits(50, -1), now_ms=100) == 1


def test_markers_go_with_the_records_before_them_and_age_when_they_are_first() -> None:
    def marker(base: int, created: int) -> Run:
        return run(base, -1, created=created, kind=ObjectKind.MARKERS)

    limits = RetentionLimits(50, -1)
    assert expired_end([run(0, 10), marker(1, 99), marker(2, 99), run(3, 99)], 400, limits, now_ms=100) == 3
    assert expired_end([run(0, 99), marker(1, 99)], 200, limits, now_ms=100) is None
    assert expired_end([marker(0, 99)], 100, limits, now_ms=100) is None
    assert expired_end([marker(0, 10), run(1, 99)], 200, limits, now_ms=100) == 1


def test_a_compacted_topic_loses_nothing_by_age() -> None:
    settings = SequencerSettings()
    assert limits_of({"cleanup.policy": "compact", "retention.ms": "1"}, {}, settings).is_endless
    assert (
        limits_of({"cleanup.policy": "compact,delete", "retention.ms": "1"}, {}, settings).retention_ms == 1
    )


def test_an_empty_cleanup_policy_keeps_everything() -> None:
    assert limits_of({"cleanup.policy": "", "retention.ms": "1"}, {}, SequencerSettings()).is_endless


def test_the_clusters_defaults_hold_for_topics_without_a_config_of_their_own() -> None:
    settings = SequencerSettings()
    cluster = {"log.retention.ms": "5", "log.retention.bytes": "7"}
    assert limits_of({}, cluster, settings) == RetentionLimits(5, 7)
    assert limits_of({"retention.ms": "6"}, cluster, settings) == RetentionLimits(6, 7)
    assert limits_of({}, {**cluster, "log.cleanup.policy": "compact"}, settings).is_endless


@pytest.mark.parametrize("value", ["7d", "", "-2", str(2**63)])
def test_a_stored_limit_that_this_version_does_not_know_is_none_with_one_warning(value: str) -> None:
    settings = SequencerSettings()
    with structlog.testing.capture_logs() as logs:
        for _ in range(2):
            assert limits_of(
                {"retention.ms": value, "retention.bytes": "7"}, {}, settings
            ) == RetentionLimits(-1, 7)
            assert limits_of({}, {"log.retention.ms": value}, settings).retention_ms == -1
    assert [(each["log_level"], each["config"], each["used"]) for each in logs] == [
        ("warning", "retention.ms", "-1")
    ]


async def test_retention_reads_one_run_of_a_partition_that_loses_none() -> None:
    clock = ManualClock()
    store = CountingStore(clock)
    await fill(store, partitions=5, runs=400)
    sequencer = Committer(
        store, clock, SeededEntropy(1), SequencerSettings(default_retention_ms=clock.wall_ms() + 1)
    )
    await sequencer.start()
    before = store.runs_read, store.sums
    summary = await sequencer.apply_retention(Empty())
    assert summary.partitions_moved == 0
    assert (store.runs_read - before[0], store.sums - before[1]) == (5, 0)
    await sequencer.close()


async def test_retention_reads_no_batch_of_the_runs_that_it_removes() -> None:
    clock = ManualClock()
    store = CountingStore(clock)
    await fill(store, partitions=3, runs=20, batches=1_000)
    sequencer = Committer(store, clock, SeededEntropy(1), SequencerSettings(default_retention_ms=1_000))
    await sequencer.start()
    clock.advance(10)
    assert (await sequencer.apply_retention(Empty())).runs_removed == 60
    assert store.batches_read == 0
    await sequencer.close()


class StatementsStore(MemoryRowStore):
    """Counts the queries for runs and objects."""

    statements = 0

    async def runs_from_many(
        self,
        queries: Sequence[tuple[UUID, int, int, int]],
        max_runs: int = 1000,
        *,
        with_batches: bool = True,
    ) -> list[list[Run]]:
        self.statements += 1
        return await super().runs_from_many(queries, max_runs, with_batches=with_batches)

    async def object_rows(self, object_ids: Sequence[UUID]) -> list[ObjectRow]:
        self.statements += 1
        return await super().object_rows(object_ids)


async def test_a_step_of_removal_takes_two_queries_however_many_partitions_it_has() -> None:
    """The committer decides it, so commits wait for its queries."""

    clock = ManualClock()
    store = StatementsStore(clock)
    await fill(store, partitions=150, runs=2)
    state = HotState(await store.load())
    draft = Draft(state, clock.wall_ms())
    draft.delete(TopicRow, TOPIC)
    removed = await remove_runs(draft, store, [(TOPIC, number) for number in range(150)], SequencerSettings())
    assert (removed.runs, removed.objects, removed.left) == (300, 2, [])
    assert store.statements == 2


async def test_steps_of_removal_have_as_many_runs_as_the_setting_allows_and_remove_all_in_the_end() -> None:
    clock = ManualClock()
    store = MemoryRowStore(clock)
    await fill(store, partitions=7, runs=10)
    settings = SequencerSettings(removal_step=4, default_retention_ms=-1)
    sequencer = Committer(store, clock, SeededEntropy(1), settings)
    await sequencer.start()
    written = counted_deletions(store, RunRow)
    await sequencer.delete_records(
        DeleteRecords([DeleteRecordsPartition(TOPIC, number, 45) for number in range(7)])
    )
    assert (await sequencer.apply_retention(Empty())).runs_removed == 7 * 9
    assert max(written) == 4 and sum(written) == 7 * 9
    await sequencer.close()


async def test_while_retention_looks_the_committer_continues() -> None:
    clock = ManualClock()
    store, reads = MemoryRowStore(clock), HeldStore(clock)
    await fill(store, partitions=2, runs=2)
    await fill(reads, partitions=2, runs=2)
    sequencer = Committer(store, clock, SeededEntropy(1), reads=reads)
    await sequencer.start()
    retention = asyncio.create_task(sequencer.apply_retention(Empty()))
    await reads.is_asked.wait()

    change = ConfigChange("retention.ms", ConfigOperation.SET, "5")
    await sequencer.alter_config(AlterConfig(ConfigScope.TOPIC, "old", [change]))

    assert not retention.done()
    reads.may_answer.set()
    assert (await retention).partitions_moved == 0  # they were due by limits that hold no longer
    assert (await sequencer.apply_retention(Empty())).partitions_moved == 2
    await sequencer.close()


class SummingStore(MemoryRowStore):
    """Counts the statements that sum up bytes, and knows how many partitions one of them has summed up at most."""

    most = 0
    statements = 0

    async def partition_bytes(self, topic_ids: Sequence[UUID] | None) -> list[PartitionBytes]:
        return self._counted(await super().partition_bytes(topic_ids))

    async def partition_bytes_within(self, topic_id: UUID, first: int, end: int) -> list[PartitionBytes]:
        return self._counted(await super().partition_bytes_within(topic_id, first, end))

    def _counted(self, found: list[PartitionBytes]) -> list[PartitionBytes]:
        self.most = max(self.most, len(found))
        self.statements += 1
        return found


@asynccontextmanager
async def a_wide_topic(retention_bytes: int) -> AsyncIterator[tuple[SummingStore, Committer]]:
    """A committer with a topic of 500 partitions of two runs, of which so many bytes are kept."""
    clock = ManualClock()
    store = SummingStore(clock)
    await fill(store, partitions=500, runs=2)
    settings = SequencerSettings(default_retention_ms=-1, default_retention_bytes=retention_bytes)
    sequencer = Committer(store, clock, SeededEntropy(1), settings)
    await sequencer.start()
    yield store, sequencer
    await sequencer.close()


async def test_bytes_of_a_wide_topic_are_summed_up_some_partitions_at_a_time() -> None:
    async with a_wide_topic(1_000) as (store, sequencer):
        assert (await sequencer.apply_retention(Empty())).partitions_moved == 500
        assert store.most == sizes.PARTITIONS_AT_ONCE


async def test_one_partition_of_a_wide_topic_costs_one_sum() -> None:
    async with a_wide_topic(2_000) as (store, sequencer):
        assert (await sequencer.apply_retention(Empty())).partitions_moved == 0
        assert store.statements == 5
        await sequencer.delete_records(DeleteRecords([DeleteRecordsPartition(TOPIC, 250, 1)]))
        await sequencer.apply_retention(Empty())
        assert store.statements == 5 + 1


async def test_sums_of_a_wide_topic_are_as_few_as_its_hundreds_in_whatever_order_partitions_are_due() -> None:
    rows = [
        PartitionRow(TOPIC, hundred * 100 + number, 0, 10, -1, [LogEpoch(0, 0)])
        for number in range(100)
        for hundred in range(5)
    ]

    store = SummingStore(ManualClock())
    await fill(store, partitions=500, runs=2)
    state = HotState({TopicRow: [TopicRow(TOPIC, "old", 500, {}, 0)], PartitionRow: rows})
    watch = PartitionWatch()
    settings = SequencerSettings(default_retention_ms=-1, default_retention_bytes=1_000)
    plan = await plan_retention(state, store, settings, watch)
    assert len(plan.due) == 500
    queries = 500 * settings.removal_step // RUNS_AT_ONCE
    assert store.statements == 5 + queries, "each query's partitions lie in one hundred"


def looked_at(partitions: int) -> tuple[PartitionWatch, HotState]:
    """A watch that has looked at a topic's partitions, which are due again in a second."""
    rows = [PartitionRow(TOPIC, number, 0, 1, -1, [LogEpoch(0, 0)]) for number in range(partitions)]
    state = HotState({TopicRow: [TopicRow(TOPIC, "t", partitions, {}, 0)], PartitionRow: rows})
    watch = PartitionWatch()
    watch.note(Changes())
    asyncio.run(watch.take(state, lambda _: False, 0, partitions))
    for row in rows:
        watch.looked(row, 0, 1_000, 0)
    return watch, state


def test_a_partition_is_looked_at_again_if_the_clusters_defaults_change_while_it_is_looked_at() -> None:
    watch, state = looked_at(1)
    changes = Changes()
    changes.put(BrokerConfigRow("", {"log.retention.ms": "1"}))
    (row,) = state.all(PartitionRow)
    watch.note(changes)
    watch.looked(row, 0, 1_000, 0)
    assert asyncio.run(watch.take(state, lambda _: False, 0, 1)) == ([row], False)


def test_partitions_that_are_due_together_are_taken_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    watch, state = looked_at(1_000)
    monkeypatch.setattr(retention_watch, "PARTITIONS_IN_A_TURN", 20)
    taking = watch.take(state, lambda _: False, 10_000, 1_000)
    assert asyncio.run(passes_of(taking)) >= 50
    assert len(asyncio.run(watch.take(state, lambda _: False, 10_000, 1_000))[0]) == 1_000


def test_topics_that_change_together_are_noted_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    topics = [TopicRow(UUID(int=1 + number), f"t{number}", 20, {}, 0) for number in range(50)]
    changes = Changes()
    for topic in topics:
        changes.put(topic)
    watch, state = PartitionWatch(), HotState({TopicRow: topics})
    watch.note(changes)
    monkeypatch.setattr(retention_watch, "PARTITIONS_IN_A_TURN", 20)
    taking = watch.take(state, lambda _: False, 0, 1_000)
    assert asyncio.run(passes_of(taking)) >= 100, "50 for the topics, 50 for their partitions"


class HeldStore(MemoryRowStore):
    """Answers what runs there are when it is told to."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.is_asked = asyncio.Event()
        self.may_answer = asyncio.Event()

    async def runs_from_many(
        self,
        queries: Sequence[tuple[UUID, int, int, int]],
        max_runs: int = 1000,
        *,
        with_batches: bool = True,
    ) -> list[list[Run]]:
        self.is_asked.set()
        await self.may_answer.wait()
        return await super().runs_from_many(queries, max_runs, with_batches=with_batches)


# --- what changes between the plan and the step that carries it out


class InterruptedStore(MemoryRowStore):
    """Has something done when it has answered the last question of a plan."""

    QUESTIONS = 2  # sums of bytes: of what may be due, and of what is
    sums = 0

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.meanwhile: Callable[[], Awaitable[object]] | None = None

    async def partition_bytes(self, topic_ids: Sequence[UUID] | None) -> list[PartitionBytes]:
        found = await super().partition_bytes(topic_ids)
        self.sums += 1
        if self.sums == self.QUESTIONS and self.meanwhile is not None:
            await self.meanwhile()
        return found


def log_start_after(*meanwhile: Callable[[Committer], Awaitable[object]]) -> tuple[int, int]:
    """Ten runs of five records are there, and three may stay. How many log starts the plan has moved when this is done
    between the plan and its step, and where the log starts then."""

    async def scenario() -> tuple[int, int]:
        clock = ManualClock()
        store = InterruptedStore(clock)
        await fill(store, partitions=1, runs=10)
        settings = SequencerSettings(default_retention_ms=-1, default_retention_bytes=3_000)
        committer = Committer(store, clock, SeededEntropy(1), settings)
        await committer.start()

        async def interrupt() -> None:
            for change in meanwhile:
                await change(committer)

        store.meanwhile = interrupt
        summary = await committer.apply_retention(Empty())
        row = committer._context.state.get(PartitionRow, TOPIC, 0)
        assert row is not None
        await committer.close()
        return summary.partitions_moved, row.log_start_offset

    return asyncio.run(scenario())


async def delete_topic(committer: Committer) -> None:
    await committer.delete_topic(DeleteTopic(TOPIC))


async def make_topic_again(committer: Committer) -> None:
    await committer.create_topic(CreateTopic("old", 1, {}))


def setting(scope: ConfigScope, of: str, name: str, value: str) -> Callable[[Committer], Awaitable[object]]:
    change = ConfigChange(name, ConfigOperation.SET, value)
    return lambda committer: committer.alter_config(AlterConfig(scope, of, [change]))


def deleting_below(offset: int) -> Callable[[Committer], Awaitable[object]]:
    asked = DeleteRecords([DeleteRecordsPartition(TOPIC, 0, offset)])
    return lambda committer: committer.delete_records(asked)


def test_the_plan_is_carried_out() -> None:
    assert log_start_after() == (1, 35)


def test_records_that_a_new_limit_of_the_topic_keeps_stay_though_their_end_was_planned() -> None:
    assert log_start_after(setting(ConfigScope.TOPIC, "old", "retention.bytes", "-1")) == (0, 0)


def test_records_that_a_new_limit_of_the_cluster_keeps_stay_though_their_end_was_planned() -> None:
    assert log_start_after(setting(ConfigScope.BROKER, "", "log.retention.bytes", "-1")) == (0, 0)


def test_records_of_a_topic_that_is_compacted_now_stay_though_their_end_was_planned() -> None:
    assert log_start_after(setting(ConfigScope.TOPIC, "old", "cleanup.policy", "compact")) == (0, 0)


def test_a_log_start_that_was_planned_does_not_move_one_back_that_went_further() -> None:
    assert log_start_after(deleting_below(42)) == (0, 42)


def test_a_log_start_that_went_a_part_of_the_way_is_moved_to_where_it_was_planned() -> None:
    assert log_start_after(deleting_below(12)) == (1, 35)


def test_a_plan_for_a_deleted_topic_changes_nothing() -> None:
    assert log_start_after(delete_topic) == (0, 0)  # its rows go by steps of their own


def test_a_plan_for_a_topic_changes_nothing_of_a_new_topic_of_its_name() -> None:
    assert log_start_after(delete_topic, make_topic_again) == (0, 0)
