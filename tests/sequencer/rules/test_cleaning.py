"""Compaction by key: which records a swap may drop, and how the clean end rises."""

from __future__ import annotations

import msgspec
import pytest

from compactor.cycle import output_under
from compactor.lease import HeldLease, held_lease
from compactor.plan import PlanSettings, plan
from compactor.rewrite import RewriteResult, try_rewrite
from sequencer.api.compaction import (
    CleanPoint,
    CleanPointsRequest,
    CompactionRequest,
    KeyDrops,
    MarkClean,
    SwapRequest,
)
from sequencer.api.errors import InvalidRequest, SwapRefused, UnknownTopic
from sequencer.api.topics import AlterConfig, ConfigChange, ConfigOperation, ConfigScope, DeleteTopic
from sequencer.api.values import Empty
from sequencer.engine.committer import Committer
from sequencer.store.memory import MemoryRowStore
from sequencer.store.rows import CleanedRow
from tailrace.object_store.memory import MemoryStore
from tests.support.clocks import ManualClock, SeededEntropy
from tests.support.compaction import Log, batch_of

COMPACT = {"cleanup.policy": "compact"}


async def opened(configs: dict[str, str]) -> tuple[Log, ManualClock, MemoryRowStore]:
    """A log with one batch of three records in partition 0 of its topic t, and one in partition 1."""
    clock = ManualClock()
    rows = MemoryRowStore(clock)
    sequencer = Committer(rows, clock, SeededEntropy(1))
    await sequencer.start()
    log = Log(sequencer, MemoryStore(clock), clock)
    await log.topic("t", 2, configs)
    await log.produce(("t", 0, batch_of([b"1", b"2", b"3"])), ("t", 1, batch_of([b"1"])))
    return log, clock, rows


async def rewritten(log: Log, lease: HeldLease) -> RewriteResult:
    page = await log.sequencer.compaction_candidates(CompactionRequest(0, 0, 100))
    (item,) = plan(page.candidates, PlanSettings())
    output = output_under(lease, "c")
    found = await try_rewrite(item, log.store, output, clock=log.clock, entropy=log.entropy)
    assert isinstance(found, RewriteResult)
    return found


def swap_of(result: RewriteResult, lease: HeldLease, drops: KeyDrops) -> SwapRequest:
    runs = [msgspec.structs.replace(run, drops=drops) for run in result.runs[:1]]
    return SwapRequest(result.object.object_id, lease.epoch, lease.session.session_id, result.object, runs)


async def points(log: Log) -> list[CleanPoint]:
    return (await log.sequencer.clean_points(CleanPointsRequest(log.topics["t"].topic_id))).points


def mark(log: Log, lease: HeldLease, before: int, end: int, size: int = 7) -> MarkClean:
    return MarkClean(lease.epoch, log.topics["t"].topic_id, 0, before, end, size)


@pytest.mark.parametrize(
    ("configs", "drops", "why"),
    [
        ({}, KeyDrops(3), "not compacted by key"),
        (COMPACT, KeyDrops(4), "not stable"),
        (COMPACT, KeyDrops(3, 1), "clean below 0"),
    ],
)
async def test_a_swap_that_drops_what_it_must_not_is_refused(
    configs: dict[str, str], drops: KeyDrops, why: str
) -> None:
    log, clock, _ = await opened(configs)
    async with held_lease(log.sequencer, clock, holder="a") as lease:
        result = await rewritten(log, lease)
        with pytest.raises(SwapRefused, match=why):
            await log.sequencer.swap(swap_of(result, lease, drops))
        assert (await log.runs("t"))[0].object_id != result.object.object_id


async def test_a_swap_may_drop_tombstones_where_the_log_is_clean_and_is_applied_once() -> None:
    log, clock, _ = await opened(COMPACT)
    async with held_lease(log.sequencer, clock, holder="a") as lease:
        await log.sequencer.mark_clean(mark(log, lease, 0, 2))
        asked = swap_of(await rewritten(log, lease), lease, KeyDrops(3, 2))
        first = await log.sequencer.swap(asked)
        assert await log.sequencer.swap(asked) == first
        assert (await log.runs("t"))[0].object_id == asked.object.object_id


async def test_the_clean_end_rises_from_where_the_pass_began_and_a_retry_changes_nothing() -> None:
    log, clock, _ = await opened(COMPACT)
    async with held_lease(log.sequencer, clock, holder="a") as lease:
        for _ in range(2):
            await log.sequencer.mark_clean(mark(log, lease, 0, 2))
        assert [(each.clean_end, each.clean_bytes) for each in await points(log)] == [(2, 7), (0, 0)]
        for before, end in ((0, 3), (2, 1), (2, 4)):
            with pytest.raises(SwapRefused):
                await log.sequencer.mark_clean(mark(log, lease, before, end))
        with pytest.raises(InvalidRequest, match="at least 0"):
            await log.sequencer.mark_clean(mark(log, lease, 2, 3, -1))
        with pytest.raises(SwapRefused, match="lease"):
            await log.sequencer.mark_clean(
                msgspec.structs.replace(mark(log, lease, 2, 3), lease_epoch=lease.epoch + 1)
            )
        change = AlterConfig(
            ConfigScope.TOPIC, "t", [ConfigChange("cleanup.policy", ConfigOperation.SET, "delete")]
        )
        await log.sequencer.alter_config(change)
        with pytest.raises(SwapRefused, match="not compacted by key"):
            await log.sequencer.mark_clean(mark(log, lease, 2, 3))


async def test_a_deleted_topic_takes_its_clean_ends_with_it() -> None:
    log, clock, rows = await opened(COMPACT)
    async with held_lease(log.sequencer, clock, holder="a") as lease:
        await log.sequencer.mark_clean(mark(log, lease, 0, 2))
        await log.sequencer.delete_topic(DeleteTopic(log.topics["t"].topic_id))
        await log.sequencer.mark_clean(mark(log, lease, 2, 3))
        with pytest.raises(UnknownTopic):
            await points(log)
        await log.sequencer.apply_retention(Empty())
        assert (await rows.load())[CleanedRow] == []
