"""The newest runs in memory are what the store would have said."""

from __future__ import annotations

import time
from collections import Counter
from itertools import pairwise, product
from operator import attrgetter
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from sequencer.api.commits import BatchStatus
from sequencer.api.reads import Run, RunBatch
from sequencer.bounds import BYTES_OF_A_RUN, run_bytes
from sequencer.reading import recent_runs
from sequencer.reading.feed import CommitFeed
from sequencer.reading.recent_runs import LEAST_RUNS, RecentRuns
from sequencer.store.rows import Changes, RunRow
from sequencer.store.state import HotState
from tailrace.ids import TopicPartition
from tailrace.turns import at_once
from tests.support.clocks import ManualClock
from tests.support.row_samples import sample_run

TOPIC = UUID(int=1)
PLACE = TopicPartition(TOPIC, 0)
OTHER = TopicPartition(TOPIC, 1)
ANY = 1 << 30


def run_at(base: int, end: int, length: int = 10) -> Run:
    return sample_run(
        base,
        end,
        topic_id=TOPIC,
        object_id=UUID(int=base + 9),
        object_size=100,
        index_start=90,
        length=length,
    )


def changes(*keys: int) -> Changes:
    made = Changes()
    for base in keys:
        made.delete(RunRow, (TOPIC, 0, base))
    return made


def apply(recent: RecentRuns, changed: Changes, added: dict[TopicPartition, list[Run]]) -> None:
    recent.forget(at_once(recent.replaced_by(changed)))
    at_once(recent.add(added))


def found(recent: RecentRuns, partition: int, offset: int, *most: int) -> list[Run] | None:
    """What is found, whose sums are those of the runs."""
    kept = recent.find(TOPIC, partition, offset, *most)
    if kept is None:
        return None
    for sums, each in ((kept.lengths, attrgetter("length")), (kept.sizes, run_bytes)):
        assert [end - start for start, end in pairwise(sums)] == [*map(each, kept.runs)]
    return kept.runs


def test_runs_not_in_memory_are_read_from_the_store() -> None:
    recent = RecentRuns(100)
    assert found(recent, 0, 0, 100, ANY) is None
    apply(recent, Changes(), {PLACE: [run_at(5, 8)]})
    assert found(recent, 0, 4, 100, ANY) is None
    assert found(recent, 0, 8, 100, ANY) is None
    assert found(recent, 1, 5, 100, ANY) is None
    assert found(recent, 0, 7, 100, ANY) == [run_at(5, 8)]


def test_a_run_that_was_replaced_or_deleted_is_not_given() -> None:
    for gone in (5, 8):
        recent = RecentRuns(100)
        apply(recent, Changes(), {PLACE: [run_at(5, 8), run_at(8, 9)]})
        apply(recent, changes(gone), {PLACE: []})
        assert found(recent, 0, 5, 100, ANY) is None
    apply(recent, Changes(), {PLACE: [run_at(9, 12)]})
    assert found(recent, 0, 9, 100, ANY) == [run_at(9, 12)]


def test_a_run_that_is_not_adjacent_starts_the_window_over() -> None:
    recent = RecentRuns(100)
    apply(recent, Changes(), {PLACE: [run_at(0, 5)]})
    apply(recent, Changes(), {PLACE: [run_at(7, 9)]})
    assert found(recent, 0, 0, 100, ANY) is None
    assert found(recent, 0, 7, 100, ANY) == [run_at(7, 9)]


def test_the_partition_written_to_longest_ago_is_forgotten_first() -> None:
    recent = RecentRuns(2)
    for partition in (0, 1, 0, 2):
        place = TopicPartition(TOPIC, partition)
        known = found(recent, partition, 0, 1, ANY)
        base = 1 if known else 0
        made = replace(run_at(base, base + 1), partition=partition)
        apply(recent, Changes(), {place: [made]})
    assert found(recent, 1, 0, 100, ANY) is None
    assert found(recent, 2, 0, 100, ANY) is not None


def test_a_partition_is_forgotten_at_the_same_cost_however_many_were_before_it() -> None:
    kept, added, timed = 44_000, 38_000, 2_000
    recent, one = RecentRuns(kept), run_at(0, 1)

    def seconds(first: int, count: int) -> float:
        began = time.thread_time()
        for number in range(first, first + count):
            at_once(recent.add({TopicPartition(TOPIC, number): [one]}))
        return time.thread_time() - began

    seconds(0, kept)
    at_first = min(seconds(kept, timed), seconds(kept + timed, timed))
    seconds(kept + 2 * timed, added - 2 * timed)
    later = min(seconds(kept + added, timed), seconds(kept + added + timed, timed))
    assert later < 4 * at_first


def test_one_partition_is_kept_as_far_as_all_may_be() -> None:
    recent = RecentRuns(1_000)
    for base in range(1_200):
        apply(recent, Changes(), {PLACE: [run_at(base, base + 1)]})
    assert found(recent, 0, 199, ANY, ANY) is None
    assert len(found(recent, 0, 200, ANY, ANY) or ()) == 1_000


def test_the_sums_of_a_run_are_made_once_and_a_read_makes_those_of_at_most_the_least_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sized: Counter[int] = Counter()

    def run_bytes_counted(run: Run) -> int:
        sized[run.base_offset] += 1
        return run_bytes(run)

    monkeypatch.setattr(recent_runs, "run_bytes", run_bytes_counted)
    recent = RecentRuns(1_000)
    for base in range(LEAST_RUNS):
        apply(recent, Changes(), {PLACE: [run_at(base, base + 1)]})
    assert sized == Counter(range(LEAST_RUNS)), "only the bytes of all runs are counted"
    for _ in range(2):
        found(recent, 0, 0, ANY, ANY)
        assert sized == Counter([*range(LEAST_RUNS)] * 2)
    other = replace(run_at(0, 1), partition=1)
    sized.clear()
    for base in range(LEAST_RUNS + 1):
        apply(recent, Changes(), {OTHER: [replace(run_at(base, base + 1), partition=1)]})
    summed = sized.copy()
    assert found(recent, 1, 0, 1, ANY) == [other] and summed == sized == Counter([*range(LEAST_RUNS + 1)] * 2)


def test_runs_are_given_until_the_bytes_that_are_asked_for_are_reached() -> None:
    recent = RecentRuns(256)
    runs = [replace(run_at(base, base + 1), length=1 + base % 7) for base in range(300)]
    for first in range(0, 300, 30):
        apply(recent, Changes(), {PLACE: runs[first : first + 30]})
    kept = runs[44:]
    for offset, max_bytes, max_runs in product((44, 45, 298, 299), (1, 2, 7, 8, 50, ANY), (1, 3, ANY)):
        wanted, length = [], 0
        for run in kept[offset - 44 :][:max_runs]:
            wanted.append(run)
            length += run.length
            if length >= max_bytes:
                break
        assert found(recent, 0, offset, max_bytes, max_runs) == wanted


def test_a_partition_that_others_join_is_cut_to_its_share_and_not_forgotten() -> None:
    recent = RecentRuns(1_000)
    apply(recent, Changes(), {PLACE: [run_at(base, base + 1) for base in range(1_000)]})
    other = replace(run_at(0, 1), partition=1)
    apply(recent, Changes(), {TopicPartition(TOPIC, 1): [other]})
    assert len(found(recent, 0, 500, ANY, ANY) or ()) == 500
    assert found(recent, 1, 0, ANY, ANY) == [other]


def test_runs_after_a_replaced_run_are_kept() -> None:
    recent = RecentRuns(100)
    apply(recent, Changes(), {PLACE: [run_at(0, 5), run_at(5, 8), run_at(8, 9)]})
    recent.forget({PLACE: 5})
    assert found(recent, 0, 4, ANY, ANY) is None
    assert found(recent, 0, 5, ANY, ANY) == [run_at(5, 8), run_at(8, 9)]


def test_runs_of_many_batches_are_kept_as_far_as_their_bytes_allow() -> None:
    """A batch of a run takes some 150 bytes of memory, and many small requests make runs of thousands of batches."""
    batches = [RunBatch(1, 1, BatchStatus.STORED, 0, 0)] * 1_000
    for partitions in (1, 3, 40):
        recent = RecentRuns(1_000)
        places = [TopicPartition(TOPIC, partition) for partition in range(partitions)]
        for base, (topic_id, partition) in product(range(120 // partitions), places):
            run = replace(run_at(base, base + 1), partition=partition, batches=batches)
            apply(recent, Changes(), {TopicPartition(topic_id, partition): [run]})
            assert found(recent, partition, base, ANY, ANY) == [run]
        kept = [
            run
            for _, partition in places
            for base in range(120 // partitions)
            for run in (found(recent, partition, base, 1, 1) or ())
        ]
        assert len(kept) > 20 and sum(map(run_bytes, kept)) <= 1_000 * BYTES_OF_A_RUN


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 40)), min_size=1, max_size=2 * LEAST_RUNS),
    st.integers(0, 3_000),
    st.integers(1, 500),
    st.integers(1, 20),
)
def test_a_query_finds_the_same_as_a_scan_of_all_runs(
    sizes: list[tuple[int, int]], offset: int, max_bytes: int, max_runs: int
) -> None:
    recent, all_runs, end = RecentRuns(LEAST_RUNS), [], 0
    for count, length in sizes:
        all_runs.append(run_at(end, end + count, length))
        end += count
        apply(recent, Changes(), {PLACE: all_runs[-1:]})
    runs = found(recent, 0, offset, max_bytes, max_runs)
    wanted: list[Run] = []
    for each in all_runs:
        if each.end_offset > offset and sum(one.length for one in wanted) < max_bytes:
            wanted.append(each)
    if runs is None:
        assert offset >= end or offset < all_runs[-LEAST_RUNS:][0].base_offset
    else:
        assert runs == wanted[:max_runs]


def test_the_feed_remembers_runs_of_many_batches_as_far_as_their_bytes_allow() -> None:
    feed = CommitFeed(ManualClock(), max_commits=1_000, max_runs=100, max_waiters=1)
    feed.restart(HotState({}))
    batches = [RunBatch(1, 1, BatchStatus.STORED, 0, 0)] * 1_000
    for number in range(1, 51):
        feed.publish(number, {PLACE: [replace(run_at(number, number + 1), batches=batches)]})
    remembered = [run for commit in feed._commits for run in commit.runs[PLACE]]
    assert len(remembered) > 1 and sum(map(run_bytes, remembered)) <= 100 * BYTES_OF_A_RUN
