"""Merges: which objects become one, and that readers see the same before and after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

import msgspec
import pytest

from compactor.cycle import CompactionSettings, CompactionSummary, InProcess, run_cycle
from compactor.merges import plan_merges
from compactor.plan import MIB, PlanSettings
from sequencer.api.commits import ObjectKind
from sequencer.api.compaction import MergeCandidate
from sequencer.api.reads import Run
from sequencer.api.retention import DeleteRecords, DeleteRecordsPartition
from sequencer.api.topics import Topic
from sequencer.api.values import Empty
from sequencer.engine.committer import Committer
from sequencer.rules.levels import DAY_MS, HOUR_MS, SMALL_BYTES, to_merge
from sequencer.store.memory import MemoryRowStore
from sequencer.store.rows import SmallObjectRow
from tailrace.batches.record_batch import Compression
from tailrace.object_store.memory import MemoryStore
from tests.support.clocks import ManualClock, SeededEntropy
from tests.support.compaction import T0, Log, batch_of
from tests.support.row_samples import sample_run

FIRST_LEVEL = CompactionSettings(min_bytes=1, min_age_ms=0, merges=False)
ALL = replace(FIRST_LEVEL, merges=True)
TOPIC = Topic(UUID(int=DAY_MS), "t", 3, {}, 0)


def run_of(
    number: int, size: int, partition: int, base_offset: int, end_offset: int, footer: int = 100
) -> Run:
    return sample_run(
        base_offset,
        end_offset,
        topic_id=TOPIC.topic_id,
        partition=partition,
        object_id=UUID(int=number),
        kind=ObjectKind.PARQUET,
        key=str(number),
        object_size=size,
        index_start=size - footer,
        length=size,
        commit_number=number,
    )


def planned(runs: Sequence[Run], settings: PlanSettings | None = None) -> list[list[int]]:
    """The numbers of each item's objects."""
    items = plan_merges([MergeCandidate(TOPIC, list(runs))], settings or PlanSettings())
    return [sorted(object_id.int for object_id in item.object_ids) for item in items]


def test_objects_are_merged_up_to_the_target_and_a_single_one_is_left() -> None:
    runs = [run_of(number, 40 * MIB, 0, number, number + 1) for number in range(7)]
    assert planned(runs) == [[0, 1, 2], [3, 4, 5]]


def test_objects_of_tiny_batches_are_merged_up_to_a_footer_that_readers_can_hold() -> None:
    runs = [run_of(number, 6 * MIB, 0, number, number + 1, footer=3 * MIB) for number in range(5)]
    assert planned(runs) == [[0, 1], [2, 3]]


def test_a_swap_of_a_merge_replaces_a_bounded_number_of_runs() -> None:
    runs = [
        run_of(number, MIB, partition, number, number + 1) for number in range(4) for partition in range(3)
    ]
    assert planned(runs, PlanSettings(most_runs=6)) == [[0, 1], [2, 3]]


def test_runs_of_a_partition_are_never_merged_over_runs_between_them() -> None:
    first, second = run_of(0, MIB, 0, 0, 5), run_of(1, MIB, 0, 5, 9)
    after_a_hole = [run_of(2, MIB, 0, 10, 12), run_of(2, MIB, 1, 0, 3), run_of(3, MIB, 1, 3, 4)]
    assert planned([first, second, *after_a_hole]) == [[0, 1], [2, 3]]


def test_a_thick_topic_is_written_twice_and_ends_in_objects_of_the_right_size() -> None:
    """38 MiB of Parquet each five minutes, as 128 MiB of JSON give."""
    size, hours = 38 * MIB, 24 * 3
    small: list[SmallObjectRow] = []
    runs: dict[UUID, Run] = {}
    full: list[int] = []
    written = 0
    for number in range(hours * 12):
        now_ms = 20_010 * DAY_MS + number * HOUR_MS // 12
        run = run_of(number, size, 0, number, number + 1)
        small.append(SmallObjectRow(TOPIC.topic_id, run.object_id, now_ms, size))
        runs[run.object_id] = run
        written += size
        for group in to_merge(TOPIC.topic_id, small, now_ms=now_ms, retention_ms=-1):
            of_group = MergeCandidate(TOPIC, [runs[row.object_id] for row in group])
            for item in plan_merges([of_group], PlanSettings()):
                (piece,) = item.pieces
                small = [row for row in small if row.object_id not in item.object_ids]
                merged = sum(run.object_size for run in piece.runs)
                written += merged
                assert merged >= SMALL_BYTES
                full.append(merged)
    assert written <= 2 * size * hours * 12
    assert len(small) <= 1
    assert all(64 * MIB <= each <= 512 * MIB for each in full)


class Merged:
    """A log with an object of each of some hours, by compaction without merges."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(self.clock)
        self.committer = Committer(MemoryRowStore(self.clock), self.clock, SeededEntropy(1))
        self.log = Log(self.committer, self.store, self.clock)

    async def compact(self, settings: CompactionSettings) -> CompactionSummary:
        self.clock.advance(0.01)
        runner = InProcess(self.store, self.clock, self.log.entropy)
        return await run_cycle(
            self.log.sequencer, runner, clock=self.clock, entropy=self.log.entropy, settings=settings
        )

    async def fill(self, codec: Compression = Compression.NONE) -> None:
        await self.committer.start()
        await self.log.topic("t", 3)
        for number in range(5):
            at = T0 + 1_000 * (number if number != 2 else 9)
            batches = [
                ("t", partition, batch_of([b"v" * 40, b"%d" % number], at=at, codec=codec))
                for partition in range(2)
            ]
            if number % 2:
                batches.append(("t", 2, batch_of([b"sparse"], at=at, codec=codec)))
            await self.log.produce(*batches)
            await self.compact(FIRST_LEVEL)

    async def kinds(self, partition: int = 0) -> list[tuple[int, int]]:
        runs = await self.log.runs("t", partition)
        assert {run.kind for run in runs} == {ObjectKind.PARQUET}
        return [(run.base_offset, run.end_offset) for run in runs]


@pytest.mark.parametrize("codec", list(Compression))
async def test_readers_see_the_same_bytes_before_and_after_a_merge(codec: Compression) -> None:
    merged = Merged()
    await merged.fill(codec)
    log = merged.log
    before = [await log.replay("t", partition) for partition in range(3)]
    middle = await log.replay("t", 0, 5)
    newest = [(await log.runs("t", partition))[-1] for partition in range(3)]
    assert len(await merged.kinds()) == 5
    done = await merged.compact(ALL)
    assert (done.merged_objects, done.objects, done.failures, done.refused) == (5, 0, [], [])
    assert [await merged.kinds(partition) for partition in range(3)] == [[(0, 10)], [(0, 10)], [(0, 2)]]
    assert [await log.replay("t", partition) for partition in range(3)] == before
    assert await log.replay("t", 0, 5) == middle
    after = [(await log.runs("t", partition))[0] for partition in range(3)]
    assert [run.running_max_timestamp for run in after] == [run.running_max_timestamp for run in newest]
    assert [run.created_ms for run in after] == [run.created_ms for run in newest]
    again = await merged.compact(ALL)
    assert (again.merged_objects, again.rounds) == (0, 0)
    await merged.committer.close()


async def test_a_merge_keeps_what_was_deleted_hidden_and_follows_the_log_start() -> None:
    merged = Merged()
    await merged.fill()
    topic_id = merged.log.topics["t"].topic_id
    await merged.log.sequencer.delete_records(DeleteRecords([DeleteRecordsPartition(topic_id, 0, 5)]))
    await merged.log.sequencer.apply_retention(Empty())
    before = await merged.log.replay("t", 0, 5)
    await merged.compact(ALL)
    found = await merged.log.found("t", 0, 5)
    assert found.log_start_offset == 5
    assert [(run.base_offset, run.end_offset) for run in found.runs] == [(4, 10)]
    assert await merged.log.replay("t", 0, 5) == before
    await merged.committer.close()


@pytest.mark.parametrize("is_there", [True, False])
async def test_an_object_that_cannot_be_read_stays_and_the_others_are_merged(is_there: bool) -> None:
    merged = Merged()
    await merged.fill()
    (run, *_) = await merged.log.runs("t", 0)
    data = bytearray(await merged.store.get(run.key))
    data[run.index_start + 8] ^= 1
    await merged.store.delete([run.key])
    if is_there:
        await merged.store.put(run.key, [bytes(data)])
    done = await merged.compact(ALL)
    assert (done.merged_objects, len(done.failures), done.refused) == (3, 2, [])
    assert await merged.kinds() == [(0, 2), (2, 4), (4, 10)]
    await merged.committer.close()


async def test_a_backlog_that_never_ends_leaves_a_turn_for_merges() -> None:
    merged = Merged()
    await merged.fill()
    await merged.log.produce(("t", 0, batch_of([b"more"])))
    done = await merged.compact(replace(ALL, max_rounds=1))
    assert (done.objects, done.merged_objects) == (1, 6)
    await merged.committer.close()


def test_an_item_of_a_merge_travels_to_a_task() -> None:
    (item,) = plan_merges(
        [MergeCandidate(TOPIC, [run_of(1, 5, 0, 0, 1), run_of(2, 5, 0, 1, 2)])], PlanSettings()
    )
    data = msgspec.msgpack.Encoder(uuid_format="bytes").encode(item)
    assert msgspec.msgpack.decode(data, type=type(item)) == item
    assert item.is_merge and item.stored_bytes == 10


async def test_hourly_rounds_of_a_month_leave_a_thin_topic_five_objects_at_most() -> None:
    clock, hours = ManualClock(), 24 * 32
    store = MemoryStore(clock)
    committer = Committer(MemoryRowStore(clock), clock, SeededEntropy(1))
    await committer.start()
    log = Log(committer, store, clock)
    await log.topic("t", 1, {"retention.ms": "-1"})
    here = InProcess(store, clock, log.entropy)
    for hour in range(hours):
        await log.produce(("t", 0, batch_of([b"%d" % hour], at=clock.wall_ms())))
        clock.advance(3_600)
        summary = await run_cycle(committer, here, clock=clock, entropy=log.entropy, settings=ALL)
        assert (summary.failures, summary.refused) == ([], [])
        assert len({run.key for run in await log.runs("t", 0)}) <= 5
    values = [record.value for record in await log.records("t", 0)]
    assert values == [b"%d" % hour for hour in range(hours)]
    await committer.close()
