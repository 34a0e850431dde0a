"""The newest runs of each partition in the committer's memory, so that reading the tail asks the store nothing.

Invariants:
- the runs kept of a partition are adjacent, and end where the partition did at the last transaction that was added;
- a run that was deleted, or replaced by another, is not kept;
- the number of runs is bounded: the partition that was written to longest ago is forgotten first, and each keeps its
  share of all, at least LEAST_RUNS.

Reading a run out of the store costs ten times what it costs out of here. Small requests make short runs: 80 of them in
flight to 16 partitions make runs of five, and 3 MiB of records of 1 KiB in a partition are 600 runs.

Pure: each transaction is added when it is durable, in commit order.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from operator import attrgetter
from typing import cast
from uuid import UUID

from sequencer.api import ObjectKind, Run
from sequencer.store.rows import Changes, RunRow
from tailrace.ids import TopicPartition
from tailrace.turns import Steps

LEAST_RUNS = 256
"""What a partition may keep, however many others there are."""
ADDED_IN_A_STEP = 32

_base_offset = attrgetter("base_offset")
_length = attrgetter("length")


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

    def forget(self, replaced: Mapping[TopicPartition, int]) -> None:
        """Forget what `replaced_by` said, in the turn in which the transaction that replaced it is shown."""
        for partition, end_offset in replaced.items():
            kept = self._runs.get(partition, [])
            first = bisect_left(kept, end_offset, key=_base_offset) if end_offset else len(kept)
            if first == len(kept):
                self._forget(partition)
            else:
                del kept[:first]
                self._count -= first

    def add(self, added: Mapping[TopicPartition, Sequence[Run]]) -> Steps[None]:
        """Add the runs of a transaction, by partition. A run that is not added yet is looked up in the store."""
        for count, (partition, runs) in enumerate(added.items()):
            if runs:
                self._append(partition, runs)
            if count % ADDED_IN_A_STEP == 0:
                yield ADDED_IN_A_STEP
        while self._count > self._max_runs and self._runs:
            oldest, kept = next(iter(self._runs.items()))
            if not self._cut_to_share(kept, len(self._runs)):
                self._forget(oldest)

    def _append(self, partition: TopicPartition, runs: Sequence[Run]) -> None:
        kept = self._runs.pop(partition, [])
        self._count -= len(kept)
        if kept and kept[-1].end_offset != runs[0].base_offset:
            kept = []
        kept += runs
        self._count += len(kept)
        self._cut_to_share(kept, len(self._runs) + 1)
        self._runs[partition] = kept  # last in order: it was written to just now

    def _cut_to_share(self, kept: list[Run], partitions: int) -> bool:
        """Keep the newest of a partition's runs; False where it has no more than its share of so many."""
        more = len(kept) - max(LEAST_RUNS, self._max_runs // partitions)
        if more <= 0:
            return False
        del kept[:more]
        self._count -= more
        return True

    def _forget(self, partition: TopicPartition) -> None:
        self._count -= len(self._runs.pop(partition, ()))

    def find(
        self, topic_id: UUID, partition: int, offset: int, max_bytes: int, max_runs: int
    ) -> list[Run] | None:
        """Runs from the one that holds `offset` on, until `max_bytes` are reached; None if that run is not kept."""
        kept = self._runs.get(TopicPartition(topic_id, partition))
        if not kept or not kept[0].base_offset <= offset < kept[-1].end_offset:
            return None
        first = bisect_right(kept, offset, key=_base_offset) - 1
        runs = kept[first : first + max_runs]
        ends = list(accumulate(map(_length, runs)))
        return runs[: bisect_left(ends, max_bytes) + 1]
