"""Compaction's reads: a page and a swap read only the runs that they need."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

import msgspec
import pytest

from sequencer.api.commits import ObjectDescription, ObjectKind, OpenSession
from sequencer.api.compaction import (
    CompactionCandidate,
    CompactionRequest,
    ReplacementRun,
    SwapRequest,
    TakeLease,
)
from sequencer.api.errors import SwapRefused
from sequencer.engine.committer import Committer
from sequencer.rules import compaction, garbage
from sequencer.store.state import replace_row
from tests.support.backlog import TOPIC, CountingStore, fill
from tests.support.clocks import ManualClock, SeededEntropy
from tests.support.turns import passes_of

RUNS = 2_000


class Backlog:
    """A committer over partitions of many runs, with a compactor's lease and session."""

    def __init__(self, store: CountingStore, clock: ManualClock) -> None:
        self.store, self.clock = store, clock
        self.committer = Committer(store, clock, SeededEntropy(1))
        self.swaps = 0

    async def start(self) -> None:
        await self.committer.start()
        self.lease = await self.committer.take_lease(TakeLease("compactor", "me", 0, 60_000))
        self.session = await self.committer.open_session(OpenSession(-1, self.lease.epoch))

    async def page(self, max_runs: int, runs_each: int) -> list[CompactionCandidate]:
        asked = CompactionRequest(1, 0, max_runs, runs_each=runs_each)
        return (await self.committer.compaction_candidates(asked)).candidates

    async def swap(self, end_offset: int, replaced: list[tuple[int, UUID]]) -> None:
        await self.swap_runs([ReplacementRun(TOPIC, 0, replaced[0][0], end_offset, 0, 500, replaced)])

    async def swap_runs(self, runs: list[ReplacementRun]) -> None:
        self.swaps += 1
        key = f"{self.session.prefix}{self.swaps}"
        made = ObjectDescription(
            UUID(int=self.swaps), ObjectKind.PARQUET, key, 500, 0, 400, self.clock.wall_ms()
        )
        await self.committer.swap(
            SwapRequest(made.object_id, self.lease.epoch, self.session.session_id, made, runs)
        )

    async def swap_all(self, page: list[CompactionCandidate]) -> None:
        """Replace the runs of all these candidates by one object."""
        await self.swap_runs(
            [
                ReplacementRun(
                    TOPIC, each.partition, each.runs[0].base_offset, each.runs[-1].end_offset, 0, 500,
                    [(run.base_offset, run.object_id) for run in each.runs],
                )
                for each in page
            ]
        )  # fmt: skip

    async def swap_first(self, runs: int) -> None:
        """Replace the first runs of partition 0 that are to be compacted."""
        old = (await self.page(runs, runs))[0].runs
        await self.swap(old[-1].end_offset, [(run.base_offset, run.object_id) for run in old])


@asynccontextmanager
async def a_backlog(
    partitions: int, runs: int = RUNS, batches: int = 5, markers: int = 0
) -> AsyncIterator[Backlog]:
    clock = ManualClock()
    store = CountingStore(clock)
    await fill(store, partitions=partitions, runs=runs, batches=batches, markers=markers)
    backlog = Backlog(store, clock)
    await backlog.start()
    yield backlog
    await backlog.committer.close()


async def test_a_page_reads_hardly_more_runs_than_it_has() -> None:
    async with a_backlog(partitions=5) as backlog:
        page = await backlog.page(max_runs=100, runs_each=20)
        assert [len(each.runs) for each in page] == [20] * 5
        assert backlog.store.runs_read == 100


async def test_a_partition_with_a_run_whose_object_has_no_row_keeps_no_other_from_being_compacted() -> None:
    async with a_backlog(partitions=3) as backlog:
        store = backlog.store
        nowhere = UUID(int=99)
        store._runs[TOPIC, 1][0] = replace_row(store._runs[TOPIC, 1][0], object_id=nowhere)
        page = await backlog.page(max_runs=100, runs_each=20)
        assert [each.partition for each in page] == [0, 2]


async def test_a_page_of_runs_with_many_batches_reads_hardly_more_than_fits_it() -> None:
    async with a_backlog(partitions=1, runs=150, batches=2_500) as backlog:
        (candidate,) = await backlog.page(max_runs=20_000, runs_each=128)
        assert 17 < len(candidate.runs) < 60
        assert backlog.store.runs_read <= len(candidate.runs) + 1


async def test_a_stretch_of_markers_that_fills_the_room_is_passed_by_in_few_steps() -> None:
    async with a_backlog(partitions=1, markers=RUNS - 10) as backlog:
        (candidate,) = await backlog.page(max_runs=100, runs_each=20)
        assert candidate.runs[-1].kind is ObjectKind.MIXED
        assert backlog.store.looks < 10


async def test_runs_that_were_compacted_are_passed_by_in_few_steps() -> None:
    async with a_backlog(partitions=1) as backlog:
        for _ in range(300):
            await backlog.swap_first(2)
        backlog.store.runs_read = backlog.store.looks = 0
        (candidate,) = await backlog.page(max_runs=2, runs_each=2)
        assert candidate.runs[0].base_offset == 300 * 2 * 5
        assert backlog.store.runs_read < 3 * 300
        assert backlog.store.looks < 10


async def test_a_page_sums_up_a_limited_number_of_partitions_and_has_a_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compaction, "MAX_SUMMED_UP", 200)

    async with a_backlog(partitions=450, runs=1) as backlog:
        request = CompactionRequest(1 << 40, 1_000, 100)
        found: list[tuple[int, tuple[UUID, int] | None, int]] = []
        while not found or found[-1][1] is not None:
            backlog.store.sums = 0
            page = await backlog.committer.compaction_candidates(request)
            found.append((len(page.candidates), page.next, backlog.store.sums))
            request = msgspec.structs.replace(request, after=page.next)
        assert found == [(0, (TOPIC, 199), 2), (0, (TOPIC, 399), 2), (0, None, 1)], "none of them is due"

        request = CompactionRequest(1, 0, 1_000, runs_each=1)
        partitions: list[int] = []
        while True:
            page = await backlog.committer.compaction_candidates(request)
            partitions += [candidate.partition for candidate in page.candidates]
            if page.next is None:
                break
            request = msgspec.structs.replace(request, after=page.next)
        assert partitions == list(range(450)), "each of them is"


async def test_a_swap_reads_the_runs_that_it_replaces_and_one_more_and_none_of_their_batches() -> None:
    async with a_backlog(partitions=1) as backlog:
        old = (await backlog.page(20, 20))[0].runs
        backlog.store.runs_read = backlog.store.batches_read = 0
        await backlog.swap(old[-1].end_offset, [(run.base_offset, run.object_id) for run in old])
        assert backlog.store.runs_read == 21
        assert backlog.store.batches_read == 0


async def test_a_swap_looks_the_objects_of_many_partitions_up_once() -> None:
    async with a_backlog(partitions=30, runs=20) as backlog:
        page = await backlog.page(600, 20)
        backlog.store.object_looks = 0
        await backlog.swap_all(page)
        assert len(page) == 30
        assert backlog.store.object_looks == 2, "is the new object known, and the 20 old ones"


async def test_a_swap_over_many_partitions_reads_their_runs_with_few_statements() -> None:
    """The committer decides it, so commits wait for its statements."""

    async with a_backlog(partitions=60, runs=3) as backlog:
        page = await backlog.page(180, 3)
        page = [msgspec.structs.replace(each, runs=each.runs[: 1 + each.partition % 3]) for each in page]
        backlog.store.statements = backlog.store.runs_read = 0
        await backlog.swap_all(page)
        assert len(page) == 60
        assert backlog.store.statements == 3, "for one, two, and three runs"
        assert backlog.store.runs_read == 20 * (2 + 3 + 3)
        left = await backlog.page(180, 3)
        assert [len(each.runs) for each in left] == [2, 1] * 20


async def test_a_swap_of_more_runs_than_a_statement_reads_reads_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "MOST_AT_ONCE", 8)

    async with a_backlog(partitions=1, runs=40) as backlog:
        await backlog.swap_first(20)
        assert (await backlog.page(40, 40))[0].runs[0].base_offset == 20 * 5
        old = (await backlog.page(20, 20))[0].runs
        with pytest.raises(SwapRefused, match="plan again"):
            await backlog.swap(
                old[-1].end_offset, [(run.base_offset, run.object_id) for run in old if run is not old[9]]
            )


async def test_a_swap_of_many_runs_leaves_the_loop_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "REMOVED_IN_A_TURN", 20)

    async with a_backlog(partitions=1) as backlog:
        assert await passes_of(backlog.swap_first(500)) >= 50, "500 runs in as many objects"


async def test_a_swap_over_many_runs_that_names_one_of_them_is_refused_at_once() -> None:
    async with a_backlog(partitions=1) as backlog:
        first = (await backlog.page(1, 1))[0].runs[0]
        backlog.store.runs_read = 0
        with pytest.raises(SwapRefused, match="plan again"):
            await backlog.swap(RUNS * 5, [(first.base_offset, first.object_id)])
        assert backlog.store.runs_read == 2
