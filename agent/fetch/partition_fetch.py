"""The partitions of a fetch: what is requested and found of each, and how many bytes could be sent.

Whether a fetch waits, and how much memory it takes, depends on the sizes that the runs' rows show, before anything is
read. Pure, except that the cache knows the sizes of some batches.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any
from uuid import UUID

from agent.catalog import KnownTopic
from agent.fetch.alignment import NO_END
from agent.fetch.fetch_sessions import RequestedPartition
from cache.reader import BatchReader
from sequencer.api.commits import BatchStatus, ObjectKind
from sequencer.api.reads import FoundPartition, Run
from tailrace.batches.record_batch import MARKER_BYTES
from tailrace.ids import TopicPartition
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.fetch import PartitionData
from tailrace.turns import Turns

_base_offset = attrgetter("base_offset")
_length = attrgetter("length")
_kind = attrgetter("kind")

PARTITIONS_IN_A_TURN = 2_000
"""Requested partitions that are looked up, or added to the answer, in one turn of the loop."""


@dataclass(slots=True)
class PartitionFetch:
    """One partition of the fetch: what is requested, its topic (if known), and its row of the response.

    `commit_number`: the commit as of which it was `found`. `available_bytes`: bytes that could be sent now, as far as
    the rows show. `read_bytes`: bytes that are sent; they end at `read_end`. `limit`: the requester wants nothing from
    this offset on. `aligned_end`: this answer sends nothing from this offset on (agent.fetch.alignment).
    """

    requested: RequestedPartition
    topic: KnownTopic | None
    row: PartitionData
    read_committed: bool
    found: FoundPartition | None = None
    commit_number: int = -1
    available_bytes: int = 0
    read_bytes: int = 0
    read_end: int = -1
    limit: int = NO_END
    aligned_end: int = NO_END

    @property
    def is_failed(self) -> bool:
        return self.row.error_code != ErrorCode.NONE

    @property
    def records(self) -> bytes:
        """The batches that were read, joined."""
        records: Any = self.row.records or b""
        return b"".join(records) if isinstance(records, list) else bytes(records)

    @property
    def topic_id(self) -> UUID:
        assert self.topic is not None, "only partitions of known topics are looked up"
        return self.topic.topic.topic_id

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic_id, self.number)

    @property
    def number(self) -> int:
        """The partition's number in its topic."""
        return self.requested.key.partition

    @property
    def end_limit(self) -> int:
        """No batch that begins at or after this offset is read."""
        assert self.found is not None, "only what was found is read"
        end = self.found.last_stable_offset if self.read_committed else self.found.high_watermark
        return min(end, self.limit, self.aligned_end)

    @property
    def is_held_back(self) -> bool:
        """Whether it waits for other partitions, with all or some of its available bytes."""
        return self.aligned_end < NO_END

    @property
    def found_end(self) -> int:
        """The end of the runs that were found."""
        found = self.found
        return found.runs[-1].end_offset if found is not None and found.runs else self.requested.fetch_offset

    def room(self, max_bytes: int) -> int:
        """Return how many bytes it may have of the `max_bytes` that are left for the fetch."""
        return max(0, min(self.requested.max_bytes, max_bytes))

    def count_available(self, reader: BatchReader) -> None:
        """Set `available_bytes`: at most the partition's own limit."""
        self.available_bytes = 0 if self.is_failed else _available_bytes(reader, self)


@dataclass(slots=True)
class FetchSums:
    """Sums over the partitions that a fetch may read. `is_cut`: the sequencer's answer had no room for all that a
    partition could send, or a partition is held back, so waiting would add nothing. `expected_bytes`: what a read may
    return: the available bytes, or with Parquet runs, whose batches are rebuilt, the partition's limit.
    `first_batch_bytes`: size of the batch that must be sent whole, however small the request; 0 if the rows don't show
    it."""

    available_bytes: int = 0
    expected_bytes: int = 0
    first_batch_bytes: int = 0
    has_failed: bool = False
    is_cut: bool = False

    def add(self, reader: BatchReader, partition: PartitionFetch) -> None:
        """Count a partition that was looked up."""
        if partition.row.error_code:
            self.has_failed = True
            return
        found, available_bytes = partition.found, partition.available_bytes
        assert found is not None, "only what was found is counted"
        if not self.is_cut:
            self.is_cut = partition.is_held_back or partition.found_end < partition.end_limit
        if not found.runs:
            return
        if available_bytes and not self.available_bytes:
            self.first_batch_bytes = _first_batch_bytes(reader, partition, found)
        self.available_bytes += available_bytes
        most = partition.requested.max_bytes
        is_rebuilt = (
            found.inner_bytes < 0 and available_bytes < most and ObjectKind.PARQUET in map(_kind, found.runs)
        )
        self.expected_bytes += most if is_rebuilt else available_bytes


async def fetch_sums(reader: BatchReader, readable: list[PartitionFetch]) -> FetchSums:
    """Sum up the partitions, in turns of the loop."""
    sums, turns = FetchSums(), Turns(PARTITIONS_IN_A_TURN)
    for partition in readable:
        sums.add(reader, partition)
        if turns.fills():
            await turns.give()
    return sums


def ends_of(runs: Sequence[Run]) -> Sequence[Run]:
    """Return the first and the last run."""
    return runs if len(runs) < 2 else (runs[0], runs[-1])


def _available_bytes(reader: BatchReader, partition: PartitionFetch) -> int:
    """Return the bytes that could be sent now, as far as the rows show: at most the partition's own limit."""
    found, requested = partition.found, partition.requested
    assert found is not None, "only what was found is counted"
    end = partition.end_limit
    if requested.fetch_offset >= end:
        return 0  # or the log starts, and ends for this reader, within an open transaction's batch
    runs = found.runs
    if runs and runs[-1].base_offset >= end:
        runs = runs[: bisect_left(runs, end, key=_base_offset)]
    size = found.inner_bytes  # all runs between the first and the last are wanted whole
    if size < 0 or runs is not found.runs:
        lengths = list(map(_length, runs))[1:-1]
        size = sum(lengths) + MARKER_BYTES * lengths.count(0)
    for run in ends_of(runs):
        size += _run_bytes(reader, run, requested.fetch_offset, end)
    return min(size, max(requested.max_bytes, 1)) if size else 0


def _first_batch_bytes(reader: BatchReader, partition: PartitionFetch, found: FoundPartition) -> int:
    sizes = (
        reader.first_batch_bytes(run, partition.requested.fetch_offset) for run in found.runs if run.batches
    )
    return next(filter(None, sizes), 0)


def _run_bytes(reader: BatchReader, run: Run, offset: int, end: int) -> int:
    """Return the bytes that the run adds. Wanted whole, it counts whole, though some batches may not be stored."""
    if run.base_offset >= end:
        return 0
    if run.batches and offset <= run.base_offset and run.end_offset <= end:
        return run.length
    if not run.batches:
        # A hole is sent as a batch without records, which takes the client past it.
        return max(run.length, MARKER_BYTES)
    return reader.ready_bytes(run, offset, end)


def end_of_batch_at(runs: Sequence[Run], offset: int) -> int | None:
    """Return the end offset of the batch at the offset; of its run, if the run does not list its batches."""
    ends = (end for run in runs for end in (*_batch_ends(run), run.end_offset))
    return next((end for end in ends if end > offset), None)


def _batch_ends(run: Run) -> Iterator[int]:
    return (
        stored.base_offset + stored.record_count
        for stored in run.batches
        if stored.status is BatchStatus.STORED
    )
