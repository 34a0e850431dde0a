"""Compaction without Spark: what readers see, what is left over, what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import cast
from uuid import UUID

import pytest

from compactor.cycle import (
    CompactionSettings,
    CompactionSummary,
    InProcess,
    Outcomes,
    TaskRunner,
    output_under,
    run_cycle,
)
from compactor.lease import held_lease
from compactor.plan import PlanSettings, WorkItem, plan
from compactor.rewrite import OutputLocation, RewriteFailure, RewriteResult, failure_of, try_rewrite
from sequencer.api.commits import ObjectKind, SessionGrant, SessionRef
from sequencer.api.compaction import CompactionRequest, NamedLease, SwapAnswer, SwapRequest, TakeLease
from sequencer.api.errors import IncarnationChanged, LeaseLost, SequencerUnavailable, SwapRefused
from sequencer.api.retention import (
    DeadSession,
    DeleteRecords,
    DeleteRecordsPartition,
    GarbageRequest,
    KnownKeys,
)
from sequencer.api.topics import DeleteTopic, MetadataRequest
from sequencer.api.values import Empty
from sequencer.collector import collect
from sequencer.settings import SequencerSettings
from tailrace.batches.record_batch import CRC_START, HEADER_BYTES, Compression, crc_of
from tailrace.buffers import Buffer
from tailrace.clock import SystemClock
from tailrace.object_store.memory import MemoryStore
from tests.support.clocks import ManualClock, SeededEntropy
from tests.support.compaction import T0, Log, batch_of, memory_log

ALL = CompactionSettings(min_bytes=1, min_age_ms=0)


@asynccontextmanager
async def opened() -> AsyncIterator[tuple[Log, MemoryStore, ManualClock]]:
    async with memory_log() as (log, clock):
        yield log, cast(MemoryStore, log.store), clock


async def compacted(
    log: Log, runner: TaskRunner | None = None, settings: CompactionSettings = ALL
) -> CompactionSummary:
    here = runner or InProcess(log.store, log.clock, log.entropy)
    return await run_cycle(
        log.sequencer, here, clock=log.clock, entropy=log.entropy, settings=settings, holder="this one"
    )


async def parquet_keys(store: MemoryStore) -> list[str]:
    return [info.key async for info in store.list("") if info.key.endswith(".parquet")]


async def test_readers_see_the_same_bytes_and_the_old_objects_become_garbage() -> None:
    async with opened() as (log, _, clock):
        await log.topic("a", 2)
        await log.topic("b", 1)
        old = [
            await log.produce(
                ("a", 0, batch_of([b"a%d" % number] * 3)),
                ("a", 1, batch_of([b"c"], at=T0 + number)),
                ("b", 0, batch_of([b"", b"x"])),
                ("a", 0, batch_of([b"again"])),
            )
            for number in range(5)
        ]
        places = [("a", 0), ("a", 1), ("b", 0)]
        before = [await log.replay(*place) for place in places]
        summary = await compacted(log)
        assert (summary.objects, summary.runs_replaced, summary.partitions) == (2, 15, 3)
        assert (summary.failures, summary.refused) == ([], [])
        assert [await log.replay(*place) for place in places] == before
        assert [run.kind for run in await log.runs("a")] == [ObjectKind.PARQUET]
        assert await log.replay("a", 0, 17) == before[0][8:]
        clock.advance(120)
        garbage = await log.sequencer.garbage(GarbageRequest(100))
        assert {object_id for object_id, _ in garbage.objects} == {each.object_id for each in old}
        again = await compacted(log)
        assert again.objects == 0


@pytest.mark.parametrize("codec", list(Compression))
async def test_records_of_every_codec_come_back_the_same(codec: Compression) -> None:
    async with opened() as (log, _, _):
        await log.topic("a")
        for number in range(3):
            await log.produce(("a", 0, batch_of([b"v" * 50, b"%d" % number], codec=codec)))
        before = await log.records("a")
        await compacted(log)
        assert await log.records("a") == before


async def test_a_backlog_of_many_pages_shrinks_round_by_round() -> None:
    async with opened() as (log, _, _):
        await log.topic("a", 3)
        await log.topic("b", 1)
        places = [("a", 0), ("a", 1), ("a", 2), ("b", 0)]
        for number in range(9):
            await log.produce(*((*place, batch_of([b"%d" % number])) for place in places))
        before = [await log.replay(*place) for place in places]
        summary = await compacted(log, settings=replace(ALL, max_runs=4, merges=False))
        assert (summary.runs_replaced, summary.partitions, summary.refused) == (36, 4, [])
        assert summary.rounds == 10  # of four runs at most
        assert [await log.replay(*place) for place in places] == before
        assert (await log.sequencer.statistics(Empty())).uncompacted_bytes == 0


async def test_records_after_a_compaction_are_compacted_by_the_next() -> None:
    async with opened() as (log, _, _):
        await log.topic("a")
        for _ in range(3):
            await log.produce(("a", 0, batch_of([b"x", b"y"])))
            await compacted(log, settings=replace(ALL, merges=False))
        runs = await log.runs("a")
        assert [(run.base_offset, run.kind) for run in runs] == [(at, ObjectKind.PARQUET) for at in (0, 2, 4)]
        assert len(await log.records("a")) == 6


async def test_few_runs_a_round_end_in_all_of_them() -> None:
    async with opened() as (log, _, _):
        await log.topic("a")
        for _ in range(5):
            await log.produce(("a", 0, batch_of([b"x"])))
        before = await log.replay("a")
        summary = await compacted(log, settings=replace(ALL, max_runs=2, merges=False))
        assert (summary.rounds, summary.objects, summary.runs_replaced) == (3, 3, 5)
        assert await log.replay("a") == before


class BesideAProducer:
    """Runs items, while a producer commits one more object."""

    def __init__(self, log: Log, clock: ManualClock) -> None:
        self._log = log
        self._clock = clock
        self._here = InProcess(log.store, log.clock, SeededEntropy(9))

    async def run(self, items: Sequence[WorkItem], output: OutputLocation) -> Outcomes:
        self._clock.advance(1)
        await self._log.produce(("a", 0, batch_of([b"new"])))
        async for outcome in self._here.run(items, output):
            yield outcome


async def test_a_round_ends_while_a_producer_continues() -> None:
    async with opened() as (log, _, clock):
        await log.topic("a")
        for _ in range(5):
            await log.produce(("a", 0, batch_of([b"old"])))
        settings = replace(ALL, max_runs=2, merges=False, max_rounds=50)
        summary = await compacted(log, BesideAProducer(log, clock), settings)
        assert (summary.rounds, summary.runs_replaced) == (3, 6), (
            "the five old ones, and a new one with the last"
        )


async def test_only_old_or_many_bytes_are_compacted() -> None:
    async with opened() as (log, _, clock):
        await log.topic("a")
        await log.produce(("a", 0, batch_of([b"x"])))
        settings = CompactionSettings(min_bytes=1 << 20, min_age_ms=60_000)
        assert (await compacted(log, settings=settings)).objects == 0
        clock.advance(61)
        assert (await compacted(log, settings=settings)).objects == 1


class Meddling:
    """Runs items, and does something else first or twice."""

    def __init__(
        self, log: Log, *, times: int = 1, then: Callable[[], Awaitable[object]] | None = None
    ) -> None:
        self._here = InProcess(log.store, log.clock, SeededEntropy(9))
        self._times = times
        self._then = then

    async def run(self, items: Sequence[WorkItem], output: OutputLocation) -> Outcomes:
        outcomes: list[RewriteResult | RewriteFailure] = []
        for _ in range(self._times):
            outcomes = [outcome async for outcome in self._here.run(items, output)]
        if self._then is not None:
            await self._then()
            self._then = None
        for outcome in outcomes:
            yield outcome


async def orphans(log: Log, store: MemoryStore) -> list[str]:
    keys = await parquet_keys(store)
    known = set((await log.sequencer.known_keys(KnownKeys(keys))).keys)
    return [key for key in keys if key not in known]


async def test_a_task_that_ran_twice_leaves_an_orphan_in_a_session_that_has_ended() -> None:
    async with opened() as (log, store, _):
        await log.topic("a")
        await log.produce(("a", 0, batch_of([b"x", b"y"])))
        before = await log.replay("a")
        await compacted(log, Meddling(log, times=2))
        assert await log.replay("a") == before
        [orphan] = await orphans(log, store)
        ended = (await log.sequencer.garbage(GarbageRequest(10))).sessions
        assert any(orphan.startswith(session.prefix) for session in ended)


class Paused:
    """Runs items after something else has happened to their session."""

    def __init__(self, log: Log, meanwhile: Callable[[UUID], Awaitable[object]]) -> None:
        self._here = InProcess(log.store, log.clock, SeededEntropy(9))
        self._meanwhile = meanwhile

    async def run(self, items: Sequence[WorkItem], output: OutputLocation) -> Outcomes:
        await self._meanwhile(UUID(output.prefix.split("/")[-2]))
        async for outcome in self._here.run(items, output):
            yield outcome


async def ended(log: Log) -> list[DeadSession]:
    return (await log.sequencer.garbage(GarbageRequest(10))).sessions


async def test_a_task_that_is_paused_until_its_sessions_prefix_is_collected_puts_nothing() -> None:
    async with opened() as (log, store, clock):
        await log.topic("a")
        await log.produce(("a", 0, batch_of([b"x", b"y"])))

        async def end_and_sweep_twice(session_id: UUID) -> None:
            await log.sequencer.close_session(SessionRef(session_id))
            for _ in range(2):
                await collect(log.sequencer, store, SystemClock(), pause_s=0)
                clock.advance(SequencerSettings().sweep_interval_ms / 1000)
            of_the_compactor = [each for each in await ended(log) if "/parquet/" in each.prefix]
            assert of_the_compactor == []

        summary = await compacted(log, Paused(log, end_and_sweep_twice))
        assert await parquet_keys(store) == [] and summary.objects == 0
        (failure,) = summary.failures
        assert failure.reason.startswith("TookTooLong: ") and not failure.is_of_input


async def test_a_paused_compactor_gives_its_tasks_no_time_beyond_what_it_knows_of_its_session() -> None:
    async with opened() as (log, _, clock), held_lease(log.sequencer, clock, holder="this one") as lease:
        before = output_under(lease, "c").until_ms
        clock.advance(5 * lease.session.lease_ms / 1000)
        assert output_under(lease, "c").until_ms == before > lease.session_seen_ms


async def test_a_put_that_hangs_is_given_up_when_its_time_is_over() -> None:
    class Hanging(MemoryStore):
        async def put(self, key: str, parts: Sequence[Buffer], *, if_absent: bool = False) -> None:
            await asyncio.Event().wait()

    async with opened() as (log, _, clock):
        await log.topic("a")
        await log.produce(("a", 0, batch_of([b"x"])))
        page = await log.sequencer.compaction_candidates(CompactionRequest(0, 0, 100))
        (item,) = plan(page.candidates, PlanSettings())
        hanging = Hanging(clock)
        for info in [info async for info in log.store.list("")]:
            await MemoryStore.put(hanging, info.key, [await log.store.get(info.key)])
        output = OutputLocation("c/", "c", until_ms=clock.wall_ms() + 1)
        outcome = await try_rewrite(item, hanging, output, clock=clock, entropy=log.entropy)
        assert isinstance(outcome, RewriteFailure) and "was not put in time" in outcome.reason


async def test_a_compactor_whose_lease_was_taken_swaps_nothing_and_leaves_only_an_orphan() -> None:
    async with opened() as (log, store, clock):
        await log.topic("a")
        for _ in range(2):
            await log.produce(("a", 0, batch_of([b"x", b"y"])))
        before = await log.replay("a")

        # Another compactor takes over in the middle: its epoch is higher, so this one's swaps are refused.
        async def take_over() -> None:
            clock.advance(ALL.lease_ms / 1000 + 1)
            await log.sequencer.take_lease(TakeLease("compactor", "other", 0, 60_000))

        summary = await compacted(log, Meddling(log, then=take_over))
        assert (summary.objects, len(summary.refused)) == (0, 1)
        assert await log.replay("a") == before
        assert len(await orphans(log, store)) == 1
        assert [run.kind for run in await log.runs("a")] == [ObjectKind.MIXED] * 2


async def test_a_topic_deleted_in_the_middle_stays_deleted() -> None:
    async with opened() as (log, _, _):
        topic = await log.topic("a")
        await log.produce(("a", 0, batch_of([b"x"])))
        request = DeleteTopic(topic.topic_id)
        summary = await compacted(log, Meddling(log, then=lambda: log.sequencer.delete_topic(request)))
        assert summary.failures == []
        assert (await log.sequencer.metadata(MetadataRequest())).topics == []
        await log.sequencer.apply_retention(Empty())


async def test_records_deleted_in_the_middle_stay_deleted() -> None:
    async with opened() as (log, _, _):
        topic = await log.topic("a")
        for _ in range(4):
            await log.produce(("a", 0, batch_of([b"x", b"y"])))
        delete = DeleteRecords([DeleteRecordsPartition(topic.topic_id, 0, 4)])
        summary = await compacted(log, Meddling(log, then=lambda: log.sequencer.delete_records(delete)))
        assert summary.refused == []
        found = await log.runs("a", 0, 4)
        assert found[-1].end_offset == 8
        assert len(await log.replay("a", 0, 4)) == 2


async def test_transactions_are_compacted_and_consumers_see_the_same() -> None:
    async with opened() as (log, _, clock):
        await log.topic("a")
        good, bad = await log.producer("good"), await log.producer("bad")
        old = []
        for number in range(4):
            old.append(
                await log.produce(
                    ("a", 0, batch_of([b"g%d" % number], producer=good)),
                    ("a", 0, batch_of([b"b%d" % number] * 2, producer=bad)),
                    ("a", 0, batch_of([b"plain"])),
                )
            )
            if number % 2:
                await log.finish(bad, is_commit=number == 3)
                await log.finish(good, is_commit=True)
        await log.produce(("a", 0, batch_of([b"open"], producer=good)))
        before = await log.consumed("a")
        assert len(before) == 4 + 4 + 4
        summary = await compacted(log)
        assert (summary.failures, summary.refused) == ([], [])
        assert (summary.records, summary.aborted_records, summary.markers) == (12, 4, 4)
        assert await log.consumed("a") == before
        found = await log.found("a")
        assert [run.kind for run in found.runs] == [ObjectKind.PARQUET, ObjectKind.MIXED]
        assert found.aborted == []
        await log.finish(good, is_commit=False)
        assert await log.consumed("a") == before
        assert (await compacted(log)).aborted_records == 1
        assert await log.consumed("a") == before
        assert (await log.found("a")).aborted == []
        clock.advance(120)
        garbage = await log.sequencer.garbage(GarbageRequest(100))
        assert {each.object_id for each in old} < {object_id for object_id, _ in garbage.objects}


class Backwards:
    """Gives outcomes in the reverse order."""

    def __init__(self, here: TaskRunner) -> None:
        self._here = here

    async def run(self, items: Sequence[WorkItem], output: OutputLocation) -> Outcomes:
        assert len(items) > 2
        by_offset = sorted(items, key=lambda item: item.pieces[0].base_offset)
        for outcome in [outcome async for outcome in self._here.run(by_offset, output)][::-1]:
            yield outcome


async def test_parts_of_a_partition_with_a_transaction_over_all_are_swapped_in_order() -> None:
    async with opened() as (log, _, _):
        await log.topic("a")
        producer = await log.producer("p")
        for number in range(6):
            await log.produce(
                ("a", 0, batch_of([b"x" * 300, b"%d" % number], producer=producer)),
                ("a", 0, batch_of([b"y" * 300])),
            )
        await log.finish(producer, is_commit=False)
        before = await log.consumed("a")
        small = replace(ALL, plan=PlanSettings(100, 2_000))
        runner = Backwards(InProcess(log.store, log.clock, SeededEntropy(4)))
        summary = await compacted(log, runner, small)
        assert (summary.rounds, summary.refused, summary.aborted_records) == (1, [], 12)
        assert await log.consumed("a") == before
        assert (await log.found("a")).aborted == []


async def test_a_log_of_aborted_records_alone_becomes_an_object_without_rows() -> None:
    async with opened() as (log, _, _):
        await log.topic("a")
        producer = await log.producer("p")
        await log.produce(("a", 0, batch_of([b"x"] * 3, producer=producer)))
        await log.finish(producer, is_commit=False)
        summary = await compacted(log)
        assert (summary.records, summary.failures, summary.refused) == (0, [], [])
        assert await log.consumed("a") == []
        await log.produce(("a", 0, batch_of([b"y"])))
        assert [(each.offset, each.value) for each in await log.consumed("a")] == [(4, b"y")]


async def test_corrupt_input_is_named_and_the_rest_continues() -> None:
    async with opened() as (log, store, _):
        await log.topic("good")
        await log.topic("bad")
        await log.produce(("good", 0, batch_of([b"x"])))
        corrupt = await log.produce(("bad", 0, batch_of([b"x"])))
        data = bytearray(await store.get(corrupt.key))
        data[75] ^= 1
        await store.delete([corrupt.key])
        await store.put(corrupt.key, [data])
        summary = await compacted(log)
        assert [failure.topic_name for failure in summary.failures] == ["bad"]
        assert "CRC" in summary.failures[0].reason
        assert summary.objects == 1
        assert [run.kind for run in await log.runs("bad")] == [ObjectKind.MIXED]


async def test_a_batch_whose_records_make_no_sense_blocks_only_its_own_run() -> None:
    async with opened() as (log, _, _):
        await log.topic("t", partitions=2)
        for number in range(7):
            batch = bytearray(batch_of([b"%d" % number]))
            if number == 3:
                batch[HEADER_BYTES] ^= 0x55  # a record's length that cannot be, under a CRC that is right
                batch[CRC_START - 4 : CRC_START] = crc_of(batch).to_bytes(4, "big")
            await log.produce(("t", 0, bytes(batch)), ("t", 1, batch_of([b"x"])))
        before = await log.replay("t", 0)
        for _ in range(2):
            summary = await compacted(log)
            (failure,) = summary.failures
            assert failure.is_of_input and [position[1:] for position in failure.positions] == [(0, 3)]
            kinds = [(run.base_offset, run.end_offset, run.kind) for run in await log.runs("t", 0)]
            assert kinds[0] == (0, 3, ObjectKind.PARQUET) and kinds[1] == (3, 4, ObjectKind.MIXED)
            assert {kind for _, _, kind in kinds[2:]} == {ObjectKind.PARQUET} and kinds[-1][1] == 7
            assert {run.kind for run in await log.runs("t", 1)} == {ObjectKind.PARQUET}
        assert await log.replay("t", 0) == before


async def test_an_object_that_is_gone_blocks_only_its_own_runs() -> None:
    async with opened() as (log, store, _):
        await log.topic("t", partitions=2)
        made = [
            await log.produce(("t", 0, batch_of([b"%d" % number])), ("t", 1, batch_of([b"x"])))
            for number in range(5)
        ]
        await store.delete([made[2].key])
        summary = await compacted(log)
        assert sorted(position[1:] for each in summary.failures for position in each.positions) == [
            (0, 2),
            (1, 2),
        ]
        for partition in range(2):
            runs = await log.runs("t", partition)
            mixed = [run.base_offset for run in runs if run.kind is ObjectKind.MIXED]
            assert mixed == [2] and runs[-1].end_offset == 5


class After:
    """Does something before it runs the first items, and counts all items."""

    def __init__(self, log: Log, first: Callable[[], Awaitable[object]]) -> None:
        self._here = InProcess(log.store, log.clock, log.entropy)
        self._first: Callable[[], Awaitable[object]] | None = first
        self.items = 0

    async def run(self, items: Sequence[WorkItem], output: OutputLocation) -> Outcomes:
        if self._first is not None:
            await self._first()
            self._first = None
        self.items += len(items)
        async for outcome in self._here.run(items, output):
            yield outcome


async def test_objects_of_a_topic_that_was_deleted_after_the_plan_are_not_missed() -> None:
    async with opened() as (log, store, _):
        topic = await log.topic("t", partitions=2)
        made = [await log.produce(("t", 0, batch_of([b"x"])), ("t", 1, batch_of([b"y"]))) for _ in range(8)]

        async def delete() -> None:
            await log.sequencer.delete_topic(DeleteTopic(topic.topic_id))
            await store.delete([each.key for each in made])

        runner = After(log, delete)
        summary = await compacted(log, runner)
        assert (summary.failures, summary.objects, runner.items) == ([], 0, 1)


@pytest.mark.parametrize("is_merge", [False, True])
async def test_objects_that_retention_deleted_after_the_plan_are_not_missed(is_merge: bool) -> None:
    async with opened() as (log, store, _):
        topic = await log.topic("t")
        for number in range(5):
            await log.produce(("t", 0, batch_of([b"%d" % number])))
            if is_merge:
                await compacted(log, settings=replace(ALL, merges=False))
        keys = [run.key for run in await log.runs("t")]

        async def delete() -> None:
            await log.sequencer.delete_records(DeleteRecords([DeleteRecordsPartition(topic.topic_id, 0, 2)]))
            await store.delete(keys[:2])

        summary = await compacted(log, After(log, delete))
        assert summary.failures == []
        assert [run.kind for run in await log.runs("t", offset=2)] == [ObjectKind.PARQUET]
        assert len(await log.replay("t", offset=2)) == 3


async def test_the_session_is_renewed_while_the_lease_cannot_be() -> None:
    async with opened() as (log, store, clock):
        await log.topic("a", 1)
        await log.produce(("a", 0, batch_of([b"x"])))
        take_lease = log.sequencer.take_lease
        renewed = 0

        async def unavailable(request: TakeLease) -> NamedLease:
            if request.epoch:
                raise SequencerUnavailable("made to fail")
            return await take_lease(request)

        log.sequencer.take_lease = unavailable  # type: ignore[method-assign]
        renew_session = log.sequencer.renew_session

        async def counted(request: SessionRef) -> SessionGrant:
            nonlocal renewed
            renewed += 1
            return await renew_session(request)

        log.sequencer.renew_session = counted  # type: ignore[method-assign]

        class Slow(InProcess):
            async def run(self, items: Sequence[WorkItem], output: OutputLocation) -> Outcomes:
                for _ in range(4):
                    clock.advance(10)
                    for _ in range(20):
                        await asyncio.sleep(0)
                async for outcome in super().run(items, output):
                    yield outcome

        long = replace(ALL, lease_ms=60_000)
        summary = await compacted(log, Slow(store, clock, log.entropy), long)
        assert renewed >= 3 and summary.refused == []


async def test_two_compactors_at_once_are_one_too_many() -> None:
    async with opened() as (log, _, _):
        await log.sequencer.take_lease(TakeLease("compactor", "other", 0, 60_000))
        with pytest.raises(LeaseLost):
            await compacted(log)


class OneDies:
    """A runner whose task for one topic dies, as on Spark; the others' outcomes come."""

    def __init__(self, here: TaskRunner, topic: str) -> None:
        self._here = here
        self._topic = topic

    async def run(self, items: Sequence[WorkItem], output: OutputLocation) -> Outcomes:
        for item in items:
            if item.topic_name == self._topic:
                yield failure_of(item, MemoryError())
        async for outcome in self._here.run(
            [item for item in items if item.topic_name != self._topic], output
        ):
            yield outcome


async def test_when_one_of_twenty_tasks_dies_nineteen_are_swapped_and_one_in_the_next_round() -> None:
    async with opened() as (log, store, clock):
        topics = [f"t{number:02}" for number in range(20)]
        for name in topics:
            await log.topic(name)
            await log.produce((name, 0, batch_of([b"x", name.encode()])))
        here = InProcess(store, clock, log.entropy)
        summary = await compacted(log, OneDies(here, "t07"))
        assert (summary.objects, summary.partitions, summary.refused) == (19, 19, [])
        assert [(each.topic_name, each.reason) for each in summary.failures] == [("t07", "MemoryError")]
        assert [run.kind for run in await log.runs("t07")] == [ObjectKind.MIXED]
        again = await compacted(log, here)
        assert (again.objects, again.failures) == (1, [])
        assert [run.kind for run in await log.runs("t07")] == [ObjectKind.PARQUET]


class Watching:
    """Notes what was swapped when an item's rewriting begins."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._here = InProcess(log.store, log.clock, SeededEntropy(9))
        self.runs_at_start: list[int] = []

    async def run(self, items: Sequence[WorkItem], output: OutputLocation) -> Outcomes:
        for item in items:
            uncompacted = (await self._log.sequencer.statistics(Empty())).runs
            self.runs_at_start.append(uncompacted)
            async for outcome in self._here.run([item], output):
                yield outcome


async def test_an_item_is_swapped_before_the_next_is_rewritten() -> None:
    async with opened() as (log, _, _):
        for name in ("a", "b", "c"):
            await log.topic(name)
        for _ in range(2):
            await log.produce(*((name, 0, batch_of([b"x"])) for name in ("a", "b", "c")))
        runner = Watching(log)
        await compacted(log, runner)
        assert runner.runs_at_start == [6, 5, 4]  # two runs of each topic become one


async def test_a_refused_swap_leaves_only_its_own_partition_for_the_next_round() -> None:
    async with opened() as (log, _, _):
        for name in ("a", "b", "c"):
            await log.topic(name)
            await log.produce((name, 0, batch_of([b"x"])))
        swap = log.sequencer.swap
        refused = (await log.sequencer.metadata(MetadataRequest())).topics[1].topic_id

        async def refusing(request: SwapRequest) -> SwapAnswer:
            if request.runs[0].topic_id == refused:
                raise SwapRefused("other runs stand there")
            return await swap(request)

        log.sequencer.swap = refusing  # type: ignore[method-assign]
        summary = await compacted(log)
        assert (summary.objects, summary.refused) == (2, ["other runs stand there"])
        log.sequencer.swap = swap  # type: ignore[method-assign]
        assert (await compacted(log)).objects == 1


async def test_only_the_chosen_topics_are_compacted() -> None:
    async with opened() as (log, _, _):
        for name in ("a", "b"):
            await log.topic(name)
            await log.produce((name, 0, batch_of([b"x"])))
        summary = await compacted(log, settings=replace(ALL, topics=frozenset({"b"})))
        assert (summary.objects, "/b/" in summary.keys[0]) == (1, True)
        assert [run.kind for run in await log.runs("a")] == [ObjectKind.MIXED]


async def test_a_lease_that_ran_out_while_the_sequencer_was_away_costs_no_swap() -> None:
    async with opened() as (log, _, clock):
        await log.topic("a")
        await log.produce(("a", 0, batch_of([b"x"])))

        async def away() -> None:
            clock.advance(2 * ALL.lease_ms / 1000)

        summary = await compacted(log, Meddling(log, then=away))
        assert (summary.objects, summary.refused) == (1, [])


async def test_a_cancelled_round_finishes_the_swap_in_hand_and_gives_the_lease_back() -> None:
    async with opened() as (log, store, clock):
        await log.topic("a")
        await log.topic("b")
        await log.produce(("a", 0, batch_of([b"x"])), ("b", 0, batch_of([b"x"])))
        swap, begun, may_end = log.sequencer.swap, asyncio.Event(), asyncio.Event()

        async def slow(request: SwapRequest) -> SwapAnswer:
            begun.set()
            await may_end.wait()
            return await swap(request)

        log.sequencer.swap = slow  # type: ignore[method-assign]
        summary = CompactionSummary()
        work = asyncio.create_task(
            run_cycle(
                log.sequencer,
                InProcess(store, clock, log.entropy),
                clock=clock,
                entropy=log.entropy,
                settings=ALL,
                summary=summary,
            )
        )
        await begun.wait()
        work.cancel()
        await asyncio.sleep(0)
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await work
        assert (summary.objects, summary.runs_replaced) == (1, 1)
        clock.advance(0.002)
        log.sequencer.swap = swap  # type: ignore[method-assign]
        assert (await compacted(log)).objects == 1


async def test_a_cancelled_round_ends_also_if_its_last_swap_has_lost_the_lease() -> None:
    async with opened() as (log, store, clock):
        await log.topic("a")
        await log.produce(("a", 0, batch_of([b"x"])))
        begun, may_end = asyncio.Event(), asyncio.Event()

        async def lost(request: SwapRequest) -> SwapAnswer:
            begun.set()
            await may_end.wait()
            raise LeaseLost("another compactor has it")

        log.sequencer.swap = lost  # type: ignore[method-assign]
        runner = InProcess(store, clock, log.entropy)
        work = asyncio.create_task(
            run_cycle(log.sequencer, runner, clock=clock, entropy=log.entropy, settings=ALL)
        )
        await begun.wait()
        work.cancel()
        await asyncio.sleep(0)
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await work


async def test_a_failed_release_does_not_hide_how_the_work_ended() -> None:
    async with opened() as (log, _, clock):

        async def another_database(request: object) -> None:
            raise IncarnationChanged("it was recovered")

        async def work() -> None:
            async with held_lease(log.sequencer, clock, holder="this one"):
                log.sequencer.close_session = another_database  # type: ignore[method-assign, assignment]
                await asyncio.Event().wait()

        working = asyncio.create_task(work())
        for _ in range(20):
            await asyncio.sleep(0)
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working


async def test_a_lease_is_handed_on_within_five_seconds_after_its_holder_was_killed() -> None:
    async with opened() as (log, _, clock):
        await log.topic("a")
        await log.produce(("a", 0, batch_of([b"x"])))
        # A holder that renewed for the last time just now, and is gone.
        await log.sequencer.take_lease(TakeLease("compactor", "killed", 0, ALL.lease_ms))
        with pytest.raises(LeaseLost):
            await compacted(log)
        clock.advance(4.999)
        assert (await compacted(log)).objects == 1


async def test_a_lease_is_kept_also_after_an_unexpected_answer() -> None:
    async with opened() as (log, _, clock):

        async def breaks(request: object) -> None:
            raise ZeroDivisionError("a bug")

        async with held_lease(log.sequencer, clock, holder="this one"):
            log.sequencer.renew_session = breaks  # type: ignore[method-assign, assignment]
            for _ in range(40):
                clock.advance(0.25)
                for _ in range(20):
                    await asyncio.sleep(0)
            with pytest.raises(LeaseLost):
                await log.sequencer.take_lease(TakeLease("compactor", "another", 0, ALL.lease_ms))


@pytest.mark.parametrize(
    ("answers_s", "lease_ms"), [([3.0], ALL.lease_ms), ([3.0, 3.0], 12_000), ([30.0] * 4, 30_000)]
)
async def test_before_a_slow_sequencer_the_lease_is_longer_and_one_late_answer_changes_nothing(
    answers_s: list[float], lease_ms: int
) -> None:
    async with opened() as (log, _, clock):
        asked: list[int] = []
        take_lease = log.sequencer.take_lease
        seconds = [0.0] * 4 + answers_s

        async def slow(request: TakeLease) -> NamedLease:
            asked.append(request.lease_ms)
            granted = await take_lease(request)
            clock.advance(seconds.pop(0) if seconds else 0.0)
            return granted

        log.sequencer.take_lease = slow  # type: ignore[method-assign]
        async with held_lease(log.sequencer, clock, holder="this one") as lease:
            while seconds:
                await lease.renew()
            await lease.renew()
            assert asked[-1] == lease_ms
