"""The newest runs of each partition in the committer's memory, so that reads of the tail need no query.

Invariants:
- the runs kept of a partition are adjacent, and end where the partition ended at the last transaction that was added;
- a run that was deleted or replaced is not kept;
- the number of runs is limited, and their bytes, as if each run had BYTES_OF_A_RUN: the partition that was written to
  longest ago is forgotten first, and each partition keeps its share of all, at least LEAST_RUNS.

Reading a run from the store costs ten times as much as reading it from here. Small requests make short runs: with 80
requests in flight to 16 partitions, a run has five batches, and 3 MiB of records of 1 KiB in a partition are 600 runs.

Pure: each transaction is added when it is durable, in commit order.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from itertools import islice
from operator import attrgetter
from typing import cast
from uuid import UUID

from sequencer.api.commits import ObjectKind
from sequencer.api.reads import Run
from sequencer.bounds import BYTES_OF_A_RUN, SummedRuns, run_bytes
from sequencer.store.rows import Changes, RunRow
from tailrace.ids import TopicPartition
from tailrace.turns import Steps

LEAST_RUNS = 256
"""What a partition may keep, however many other partitions there are."""
ADDED_IN_A_STEP = 32

_base_offset = attrgetter("base_offset")
_NOTHING = (0,)
"""The running sums of no runs."""
_PartitionKey = tuple[int, int]
"""A partition with its topic id as an integer, because hashing and comparing a UUID runs Python code."""


class _Kept:
    """The runs that are kept of one partition, and their `size` in bytes.

    A run is added to the running sums once: at the first read that needs it, because many partitions are written to
    without being read here, or when there are more than LEAST_RUNS, so that no read sums up more.
    """

    __slots__ = ("_lengths", "_sizes", "runs", "size")

    def __init__(self, runs: Sequence[Run], size: int) -> None:
        self.runs = [*runs]
        self.size = size
        self._lengths: array[int] | None = None
        self._sizes: array[int] | None = None

    def sums(self) -> tuple[array[int], array[int]]:
        """Return running sums of all runs' lengths and sizes, which have one entry more than there are runs."""
        lengths, sizes = self._lengths, self._sizes
        if lengths is None or sizes is None:
            lengths, sizes = self._lengths, self._sizes = array("q", _NOTHING), array("q", _NOTHING)
        length, size = lengths[-1], sizes[-1]
        for run in islice(self.runs, len(lengths) - 1, None):
            length += run.length
            size += run_bytes(run)
            lengths.append(length)
            sizes.append(size)
        return lengths, sizes

    def forget_first(self, count: int) -> int:
        """Forget as many runs; return their size."""
        lengths, sizes = self.sums()
        size = sizes[count] - sizes[0]
        self.size -= size
        for kept in (self.runs, lengths, sizes):
            del kept[:count]
        return size

    def find(self, offset: int, max_bytes: int, max_runs: int) -> SummedRuns:
        """See `RecentRuns.find`; the run at `offset` must be kept."""
        lengths, sizes = self.sums()
        first = bisect_right(self.runs, offset, key=_base_offset) - 1
        upto = bisect_left(lengths, lengths[first] + max_bytes, first + 1, len(self.runs))
        upto = min(upto, first + max_runs)
        return SummedRuns(self.runs[first:upto], lengths[first : upto + 1], sizes[first : upto + 1])


class RecentRuns:
    """At most `max_runs` runs over all partitions, with `max_runs` times BYTES_OF_A_RUN."""

    def __init__(self, max_runs: int) -> None:
        self._max_runs = max_runs
        self._count = 0
        self._bytes = 0
        self._kept: OrderedDict[_PartitionKey, _Kept] = OrderedDict()
        """An OrderedDict, because finding the first key of a dict means scanning all keys that were removed before
        it."""

    def clear(self) -> None:
        """Forget all runs, because the state was reloaded."""
        self._kept.clear()
        self._count = self._bytes = 0

    def replaced_by(self, changes: Changes) -> Steps[dict[TopicPartition, int]]:
        """Return the partitions in which a transaction replaces runs by a Parquet run, or deletes a kept run; with the
        end of what is replaced (0 if runs are only deleted, which are below the log start)."""
        replaced: dict[TopicPartition, int] = {}
        for key, row in changes.by_kind.get(RunRow, {}).items():
            if row is not None and cast("RunRow", row).kind is ObjectKind.MIXED:
                continue  # the run was appended
            base_offset = cast("int", key[2])
            kept = self._keeping(_partition_key(cast("TopicPartition", key[:2])), base_offset)
            if kept is not None or (row is not None and cast("RunRow", row).kind is ObjectKind.PARQUET):
                partition = TopicPartition(*cast("TopicPartition", key[:2]))
                end_offset = 0 if row is None else cast("RunRow", row).end_offset
                replaced[partition] = max(end_offset, replaced.get(partition, 0))
            yield 1
        return replaced

    def forget(self, replaced: Mapping[TopicPartition, int]) -> None:
        """Forget the runs that `replaced_by` named, in the turn in which the transaction that replaced them is
        shown."""
        for partition, end_offset in replaced.items():
            kept = self._kept.get(_partition_key(partition))
            if kept is None:
                continue
            count = len(kept.runs)
            first = bisect_left(kept.runs, end_offset, key=_base_offset) if end_offset else count
            if first == count:
                self._forget(_partition_key(partition))
            else:
                self._forget_first(kept, first)

    def add(self, added: Mapping[TopicPartition, Sequence[Run]]) -> Steps[None]:
        """Add the runs of a transaction, by partition. Until a run is added, reads look it up in the store."""
        for count, (partition, runs) in enumerate(added.items()):
            if runs:
                self._append(_partition_key(partition), runs)
            if count % ADDED_IN_A_STEP == 0:
                yield ADDED_IN_A_STEP
        forgotten = 0
        while self._kept and (self._count > self._max_runs or self._bytes > self._max_runs * BYTES_OF_A_RUN):
            oldest, kept = next(iter(self._kept.items()))
            if not self._cut_to_share(kept, len(self._kept)):
                self._forget(oldest)
            forgotten += 1
            if forgotten % ADDED_IN_A_STEP == 0:
                yield ADDED_IN_A_STEP

    def _append(self, partition_key: _PartitionKey, runs: Sequence[Run]) -> None:
        size = sum(map(run_bytes, runs))
        kept = self._kept.get(partition_key)
        if kept is not None and kept.runs[-1].end_offset == runs[0].base_offset:
            kept.runs += runs
            kept.size += size
            self._kept.move_to_end(partition_key)  # it has just been written to
        else:
            if kept is not None:
                self._forget(partition_key)
            kept = self._kept[partition_key] = _Kept(runs, size)
        self._count += len(runs)
        self._bytes += size
        if len(kept.runs) > LEAST_RUNS or kept.size > LEAST_RUNS * BYTES_OF_A_RUN:
            kept.sums()
            self._cut_to_share(kept, len(self._kept))

    def _cut_to_share(self, kept: _Kept, partitions: int) -> bool:
        """Keep only the newest of a partition's runs. Return False if it has no more than its share among so many
        partitions."""
        share = max(LEAST_RUNS, self._max_runs // partitions)
        if len(kept.runs) <= share and kept.size <= share * BYTES_OF_A_RUN:
            return False
        _, sizes = kept.sums()
        too_large = bisect_left(sizes, sizes[-1] - share * BYTES_OF_A_RUN)
        more = min(max(len(kept.runs) - share, too_large), len(kept.runs) - 1)
        if more <= 0:
            return False
        self._forget_first(kept, more)
        return True

    def _forget_first(self, kept: _Kept, count: int) -> None:
        self._count -= count
        self._bytes -= kept.forget_first(count)

    def _forget(self, partition_key: _PartitionKey) -> None:
        kept = self._kept.pop(partition_key)
        self._count -= len(kept.runs)
        self._bytes -= kept.size

    def _keeping(self, partition_key: _PartitionKey, offset: int) -> _Kept | None:
        """Return what is kept of the partition if it includes the offset."""
        kept = self._kept.get(partition_key)
        if kept is None or not kept.runs[0].base_offset <= offset < kept.runs[-1].end_offset:
            return None
        return kept

    def find(
        self, topic_id: UUID, partition: int, offset: int, max_bytes: int, max_runs: int
    ) -> SummedRuns | None:
        """Return runs from the one that contains `offset` on, until `max_bytes` are reached; None if that run is not
        kept."""
        kept = self._keeping((topic_id.int, partition), offset)
        return None if kept is None else kept.find(offset, max_bytes, max_runs)


def _partition_key(partition: tuple[UUID, int]) -> _PartitionKey:
    topic_id, number = partition
    return topic_id.int, number
