"""Sums over runs and objects are counters that each change updates."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from sequencer.api.retention import DeleteRecords, DeleteRecordsPartition, ForgetObjects, GarbageRequest
from sequencer.api.topics import DeleteTopic
from sequencer.api.values import Empty
from sequencer.engine.committer import Committer
from sequencer.store.memory import MemoryRowStore
from sequencer.store.row_store import StoreStatistics
from tests.support.clocks import ManualClock, SeededEntropy
from tests.support.sequencer_bench import SETTINGS, Bench, batch, prepare_swap
from tests.support.sequencers import Opened


@dataclass
class Counted(Bench):
    """A bench that holds the counters against the rows."""

    rows: MemoryRowStore = field(init=False)

    async def said(self) -> StoreStatistics:
        """What the counters say, which is what the rows add up to; the rows are not asked for it."""
        summed = await self.rows.statistics()
        with pytest.MonkeyPatch.context() as patched:
            patched.delattr(MemoryRowStore, "statistics")
            said = await self.sequencer.statistics(Empty())
        assert summed == StoreStatistics(
            said.runs,
            said.objects,
            said.retired_objects,
            said.retired_bytes,
            said.live_bytes,
            said.uncompacted_bytes,
            said.producers,
        )
        return summed


async def test_each_change_moves_the_sums_as_it_moves_the_rows() -> None:
    clock = ManualClock()
    rows = MemoryRowStore(clock)
    settings = SETTINGS.changed(deletion_grace_ms=0)
    local = Committer(rows, clock, SeededEntropy(1), settings)
    await local.start()
    bench = Counted(Opened(local, clock))
    bench.rows = rows
    await bench.prepare()
    assert (await bench.said()).objects == 0
    for partition in (0, 1, 0):
        await bench.commit(batch(3), partition=partition)
    assert (await bench.said()).runs == 3
    swap = await prepare_swap(bench)
    assert (await bench.said()).runs == 6
    await local.swap(swap)
    swapped = await bench.said()
    assert swapped.runs == 2 and swapped.uncompacted_bytes == 100
    await local.swap(swap)
    assert await bench.said() == swapped, "a swap asked again changes nothing"
    topic_id = bench.topic.topic_id
    await local.delete_records(DeleteRecords([DeleteRecordsPartition(topic_id, 1, -1)]))
    await local.apply_retention(Empty())
    assert (await bench.said()).runs == 1
    await local.delete_topic(DeleteTopic(topic_id))
    await local.apply_retention(Empty())
    retired = await bench.said()
    assert (retired.runs, retired.live_bytes, retired.retired_objects) == (0, 0, retired.objects)
    clock.advance(1.0)
    garbage = await local.garbage(GarbageRequest(100))
    await local.forget_objects(ForgetObjects([object_id for object_id, _ in garbage.objects]))
    assert await bench.said() == StoreStatistics(0, 0, 0, 0, 0, 0, 0)
    await local.close()
