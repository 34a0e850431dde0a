"""Deleting records, applying retention, and collecting garbage."""

from __future__ import annotations

from uuid import UUID

from sequencer.api.reads import PartitionError
from sequencer.api.values import Value
from tailrace.limits import Int64


class DeleteRecordsPartition(Value, frozen=True):
    """`before_offset` -1 means the high watermark."""

    topic_id: UUID
    partition: Int64
    before_offset: Int64


class DeleteRecords(Value, frozen=True):
    partitions: list[DeleteRecordsPartition]
    request_id: UUID | None = None


class DeletedRecords(Value, frozen=True):
    errors: list[PartitionError]
    log_start_offsets: list[int]


class RetentionSummary(Value, frozen=True, kw_only=True):
    runs_removed: int
    objects_retired: int
    partitions_moved: int
    offsets_expired: int
    producers_expired: int
    sessions_closed: int
    agents_expired: int


class GarbageRequest(Value, frozen=True):
    limit: Int64


class DeadSession(Value, frozen=True):
    session_id: UUID
    prefix: str
    closed_ms: int


class Garbage(Value, frozen=True):
    """Objects whose grace period has ended (delete the bytes, then call `forget_objects`), and ended sessions to
    sweep."""

    objects: list[tuple[UUID, str]]
    sessions: list[DeadSession]


class ForgetObjects(Value, frozen=True):
    object_ids: list[UUID]


class KnownKeys(Value, frozen=True):
    """Asks which of these keys belong to an object that has a row; the answer contains only those."""

    keys: list[str]


class SweptSession(Value, frozen=True):
    """`was_empty`: no orphan was found under the prefix."""

    session_id: UUID
    was_empty: bool
