"""The plan of a round: which runs become one file."""

from __future__ import annotations

from uuid import UUID

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from compactor.on_spark.job import pack
from compactor.plan import PlanSettings, WorkItem, plan
from compactor.rewrite import ranges_to_read
from sequencer.api.commits import ObjectKind
from sequencer.api.compaction import CompactionCandidate
from sequencer.api.reads import Run
from sequencer.api.topics import Topic
from tests.support.row_samples import sample_run

SIZES = PlanSettings(least_bytes=100, target_bytes=200)


def run_of(
    partition: int, base: int, length: int, *, end: int | None = None, kind: ObjectKind = ObjectKind.MIXED
) -> Run:
    return sample_run(
        base,
        base + 10 if end is None else end,
        topic_id=UUID(int=5),
        partition=partition,
        object_id=UUID(int=base + 1),
        kind=kind,
        key=f"m/{base}",
        object_size=10_000,
        index_start=9_000,
        start=8 + partition * 1_000,
        length=length,
    )


def run_at(partition: int, number: int, length: int) -> Run:
    """The partition's run in the object of this number, beside its neighbours'."""
    run = run_of(partition, 10 * number, length)
    return msgspec.structs.replace(run, start=8 + partition * length, created_ms=number)


def candidate(
    partition: int, runs: list[Run], stable: int = 1 << 40, topic: str = "t"
) -> CompactionCandidate:
    topic_id = UUID(int=sum(topic.encode()))
    return CompactionCandidate(Topic(topic_id, topic, 9, {}, 0), partition, 0, stable, runs, [])


def shape(items: list[WorkItem]) -> list[list[tuple[int, int, int]]]:
    return [[(each.partition, each.base_offset, each.end_offset) for each in item.pieces] for item in items]


def test_small_partitions_of_a_topic_share_a_file() -> None:
    items = plan([candidate(number, [run_of(number, 0, 30)]) for number in (2, 0, 1)], SIZES)
    assert shape(items) == [[(0, 0, 10), (1, 0, 10), (2, 0, 10)]]


def test_topics_do_not_share_a_file() -> None:
    items = plan([candidate(0, [run_of(0, 0, 30)], topic=topic) for topic in "ab"], SIZES)
    assert [item.topic_name for item in items] == ["a", "b"]


def test_a_large_partition_is_cut_at_size_and_never_within_a_run() -> None:
    runs = [run_of(0, base, 60) for base in range(0, 100, 10)]
    assert shape(plan([candidate(0, runs)], SIZES)) == [[(0, 0, 40)], [(0, 40, 70)], [(0, 70, 100)]]


def test_an_agent_whose_clock_was_ahead_makes_no_file_larger() -> None:
    runs = [run_at(0, number, 60) for number in range(20)]
    runs[0] = msgspec.structs.replace(runs[0], created_ms=1_000)
    assert max(item.stored_bytes for item in plan([candidate(0, runs)], SIZES)) <= 300


def test_no_file_replaces_more_runs_than_one_swap_may() -> None:
    few = PlanSettings(least_bytes=100, target_bytes=200, most_runs=3)
    small = [candidate(number, [run_of(number, base, 1) for base in (0, 10)]) for number in range(2)]
    assert shape(plan(small, few)) == [[(0, 0, 10), (1, 0, 10)], [(0, 10, 20), (1, 10, 20)]]
    many = [candidate(0, [run_of(0, base, 1) for base in range(0, 80, 10)])]
    assert shape(plan(many, few)) == [[(0, 0, 30)], [(0, 30, 60)], [(0, 60, 80)]]


def test_a_large_partition_with_long_runs_has_files_of_its_own_and_one_with_short_runs_shares_them() -> None:
    long = PlanSettings(least_bytes=100, target_bytes=200, least_get_bytes=50)
    candidates = [candidate(number, [run_of(number, base, 60) for base in (0, 10)]) for number in range(2)]
    assert shape(plan(candidates, long)) == [[(0, 0, 20)], [(1, 0, 20)]]
    short = PlanSettings(least_bytes=100, target_bytes=200, least_get_bytes=100)
    assert shape(plan(candidates, short)) == [[(0, 0, 10), (1, 0, 10)], [(0, 10, 20), (1, 10, 20)]]


def test_a_stretch_of_time_ends_with_an_object_not_within_one() -> None:
    """Two partitions of which one missed an object: both are cut at the same object."""
    runs = [[run_of(0, base, 50) for base in (0, 10, 20, 30)], [run_of(1, base, 50) for base in (0, 30)]]
    late = [
        msgspec.structs.replace(run, base_offset=10, end_offset=20) if run.base_offset else run
        for run in runs[1]
    ]
    items = plan([candidate(0, runs[0]), candidate(1, late)], SIZES)
    assert shape(items) == [[(0, 0, 20), (1, 0, 10)], [(0, 20, 40), (1, 10, 20)]]
    assert [{run.key for piece in item.pieces for run in piece.runs} for item in items] == [
        {"m/0", "m/10"}, {"m/20", "m/30"}
    ]  # fmt: skip


def test_at_a_thousand_partitions_a_gib_is_read_with_at_most_two_thousand_requests() -> None:
    """A page of candidates of a topic whose objects of 8 MiB hold 8 KiB of each partition."""
    sizes, run_bytes = PlanSettings(), 8 << 10
    of_page = 20_000 // sizes.runs_each
    candidates = [
        candidate(partition, [run_at(partition, number, run_bytes) for number in range(sizes.runs_each)])
        for partition in range(of_page)
    ]
    items = plan(candidates, sizes)
    read = sum(item.stored_bytes for item in items)
    assert read == of_page * sizes.runs_each * run_bytes > 150 << 20
    requests = sum(len(ranges_to_read(item.pieces)) for item in items)
    read_back = len(items)
    assert (requests + read_back) * (1 << 30) / read <= 2_000
    assert max(sum(len(piece.runs) for piece in item.pieces) for item in items) <= sizes.most_runs


def test_only_contiguous_mixed_runs_below_the_last_stable_offset_are_planned() -> None:
    runs = [run_of(0, 0, 30), run_of(0, 10, 30), run_of(0, 20, 30)]
    assert shape(plan([candidate(0, runs, stable=25)], SIZES)) == [[(0, 0, 20)]]
    assert shape(plan([candidate(0, [runs[0], runs[2]])], SIZES)) == [[(0, 0, 10)]]
    parquet = run_of(0, 10, 30, kind=ObjectKind.PARQUET)
    assert shape(plan([candidate(0, [runs[0], parquet, runs[2]])], SIZES)) == [[(0, 0, 10)]]
    assert plan([candidate(0, runs, stable=5)], SIZES) == []


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(1, 400), max_size=12), max_size=6))
def test_every_run_is_planned_once_in_order(sizes: list[list[int]]) -> None:
    candidates = [
        candidate(partition, [run_of(partition, 10 * number, size) for number, size in enumerate(of)])
        for partition, of in enumerate(sizes)
    ]
    items = plan(candidates, SIZES)
    for partition, of in enumerate(sizes):
        # In the order of the plan, not sorted: waves go by it.
        planned = [piece for item in items for piece in item.pieces if piece.partition == partition]
        assert [run.base_offset for piece in planned for run in piece.runs] == [
            10 * number for number in range(len(of))
        ]
    for item in items:
        assert len({piece.partition for piece in item.pieces}) == len(item.pieces)
        assert sum(len(piece.runs) for piece in item.pieces) <= SIZES.most_runs
    groups = pack(items, 3)
    assert len(groups) <= 3
    assert sum(len(group) for group in groups) == len(items)


def test_neighbouring_runs_are_read_together() -> None:
    items = plan([candidate(number, [run_of(number, 0, 50)]) for number in range(3)], SIZES)
    [item] = items
    assert ranges_to_read(item.pieces, max_gap=950) == [("m/0", 8, 2058)]
    assert ranges_to_read(item.pieces, max_gap=949) == [("m/0", s, s + 50) for s in (8, 1008, 2008)]
    assert len(ranges_to_read(item.pieces, max_gap=950, max_range=1_100)) == 2
