"""Every answer that can grow is bounded, and a next request continues it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from uuid import UUID

import pytest

from sequencer.api.compaction import CompactionRequest
from sequencer.api.groups import CommitOffsets, FetchOffsets, ListGroups, OffsetPosition
from sequencer.api.interface import Sequencer
from sequencer.api.producers import InitProducer, ProducerQuery
from sequencer.api.reads import (
    FeedRequest,
    FindPartition,
    FindRequest,
    OffsetQuery,
    OffsetSpec,
    OffsetsRequest,
)
from sequencer.api.topics import ClientConfigsRequest, ConfigScope, CreateTopic
from sequencer.api.transactions import AddToTransaction, TransactionRef
from sequencer.bounds import (
    ABORTED_BYTES,
    MAX_ANSWER_BYTES,
    MAX_ANSWER_RUNS,
    AnswerBudget,
    SummedRuns,
    run_bytes,
)
from sequencer.engine.committer import Committer
from sequencer.pages import (
    all_groups,
    all_offsets,
    all_sizes,
    all_transactions,
    lag_pages,
    positions_at,
)
from sequencer.rules.client_configs import client_configs
from sequencer.rules.compaction import MAX_PAGE_BYTES
from sequencer.store.memory import MemoryRowStore
from sequencer.store.row_store import PartitionBytes
from sequencer.store.rows import AbortedRow, Changes, ClientConfigRow, ProducerRow, RememberedBatch
from sequencer.store.state import HotState
from tailrace.rpc.frames import encode_body
from tests.support.backlog import RUN_LENGTH, TOPIC, fill
from tests.support.clocks import ManualClock, SeededEntropy
from tests.support.listings import all_positions, all_producers
from tests.support.sequencer_bench import batch, opened_bench
from tests.support.sequencers import memory

ANY = 1 << 40


@asynccontextmanager
async def a_backlog(partitions: int, runs: int, batches: int = 5) -> AsyncIterator[Sequencer]:
    clock = ManualClock()
    store = MemoryRowStore(clock)
    await fill(store, partitions=partitions, runs=runs, batches=batches)
    sequencer = Committer(store, clock, SeededEntropy(1))
    await sequencer.start()
    try:
        yield sequencer
    finally:
        await sequencer.close()


def everything(partitions: int, offset: int = 0, max_bytes: int = 1 << 20) -> list[FindPartition]:
    return [FindPartition(TOPIC, partition, offset, max_bytes) for partition in range(partitions)]


async def test_a_reader_of_many_partitions_far_behind_gets_an_answer_of_bounded_size() -> None:
    async with a_backlog(partitions=250, runs=1_000) as sequencer:
        found = await sequencer.find_batches(FindRequest(everything(250)))
        assert len(encode_body(found)) <= MAX_ANSWER_BYTES + 250 * 64
        assert sum(len(each.runs) for each in found.partitions) <= MAX_ANSWER_RUNS
        assert all(each.high_watermark == 5_000 for each in found.partitions)


async def test_retried_for_what_follows_it_reads_everything() -> None:
    async with a_backlog(partitions=40, runs=300) as sequencer:
        at = dict.fromkeys(range(40), 0)
        rounds = 0
        while any(offset < 1_500 for offset in at.values()):
            behind = [number for number, offset in at.items() if offset < 1_500]
            asked = [FindPartition(TOPIC, number, at[number], 1 << 20) for number in behind]
            found = (await sequencer.find_batches(FindRequest(asked))).partitions
            assert found[0].runs, "the first that is asked gets on"
            for number, each in zip(behind, found, strict=True):
                for run in each.runs:
                    assert run.base_offset == at[number]
                    at[number] = run.end_offset
            rounds += 1
        assert rounds < 20


async def test_all_partitions_together_are_bounded_by_the_bytes_that_were_asked_for() -> None:
    async with a_backlog(partitions=10, runs=100) as sequencer:
        found = await sequencer.find_batches(FindRequest(everything(10), max_bytes=120 * RUN_LENGTH))
        given = [len(each.runs) for each in found.partitions]
        assert sum(given) == 120 and given == sorted(given, reverse=True)  # in the order asked

        least = await sequencer.find_batches(FindRequest(everything(10), max_bytes=0))
        assert [len(each.runs) for each in least.partitions] == [1, 0, 0, 0, 0, 0, 0, 0, 0, 0]


async def test_a_page_of_candidates_sums_up_what_it_looks_at_and_not_its_whole_topic() -> None:
    clock = ManualClock()
    store = MemoryRowStore(clock)
    await fill(store, partitions=250, runs=2)
    summed: list[tuple[int, int]] = []
    within = store.partition_bytes_within

    async def counted(topic_id: UUID, first: int, end: int) -> list[PartitionBytes]:
        summed.append((first, end))
        return await within(topic_id, first, end)

    store.partition_bytes_within = counted  # type: ignore[method-assign]
    sequencer = Committer(store, clock, SeededEntropy(1))
    await sequencer.start()
    after, found = None, []
    while True:
        page = await sequencer.compaction_candidates(CompactionRequest(1, 0, 150, [], after))
        found += [each.partition for each in page.candidates]
        if (after := page.next) is None:
            break
    assert found == list(range(250))
    assert summed[0] == (0, 100) and summed[1] == (74, 174)
    assert len(summed) <= 2 * 4
    await sequencer.close()


async def test_aborted_ranges_count_in_an_answer_and_the_first_partition_always_gets_on() -> None:
    clock = ManualClock()
    store = MemoryRowStore(clock)
    partitions, ranges, end = 20, 5_000, 50
    await fill(store, partitions=partitions, runs=end // 5, batches=5)
    epoch = await store.take_committer_lease("fill", "", 1_000)
    assert epoch is not None
    changes = Changes()
    for partition in range(partitions):
        for number in range(ranges):
            changes.put(AbortedRow(TOPIC, partition, (1 << 62) + number, number % 10 * 5, end + number))
    await store.write(changes, epoch)
    await store.release_committer_lease(epoch)
    sequencer = Committer(store, clock, SeededEntropy(1))
    await sequencer.start()
    at, rounds = dict.fromkeys(range(partitions), 0), 0
    while behind := [number for number, offset in at.items() if offset < end]:
        asked = [FindPartition(TOPIC, number, at[number], 1 << 20) for number in behind]
        answer = await sequencer.find_batches(FindRequest(asked))
        assert len(encode_body(answer)) <= MAX_ANSWER_BYTES + ranges * ABORTED_BYTES
        assert answer.partitions[0].runs
        for number, found in zip(behind, answer.partitions, strict=True):
            reached = found.runs[-1].end_offset if found.runs else 0
            named = [each.first_offset for each in found.aborted]
            assert len(named) == sum(first < reached for first in range(0, end, 5)) * ranges // 10
            assert named == sorted(named)
            at[number] = max(at[number], reached)
        rounds += 1
    assert 3 <= rounds < 10
    await sequencer.close()


async def test_runs_after_which_the_ranges_do_not_fit_are_left_for_the_next_answer() -> None:
    async with a_backlog(partitions=1, runs=10) as sequencer:
        (found,) = (await sequencer.find_batches(FindRequest(everything(1)))).partitions
        most = MAX_ANSWER_BYTES // ABORTED_BYTES
        in_third = [12] * (2 * most)
        assert AnswerBudget().take(SummedRuns.of(found.runs), ANY, in_third) == found.runs[:3]
        assert AnswerBudget().take(SummedRuns.of(found.runs), ANY, [0] * (2 * most)) == found.runs[:1]
        assert AnswerBudget().take(SummedRuns.of(found.runs), ANY, [12] * (most // 2)) == found.runs


async def test_a_partition_at_its_end_takes_no_room() -> None:
    async with a_backlog(partitions=3, runs=10) as sequencer:
        asked = [FindPartition(TOPIC, 0, 50, ANY), *everything(3)[1:]]
        found = await sequencer.find_batches(FindRequest(asked, max_bytes=1))
        assert [len(each.runs) for each in found.partitions] == [0, 1, 0]


async def test_a_run_is_never_larger_than_it_is_counted() -> None:
    async with a_backlog(partitions=1, runs=1, batches=500) as sequencer:
        found = await sequencer.find_batches(FindRequest(everything(1)))
        (run,) = found.partitions[0].runs
        assert len(encode_body(run)) <= run_bytes(run)


async def test_what_lies_between_the_first_run_and_the_last_is_summed_up_where_runs_are_in_memory() -> None:
    async with opened_bench(memory) as bench:
        for number in range(12):
            await bench.commit(*[batch(2)] * (1 + number % 3))
        for offset in (0, 1, 5, 40, 44):
            for max_bytes in (0, 100, 101, 1_000, ANY):
                found = await bench.find(offset, max_bytes=max_bytes)
                assert found.inner_bytes == sum(each.length for each in found.runs[1:-1]), (offset, max_bytes)
        assert (await bench.find(48)).inner_bytes == -1, "no runs"
        async with a_backlog(partitions=1, runs=10) as sequencer:
            (found,) = (await sequencer.find_batches(FindRequest(everything(1)))).partitions
            assert found.runs and found.inner_bytes == -1, "out of the store"


async def test_a_run_larger_than_the_whole_answer_is_given_alone() -> None:
    async with a_backlog(partitions=2, runs=2, batches=40_000) as sequencer:
        found = await sequencer.find_batches(FindRequest(everything(2, max_bytes=ANY)))
        assert [len(each.runs) for each in found.partitions] == [1, 0]
        run = found.partitions[0].runs[0]
        room = AnswerBudget(ANY)
        assert room.take(SummedRuns.of([run, run]), ANY) == [run] and room.is_full


async def test_candidates_for_compaction_of_300_000_runs_come_in_pages() -> None:
    async with a_backlog(partitions=300, runs=1_000, batches=1) as sequencer:
        seen: dict[int, int] = {}
        after: tuple[UUID, int] | None = None
        while True:
            page = await sequencer.compaction_candidates(CompactionRequest(1, 0, 20_000, after=after))
            assert len(encode_body(page)) <= MAX_PAGE_BYTES + 1_000
            assert sum(len(each.runs) for each in page.candidates) <= 20_000
            for each in page.candidates:
                assert each.partition not in seen, "each partition comes once"
                seen[each.partition] = len(each.runs)
            after = page.next
            if after is None:
                break
        assert seen == dict.fromkeys(range(300), 1_000)


async def test_a_candidate_that_a_page_has_no_room_for_comes_whole_in_the_next() -> None:
    async with a_backlog(partitions=3, runs=60) as sequencer:
        first = await sequencer.compaction_candidates(CompactionRequest(1, 0, 100))
        assert [(each.partition, len(each.runs)) for each in first.candidates] == [(0, 60)]
        second = await sequencer.compaction_candidates(CompactionRequest(1, 0, 100, after=first.next))
        assert [(each.partition, len(each.runs)) for each in second.candidates] == [(1, 60)]
        small = await sequencer.compaction_candidates(CompactionRequest(1, 0, 20))
        assert [(each.partition, len(each.runs)) for each in small.candidates] == [(0, 20)]


@pytest.mark.parametrize(("partitions", "runs"), [(50, [5] * 20), (4, [25] * 4), (1, [100])])
async def test_a_page_of_a_topic_with_many_partitions_has_a_little_of_each(
    partitions: int, runs: list[int]
) -> None:
    async with a_backlog(partitions=partitions, runs=100) as sequencer:
        page = await sequencer.compaction_candidates(CompactionRequest(1, 0, 100, runs_each=5))
        assert [len(each.runs) for each in page.candidates] == runs
        assert {each.runs[0].base_offset for each in page.candidates} == {0}


async def test_partitions_without_anything_to_compact_end_a_page_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sequencer.rules.compaction.MAX_LOOKED_AT", 2)

    async with a_backlog(partitions=5, runs=1) as sequencer:
        skip = [(TOPIC, partition, 0) for partition in range(4)]
        first = await sequencer.compaction_candidates(CompactionRequest(1, 0, 100, skip))
        assert (first.candidates, first.next) == ([], (TOPIC, 1))
        second = await sequencer.compaction_candidates(CompactionRequest(1, 0, 100, skip, (TOPIC, 3)))
        assert ([each.partition for each in second.candidates], second.next) == ([4], None)


async def test_listings_come_in_pages_and_are_whole_when_all_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sequencer.bounds.MAX_PAGE", 3)
    monkeypatch.setattr("sequencer.reading.queries.MAX_PAGE", 3)

    async with a_backlog(partitions=4, runs=1) as sequencer:
        names = [f"g{number}" for number in range(8)]
        for name in names:
            places = [OffsetPosition(TOPIC, partition, 2, -1, "") for partition in range(4)]
            await sequencer.commit_offsets(CommitOffsets(name, -1, -1, -1, "", places))
            producer = await sequencer.init_producer(InitProducer(-1, -1, name, 1_000))
            ref = TransactionRef(name, producer.producer_id, producer.producer_epoch)
            await sequencer.add_to_transaction(AddToTransaction(ref, [(TOPIC, 0)]))

        assert len((await sequencer.list_groups(ListGroups())).groups) == 3
        assert [group.group_id for group in await all_groups(sequencer)] == names
        pages = [page async for page in lag_pages(sequencer)]
        assert max(map(len, pages)) == 3
        told = [(lag.group_id, lag.partition, lag.committed) for page in pages for lag in page]
        assert told == [(name, partition, 2) for name in names for partition in range(4)]
        assert [each.transactional_id for each in await all_transactions(sequencer, None)] == names
        some = ["g7", "unknown", "g1", "g2", "g3", "g4"]
        assert {each.transactional_id for each in await all_transactions(sequencer, some)} == {
            "g1", "g2", "g3", "g4", "g7",
        }  # fmt: skip
        assert [each.partition for each in await all_positions(sequencer, "g0")] == [0, 1, 2, 3]
        backwards = [(TOPIC, partition) for partition in (3, 2, 1, 0, 9)]
        at = await positions_at(sequencer, "g0", backwards)
        assert [(each.partition, each.offset) for each in at] == [(3, 2), (2, 2), (1, 2), (0, 2), (9, -1)]
        assert [each.partition for each in await all_sizes(sequencer, None)] == [0, 1, 2, 3]


class SummedStore(MemoryRowStore):
    """Knows which partitions it summed up."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.summed: list[tuple[UUID, int, int] | UUID] = []

    async def partition_bytes(self, topic_ids: Sequence[UUID] | None) -> list[PartitionBytes]:
        self.summed += topic_ids or []
        return await super().partition_bytes(topic_ids)

    async def partition_bytes_within(self, topic_id: UUID, first: int, end: int) -> list[PartitionBytes]:
        self.summed.append((topic_id, first, end))
        return await super().partition_bytes_within(topic_id, first, end)


async def test_a_page_of_sizes_sums_up_its_own_partitions_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic may have hundreds of pages."""
    monkeypatch.setattr("sequencer.reading.queries.MAX_PAGE", 5)

    clock = ManualClock()
    store = SummedStore(clock)
    await fill(store, partitions=8, runs=2)
    sequencer = Committer(store, clock, SeededEntropy(1))
    await sequencer.start()
    small, last = [await sequencer.create_topic(CreateTopic(name, 1, {})) for name in ("s", "l")]
    ids = sorted((TOPIC, small.topic_id, last.topic_id))
    assert ids[0] == TOPIC
    sizes = await all_sizes(sequencer, None)
    assert [(size.partition, size.runs) for size in sizes] == [*((n, 2) for n in range(8)), (0, 0), (0, 0)]
    assert store.summed == [(TOPIC, 0, 5), ids[1], (TOPIC, 5, 8), (ids[2], 0, 1)]
    await sequencer.close()


async def test_positions_with_long_metadata_are_bounded_in_bytes() -> None:
    async with a_backlog(partitions=600, runs=1) as sequencer:
        places = [OffsetPosition(TOPIC, partition, 2, -1, "m" * 4_096) for partition in range(600)]
        await sequencer.commit_offsets(CommitOffsets("g", -1, -1, -1, "", places))
        page = await sequencer.fetch_offsets(FetchOffsets("g", None))
        assert len(encode_body(page)) <= MAX_ANSWER_BYTES and page.next is not None
        assert [each.partition for each in await all_positions(sequencer, "g")] == list(range(600))


async def test_producers_of_a_partition_come_in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sequencer.reading.queries.MAX_PAGE", 3)

    clock = ManualClock()
    store = MemoryRowStore(clock)
    await fill(store, partitions=1, runs=1)
    epoch = await store.take_committer_lease("more", "", 1_000)
    changes = Changes()
    for number in range(8):
        changes.put(
            ProducerRow(
                topic_id=TOPIC, partition=0, producer_id=number, producer_epoch=0,
                recent=[RememberedBatch(0, 0, 0)], last_timestamp=0, updated_ms=0,
            )
        )  # fmt: skip
    await store.write(changes, epoch or 0)
    await store.release_committer_lease(epoch or 0)
    sequencer = Committer(store, clock, SeededEntropy(1))
    await sequencer.start()
    page = await sequencer.describe_producers(ProducerQuery(TOPIC, 0))
    assert ([each.producer_id for each in page.producers], page.next) == ([0, 1, 2], 2)
    _, found = await all_producers(sequencer, TOPIC, 0)
    assert [each.producer_id for each in found] == list(range(8))
    await sequencer.close()


async def test_offsets_by_time_of_many_partitions_come_in_parts_and_in_order() -> None:
    async with a_backlog(partitions=450, runs=3) as sequencer:
        queries = [
            OffsetQuery(TOPIC, partition, OffsetSpec.LATEST if partition % 2 else 1)
            for partition in range(450)
        ]
        first = await sequencer.list_offsets(OffsetsRequest(queries))
        assert 0 < len(first.results) < 450
        results = await all_offsets(sequencer, queries)
        for query, result in zip(queries, results, strict=True):
            if query.timestamp == OffsetSpec.LATEST:
                assert result.offset == 15
            else:
                assert result.run is not None
                assert (result.run.partition, result.run.base_offset) == (query.partition, 5)


async def test_a_follower_far_behind_gets_the_feed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sequencer.bounds.MAX_ANSWER_RUNS", 3)

    async with opened_bench(memory) as bench:
        start = await bench.find_number()
        for number in range(8):
            await bench.commit(batch(2), partition=number % 2)
        at, told = start, []
        while at < start + 8:
            answer = await bench.sequencer.feed(FeedRequest(at, [], 0))
            assert not answer.reset and at < answer.commit_number <= at + 3
            at = answer.commit_number
            told += [run.commit_number for news in answer.updates for run in news.runs]
        assert sorted(told) == [start + number for number in range(1, 9)]
        woken = await bench.sequencer.feed(FeedRequest(start, [], 0, wants_runs=False))
        assert [(news.partition, news.runs) for news in woken.updates] == [(0, []), (1, [])]
        assert woken.commit_number == start + 8


def test_client_configs_come_in_pages_of_one_version() -> None:
    rows = [ClientConfigRow(int(ConfigScope.GROUP), f"g{each}", {"a": "v" * 100}) for each in range(6_000)]
    state = HotState({ClientConfigRow: rows})
    request = ClientConfigsRequest(takes_pages=True)
    names: list[str] = []
    while True:
        page = client_configs(state, request)
        assert len(encode_body(page)) <= MAX_ANSWER_BYTES and page.configs
        names += [each.name for each in page.configs]
        if page.next is None:
            break
        request = ClientConfigsRequest(takes_pages=True, after=page.next)
    assert names == sorted(row.name for row in rows)
    anew = client_configs(state, ClientConfigsRequest(takes_pages=True, after=(7, ConfigScope.GROUP, "g9")))
    assert anew.configs is not None and anew.configs[0].name == names[0]
    assert len(client_configs(state, ClientConfigsRequest()).configs or ()) == 6_000
    assert client_configs(state, ClientConfigsRequest(0)).configs is None
