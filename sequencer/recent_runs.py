"""The newest runs of each partition in the committer's memory, so that reading the tail asks the store nothing.

Invariants:
- what is kept of a partition tiles, and ends where the partition does, as of the last transaction applied;
- a run that was deleted, or replaced by another, is not kept;
- the runs kept are bounded: the partition that was written to longest ago is forgotten first.

Pure: told of each transaction when it is durable, in commit order.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from uuid import UUID

from sequencer.api import Run
from sequencer.rows import Changes, RunRow
from tailrace.ids import TopicPartition

MAX_RUNS_PER_PARTITION = 256


class RecentRuns:
    """At most `max_runs` runs over all partitions."""

    def __init__(self, max_runs: int) -> None:
        self._max_runs = max_runs
        self._count = 0
        self._runs: dict[TopicPartition, list[Run]] = {}

    def clear(self) -> None:
        """Forget everything: the state was loaded anew."""
        self._runs.clear()
        self._count = 0

    def apply(self, changes: Changes, added: Mapping[TopicPartition, Sequence[Run]]) -> None:
        """Take over what a transaction added; forget the partitions in which it deleted or replaced a run."""
        for key in changes.by_kind.get(RunRow, {}):
            topic_id, partition, base_offset = key
            assert isinstance(topic_id, UUID) and isinstance(partition, int) and isinstance(base_offset, int)
            kept = self._runs.get(TopicPartition(topic_id, partition))
            if kept and kept[0].base_offset <= base_offset < kept[-1].end_offset:
                self._forget(TopicPartition(topic_id, partition))
        for place, runs in added.items():
            if runs:
                self._append(place, runs)
        while self._count > self._max_runs and self._runs:
            self._forget(next(iter(self._runs)))

    def _append(self, place: TopicPartition, runs: Sequence[Run]) -> None:
        kept = self._runs.pop(place, [])
        self._count -= len(kept)
        if kept and kept[-1].end_offset != runs[0].base_offset:
            kept = []
        kept = [*kept, *runs][-MAX_RUNS_PER_PARTITION:]
        self._runs[place] = kept  # last again: it was written to just now
        self._count += len(kept)

    def _forget(self, place: TopicPartition) -> None:
        self._count -= len(self._runs.pop(place))

    def find(self, topic_id: UUID, partition: int, offset: int, max_bytes: int) -> list[Run] | None:
        """Runs from the one that holds `offset` on, until `max_bytes` are reached; None where it isn't kept."""
        kept = self._runs.get(TopicPartition(topic_id, partition))
        if not kept or not kept[0].base_offset <= offset < kept[-1].end_offset:
            return None
        found: list[Run] = []
        room = max_bytes
        for run in kept[bisect_right(kept, offset, key=_base_offset) - 1 :]:
            found.append(run)
            room -= run.length
            if room <= 0:
                break
        return found


def _base_offset(run: Run) -> int:
    return run.base_offset
