"""The index of the disk tier: where each chunk is."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cache.disk_index import PAGE_BYTES, DiskIndex, DiskLocation

CAPACITY = 10 * PAGE_BYTES + 100
LENGTHS = st.integers(0, 12 * PAGE_BYTES)


class DiskIndexMachine(RuleBasedStateMachine):
    """A file of pages, each with the last write that touched it: an index that errs names a page of another chunk."""

    def __init__(self) -> None:
        super().__init__()
        self.index = DiskIndex(CAPACITY, most_entries=6)
        self.pages: dict[int, int] = {}
        self.of_name: dict[str, tuple[int, int]] = {}
        self.writes = 0

    @rule(name=st.integers(0, 12).map(str), length=LENGTHS, fails=st.booleans())
    def write(self, name: str, length: int, fails: bool) -> None:
        start = self.index.reserve(length)
        assert (start is None) == (length > 10 * PAGE_BYTES)
        if start is None:
            return
        assert start % PAGE_BYTES == 0
        assert start + length <= CAPACITY
        self.writes += 1
        self.pages |= dict.fromkeys(
            range(start // PAGE_BYTES, -(-(start + length) // PAGE_BYTES)), self.writes
        )
        if not fails:
            self.index.add(DiskLocation(name, start, length, self.writes))
            self.of_name[name] = length, self.writes

    @rule(name=st.integers(0, 12).map(str))
    def remove(self, name: str) -> None:
        self.index.remove(name)
        assert self.index.get(name) is None

    @rule()
    def wrap_around(self) -> None:
        self.index.wrap_around()
        start = self.index.reserve(1)
        assert start == 0
        self.writes += 1
        self.pages[0] = self.writes

    @invariant()
    def each_chunk_has_its_own_bytes(self) -> None:
        placed = [found for name in map(str, range(13)) if (found := self.index.get(name)) is not None]
        for found in placed:
            assert (found.length, found.checksum) == self.of_name[found.name]
            first, end = found.start // PAGE_BYTES, -(-(found.start + found.length) // PAGE_BYTES)
            assert {self.pages[page] for page in range(first, end)} <= {found.checksum}
        assert len(self.index) == len(placed) <= 6
        assert self.index.bytes_held == sum(found.length for found in placed) <= CAPACITY


DiskIndexMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=60, deadline=None)
TestDiskIndex = DiskIndexMachine.TestCase


def placed_in(index: DiskIndex, name: str, length: int = PAGE_BYTES) -> None:
    start = index.reserve(length)
    assert start is not None
    index.add(DiskLocation(name, start, length, 0))


def held(index: DiskIndex, names: str) -> str:
    return "".join(name for name in names if index.get(name) is not None)


def test_the_oldest_go_first_and_no_more_than_stand_in_the_way() -> None:
    index = DiskIndex(4 * PAGE_BYTES)
    for name in "abcd":
        placed_in(index, name)
    placed_in(index, "e", 2 * PAGE_BYTES)
    assert held(index, "abcde") == "cde"


def test_a_chunk_that_does_not_fit_before_the_end_is_written_at_the_beginning() -> None:
    index = DiskIndex(4 * PAGE_BYTES)
    for name in "abc":
        placed_in(index, name)
    placed_in(index, "d", 2 * PAGE_BYTES)
    assert held(index, "abcd") == "cd"


def test_entries_are_bounded_however_small_the_chunks_are() -> None:
    index = DiskIndex(100 * PAGE_BYTES, most_entries=3)
    for name in "abcde":
        placed_in(index, name, 1)
    assert held(index, "abcde") == "cde"


def test_where_the_disk_is_full_the_ring_starts_over_and_keeps_the_rest() -> None:
    index = DiskIndex(100 * PAGE_BYTES)
    for name in "abc":
        placed_in(index, name)
    assert index.reserve(PAGE_BYTES) == 3 * PAGE_BYTES
    index.wrap_around()
    placed_in(index, "d")
    assert held(index, "abcd") == "bcd"
