"""All windows of an agent, against a plain model of the sequencer: single rules, then a state machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import agent.fetch.windows as windows_module
from agent.fetch.window import WindowOutOfSync
from agent.fetch.windows import (
    ADDED_AT_FIRST,
    ADDED_AT_ONCE,
    FRESH_S,
    IDLE_S,
    PROMPT_S,
    REFUSED_S,
    EmptyAnswer,
    Windows,
)
from sequencer.api.reads import (
    FoundPartition,
    PartitionChange,
    PartitionError,
    Run,
    WatchAnswer,
    WatchRequest,
)
from tailrace.ids import TopicPartition
from tests.agent.fetch.test_window import TOPIC, change, run_at

PLACE, OTHER = TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)
FIRST, SECOND = UUID(int=11), UUID(int=12)


def answer(taken: int, number: int, *changes: PartitionChange, **more: Any) -> WatchAnswer:
    return WatchAnswer(**{"epoch": 1, "commit_number": number, "taken": taken, "changes": [*changes], **more})


def watching(number: int = 7, end: int = 5) -> Windows:
    """Windows that watch PLACE, as of a commit, asked and answered at second 0."""
    windows = Windows(FIRST)
    windows.note_sent(PLACE, number)
    windows.want(PLACE, 0.0)
    windows.next_request(0.0, 500)
    windows.apply(answer(0, number, change(number, end=end, is_start=True)), 0.0)
    return windows


def end_of(windows: Windows, offset: int = 5, now: float = 0.0, *, is_last: bool = False) -> int | None:
    found = windows.find(PLACE, offset, 1, now, is_last=is_last)
    return None if found is None else found[0].high_watermark


def test_a_fetch_that_waits_no_longer_is_not_answered_without_what_this_agent_stored() -> None:
    windows = watching(number=7, end=5)
    windows.note_stored(PLACE, 6)
    windows.note_stored(OTHER, 6)
    assert (end_of(windows), end_of(windows, is_last=True)) == (5, None)
    windows.apply(answer(1, 8, change(8, run_at(5, 6))), 0.1)
    assert end_of(windows, 6, 0.1, is_last=True) == 6
    windows.note_stored(PLACE, 3)
    assert end_of(windows, 6, 0.1, is_last=True) == 6


def test_a_window_does_not_answer_with_records_that_were_deleted_through_this_agent() -> None:
    windows = watching(number=7, end=5)
    windows.note_deleted(OTHER, 6)
    assert end_of(windows) == 5
    windows.note_deleted(PLACE, 5)
    windows.note_deleted(PLACE, 3)
    assert end_of(windows) is None
    windows.apply(answer(1, 8, change(8, log_start_offset=5, end=5)), 0.1)
    assert end_of(windows, 5, 0.1) == 5


def found_at(
    start: int,
    stable: int,
    end: int,
    runs: list[Run] | None = None,
    error: PartitionError = PartitionError.NONE,
) -> FoundPartition:
    return FoundPartition(
        error=error, log_start_offset=start, high_watermark=end, last_stable_offset=stable, leader_epoch=0,
        runs=runs or [], aborted=[],
    )  # fmt: skip


def nothing_at(offset: int, number: int, asked_at: float = 0.0) -> EmptyAnswer | None:
    return EmptyAnswer.of(offset, found_at(0, offset, offset), number, asked_at=asked_at)


def test_until_there_is_a_window_the_last_answer_about_the_end_is_repeated() -> None:
    windows = Windows(FIRST)
    windows.note_sent(PLACE, 7)
    windows.want(PLACE, 0.0, nothing_at(5, 7))
    assert [end_of(windows, 5, now) for now in (0.0, FRESH_S, FRESH_S + 0.1)] == [5, 5, None]
    assert end_of(windows, 4) is end_of(windows, 6) is None, "another offset is asked for"
    windows.note_sent(PLACE, 8)
    assert end_of(windows, 5) is None, "a newer answer was given since"

    windows.want(PLACE, 0.0, nothing_at(5, 8))
    assert end_of(windows, 5) == 5
    windows.next_request(0.0, 500)
    windows.apply(answer(0, 9, change(9, end=6, is_start=True)), 0.0)
    assert (end_of(windows, 5), end_of(windows, 6)) == (None, 6), "the window's"
    windows.want(PLACE, 0.0, nothing_at(6, 9))
    windows.restart(SECOND)
    assert end_of(windows, 6, FRESH_S) == 6, "a new subscription is on its way"


def test_only_an_answer_with_nothing_to_send_is_repeated() -> None:
    assert EmptyAnswer.of(5, found_at(0, 6, 6, [run_at(5, 6)]), 7, asked_at=0.0) is None
    assert EmptyAnswer.of(4, found_at(0, 4, 5), 7, asked_at=0.0) is None, "read_committed below the end"
    gone = found_at(0, 5, 5, error=PartitionError.UNKNOWN_TOPIC_OR_PARTITION)
    assert EmptyAnswer.of(5, gone, 7, asked_at=0.0) is None


def test_the_answer_of_a_slow_sequencer_is_repeated_no_longer() -> None:
    windows = Windows(FIRST)
    windows.want(PLACE, 13.0, nothing_at(5, 7, asked_at=10.0))
    assert end_of(windows, 5, 13.0) is None


def test_a_partition_that_a_fetch_wants_is_added_once() -> None:
    windows = Windows(FIRST)
    windows.want(PLACE, 0.0)
    windows.want(PLACE, 0.0)
    assert windows.has_additions
    first = windows.next_request(0.0, 500)
    assert first == WatchRequest(FIRST, 1, 0, [PLACE], [], 500)
    assert not windows.has_additions
    assert windows.next_request(0.0, 500) == WatchRequest(FIRST, 1, 0, [], [], 500), "a turn is a change"
    windows.want(OTHER, 0.0)
    assert windows.next_request(0.0, 500) == WatchRequest(FIRST, 2, 0, [OTHER], [], 500)


def test_many_partitions_are_added_in_parts_that_grow_while_answers_are_prompt() -> None:
    windows = Windows(FIRST)
    for number in range(20 * ADDED_AT_ONCE):
        windows.want(TopicPartition(TOPIC, number), 0.0)
    added: list[int] = []
    for _ in range(9):
        added.append(len(windows.next_request(0.0, 0).added))
        windows.note_added(PROMPT_S)
    assert added[:2] == [ADDED_AT_FIRST, 2 * ADDED_AT_FIRST] and added[-1] == ADDED_AT_ONCE == max(added)
    for _ in range(9):
        windows.note_added(2 * PROMPT_S)
    assert len(windows.next_request(0.0, 0).added) == ADDED_AT_FIRST
    windows.note_added(PROMPT_S)
    windows.restart(SECOND)
    assert len(windows.next_request(0.0, 0).added) == ADDED_AT_FIRST


def test_a_window_answers_as_of_the_newest_commit_it_is_complete_for() -> None:
    windows = watching()
    assert windows.find(PLACE, 5, 1, 0.0) is not None
    windows.apply(answer(1, 9), 0.0)
    found = windows.find(PLACE, 5, 1, 0.0)
    assert found is not None and found[1] == 9


def test_a_window_is_used_only_while_it_is_fresh() -> None:
    windows = watching()
    assert (end_of(windows, now=FRESH_S), end_of(windows, now=FRESH_S + 0.1)) == (5, None)
    windows.apply(answer(1, 7), 5.0)
    assert end_of(windows, now=5.0 + FRESH_S) == 5


def test_a_window_older_than_an_earlier_answer_answers_nothing() -> None:
    windows = watching()
    windows.note_sent(PLACE, 8)
    assert end_of(windows) is None
    windows.apply(answer(1, 8, change(8, run_at(5, 6))), 0.0)
    assert end_of(windows, 6) == 6


def test_an_answer_given_before_the_window_arrived_counts_too() -> None:
    windows = Windows(FIRST)
    windows.want(PLACE, 0.0)
    windows.next_request(0.0, 500)
    windows.note_sent(PLACE, 9)
    windows.apply(answer(0, 8, change(8, end=5, is_start=True)), 0.0)
    assert end_of(windows) is None


def test_a_new_window_waits_for_the_newest_answer_about_any_partition() -> None:
    windows = Windows(FIRST)
    windows.note_sent(OTHER, 9)
    windows.note_sent(PLACE, 7)
    windows.want(PLACE, 0.0)
    windows.next_request(0.0, 500)
    windows.apply(answer(0, 8, change(8, end=5, is_start=True)), 0.0)
    assert end_of(windows) is None
    windows.apply(answer(1, 9), 0.0)
    assert end_of(windows) == 5


def test_an_unannounced_change_is_known_without_a_request() -> None:
    windows = watching()
    assert not windows.is_changed(PLACE, 7, 0.0)
    windows.apply(answer(1, 9, change(8, run_at(5, 6))), 0.0)
    assert (windows.is_changed(PLACE, 7, 0.0), windows.is_changed(PLACE, 8, 0.0)) == (True, False)


@pytest.mark.parametrize(
    "bad",
    [
        answer(1, 9, is_reset=True),
        answer(1, 9, epoch=2),
        answer(0, 9, change(8, run_at(5, 6))),
        answer(2, 9),
        answer(1, 6),
        answer(1, 9, change(9, run_at(6, 7))),
    ],
    ids=["a reset", "another epoch", "again", "a gap", "a number that falls", "a hole"],
)
def test_a_change_that_does_not_follow_ends_the_subscription(bad: WatchAnswer) -> None:
    windows = watching()
    with pytest.raises(WindowOutOfSync):
        windows.apply(bad, 0.0)
    windows.restart(SECOND)
    assert windows.live() == {} and end_of(windows) is None
    assert windows.next_request(0.0, 500) == WatchRequest(SECOND, 1, 0, [PLACE], [], 500)


def test_an_announced_change_outlives_a_restart() -> None:
    windows = watching(number=9)
    assert end_of(windows) == 5
    windows.restart(SECOND)
    windows.next_request(0.0, 500)
    windows.apply(answer(0, 8, change(8, end=4, is_start=True)), 0.0)
    assert end_of(windows, 4) is None


def test_a_partition_that_nobody_reads_is_given_back() -> None:
    windows = watching()
    assert windows.next_request(IDLE_S - 1, 500).removed == []
    request = windows.next_request(IDLE_S, 500)
    assert (request.turn, request.removed, windows.count) == (2, [PLACE], 0)
    windows.apply(answer(1, 9, change(8, run_at(5, 6))), IDLE_S)  # it was on its way
    assert windows.live() == {}


def test_a_partition_that_a_fetch_waits_for_is_kept() -> None:
    windows = watching()
    windows.count_reader(PLACE, 1)
    assert windows.next_request(IDLE_S, 500).removed == []
    windows.count_reader(PLACE, -1)
    assert windows.next_request(IDLE_S + 1, 500).removed == []
    assert windows.next_request(2 * IDLE_S, 500).removed == [PLACE]


def test_a_partition_that_is_gone_is_left_alone_for_a_while() -> None:
    windows = watching()
    gone = PartitionChange(topic_id=TOPIC, partition=0, commit_number=8, is_gone=True)
    assert windows.apply(answer(1, 8, gone), 0.0) == [PLACE]
    windows.want(PLACE, 1.0)
    assert (windows.live(), windows.has_additions) == ({}, False)
    windows.want(PLACE, REFUSED_S)
    assert windows.next_request(REFUSED_S, 500).added == [PLACE]


def test_all_windows_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows_module, "MAX_WINDOWS_BYTES", 700)
    windows = watching()
    windows.apply(answer(1, 8, change(8, *(run_at(at, at + 1) for at in range(5, 8)))), 0.0)
    assert [window.start_offset for window in windows.live().values()] == [5]
    windows.apply(answer(2, 9, change(9, *(run_at(at, at + 1) for at in range(8, 11)))), 0.0)
    assert [window.start_offset for window in windows.live().values()] == [11]
    assert end_of(windows, 11) == 11


# --- against a model


@dataclass
class Log:
    """A partition as the sequencer has it: adjacent runs up to `end`, from `start` on readable, to `stable` stable."""

    start: int = 0
    stable: int = 0
    end: int = 0
    runs: list[Run] = field(default_factory=list)
    is_deleted: bool = False

    def found(self, offset: int) -> tuple[int, int, int, list[UUID]]:
        there = [run.object_id for run in self.runs if run.end_offset > offset]
        return self.start, self.stable, self.end, there

    def copy(self) -> Log:
        return Log(self.start, self.stable, self.end, list(self.runs), self.is_deleted)


class Machine(RuleBasedStateMachine):
    """Commits, and calls of the subscription whose answers are whole, cut short, lost, or of a new committer."""

    def __init__(self) -> None:
        super().__init__()
        self.logs = {PLACE: Log(), OTHER: Log()}
        self.number, self.epoch, self.objects, self.now = 0, 1, 0, 0.0
        self.as_of: dict[int, dict[TopicPartition, Log]] = {0: self._copy()}
        self.windows = Windows(UUID(int=1))
        self.known_epoch: int | None = None
        self.subscriber: UUID | None = None
        self.turn = self.taken = 0
        self.watched: set[TopicPartition] = set()
        self.queue: list[PartitionChange] = []
        self.told: dict[TopicPartition, tuple[int, int, int]] = {}
        self.subscriptions = 1

    def _copy(self) -> dict[TopicPartition, Log]:
        return {place: log.copy() for place, log in self.logs.items()}

    def _commit(self, place: TopicPartition, **more: Any) -> None:
        self.number += 1
        self.as_of[self.number] = self._copy()
        if place in self.watched:
            self.queue.append(self._change(place, **more))

    def _change(self, place: TopicPartition, **more: Any) -> PartitionChange:
        log = self.logs[place]
        bounds = {
            "log_start_offset": log.start,
            "high_watermark": log.end,
            "last_stable_offset": log.stable,
            "is_gone": log.is_deleted,
        }
        return PartitionChange(
            topic_id=place.topic_id,
            partition=place.partition,
            commit_number=self.number,
            **{**bounds, **more},
        )

    def _run(self, base: int, end: int) -> Run:
        self.objects += 1
        return run_at(base, end, object_id=1_000 + self.objects)

    @rule(place=st.sampled_from([PLACE, OTHER]), sizes=st.lists(st.integers(1, 3), min_size=1, max_size=3),
          is_stable=st.booleans())  # fmt: skip
    def store(self, place: TopicPartition, sizes: list[int], is_stable: bool) -> None:
        log, added = self.logs[place], []
        if log.is_deleted:
            return
        for size in sizes:
            added.append(self._run(log.end, log.end + size))
            log.end += size
        log.runs += added
        log.stable = log.end if is_stable else log.stable
        self._commit(place, runs=added)

    @rule(place=st.sampled_from([PLACE, OTHER]), first=st.integers(0, 5), count=st.integers(1, 5))
    def swap(self, place: TopicPartition, first: int, count: int) -> None:
        log = self.logs[place]
        old = [run for run in log.runs if run.end_offset <= log.stable][first : first + count]
        if log.is_deleted or not old:
            return
        new = self._run(old[0].base_offset, old[-1].end_offset)
        log.runs = [run for run in log.runs if run not in old] + [new]
        log.runs.sort(key=lambda run: run.base_offset)
        self._commit(place, replaced_below=new.end_offset)

    @rule(place=st.sampled_from([PLACE, OTHER]), by=st.integers(1, 4))
    def delete_records(self, place: TopicPartition, by: int) -> None:
        log = self.logs[place]
        if log.is_deleted or log.start + by > log.end:
            return
        log.start += by
        log.stable = max(log.stable, log.start)
        log.runs = [run for run in log.runs if run.end_offset > log.start]
        self._commit(place)

    @precondition(lambda self: self.number > 30)
    @rule(place=st.sampled_from([PLACE, OTHER]))
    def delete_topic(self, place: TopicPartition) -> None:
        if not self.logs[place].is_deleted:
            self.logs[place].is_deleted = True
            self._commit(place)
            self.watched.discard(place)

    @rule()
    def fail_over(self) -> None:
        self.epoch += 1
        self.subscriber = None

    @rule(seconds=st.sampled_from([0.3, 1.0, IDLE_S]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(place=st.sampled_from([PLACE, OTHER]))
    def ask_sequencer(self, place: TopicPartition) -> None:
        log = self.logs[place]
        if not log.is_deleted:
            self.told[place] = (log.start, log.stable, log.end)
            self.windows.note_sent(place, self.number)
            there = found_at(log.start, log.stable, log.end)
            nothing = EmptyAnswer.of(log.end, there, self.number, asked_at=self.now)
            self.windows.want(place, self.now, nothing)

    @rule(room=st.integers(1, 9), is_lost=st.booleans())
    def call(self, room: int, is_lost: bool) -> None:
        request = self.windows.next_request(self.now, 0)
        told = self._answer(request, room)
        if is_lost:
            return
        try:
            self.windows.apply(told, self.now)
        except WindowOutOfSync:
            is_of_another = self.known_epoch not in (None, told.epoch)
            assert told.is_reset or is_of_another or request.subscriber != self.subscriber
            self._restart()
        else:
            self.known_epoch = told.epoch

    def _restart(self) -> None:
        self.known_epoch = None
        self.subscriptions += 1
        self.windows.restart(UUID(int=self.subscriptions))

    def _answer(self, request: WatchRequest, room: int) -> WatchAnswer:
        if request.turn == 1 and request.subscriber != self.subscriber and request.taken == 0:
            self.subscriber, self.turn, self.taken = request.subscriber, 0, 0
            self.watched, self.queue = set(), []
        if request.subscriber != self.subscriber:
            return answer(request.taken, self.number, epoch=self.epoch, is_reset=True)
        if request.turn == self.turn + 1:
            self.turn += 1
            self.watched -= {TopicPartition(*each) for each in request.removed}
            for each in request.added:
                place = TopicPartition(*each)
                if place not in self.watched:
                    self.queue.append(self._change(place, is_start=True))
                    self.watched |= set() if self.logs[place].is_deleted else {place}
        self.queue = self.queue[request.taken - self.taken :]
        self.taken = request.taken
        number = self.number if room >= len(self.queue) else self.queue[room].commit_number - 1
        number = max(number, self.windows.commit_number)
        return answer(request.taken, number, *self.queue[:room], epoch=self.epoch)

    @invariant()
    def windows_say_what_was_true_and_nothing_goes_back(self) -> None:
        live = self.windows.live()
        for place, log in self.logs.items():
            if (window := live.get(place)) is not None:
                assert not self.as_of[max(window.commit_number, self.windows.commit_number)][place].is_deleted
            for offset in range(log.start - 1, log.end + 2):
                answered = self.windows.find(place, offset, 1 << 30, self.now)
                if answered is None:
                    continue
                found, number = answered
                bounds = (found.log_start_offset, found.last_stable_offset, found.high_watermark)
                assert (*bounds, [run.object_id for run in found.runs]) == self.as_of[number][place].found(
                    offset
                )
                before = self.told.get(place, bounds)
                assert all(now >= then for now, then in zip(bounds, before, strict=True))
                self.told[place] = bounds


Machine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestWindowsAgainstAModel: Callable[..., Any] = Machine.TestCase
