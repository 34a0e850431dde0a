"""Compares agents' windows of partitions with the partitions' state after every commit.

A window claims to be true as of a commit number. So it must have the bounds of the rows at that commit, and exactly the
runs that the partition had then from the window's start on: none that compaction replaced, none left out, none of a
deleted topic.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast
from uuid import UUID

from agent.fetch.window import Window
from sequencer.store.row_store import RowStore
from sequencer.store.rows import Changes, CounterRow, OpenRangeRow, PartitionRow, Row, RunRow, TopicRow
from sequencer.store.state import COMMIT_NUMBER
from tailrace.ids import TopicPartition

MANY = 1 << 30
RunName = tuple[int, int, UUID]


@dataclass(frozen=True, slots=True)
class _AsOf:
    """A partition as of a commit: log start, last stable offset, high watermark, and its runs by base offset."""

    bounds: tuple[int, int, int]
    runs: tuple[RunName, ...]


@dataclass(slots=True)
class _Partition:
    log_start: int = 0
    end: int = 0
    runs: dict[int, RunName] = field(default_factory=dict)
    open: dict[int, int] = field(default_factory=dict)
    numbers: list[int] = field(default_factory=list)
    states: list[_AsOf | None] = field(default_factory=list)

    def take(self, kind: type[Row], key: tuple[object, ...], row: Row | None) -> None:
        """Apply a row that was written under this key, or deleted."""
        if isinstance(row, PartitionRow):
            self.log_start, self.end = row.log_start_offset, row.end_offset
        elif isinstance(row, RunRow):
            self.runs[row.base_offset] = (row.base_offset, row.end_offset, row.object_id)
        elif isinstance(row, OpenRangeRow):
            self.open[row.producer_id] = row.first_offset
        elif kind is RunRow:
            self.runs.pop(cast("int", key[2]), None)
        elif kind is OpenRangeRow:
            self.open.pop(cast("int", key[2]), None)

    def note(self, number: int, *, is_gone: bool) -> None:
        stable = max(self.log_start, min(self.open.values())) if self.open else self.end
        runs = tuple(self.runs[base] for base in sorted(self.runs))
        self.numbers.append(number)
        self.states.append(None if is_gone else _AsOf((self.log_start, stable, self.end), runs))


class WindowWatch:
    """Follows each transaction of the database, and compares windows with it. `checked`: the number of windows with
    runs."""

    def __init__(self, violated: Callable[[str], None]) -> None:
        self._violated = violated
        self._number = 0
        self._partitions: dict[TopicPartition, _Partition] = defaultdict(_Partition)
        self.checked = 0

    async def after_recovery(self, rows: RowStore) -> WindowWatch:
        """Return a watch for the recovered database; windows of the old one can't be checked any more."""
        watch = WindowWatch(self._violated)
        watch.checked = self.checked
        changes = Changes()
        loaded = await rows.load()
        for kind in (CounterRow, PartitionRow, OpenRangeRow):
            for row in loaded[kind]:
                changes.put(row)
        watch(changes)
        for place, partition in watch._partitions.items():
            for run in await rows.runs_from(*place, 0, 1 << 62, MANY):
                partition.runs[run.base_offset] = (run.base_offset, run.end_offset, run.object_id)
            partition.note(watch._number, is_gone=False)
        return watch

    def __call__(self, changes: Changes) -> None:
        """Note that a transaction has taken effect."""
        counter = changes.by_kind.get(CounterRow, {}).get((COMMIT_NUMBER,))
        if isinstance(counter, CounterRow):
            self._number = counter.value
        changed: dict[TopicPartition, bool] = {}
        for key, row in changes.by_kind.get(TopicRow, {}).items():
            if row is None:
                changed.update((place, True) for place in self._partitions if place.topic_id == key[0])
        for kind in (PartitionRow, RunRow, OpenRangeRow):
            for key, row in changes.by_kind.get(kind, {}).items():
                place = TopicPartition(*cast("TopicPartition", key[:2]))
                partition = self._partitions[place]
                partition.take(kind, key, row)
                was_gone = bool(partition.states) and partition.states[-1] is None
                changed.setdefault(place, was_gone)
        for place, is_gone in changed.items():
            self._partitions[place].note(self._number, is_gone=is_gone)

    def check(self, who: str, number: int, windows: dict[TopicPartition, Window]) -> None:
        """Compare an agent's windows, which claim to be complete up to this commit."""
        for place, window in windows.items():
            partition = self._partitions.get(place)
            at = max(number, window.commit_number)
            index = 0 if partition is None else bisect_right(partition.numbers, at)
            if partition is None or index == 0:
                continue
            state = partition.states[index - 1]
            claimed = (window.log_start_offset, window.last_stable_offset, window.high_watermark)
            runs = tuple((run.base_offset, run.end_offset, run.object_id) for run in window.runs)
            self.checked += bool(runs)
            if state is None:
                self._violated(f"{who} has a window of {place} as of {at}, which is deleted")
            elif claimed != state.bounds:
                self._violated(f"{who}: {place} is {claimed} as of {at}; it was {state.bounds}")
            elif runs != tuple(run for run in state.runs if run[0] >= window.start_offset):
                self._violated(
                    f"{who}: the window of {place} as of {at} has other runs than were there: {runs}"
                )
