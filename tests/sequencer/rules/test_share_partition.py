"""Records of a share partition: acquired, acknowledged, given back, given up; by example and by random histories."""

from __future__ import annotations

import sys
from types import FrameType

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from sequencer.api.share_groups import (
    Acknowledged,
    AcknowledgeType,
    AcquiredRecords,
    AcquireSpan,
    ShareLimits,
)
from sequencer.rules.share_partition import NotAcquired, SharePartition, Span, SpanState
from sequencer.store.rows import ShareLock

ACCEPT, RELEASE, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT
GAP, RENEW = AcknowledgeType.GAP, AcknowledgeType.RENEW
WINDOW, MOST = 100, 3
LIMITS = ShareLimits(max_deliveries=MOST, max_in_flight=WINDOW)
LOCK = 30


def acquire(
    state: SharePartition,
    member: str,
    first: int,
    end: int,
    now: int = 0,
    max_records: int = 1000,
    skipped: list[tuple[int, int]] | None = None,
) -> list[tuple[int, int, int]]:
    asked = AcquireSpan(first, end, max_records, skipped or [])
    acquired = state.acquire(asked, ShareLock(member, now + LOCK))
    return [(each.first_offset, each.last_offset, each.deliveries) for each in acquired]


def acknowledge(
    state: SharePartition, member: str, first: int, last: int, *types: AcknowledgeType, now: int = 0
) -> None:
    state.acknowledge([Acknowledged(first, last, list(types))], ShareLock(member, now + LOCK))


def test_two_members_never_get_the_same_record() -> None:
    state = SharePartition(10, 10, limits=LIMITS)

    assert acquire(state, "a", 10, 20) == [(10, 19, 1)]
    assert acquire(state, "b", 10, 25) == [(20, 24, 1)]
    assert state.available() == (25, 110)


def test_accepted_records_are_done_and_move_the_start() -> None:
    state = SharePartition(0, 0, limits=LIMITS)
    acquire(state, "a", 0, 10)

    acknowledge(state, "a", 4, 6, ACCEPT)
    assert (state.start, state.done_after_start) == (0, 3)
    acknowledge(state, "a", 0, 3, ACCEPT, GAP, REJECT, ACCEPT)

    assert (state.start, state.end, len(state.spans)) == (7, 10, 1)


def test_a_released_record_is_handed_out_again_and_counted() -> None:
    state = SharePartition(0, 0, limits=LIMITS)
    acquire(state, "a", 0, 10)
    acknowledge(state, "a", 3, 4, RELEASE)

    assert state.available() == (3, 5)
    assert acquire(state, "b", 3, 5) == [(3, 4, 2)]


def test_a_record_that_was_delivered_too_often_is_given_up() -> None:
    state = SharePartition(0, 0, limits=LIMITS)
    for _ in range(MOST):
        assert acquire(state, "a", 0, 1)
        acknowledge(state, "a", 0, 0, RELEASE)

    assert (state.start, state.spans) == (1, [])


def test_a_record_whose_members_all_end_is_given_up() -> None:
    state = SharePartition(0, 0, limits=LIMITS)
    for delivery in range(1, MOST + 1):
        assert acquire(state, "a", 0, 2) == [(0, 1, delivery)]
        state.release("a", 0)

    assert (state.start, state.spans) == (2, [])


def test_a_session_that_ends_gives_back_its_own_records_only() -> None:
    state = SharePartition(0, 0, limits=LIMITS)
    for session in (1, 2):
        state.acquire(AcquireSpan(0, 10 * session, 10 * session), ShareLock("a", LOCK, session))

    state.release("a", 1)

    assert acquire(state, "b", 0, 20) == [(0, 9, 2)]
    acknowledge(state, "a", 10, 19, ACCEPT)


def test_acknowledgements_of_a_full_window_are_scanned_once() -> None:
    window = 4_000
    state = SharePartition(0, 0, limits=ShareLimits(max_in_flight=window))
    skipped = [(offset, offset + 1) for offset in range(0, window, 4)]
    lock = ShareLock("a", LOCK)

    with CountedCalls() as calls:
        state.acquire(AcquireSpan(0, window, window, skipped), lock)
        kinds = [GAP if offset % 4 == 0 else RELEASE if offset % 2 else RENEW for offset in range(1, window)]
        state.acknowledge([Acknowledged(at, at, [kind]) for at, kind in enumerate(kinds, 1) if at % 4], lock)
        state.acquire(AcquireSpan(1, window, window, skipped), lock)

    assert len(state.spans) > window / 2
    assert calls.count < 40 * window


class CountedCalls:
    """How many Python functions are called within it."""

    count = 0

    def __enter__(self) -> CountedCalls:
        sys.setprofile(self._count)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)

    def _count(self, frame: FrameType, event: str, argument: object) -> None:
        self.count += event == "call"


def test_a_lock_that_is_over_frees_its_records_and_one_that_is_renewed_does_not() -> None:
    state = SharePartition(0, 0, limits=LIMITS)
    acquire(state, "a", 0, 4)
    acknowledge(state, "a", 0, 1, RENEW, now=20)

    state.expire(LOCK)

    assert acquire(state, "b", 0, 4, now=LOCK) == [(2, 3, 2)]
    acknowledge(state, "a", 0, 1, ACCEPT)
    with pytest.raises(NotAcquired):
        acknowledge(state, "a", 2, 2, ACCEPT)


def test_an_acknowledgement_of_what_another_has_changes_nothing() -> None:
    state = SharePartition(0, 0, limits=LIMITS)
    acquire(state, "a", 0, 4)
    acquire(state, "b", 4, 8)
    before = list(state.spans)

    with pytest.raises(NotAcquired):
        acknowledge(state, "a", 2, 5, ACCEPT)
    with pytest.raises(NotAcquired):
        acknowledge(state, "b", 6, 8, ACCEPT)

    assert state.spans == before


def test_undeliverable_records_are_done_only_once_they_are_in_the_dead_letter_topic() -> None:
    state = SharePartition(0, 0, limits=LIMITS, has_dead_letters=True)
    for _ in range(MOST):
        state.expire(LOCK)
        acquire(state, "a", 0, 4)
    acknowledge(state, "a", 1, 1, REJECT)
    acknowledge(state, "a", 3, 3, ACCEPT)
    state.expire(LOCK)

    given_up = state.refused(ShareLock("", 2 * LOCK))

    assert given_up == [AcquiredRecords(0, 2, MOST)]
    assert state.refused(ShareLock("", 2 * LOCK)) == [], "it is one agent's task"
    assert acquire(state, "b", 0, 4) == [] and state.start == 0
    state.written([(0, 2)])
    assert state.start == 2
    state.expire(2 * LOCK)
    assert state.refused(ShareLock("", 3 * LOCK)) == [AcquiredRecords(2, 2, MOST)], "the agent may have died"
    state.has_dead_letters = False
    state.expire(2 * LOCK)
    assert (state.start, state.spans) == (4, [])


def test_records_done_before_the_start_may_be_acknowledged_again() -> None:
    state = SharePartition(5, 5, limits=LIMITS)

    acknowledge(state, "a", 0, 4, ACCEPT)

    assert state.start == 5


def test_the_window_bounds_how_far_is_handed_out() -> None:
    state = SharePartition(0, 0, limits=LIMITS)

    assert acquire(state, "a", 0, 1_000) == [(0, WINDOW - 1, 1)]
    assert state.available() is None
    acknowledge(state, "a", 0, 9, ACCEPT)
    assert state.available() == (WINDOW, WINDOW + 10)


def test_skipped_offsets_are_done_without_being_handed_out() -> None:
    state = SharePartition(0, 0, limits=LIMITS)

    acquired = acquire(state, "a", 0, 500, skipped=[(0, 300), (305, 400)])

    assert acquired == [(300, 304, 1)]
    assert (state.start, state.end) == (300, 400)


def test_records_that_the_log_lost_are_done() -> None:
    state = SharePartition(0, 0, limits=LIMITS)
    acquire(state, "a", 0, 10)

    state.trim(4)
    assert (state.start, state.end) == (4, 10)
    state.trim(50)
    assert (state.start, state.end, state.spans) == (50, 50, [])


def test_unread_rows_are_not_left_out() -> None:
    state = SharePartition(0, 0, limits=LIMITS)

    assert acquire(state, "a", 5, 10) == []
    assert state.end == 0


class Histories(RuleBasedStateMachine):
    """Against a model of one entry per offset."""

    def __init__(self) -> None:
        super().__init__()
        self.state = SharePartition(0, 0, limits=LIMITS)
        self.now = 0
        self.done: set[int] = set()
        self.held: dict[int, tuple[str, int]] = {}
        self.deliveries: dict[int, int] = {}

    def _expire(self) -> None:
        self.state.expire(self.now)
        for offset, (_, until) in list(self.held.items()):
            if until <= self.now:
                self._give_back(offset)

    def _give_back(self, offset: int) -> None:
        del self.held[offset]
        if self.deliveries[offset] >= MOST:
            self.done.add(offset)

    @rule(seconds=st.integers(0, LOCK))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds
        self._expire()

    @rule(
        member=st.sampled_from("ab"),
        length=st.integers(1, 60),
        most=st.integers(0, 60),
        skips=st.sets(st.integers(0, 60), max_size=6),
    )
    def acquires(self, member: str, length: int, most: int, skips: set[int]) -> None:
        available = self.state.available()
        if available is None:
            return
        first = available[0]
        skipped = [(first + at, first + at + 1) for at in sorted(skips) if at < length]
        for low, last, count in acquire(self.state, member, first, first + length, self.now, most, skipped):
            for offset in range(low, last + 1):
                assert offset not in self.done and offset not in self.held
                assert (offset, offset + 1) not in skipped
                self.deliveries[offset] = self.deliveries.get(offset, 0) + 1
                assert self.deliveries[offset] == count <= MOST
                self.held[offset] = member, self.now + LOCK
        for low, high in skipped:
            span = next((each for each in self.state.spans if each.first <= low < each.end), None)
            if low not in self.held and (high <= self.state.start or (span and span.state is SpanState.DONE)):
                self.done.add(low)

    @rule(
        member=st.sampled_from("ab"),
        first=st.integers(0, 200),
        types=st.lists(st.sampled_from(AcknowledgeType), min_size=1, max_size=20),
    )
    def acknowledges(self, member: str, first: int, types: list[AcknowledgeType]) -> None:
        offsets = [first + at for at in range(len(types)) if first + at >= self.state.start]
        is_holder = all(self.held.get(offset, ("", 0))[0] == member for offset in offsets)
        try:
            acknowledge(self.state, member, first, first + len(types) - 1, *types, now=self.now)
        except NotAcquired:
            assert not is_holder
            return
        assert is_holder
        for offset, kind in zip(range(first, first + len(types)), types, strict=True):
            if offset not in offsets:
                continue
            if kind is RENEW:
                self.held[offset] = member, self.now + LOCK
            elif kind is RELEASE:
                self._give_back(offset)
            else:
                del self.held[offset]
                self.done.add(offset)

    @rule(member=st.sampled_from("ab"))
    def leaves(self, member: str) -> None:
        self.state.release(member, 0)
        for offset in [offset for offset, (who, _) in self.held.items() if who == member]:
            self._give_back(offset)

    @rule(by=st.integers(0, 30))
    def is_trimmed(self, by: int) -> None:
        log_start = self.state.start + by
        self.state.trim(log_start)
        self.done.update(range(log_start))
        self.held = {offset: held for offset, held in self.held.items() if offset >= log_start}

    @invariant()
    def spans_tile_the_window(self) -> None:
        at = self.state.start
        for span in self.state.spans:
            assert span.first == at < span.end
            at = span.end
        assert at == self.state.end
        assert not self.state.spans or self.state.spans[0].state is not SpanState.DONE
        assert all(self._is_as_modelled(span) for span in self.state.spans)
        assert all(offset in self.done for offset in range(self.state.start))

    def _is_as_modelled(self, span: Span) -> bool:
        offsets = range(span.first, span.end)
        if span.lock is not None:
            return all(self.held.get(offset) == span.lock[:2] for offset in offsets)
        is_done = span.state is SpanState.DONE
        return all((offset in self.done) is is_done and offset not in self.held for offset in offsets)


TestHistories = Histories.TestCase
TestHistories.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)


def test_acquired_records_are_named_by_first_and_last_offset() -> None:
    state = SharePartition(0, 0, limits=LIMITS)

    assert state.acquire(AcquireSpan(0, 2, 5), ShareLock("a", 1)) == [AcquiredRecords(0, 1, 1)]
