"""The newest runs of each partition in the committer's memory, so that reading the tail asks the store nothing.

Invariants:
- the runs kept of a partition are adjacent, and end where the partition did at the last transaction that was added;
- a run that was deleted, or replaced by another, is not kept;
- the number of runs is bounded: the partition that was written to longest ago is forgotten first.

Pure: each transaction is added when it is durable, in commit order.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import cast
from uuid import UUID

from sequencer.api import ObjectKind, Run
from sequencer.store.rows import Changes, RunRow
from tailrace.ids import TopicPartition
from tailrace.turns import Steps

MAX_RUNS_PER_PARTITION = 256
ADDED_IN_A_STEP = 32


class RecentRuns:
    """At most `max_runs` runs over all partitions."""

    def __init__(self, max_runs: int) -> None:
        self._max_runs = max_runs
        self._count = 0
        self._runs: dict[TopicPartition, list[Run]] = {}

    def clear(self) -> None:
        """Forget all runs: the state was loaded anew."""
        self._runs.clear()
        self._count = 0

    def replaced_by(self, changes: Changes) -> Steps[dict[TopicPartition, int]]:
        """The partitions in which a transaction replaces a run by a Parquet run, or deletes one that is kept. With
        each, the end of what is replaced (0 where runs are only deleted: these lie below the log start)."""
        replaced: dict[TopicPartition, int] = {}
        for key, row in changes.by_kind.get(RunRow, {}).items():
            if row is not None and cast("RunRow", row).kind is ObjectKind.MIXED:
                continue  # it was appended
            base_offset = cast("int", key[2])
            kept = self._runs.get(cast("TopicPartition", key[:2]))
            is_kept = kept and kept[0].base_offset <= base_offset < kept[-1].end_offset
            if is_kept or (row is not None and cast("RunRow", row).kind is ObjectKind.PARQUET):
                partition = TopicPartition(*cast("TopicPartition", key[:2]))
                end_offset = 0 if row is None else cast("RunRow", row).end_offset
                replaced[partition] = max(end_offset, replaced.get(partition, 0))
            yield 1
        return replaced

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget these partitions' runs, in the turn in which the transaction that replaced them is shown."""
        for partition in partitions:
            self._forget(partition)

    def add(self, added: Mapping[TopicPartition, Sequence[Run]]) -> Steps[None]:
        """Add the runs of a transaction, by partition. A run that is not added yet is looked up in the store."""
        for count, (partition, runs) in enumerate(added.items()):
            if runs:
                self._append(partition, runs)
            if count % ADDED_IN_A_STEP == 0:
                yield ADDED_IN_A_STEP
        while self._count > self._max_runs and self._runs:
            self._forget(next(iter(self._runs)))

    def _append(self, partition: TopicPartition, runs: Sequence[Run]) -> None:
        kept = self._runs.pop(partition, [])
        self._count -= len(kept)
        if kept and kept[-1].end_offset != runs[0].base_offset:
            kept = []
        kept += runs
        if len(kept) > MAX_RUNS_PER_PARTITION:
            del kept[:-MAX_RUNS_PER_PARTITION]
        self._runs[partition] = kept  # last in order: it was written to just now
        self._count += len(kept)

    def _forget(self, partition: TopicPartition) -> None:
        self._count -= len(self._runs.pop(partition, ()))

    def find(self, topic_id: UUID, partition: int, offset: int, max_bytes: int) -> list[Run] | None:
        """Runs from the one that holds `offset` on, until `max_bytes` are reached; None if that run is not kept."""
        kept = self._runs.get(TopicPartition(topic_id, partition))
        if not kept or not kept[0].base_offset <= offset < kept[-1].end_offset:
            return None
        runs: list[Run] = []
        left_bytes = max_bytes
        for run in kept[bisect_right(kept, offset, key=_base_offset) - 1 :]:
            runs.append(run)
            left_bytes -= run.length
            if left_bytes <= 0:
                break
        return runs


def _base_offset(run: Run) -> int:
    return run.base_offset
