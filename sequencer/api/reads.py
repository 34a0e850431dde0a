"""Finding runs and offsets, and the feeds that tell readers of changes."""

from __future__ import annotations

import enum
from uuid import UUID

from sequencer.api.commits import BatchStatus, ObjectKind
from sequencer.api.values import Value
from tailrace.limits import INT64_MAX, Int64


class RunBatch(Value, frozen=True):
    """A row of a run's batch table, in byte order. `base_offset` is -1 unless STORED."""

    length: int
    record_count: int
    status: BatchStatus
    base_offset: int
    max_timestamp: int


class Marker(Value, frozen=True):
    """The end of a producer's transaction in one partition: one control record, at `offset`."""

    offset: int
    producer_id: int
    producer_epoch: int
    is_commit: bool
    timestamp: int


class Run(Value, frozen=True):
    """A committed run: [base_offset, end_offset) of one partition, in one object.

    In a mixed object, its batches are adjacent at [start, start + length).
    In a Parquet object, offsets may have gaps and `batches` is empty; the batches are listed in the object's index,
    whose CRC-32C is `index_crc` (0 if unknown).
    A run of markers is in no object (nil `object_id`, no key). It has one control batch per entry of `markers`,
    `length` bytes in total. Its `max_timestamp` is -1, so that no look-up by time finds a marker.
    """

    topic_id: UUID
    partition: int
    base_offset: int
    end_offset: int
    object_id: UUID
    kind: ObjectKind
    key: str
    object_size: int
    index_start: int
    start: int
    length: int
    max_timestamp: int
    running_max_timestamp: int
    commit_number: int
    created_ms: int
    batches: list[RunBatch]
    markers: list[Marker] = []
    index_crc: int = 0


class AbortedTransaction(Value, frozen=True):
    """The producer's records at [first_offset, last_offset] were aborted; `last_offset` is the offset of the marker."""

    producer_id: int
    first_offset: int
    last_offset: int


class FindPartition(Value, frozen=True):
    """`max_bytes` limits the runs returned; the first run at `offset` is returned whatever its size."""

    topic_id: UUID
    partition: Int64
    offset: Int64
    max_bytes: Int64


class FindRequest(Value, frozen=True):
    """`max_bytes` limits the runs of all partitions together, in the order of the request. An answer may always contain
    less, but the first partition that has a run at its offset gets at least that run."""

    partitions: list[FindPartition]
    max_bytes: Int64 = INT64_MAX


class PartitionError(enum.IntEnum):
    NONE = 0
    UNKNOWN_TOPIC_OR_PARTITION = 1
    OFFSET_OUT_OF_RANGE = 2


class FoundPartition(Value, frozen=True, kw_only=True):
    """A partition as of one commit number, and its runs from the one that contains `offset` on. The runs are in order
    and without gaps. If they end below the high watermark, there are more.

    `inner_bytes`: bytes of the log in all runs except the first and the last, if no run is in a Parquet object; -1 if
    not stated.
    """

    error: PartitionError
    log_start_offset: int
    high_watermark: int
    last_stable_offset: int
    leader_epoch: int
    runs: list[Run]
    aborted: list[AbortedTransaction]
    inner_bytes: int = -1


class FindAnswer(Value, frozen=True):
    commit_number: int
    partitions: list[FoundPartition]


class OffsetSpec(enum.IntEnum):
    """Special timestamps of ListOffsets; any value >= 0 is a time in ms."""

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3
    EARLIEST_LOCAL = -4
    LATEST_TIERED = -5


class OffsetQuery(Value, frozen=True):
    """`from_offset`: where to continue a look-up that was stopped (its `next_offset`); -1: at the log start.
    `end_offset`: for MAX_TIMESTAMP, only runs that begin below it count; older sequencers ignore it."""

    topic_id: UUID
    partition: Int64
    timestamp: Int64
    read_committed: bool = False
    from_offset: Int64 = -1
    end_offset: Int64 = INT64_MAX


class OffsetsRequest(Value, frozen=True):
    queries: list[OffsetQuery]


class OffsetResult(Value, frozen=True, kw_only=True):
    """For EARLIEST and LATEST, `offset` is the answer.

    For a time, `run` is the first run with a record at or after it; for MAX_TIMESTAMP, it is the run with the largest
    timestamp; None if there is none. The caller searches the run from `log_start_offset` on. If the query is
    `read_committed`, the caller ignores records at or above `last_stable_offset` (the run may extend beyond it).

    `timestamp`: the largest timestamp, if its run is not returned because all of it is above `last_stable_offset`; else
    -1.

    `next_offset`: where the look-up was stopped after many runs; -1 if it reached the end. `run` then has the largest
    timestamp of the runs before it, and none of them reaches the time.
    """

    error: PartitionError
    offset: int
    timestamp: int
    leader_epoch: int
    log_start_offset: int
    high_watermark: int
    run: Run | None
    last_stable_offset: int = -1
    next_offset: int = -1


class OffsetsAnswer(Value, frozen=True):
    """Results in the order of the request. There may be fewer results than queries, but at least one: send the other
    queries again."""

    commit_number: int
    results: list[OffsetResult]


class EpochQuery(Value, frozen=True):
    topic_id: UUID
    partition: Int64
    leader_epoch: Int64


class EpochRequest(Value, frozen=True):
    queries: list[EpochQuery]


class EpochResult(Value, frozen=True):
    """The end of an epoch in the log (Kafka's OffsetForLeaderEpoch); -1, -1 for an unknown epoch."""

    error: PartitionError
    leader_epoch: int
    end_offset: int


class EpochAnswer(Value, frozen=True):
    results: list[EpochResult]


class PartitionUpdate(Value, frozen=True, kw_only=True):
    """The current bounds of a partition, and the runs added since, in order."""

    topic_id: UUID
    partition: int
    log_start_offset: int
    high_watermark: int
    last_stable_offset: int
    leader_epoch: int
    runs: list[Run]


class FeedRequest(Value, frozen=True):
    """Wait until a commit after `after` changes one of `partitions` ([] means all), at most `max_wait_ms`. Without
    `wants_runs` the answer has no runs; it only wakes the caller."""

    after: Int64
    partitions: list[tuple[UUID, Int64]]
    max_wait_ms: Int64
    wants_runs: bool = True


class FeedAnswer(Value, frozen=True):
    """`reset`: `after` is too old to continue from; drop the known state and continue from `commit_number`.
    `commit_number` may be below the newest commit if one answer has no room for all."""

    commit_number: int
    reset: bool
    updates: list[PartitionUpdate]


class WatchRequest(Value, frozen=True):
    """One call of a subscription: change the set of watched partitions, and wait up to `max_wait_ms` for changes.

    `subscriber`: a new id for each subscription. `turn`: how often this subscription was changed, including this call.
    `removed` and then `added` are applied once per turn, however often the call arrives. `taken`: how many changes the
    subscriber has taken; these are not sent again. A newer call of the same subscriber ends the wait of an older one.
    """

    subscriber: UUID
    turn: Int64
    taken: Int64
    added: list[tuple[UUID, Int64]]
    removed: list[tuple[UUID, Int64]]
    max_wait_ms: Int64


class PartitionChange(Value, frozen=True, kw_only=True):
    """A watched partition's bounds as of `commit_number`, and how that commit changed its runs.

    `is_start`: watching begins with this change; its `runs`, if any, end at the high watermark. Otherwise `runs` follow
    those of the changes before. `aborted`: the transactions whose abort markers are in `runs`. `replaced_below`:
    compaction has replaced runs below this offset (-1: none). `is_gone`: the partition does not exist (any more) and is
    no longer watched; its bounds are -1.
    """

    topic_id: UUID
    partition: int
    commit_number: int
    log_start_offset: int = -1
    high_watermark: int = -1
    last_stable_offset: int = -1
    leader_epoch: int = -1
    runs: list[Run] = []
    aborted: list[AbortedTransaction] = []
    replaced_below: int = -1
    is_start: bool = False
    is_gone: bool = False


class WatchAnswer(Value, frozen=True, kw_only=True):
    """The changes after the first `taken`, in commit order, without gaps. Partitions watched before this answer did not
    change in any other way up to `commit_number`.

    `epoch`: of the committer that answers. `is_reset`: the committer does not know the subscription or has dropped it;
    all earlier changes are void and the caller must begin a new subscription. `pause_ms`: how long the subscriber waits
    between two calls, so that all subscribers together don't overload the committer.
    """

    epoch: int
    commit_number: int
    taken: int
    changes: list[PartitionChange]
    is_reset: bool = False
    pause_ms: int = 0
