"""Sums over all runs, objects and producers: counters that every change updates, so that no query has to sum up all
rows.

The sums are counter rows, written together with the rows that they count. The bytes of a partition have no counter:
they are summed up per page of partitions when sizes are requested.
"""

from __future__ import annotations

from collections.abc import Callable

from sequencer.api.commits import ObjectKind
from sequencer.store.row_store import StoreStatistics
from sequencer.store.rows import ObjectRow, Row

RUNS = "sum_runs"
UNCOMPACTED_BYTES = "sum_uncompacted_bytes"
OBJECTS = "sum_objects"
RETIRED_OBJECTS = "sum_retired_objects"
RETIRED_BYTES = "sum_retired_bytes"
LIVE_BYTES = "sum_live_bytes"
PRODUCERS = "sum_producers"
SUMS = (RUNS, OBJECTS, RETIRED_OBJECTS, RETIRED_BYTES, LIVE_BYTES, UNCOMPACTED_BYTES, PRODUCERS)
"""In the order of StoreStatistics' fields."""


class SumDeltas:
    """By how much a transaction changes each sum."""

    __slots__ = ("by_name",)

    def __init__(self) -> None:
        self.by_name: dict[str, int] = {}

    def runs(self, kind: ObjectKind, count: int, length: int) -> None:
        """Add `count` runs of `length` bytes in total; both are negative for deleted runs."""
        self._move(RUNS, count)
        if kind is ObjectKind.MIXED:
            self._move(UNCOMPACTED_BYTES, length)

    def object(self, before: ObjectRow | None, after: ObjectRow | None) -> None:
        """Change an object's row; None: it does not exist before, or after."""
        for row, times in ((before, -1), (after, 1)):
            if row is None:
                continue
            self._move(OBJECTS, times)
            if row.retired_ms is None:
                self._move(LIVE_BYTES, times * row.size)
            else:
                self._move(RETIRED_OBJECTS, times)
                self._move(RETIRED_BYTES, times * row.size)

    def producer(self, before: Row | None, after: Row | None) -> None:
        """Change a producer's row; None: it does not exist before, or after."""
        self._move(PRODUCERS, (after is not None) - (before is not None))

    def add(self, other: SumDeltas) -> None:
        """Add the changes of another transaction."""
        for name, by in other.by_name.items():
            self._move(name, by)

    def _move(self, name: str, by: int) -> None:
        if by:
            self.by_name[name] = self.by_name.get(name, 0) + by


def statistics_of(counter: Callable[[str], int]) -> StoreStatistics:
    return StoreStatistics(*map(counter, SUMS))
