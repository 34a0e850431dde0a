"""Alignment limits how far the partitions of a fetch get ahead of each other."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from agent.fetch.alignment import LEAST_REQUEST_BYTES, MAX_SIZES, NO_END, RequestSizes, aligned_ends
from sequencer.api.reads import Run
from tailrace.ids import TopicPartition
from tests.support.row_samples import sample_run

OBJECT_BYTES = 1_000


def runs_at(*commits: int, partition: int = 0) -> list[Run]:
    """A run of ten records for each commit; each commit is one object."""
    return [
        sample_run(
            10 * number,
            10 * number + 10,
            topic_id=UUID(int=1),
            partition=partition,
            object_id=UUID(int=commit + 1),
            key=f"object-{commit}",
            object_size=OBJECT_BYTES,
            index_start=OBJECT_BYTES - 10,
            length=10,
            commit_number=commit,
        )
        for number, commit in enumerate(commits)
    ]


def ends(reach: int, *found: Sequence[Run]) -> list[int]:
    return aligned_ends(found, reach * OBJECT_BYTES)


def test_a_partition_alone_or_within_the_reach_is_sent_whole() -> None:
    assert ends(2, runs_at(*range(100))) == [NO_END]
    assert ends(5, runs_at(0, 1, 2, 3), runs_at(0, 2, 4)) == [NO_END, NO_END]
    assert ends(5) == []


def test_no_partition_is_sent_beyond_the_reach() -> None:
    assert ends(4, runs_at(*range(10)), runs_at(0, 3, 6, 9)) == [40, 20]


def test_the_reach_is_reported_by_the_density_where_the_slowest_ends_before() -> None:
    assert ends(4, runs_at(10, 12), runs_at(10, 14, 16, 17)) == [NO_END, 30], (
        "1.5 commits an object: up to 16"
    )


def test_a_partition_beyond_the_reach_but_in_sight_waits() -> None:
    assert ends(4, runs_at(*range(10)), runs_at(5, 6)) == [40, 0]


def test_a_partition_far_ahead_begins_a_group_of_its_own() -> None:
    slow, far = runs_at(*range(10)), runs_at(*range(100, 110))
    assert ends(4, far, slow) == [NO_END, NO_END]
    assert ends(4, far, slow, runs_at(101, 104, 105)) == [40, NO_END, 10]


def test_runs_of_one_object_count_once() -> None:
    twice = runs_at(*sorted([*range(10)] * 2))
    assert ends(4, twice, runs_at(3, 9)) == [80, 10]


@given(
    st.lists(
        st.lists(st.integers(0, 60), min_size=1, max_size=12, unique=True).map(sorted), min_size=1, max_size=6
    ),
    st.integers(0, 8),
)
def test_all_positions_come_to_the_end_and_the_slowest_moves_in_each_answer(
    commits: list[list[int]], reach: int
) -> None:
    left = [runs_at(*some, partition=number) for number, some in enumerate(commits)]
    for _ in range(sum(map(len, commits))):
        reading = [runs for runs in left if runs]
        if not reading:
            break
        slowest = min(reading, key=lambda runs: runs[0].commit_number)
        before = len(slowest)
        for runs, end in zip(reading, ends(reach, *reading), strict=True):
            assert end == NO_END or end in {run.base_offset for run in runs}
            runs[:] = [run for run in runs if run.base_offset >= end]
        assert len(slowest) < before
    assert not any(left)


def test_after_a_hold_back_the_request_size_doubles_until_it_covers_all() -> None:
    sizes, partition = RequestSizes(), TopicPartition(UUID(int=1), 0)
    assert sizes.of(partition, 1 << 20) == 1 << 20
    sizes.held_back(partition, 100_000)
    assert (sizes.of(partition, 1 << 20), sizes.of(partition, 1)) == (200_000, 1)
    sizes.held_back(partition, 0)
    assert sizes.of(partition, 1 << 20) == LEAST_REQUEST_BYTES
    asked = []
    while sizes:
        sizes.given_all(partition, 1 << 18)
        asked.append(sizes.of(partition, 1 << 18))
    assert asked == [1 << 17, 1 << 18]


def test_request_sizes_are_kept_for_a_bounded_number_of_partitions() -> None:
    sizes = RequestSizes()
    for number in range(MAX_SIZES + 10):
        sizes.held_back(TopicPartition(UUID(int=1), number), 0)
    assert len(sizes) == MAX_SIZES and sizes.of(TopicPartition(UUID(int=1), 9), 1 << 20) == 1 << 20
