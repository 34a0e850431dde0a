"""One window: what it takes, what it refuses, what it answers."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec
import pytest

from agent.fetch.window import MAX_WINDOW_RUNS, Window, WindowOutOfSync, begin, emptied, find, follow
from sequencer.api.reads import AbortedTransaction, PartitionChange, Run, RunBatch
from tests.support.row_samples import sample_run

TOPIC = UUID(int=1)


def run_at(base: int, end: int, length: int = 100, object_id: int = 0) -> Run:
    return sample_run(
        base,
        end,
        topic_id=TOPIC,
        object_id=UUID(int=object_id or base + 9),
        object_size=1000,
        index_start=990,
        length=length,
    )


def change(number: int, *runs: Run, end: int = -1, **more: Any) -> PartitionChange:
    """A change after which the partition ends at `end`, or where its runs end."""
    end = runs[-1].end_offset if runs else end
    bounds = {"log_start_offset": 0, "high_watermark": end, "last_stable_offset": end, "leader_epoch": 3}
    return PartitionChange(
        topic_id=TOPIC, partition=0, commit_number=number, runs=[*runs], **{**bounds, **more}
    )


def window_of(*runs: Run, number: int = 7, **more: Any) -> Window:
    window = begin(change(number, end=runs[0].base_offset, is_start=True))
    return follow(window, change(number + 1, *runs, **more))


def bases(window: Window, offset: int, max_bytes: int = 1 << 20) -> list[int] | None:
    found = find(window, offset, max_bytes)
    return None if found is None else [run.base_offset for run in found.runs]


def test_a_fetch_within_the_window_or_at_its_end_is_answered() -> None:
    window = window_of(run_at(5, 8), run_at(8, 9), run_at(9, 12))
    assert [bases(window, offset) for offset in (4, 5, 7, 8, 11, 12, 13)] == [
        None, [5, 8, 9], [5, 8, 9], [8, 9], [9], [], None,
    ]  # fmt: skip


def test_an_answer_holds_at_least_one_run_and_ends_where_its_bytes_are_reached() -> None:
    window = window_of(run_at(5, 8), run_at(8, 9), run_at(9, 12))
    assert [bases(window, 6, room) for room in (0, 1, 100, 101)] == [[5], [5], [5], [5, 8]]


def test_a_window_that_begins_without_runs_begins_at_the_partitions_end() -> None:
    window = begin(change(7, end=5, is_start=True))
    assert (window.start_offset, bases(window, 4), bases(window, 5)) == (5, None, [])


@pytest.mark.parametrize(
    "bad",
    [
        change(9, run_at(13, 14)),
        change(9, run_at(11, 14)),
        change(9, run_at(12, 13), run_at(14, 15)),
        change(9, end=13),
        change(9, run_at(12, 14), high_watermark=15),
    ],
    ids=["a gap", "an overlap", "a gap within", "an end without runs", "an end above the runs"],
)
def test_a_hole_is_refused(bad: PartitionChange) -> None:
    with pytest.raises(WindowOutOfSync):
        follow(window_of(run_at(5, 12)), bad)


@pytest.mark.parametrize(
    "bad",
    [change(7, run_at(5, 8), run_at(9, 12)), change(7, run_at(5, 8), high_watermark=9)],
    ids=["a gap within", "an end above the runs"],
)
def test_a_window_does_not_begin_with_a_hole(bad: PartitionChange) -> None:
    with pytest.raises(WindowOutOfSync):
        begin(bad)


def test_a_window_begins_where_its_first_run_does_and_not_at_the_partitions_end() -> None:
    window = begin(change(7, run_at(5, 8), run_at(8, 9)))
    assert [bases(window, offset) for offset in (4, 5, 8, 9)] == [None, [5, 8], [8], []]


@pytest.mark.parametrize("bound", ["log_start_offset", "last_stable_offset"])
def test_a_bound_that_goes_back_is_refused(bound: str) -> None:
    window = window_of(run_at(5, 12), log_start_offset=6)
    with pytest.raises(WindowOutOfSync, match=bound):
        follow(window, change(9, end=12, **{"log_start_offset": 6, bound: 5}))


@pytest.mark.parametrize("number", [7, 8])
def test_a_commit_number_that_does_not_rise_is_refused(number: int) -> None:
    with pytest.raises(WindowOutOfSync):
        follow(window_of(run_at(5, 12)), change(number, end=12))


def test_runs_that_compaction_replaced_are_dropped() -> None:
    window = window_of(run_at(5, 8), run_at(8, 9), run_at(9, 12))
    window = follow(window, change(9, end=12, replaced_below=9))
    assert (window.start_offset, bases(window, 8), bases(window, 9)) == (9, None, [9])
    window = follow(window, change(10, end=12, replaced_below=12))
    assert (window.start_offset, window.size, bases(window, 12)) == (12, 0, [])


def test_below_the_log_start_nothing_is_answered() -> None:
    window = window_of(run_at(5, 8), run_at(8, 12))
    window = follow(window, change(9, end=12, log_start_offset=10))
    assert (window.start_offset, bases(window, 9), bases(window, 10)) == (8, None, [8])
    window = follow(window_of(run_at(5, 8), run_at(8, 12)), change(9, end=12, log_start_offset=8))
    assert window.start_offset == 8, "a run that ends at the log start is dropped"


def test_aborted_ranges_are_those_that_overlap_the_answer() -> None:
    early, late, edge = AbortedTransaction(1, 2, 6), AbortedTransaction(2, 7, 11), AbortedTransaction(3, 8, 9)
    window = window_of(run_at(5, 8), run_at(8, 9), run_at(9, 12), aborted=[early, late, edge])

    def aborted(offset: int, room: int = 1 << 20) -> list[AbortedTransaction]:
        found = find(window, offset, room)
        assert found is not None
        return found.aborted

    assert aborted(5) == [early, late, edge]
    assert aborted(5, 1) == [early, late], "the last one begins where the answer ends"
    assert aborted(6) == [early, late, edge], "the first one's marker is at 6"
    assert aborted(7) == [late, edge]
    assert aborted(12) == []
    window = follow(window, change(9, end=12, replaced_below=9))
    assert window.aborted == (late, edge), "what ends at the window's first offset has its marker there"
    assert emptied(window).aborted == ()


def test_a_window_is_bounded_in_runs_and_in_bytes() -> None:
    window = begin(change(1, end=0, is_start=True))
    for number in range(MAX_WINDOW_RUNS + 10):
        window = follow(window, change(2 + number, run_at(number, number + 1)))
    assert (len(window.runs), window.start_offset) == (MAX_WINDOW_RUNS, 10)
    batches = [RunBatch(10, 1, 0, 0, 0) for _ in range(6_000)]  # type: ignore[arg-type]
    end = window.high_watermark
    large = [msgspec.structs.replace(run_at(end + n, end + n + 1), batches=batches) for n in range(3)]
    window = follow(window, change(1_000, *large))
    assert window.runs == (large[-1],)
    assert (emptied(window).start_offset, emptied(window).size) == (end + 3, 0)
