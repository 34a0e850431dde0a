"""Which runs retention removes: a pure decision; and what it costs to look for them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from uuid import UUID

from sequencer.api import AlterConfig, ConfigChange, ConfigOperation, ConfigScope, Empty, ObjectKind, Run
from sequencer.committer import Committer
from sequencer.rules.retention import RetentionLimits, expired_end, limits_of
from sequencer.settings import SequencerSettings
from sequencer.store.memory import MemoryRowStore
from sequencer.store.rows import PartitionBytes
from tests.support.backlog import fill
from tests.support.clocks import ManualClock, SeededEntropy


def run(base: int, at: int, length: int = 100, created: int = 0, kind: ObjectKind = ObjectKind.MIXED) -> Run:
    nil = UUID(int=0)
    return Run(nil, 0, base, base + 1, nil, kind, "k", 0, 0, 0, length, at, at, 1, created, [])


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


def test_markers_go_with_what_stood_before_them_and_age_when_they_stand_first() -> None:
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


class CountingStore(MemoryRowStore):
    """Counts the runs that were read, and the sums of bytes that were asked for."""

    runs_read = 0
    sums = 0

    async def runs_from(
        self, topic_id: UUID, partition: int, offset: int, max_bytes: int, max_runs: int = 1000
    ) -> list[Run]:
        found = await super().runs_from(topic_id, partition, offset, max_bytes, max_runs)
        self.runs_read += len(found)
        return found

    async def partition_bytes(self, topic_ids: Sequence[UUID] | None) -> list[PartitionBytes]:
        self.sums += 1
        return await super().partition_bytes(topic_ids)


def test_retention_reads_one_run_of_a_partition_that_loses_none() -> None:
    async def scenario() -> None:
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

    asyncio.run(scenario())


def test_while_retention_looks_the_committer_goes_on() -> None:
    async def scenario() -> None:
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

    asyncio.run(scenario())


class HeldStore(MemoryRowStore):
    """Answers what runs there are when it is told to."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.is_asked = asyncio.Event()
        self.may_answer = asyncio.Event()

    async def runs_from_many(
        self, queries: Sequence[tuple[UUID, int, int, int]], max_runs: int = 1000
    ) -> list[list[Run]]:
        self.is_asked.set()
        await self.may_answer.wait()
        return await super().runs_from_many(queries, max_runs)
