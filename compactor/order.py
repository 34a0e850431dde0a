"""The order of swaps: within a partition by offset, among partitions as outcomes come.

A transaction may lie in several items of its partition: its records must be gone before its marker goes, and the
sequencer refuses a swap that comes too early. So a result waits until every earlier item of its partition has an
outcome. Other partitions do not wait for it.

A partition that comes in several items is alone in each (see `compactor.plan`), so an item's first piece says where
it belongs.

Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from compactor.plan import WorkItem
from compactor.rewrite import RewriteFailure, RewriteResult


class SwapOrder:
    """The items of one wave, and the results that wait for an earlier item of their partition."""

    def __init__(self, items: Sequence[WorkItem]) -> None:
        self._results: dict[tuple[UUID, int], dict[int, RewriteResult | None]] = {}
        for item in items:
            self._expect(item)

    @property
    def is_complete(self) -> bool:
        """Whether every item has an outcome."""
        return not self._results

    def split(self, smaller: Sequence[WorkItem]) -> None:
        """An item is tried again as smaller ones. The first of them begins where the item began."""
        for item in smaller:
            self._expect(item)

    def add(self, outcome: RewriteResult | RewriteFailure) -> list[RewriteResult]:
        """Take an item's last outcome; the results that may be swapped now, in the order of their swaps."""
        topic_id, partition, base_offset = outcome.places[0]
        results = self._results[topic_id, partition]
        assert results[base_offset] is None, f"two outcomes for {topic_id}-{partition} at {base_offset}"
        if isinstance(outcome, RewriteResult):
            results[base_offset] = outcome
        else:
            del results[base_offset]
        ready: list[RewriteResult] = []
        while results and (first := results[min(results)]) is not None:
            ready.append(first)
            del results[min(results)]
        if not results:
            del self._results[topic_id, partition]
        return ready

    def _expect(self, item: WorkItem) -> None:
        topic_id, partition, base_offset = item.places[0]
        self._results.setdefault((topic_id, partition), {})[base_offset] = None
