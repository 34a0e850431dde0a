"""What is stored: objects, live files, sizes and statistics."""

from __future__ import annotations

from uuid import UUID

from sequencer.api.commits import ObjectDescription
from sequencer.api.reads import Run
from sequencer.api.values import Value
from tailrace.limits import Int64


class ObjectsRequest(Value, frozen=True):
    """At most `limit` objects in key order after `after_key`, for listings and audit; an answer may have fewer."""

    after_key: str
    limit: Int64


class ObjectRecord(Value, frozen=True):
    description: ObjectDescription
    live_runs: int
    retired_ms: int | None


class ObjectsAnswer(Value, frozen=True):
    objects: list[ObjectRecord]


class LiveFilesRequest(Value, frozen=True):
    """Requests a topic's live Parquet runs from (partition, offset) `after` on, which is the `next` of the previous
    page."""

    topic_id: UUID
    after: tuple[Int64, Int64] | None = None


class LiveRun(Value, frozen=True):
    """[base_offset, end_offset) of the partition is in this Parquet object. Nothing below the log start is live."""

    base_offset: int
    end_offset: int
    object_id: UUID
    commit_number: int


class LivePartition(Value, frozen=True, kw_only=True):
    """A partition's bounds, and some of its live Parquet runs, in order."""

    partition: int
    log_start_offset: int
    last_stable_offset: int
    high_watermark: int
    runs: list[LiveRun]


class LiveFiles(Value, frozen=True):
    """A page, ordered by partition and offset, with the objects of its runs.

    The pages show one state of the log if no run of a later page has a higher commit number than the first page: then
    no swap happened in between. Later pages leave out what was deleted in between.
    """

    commit_number: int
    partitions: list[LivePartition]
    objects: list[ObjectRecord]
    next: tuple[int, int] | None = None


class ObjectRef(Value, frozen=True):
    object_id: UUID


class RunsAnswer(Value, frozen=True):
    runs: list[Run]


class SizesRequest(Value, frozen=True):
    """`topic_ids` None: all. `after`: the `next` of the previous page."""

    topic_ids: list[UUID] | None
    after: tuple[UUID, Int64] | None = None


class PartitionSize(Value, frozen=True, kw_only=True):
    topic_id: UUID
    partition: int
    log_start_offset: int
    high_watermark: int
    bytes: int
    runs: int


class SizesAnswer(Value, frozen=True):
    """A page, ordered by topic id and partition. `next`: the last entry if there are more pages."""

    sizes: list[PartitionSize]
    next: tuple[UUID, int] | None = None


class Statistics(Value, frozen=True, kw_only=True):
    """Row counts per kind and object bytes by state, for metrics.

    `oldest_transaction_ms`: age of the oldest open transaction. `small_objects`: live Parquet objects of less than 64
    MiB, which get merged. `group_bytes`: size of the groups' member data.
    `share_spans`: spans of records in share groups.
    """

    runs: int
    objects: int
    retired_objects: int
    retired_bytes: int
    live_bytes: int
    open_sessions: int
    dead_sessions: int
    producers: int
    groups: int
    commit_number: int
    uncompacted_bytes: int
    open_transactions: int = 0
    oldest_transaction_ms: int = 0
    small_objects: int = 0
    group_bytes: int = 0
    share_spans: int = 0
