"""Sums over all runs and objects: counters that each change moves, so that nobody has to add rows up.

They are rows as all counters, written with what they count. Of a partition's own bytes there is no counter: who asks
for sizes is given a page of partitions, summed up for it.
"""

from __future__ import annotations

from collections.abc import Callable

from sequencer.api import ObjectKind
from sequencer.store.rows import ObjectRow, StoreStatistics

RUNS = "sum_runs"
UNCOMPACTED_BYTES = "sum_uncompacted_bytes"
OBJECTS = "sum_objects"
RETIRED_OBJECTS = "sum_retired_objects"
RETIRED_BYTES = "sum_retired_bytes"
LIVE_BYTES = "sum_live_bytes"
SUMS = (RUNS, OBJECTS, RETIRED_OBJECTS, RETIRED_BYTES, LIVE_BYTES, UNCOMPACTED_BYTES)
"""In the order of StoreStatistics' fields."""


class Moves:
    """By how much one change moves each sum."""

    __slots__ = ("by_name",)

    def __init__(self) -> None:
        self.by_name: dict[str, int] = {}

    def run(self, kind: ObjectKind, length: int, times: int) -> None:
        """A run that is added (1) or gone (-1)."""
        self._move(RUNS, times)
        if kind is ObjectKind.MIXED:
            self._move(UNCOMPACTED_BYTES, times * length)

    def object(self, before: ObjectRow | None, after: ObjectRow | None) -> None:
        """An object's row that is another now; None where there is none."""
        for row, times in ((before, -1), (after, 1)):
            if row is None:
                continue
            self._move(OBJECTS, times)
            if row.retired_ms is None:
                self._move(LIVE_BYTES, times * row.size)
            else:
                self._move(RETIRED_OBJECTS, times)
                self._move(RETIRED_BYTES, times * row.size)

    def add(self, other: Moves) -> None:
        """Add those of another change."""
        for name, by in other.by_name.items():
            self._move(name, by)

    def _move(self, name: str, by: int) -> None:
        if by:
            self.by_name[name] = self.by_name.get(name, 0) + by


def statistics_of(counter: Callable[[str], int]) -> StoreStatistics:
    """What the counters say."""
    return StoreStatistics(*map(counter, SUMS))
