"""The eviction policies."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cache.eviction import FifoCache, FirstReadFifo, S3Fifo


class S3FifoMachine(RuleBasedStateMachine):
    """Whatever is done to it: within budget, and never a wrong value."""

    def __init__(self) -> None:
        super().__init__()
        self.cache: S3Fifo[int, int] = S3Fifo(100)
        self.sizes: dict[int, int] = {}

    @rule(key=st.integers(0, 20), size=st.integers(0, 120))
    def put(self, key: int, size: int) -> None:
        taken = self.cache.put(key, key * 1000 + size, size)
        self.sizes[key] = size
        assert taken == (size <= 100)
        assert (key in self.cache) == taken

    @rule(key=st.integers(0, 20))
    def get(self, key: int) -> None:
        value = self.cache.get(key)
        assert (value is not None) == (key in self.cache)
        assert value is None or value == key * 1000 + self.sizes[key]

    @rule(key=st.integers(0, 20))
    def remove(self, key: int) -> None:
        self.cache.remove(key)
        assert key not in self.cache

    @invariant()
    def bytes_are_counted_and_bounded(self) -> None:
        keys = list(self.cache)
        assert len(keys) == len(set(keys)) == len(self.cache)
        assert self.cache.bytes_held == sum(self.sizes[key] for key in keys) <= 100


S3FifoMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
TestS3Fifo = S3FifoMachine.TestCase


def test_a_scan_pushes_out_nothing_that_is_in_use() -> None:
    cache: S3Fifo[str, int] = S3Fifo(100)
    used = [f"used-{number}" for number in range(8)]
    for key in used:
        cache.put(key, 1, 10)
        cache.get(key)

    for number in range(1000):
        cache.put(f"scan-{number}", 1, 10)

    assert all(key in cache for key in used)


def test_a_value_that_returns_soon_after_its_eviction_stays_longer() -> None:
    cache: S3Fifo[str, int] = S3Fifo(100)
    cache.put("back", 1, 10)
    for number in range(12):
        cache.put(f"first-{number}", 1, 10)
    assert "back" not in cache

    cache.put("back", 1, 10)
    for number in range(30):
        cache.put(f"second-{number}", 1, 10)

    assert "back" in cache


def test_by_age_the_oldest_goes_first_and_is_given_back() -> None:
    fresh: FifoCache[str, int] = FifoCache(25)
    assert fresh.put("a", 1, 10) == []
    assert fresh.put("b", 2, 10) == []
    fresh.get("a")

    assert fresh.put("c", 3, 10) == [("a", 1, 10)]
    assert fresh.put("huge", 4, 30) == [("b", 2, 10), ("c", 3, 10), ("huge", 4, 30)]
    assert fresh.bytes_held == 0


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 30))))
def test_by_age_never_exceeds_its_budget(puts: list[tuple[int, int]]) -> None:
    fresh: FifoCache[int, int] = FifoCache(50)
    for key, size in puts:
        fresh.put(key, size, size)
        assert fresh.bytes_held <= 50


class ByTurnMachine(RuleBasedStateMachine):
    """Whatever is done to it: within budget, and never a wrong value."""

    def __init__(self) -> None:
        super().__init__()
        self.cache: FirstReadFifo[int, int] = FirstReadFifo(100)
        self.sizes: dict[int, int] = {}

    @rule(key=st.integers(0, 20), size=st.integers(0, 120), is_read=st.booleans())
    def put(self, key: int, size: int, is_read: bool) -> None:
        taken = self.cache.put(key, key * 1000 + size, size, is_read=is_read)
        self.sizes[key] = size
        assert taken == (size <= 100)
        assert (key in self.cache) == taken
        assert self.cache.is_unread(key) == (taken and not is_read)

    @rule(key=st.integers(0, 20))
    def get(self, key: int) -> None:
        value = self.cache.get(key)
        assert (value is not None) == (key in self.cache)
        assert value is None or value == key * 1000 + self.sizes[key]
        assert not self.cache.is_unread(key)

    @rule(key=st.integers(0, 20))
    def remove(self, key: int) -> None:
        self.cache.remove(key)
        assert key not in self.cache

    @invariant()
    def bytes_are_counted_and_bounded(self) -> None:
        held = [key for key in range(21) if key in self.cache]
        assert self.cache.bytes_held == sum(self.sizes[key] for key in held) <= 100
        assert self.cache.unread_bytes == sum(self.sizes[key] for key in held if self.cache.is_unread(key))
        assert len(self.cache) == len(held)


ByTurnMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
TestByTurn = ByTurnMachine.TestCase


def test_the_value_with_the_earliest_first_read_is_evicted_first_even_if_it_is_read_again() -> None:
    cache: FirstReadFifo[str, int] = FirstReadFifo(30)
    for key in ("passed", "needed"):
        cache.put(key, 1, 10)
    cache.get("passed")
    cache.put("ahead", 1, 10, is_read=False)
    cache.put("new", 1, 10)
    assert ["passed" in cache, "needed" in cache, "ahead" in cache] == [False, True, True]
