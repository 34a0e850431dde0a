"""The order of swaps: within a partition by offset, between partitions as outcomes arrive.

A transaction may be in several items of its partition. Its records must be removed before its marker, and the sequencer
refuses a swap that is too early. So a result waits until every earlier item of its partitions has an outcome. Other
partitions do not wait for it. Merges do not wait and block nothing, because they replace no markers and no aborted
records. (They also have no common order: of two merges, each may be the earlier one in some partition.)

Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from compactor.plan import WorkItem
from compactor.rewrite import RewriteFailure, RewriteResult

LogPosition = tuple[UUID, int, int]
"""Topic id, partition, base offset. An item is identified by its first position."""


@dataclass(slots=True)
class _Expected:
    name: LogPosition
    positions: list[LogPosition]
    """Its position in each of its partitions."""
    result: RewriteResult | None = None


class SwapOrder:
    """The items of one wave, and the results that wait for an earlier item in one of their partitions."""

    def __init__(self, items: Sequence[WorkItem]) -> None:
        self._items: dict[LogPosition, _Expected] = {}
        self._queues: dict[tuple[UUID, int], dict[int, _Expected]] = {}
        for item in items:
            self._expect(item)

    @property
    def is_complete(self) -> bool:
        """Whether every item has an outcome and every result was returned."""
        return not self._items

    def split(self, item: WorkItem, smaller: Sequence[WorkItem]) -> None:
        """Replace an item by smaller ones, which are tried in its place."""
        self._remove(item.positions[0])
        for part in smaller:
            self._expect(part)

    def add(self, outcome: RewriteResult | RewriteFailure) -> list[RewriteResult]:
        """Add an item's final outcome. Return the results that can be swapped now, in the order of their swaps."""
        expected = self._items[outcome.positions[0]]
        assert expected.result is None, f"two outcomes for {outcome.positions[0]}"
        if isinstance(outcome, RewriteResult):
            expected.result = outcome
            looked_at = [expected]
        else:
            looked_at = self._remove(outcome.positions[0])
        ready: list[RewriteResult] = []
        while looked_at:
            item = looked_at.pop(0)
            if item.result is not None and item.name in self._items and self._is_first(item):
                ready.append(item.result)
                looked_at += self._remove(item.name)
        return ready

    def _expect(self, item: WorkItem) -> None:
        name = item.positions[0]
        expected = self._items[name] = _Expected(name, [] if item.is_merge else item.positions)
        for topic_id, partition, base_offset in expected.positions:
            self._queues.setdefault((topic_id, partition), {})[base_offset] = expected

    def _is_first(self, item: _Expected) -> bool:
        return all(
            min(self._queues[topic_id, partition]) == base_offset
            for topic_id, partition, base_offset in item.positions
        )

    def _remove(self, name: LogPosition) -> list[_Expected]:
        """Remove an item. Return the items that are now the first of a partition."""
        following: list[_Expected] = []
        for topic_id, partition, base_offset in self._items.pop(name).positions:
            queue = self._queues[topic_id, partition]
            del queue[base_offset]
            if queue:
                following.append(queue[min(queue)])
            else:
                del self._queues[topic_id, partition]
        return following
