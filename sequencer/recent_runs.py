"""The newest runs of each partition in the committer's memory, so that reading the tail asks the store nothing.

Invariants:
- what is kept of a partition tiles, and ends where the partition did as of the last transaction that was taken over;
- a run that was deleted, or replaced by another, is not kept;
- the runs kept are bounded: the partition that was written to longest ago is forgotten first.

Pure: told of each transaction when it is durable, in commit order.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import cast
from uuid import UUID

from sequencer.api import Run
from sequencer.store.rows import Changes, RunRow
from tailrace.ids import TopicPartition
from tailrace.turns import Steps

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

    def replaced_by(self, changes: Changes) -> Steps[list[TopicPartition]]:
        """The partitions in which a transaction deletes or replaces a run that is kept."""
        found: dict[TopicPartition, None] = {}
        for key in changes.by_kind.get(RunRow, {}):
            place = cast("TopicPartition", key[:2])
            kept = self._runs.get(place)
            if kept and kept[0].base_offset <= cast("int", key[2]) < kept[-1].end_offset:
                found[place] = None
            yield 1
        return list(found)

    def forget(self, places: Iterable[TopicPartition]) -> None:
        """Keep nothing of these partitions: in the turn in which the transaction that replaced their runs is shown."""
        for place in places:
            self._forget(place)

    def add(self, added: Mapping[TopicPartition, Sequence[Run]]) -> Steps[None]:
        """Take over what a transaction added, by partition. What is not yet taken over is not kept, that is all."""
        for place, runs in added.items():
            if runs:
                self._append(place, runs)
            yield 1
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
