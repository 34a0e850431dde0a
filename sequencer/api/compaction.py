"""Compaction: leases, candidates, swaps, clean points, and pins of tables."""

from __future__ import annotations

from uuid import UUID

from sequencer.api.commits import ObjectDescription
from sequencer.api.reads import AbortedTransaction, Run
from sequencer.api.topics import Topic
from sequencer.api.values import Value
from tailrace.limits import Int64


class TakeLease(Value, frozen=True):
    """Take or renew a named lease ('compactor', ...). Epoch 0 takes it, under a new epoch (once per
    `request_id`); the held epoch renews it."""

    name: str
    holder: str
    epoch: Int64
    lease_ms: Int64
    request_id: UUID | None = None


class NamedLease(Value, frozen=True):
    name: str
    holder: str
    epoch: int
    lease_ms: int


class CompactionRequest(Value, frozen=True):
    """Requests partitions with at least `min_bytes` of mixed runs below the last stable offset, or with mixed runs
    older than `min_age_ms`. `skip`: runs, as (topic id, partition, base offset), to leave in place and pass over.

    `max_runs` limits the runs of all candidates together. `after`: the `next` of the previous page. `runs_each`: limit
    of a candidate's runs, or the number that each partition of its topic can have in one page if that is more; 0: no
    limit. So a page of a topic with many partitions has a few runs of each.

    `is_of_merges`: request small Parquet objects to merge instead of mixed runs. `min_bytes`, `min_age_ms`, `skip` and
    `runs_each` are then ignored, and `after` names a topic.
    """

    min_bytes: Int64
    min_age_ms: Int64
    max_runs: Int64
    skip: list[tuple[UUID, Int64, Int64]] = []
    after: tuple[UUID, Int64] | None = None
    runs_each: Int64 = 0
    is_of_merges: bool = False


class CompactionCandidate(Value, frozen=True):
    topic: Topic
    partition: int
    log_start_offset: int
    last_stable_offset: int
    runs: list[Run]
    aborted: list[AbortedTransaction]


class MergeCandidate(Value, frozen=True):
    """Small Parquet objects of one time range of a topic: all live runs of each object, object by object in time
    order."""

    topic: Topic
    runs: list[Run]


class CompactionCandidates(Value, frozen=True):
    """A page, ordered by topic id and partition. `next`: the last partition that was examined if there are more pages;
    a page may be empty and still have one. `commit_number`: of the last commit before the look-up."""

    candidates: list[CompactionCandidate]
    next: tuple[UUID, int] | None = None
    merges: list[MergeCandidate] = []
    commit_number: int = 0


class KeyDrops(Value, frozen=True):
    """Records that a replacement drops because of their keys: records with a later record of the same key below
    `newest_below`, and expired tombstones below `tombstones_below` (0: none)."""

    newest_below: Int64
    tombstones_below: Int64 = 0


class ReplacementRun(Value, frozen=True):
    """Rows [first_row, first_row + row_count) of the new object replace [base_offset, end_offset)."""

    topic_id: UUID
    partition: Int64
    base_offset: Int64
    end_offset: Int64
    max_timestamp: Int64
    length: Int64
    replaced: list[tuple[Int64, UUID]]  # (base_offset, object_id) of each run read, in order
    drops: KeyDrops | None = None


class SwapRequest(Value, frozen=True):
    """One atomic replacement of runs. A retry with the same `swap_id` gets the first answer."""

    swap_id: UUID
    lease_epoch: Int64
    session_id: UUID
    object: ObjectDescription
    runs: list[ReplacementRun]


class SwapAnswer(Value, frozen=True):
    commit_number: int


class CleanPointsRequest(Value, frozen=True):
    """`first`: the `next` of the previous page."""

    topic_id: UUID
    first: Int64 = 0


class CleanPoint(Value, frozen=True):
    """How far a partition is clean: below `clean_end` no key has two records. At `cleaned_ms` the log below it had
    `clean_bytes`."""

    partition: int
    log_start_offset: int
    last_stable_offset: int
    clean_end: int
    clean_bytes: int
    cleaned_ms: int


class CleanPoints(Value, frozen=True):
    """A page of a topic's partitions. `now_ms`: the database's clock. `next`: where the next page begins, if there is
    one."""

    points: list[CleanPoint]
    now_ms: int
    next: int | None = None


class MarkClean(Value, frozen=True):
    """All swaps of one cleaning pass over a partition are done: it is clean below `clean_end`. `clean_end_before` is
    where its clean part ended when the pass began."""

    lease_epoch: Int64
    topic_id: UUID
    partition: Int64
    clean_end_before: Int64
    clean_end: Int64
    clean_bytes: Int64


class PinTable(Value, frozen=True):
    """State that a topic has a table. Parquet objects of the topic that are retired from now on are kept, until a later
    call states from when on the table's snapshots need them (`kept_from_ms`; it never decreases; -1: unchanged)."""

    topic_id: UUID
    kept_from_ms: Int64 = -1
    request_id: UUID | None = None


class TablePin(Value, frozen=True):
    """`now_ms`: the database's clock. A listing made after this call contains no object that was retired before it."""

    topic_id: UUID
    topic_name: str
    kept_from_ms: int
    now_ms: int


class ReleaseTable(Value, frozen=True):
    """State that the topic no longer has a table: no snapshot refers to its objects."""

    topic_id: UUID
    request_id: UUID | None = None


class TablePinsRequest(Value, frozen=True):
    """`after`: the `next` of the previous page."""

    after: UUID | None = None


class TablePins(Value, frozen=True):
    """A page, ordered by topic id, deleted topics included. `next`: the last entry if there are more pages."""

    pins: list[TablePin]
    next: UUID | None = None
