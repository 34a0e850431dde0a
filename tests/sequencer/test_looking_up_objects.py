"""The commits that look up their object's row in the store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from uuid import UUID

from sequencer.api.commits import BatchError
from sequencer.api.values import Empty
from sequencer.engine.committer import Committer
from sequencer.store.memory import MemoryRowStore
from sequencer.store.rows import ObjectRow
from tests.support.clocks import ManualClock, SeededEntropy
from tests.support.patience import PATIENCE_SECONDS
from tests.support.sequencer_bench import Bench, batch
from tests.support.sequencers import Opened

NONE, GAP = BatchError.NONE, BatchError.SEQUENCE_GAP


class CountedStore(MemoryRowStore):
    """Counts the objects that it was asked for."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.looked_up: list[UUID] = []

    async def object_rows(self, object_ids: Sequence[UUID]) -> list[ObjectRow]:
        self.looked_up += object_ids
        return await super().object_rows(object_ids)


@asynccontextmanager
async def counted_bench() -> AsyncIterator[tuple[Bench, CountedStore]]:
    clock = ManualClock()
    rows = CountedStore(clock)
    committer = Committer(rows, clock, SeededEntropy(1))
    await committer.start()
    bench = Bench(Opened(committer, clock))
    await bench.prepare()
    async with asyncio.timeout(PATIENCE_SECONDS):
        yield bench, rows
    await committer.close()


async def test_a_commit_that_brings_its_object_asks_for_nothing() -> None:
    async with counted_bench() as (bench, rows):
        for offset in range(3):
            assert await bench.commit(batch()) == [(NONE, offset)]
        assert rows.looked_up == []


async def test_a_repeated_commit_gets_its_answer_and_leaves_the_object_as_it_is() -> None:
    async with counted_bench() as (bench, _):
        request = bench.request(batch())
        first = await bench.sequencer.commit(request)
        assert await bench.sequencer.commit(request) == first
        assert (await bench.sequencer.statistics(Empty())).runs == 1


async def test_a_retried_batch_finds_the_object_of_the_earlier_commit() -> None:
    async with counted_bench() as (bench, rows):
        early, in_time = batch(producer=7, sequence=1), batch(producer=7, sequence=0)
        stored = bench.stored(bench.session, number=0)
        assert await bench.commit(in_time, early, batch(producer=8, sequence=0), stored=stored) == [
            (NONE, 0), (NONE, 1), (NONE, 2),
        ]  # fmt: skip
        ahead = batch(producer=7, sequence=3)
        of_gap = bench.stored(bench.session, number=1)
        assert await bench.commit(ahead, batch(), stored=of_gap) == [(GAP, -1), (NONE, 3)]
        assert await bench.commit(batch(producer=7, sequence=2)) == [(NONE, 4)]
        assert rows.looked_up == []

        assert await bench.commit(ahead, stored=of_gap) == [(NONE, 5)]

        assert rows.looked_up == [of_gap.object_id]
        (row,) = await rows.object_rows([of_gap.object_id])
        assert row.live_runs == 2, "both commits' runs hold it"
