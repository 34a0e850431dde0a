"""Looking up times behind a record from the future that is gone: right, and in parts of a bounded size."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

import pytest

import sequencer.reading.queries as reading
from sequencer.api.reads import OffsetQuery, OffsetsAnswer, OffsetSpec, OffsetsRequest
from sequencer.engine.committer import Committer
from sequencer.pages import all_offsets
from sequencer.store.memory import MemoryRowStore
from sequencer.store.row_store import ScannedRuns
from sequencer.store.rows import Changes
from sequencer.store.state import replace_row
from tailrace.limits import INT64_MAX
from tests.support.backlog import TOPIC, fill
from tests.support.clocks import ManualClock, SeededEntropy
from tests.support.sequencer_bench import T0, Bench, batch
from tests.support.sequencers import Opened

FUTURE = 4_000_000_000_000
PARTITIONS = 40
RUNS = 30
MOST = 70


class CountingStore(MemoryRowStore):
    """Counts the runs that are looked at by their own timestamps."""

    scanned = 0

    async def first_run_reaching(
        self, topic_id: UUID, partition: int, timestamp: int, from_offset: int, max_scanned: int
    ) -> ScannedRuns:
        found = await super().first_run_reaching(topic_id, partition, timestamp, from_offset, max_scanned)
        self.scanned += found.scanned
        return found

    async def run_of_max_timestamp(
        self, topic_id: UUID, partition: int, from_offset: int, max_scanned: int, end_offset: int = INT64_MAX
    ) -> ScannedRuns:
        found = await super().run_of_max_timestamp(topic_id, partition, from_offset, max_scanned, end_offset)
        self.scanned += found.scanned
        return found


@asynccontextmanager
async def a_spoiled_log(runs: int) -> AsyncIterator[tuple[Committer, CountingStore]]:
    """Every run has a running maximum that no run reaches: the one that did is gone."""
    clock = ManualClock()
    store = CountingStore(clock)
    await fill(store, partitions=PARTITIONS, runs=runs, batches=1)
    epoch = await store.take_committer_lease("spoil", "", 1_000)
    spoiled = Changes()
    for row in await store.run_rows_after(None, PARTITIONS * runs):
        spoiled.put(replace_row(row, running_max_timestamp=FUTURE))
    await store.write(spoiled, epoch or 0)
    await store.release_committer_lease(epoch or 0)
    sequencer = Committer(store, clock, SeededEntropy(1))
    await sequencer.start()
    try:
        yield sequencer, store
    finally:
        await sequencer.close()


async def test_an_answer_looks_at_a_bounded_number_of_runs_and_all_is_found_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reading, "MAX_SCANNED", MOST)

    async with a_spoiled_log(RUNS) as (sequencer, store):
        list_offsets, most = sequencer.list_offsets, 0

        async def counted(request: OffsetsRequest) -> OffsetsAnswer:
            nonlocal most
            before = store.scanned
            answer = await list_offsets(request)
            most = max(most, store.scanned - before)
            return answer

        monkeypatch.setattr(sequencer, "list_offsets", counted)
        for timestamp, base_offset in (
            (RUNS - 1, RUNS - 1),
            (RUNS, None),
            (FUTURE, None),
            (OffsetSpec.MAX_TIMESTAMP, RUNS - 1),
        ):
            found = await all_offsets(
                sequencer, [OffsetQuery(TOPIC, each, timestamp) for each in range(PARTITIONS)]
            )
            assert {each.run and each.run.base_offset for each in found} == {base_offset}
            assert {each.next_offset for each in found} == {-1}
        assert RUNS < most <= MOST + reading.LOOK_UPS_AT_ONCE * RUNS


async def test_one_long_look_up_is_stopped_and_gone_on_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_SCANNED", MOST)

    async with a_spoiled_log(3 * MOST) as (sequencer, store):
        last = 3 * MOST - 1
        for timestamp in (last, OffsetSpec.MAX_TIMESTAMP):
            query = OffsetQuery(TOPIC, 0, timestamp)
            before = store.scanned
            (first,) = (await sequencer.list_offsets(OffsetsRequest([query]))).results
            assert (store.scanned - before, first.next_offset) == (MOST, MOST)
            (found,) = await all_offsets(sequencer, [query])
            assert found.run is not None and found.run.base_offset == last


class BusyStore(MemoryRowStore):
    """A commit is written and shown while the run of the latest timestamp is looked up."""

    async def commit_meanwhile(self) -> None:
        """What is done in the middle of the next look-up."""

    async def run_of_max_timestamp(
        self, topic_id: UUID, partition: int, from_offset: int, max_scanned: int, end_offset: int = INT64_MAX
    ) -> ScannedRuns:
        await self.commit_meanwhile()
        return await super().run_of_max_timestamp(topic_id, partition, from_offset, max_scanned, end_offset)


async def test_the_latest_timestamp_is_found_while_a_later_record_is_committed() -> None:
    clock = ManualClock()
    store = BusyStore(clock)
    sequencer = Committer(store, clock, SeededEntropy(1))
    await sequencer.start()
    bench = Bench(Opened(sequencer, clock))
    await bench.prepare()
    await bench.commit(batch(1, at=T0))

    async def commit() -> None:
        await bench.commit(batch(1, at=T0 + 1))

    store.commit_meanwhile = commit  # type: ignore[method-assign]
    found = await bench.look_up(OffsetSpec.MAX_TIMESTAMP)
    assert found.run is not None and found.run.base_offset == 1 and found.high_watermark == 2
    await sequencer.close()
