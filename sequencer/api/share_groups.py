"""Share groups: acquiring and acknowledging records, and where a group starts."""

from __future__ import annotations

import enum
from uuid import UUID

from sequencer.api.values import Value
from tailrace.limits import Int64


class AcknowledgeType(enum.IntEnum):
    """A member's acknowledgement of a record that it acquired, with Kafka's numbers. GAP: there is no record at this
    offset."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


class ShareError(enum.IntEnum):
    """The reason why a member's acknowledgements of a partition changed nothing."""

    NONE = 0
    INVALID_RECORD_STATE = 1
    UNKNOWN_TOPIC_OR_PARTITION = 2
    LIMIT_REACHED = 3
    """The number of share partitions has reached its limit."""


class Acknowledged(Value, frozen=True):
    """`types`: one type for all offsets from `first_offset` to `last_offset`, or one per offset."""

    first_offset: Int64
    last_offset: Int64
    types: list[AcknowledgeType]


class AcquireSpan(Value, frozen=True):
    """Offsets [first_offset, end_offset) that an agent has read and could deliver. `skipped`: ranges that are not
    delivered (markers and aborted records), as first offset and end, in order."""

    first_offset: Int64
    end_offset: Int64
    max_records: Int64
    skipped: list[tuple[Int64, Int64]] = []


class ShareWork(Value, frozen=True):
    """The work on one partition, in this order: apply the acknowledgements, release all records that the member holds
    (`releases`), acquire. `written`: ranges that are in the group's dead-letter topic (KIP-1191), as first offset and
    end, in order. `refused`: let this agent write the records that were given up to that topic. `start_offset`: where a
    group that has never read the partition begins; -1: as its limits say."""

    topic_id: UUID
    partition: Int64
    acknowledged: list[Acknowledged] = []
    releases: bool = False
    acquire: AcquireSpan | None = None
    written: list[tuple[Int64, Int64]] = []
    refused: bool = False
    start_offset: Int64 = -1


class ShareLimits(Value, frozen=True, kw_only=True):
    """The group's settings. `max_in_flight`: limit of the offsets between the first unfinished record and the last one
    ever delivered. `from_earliest`: a partition that the group has never read begins at its start; otherwise at its
    end."""

    lock_ms: Int64 = 30_000
    max_deliveries: Int64 = 5
    max_in_flight: Int64 = 2_000
    from_earliest: bool = False
    read_committed: bool = False


class ShareRequest(Value, frozen=True):
    """A member acknowledges and acquires records. Only members of the group acquire any. `session`: the share session
    in which it acquires; with `releases`, the session whose records are released (0: all of the member's)."""

    group_id: str
    member_id: str
    limits: ShareLimits
    partitions: list[ShareWork]
    request_id: UUID | None = None
    session: Int64 = 0


class AcquiredRecords(Value, frozen=True):
    """`deliveries`: how often these records were delivered, including this time."""

    first_offset: Int64
    last_offset: Int64
    deliveries: Int64


class ShareOutcome(Value, frozen=True):
    """The outcome for one partition. `available`: the first range of acquirable offsets, as far as the log has them, as
    first offset and end; None: no record can be acquired until others are finished. `refused`: records that this agent
    must write to the dead-letter topic before the lock time has passed; after that another agent may get the task."""

    error: ShareError = ShareError.NONE
    acquired: list[AcquiredRecords] = []
    available: tuple[Int64, Int64] | None = None
    refused: list[AcquiredRecords] = []


class ShareAnswer(Value, frozen=True):
    """Outcomes in the order of the request."""

    partitions: list[ShareOutcome]


class ShareOffset(Value, frozen=True):
    """`start_offset`: the first record that the group has not finished. `lag`: number of unfinished offsets up to the
    high watermark."""

    topic_id: UUID
    partition: Int64
    start_offset: Int64
    lag: Int64 = -1


class ShareOffsetsRequest(Value, frozen=True):
    """`after`: the `next` of the previous page."""

    group_id: str
    after: tuple[UUID, Int64] | None = None


class ShareOffsets(Value, frozen=True):
    """A page of the partitions that the group has read. `next`: the last entry if there are more pages."""

    offsets: list[ShareOffset]
    next: tuple[UUID, Int64] | None = None


class AlterShareOffsets(Value, frozen=True):
    """Restart the partitions at these offsets; a partition with a negative start is forgotten. Allowed only while the
    group has no members."""

    group_id: str
    offsets: list[ShareOffset]
    request_id: UUID | None = None
