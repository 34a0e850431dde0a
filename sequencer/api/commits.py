"""Upload sessions, and the commits of objects."""

from __future__ import annotations

import enum
from uuid import UUID

from sequencer.api.values import Value
from tailrace.batches.mixed_object import BatchCoordinates, SealedObject
from tailrace.limits import Int64


class OpenSession(Value, frozen=True):
    """An agent's request for a prefix to upload under. `predecessor` is the previous session of the same lane.

    `name` is for writers (WRITER_BROKER_ID): all tasks of a job use one session. If a session of this name is open, it
    is renewed.
    """

    broker_id: Int64
    agent_epoch: Int64
    predecessor: UUID | None = None
    name: UUID | None = None


class SessionGrant(Value, frozen=True):
    """The session may write under `prefix` (ends in '/') only. Its commit numbers start at 0. `collected_ms`: objects
    that are uploaded up to this long after the end of the session are garbage collected. `by_reference_ms`: for so long
    after its first commit, an object that no row names can be named by a later one; 0 if unknown."""

    session_id: UUID
    prefix: str
    lease_ms: int
    incarnation: int
    collected_ms: int = 86_400_000
    by_reference_ms: int = 0


class SessionRef(Value, frozen=True):
    session_id: UUID


class ObjectKind(enum.IntEnum):
    """The kind of object that holds a run's bytes. A run of transaction markers (MARKERS) is in no object; its markers
    are rows."""

    MIXED = 0
    PARQUET = 1
    MARKERS = 2


class ObjectDescription(Value, frozen=True):
    """One stored object. `index_start`: the byte at which its footer begins.

    `index_crc`: CRC-32C of the bytes from there to the end, for footers without their own checksum (Parquet's); 0 if
    unknown.
    """

    object_id: UUID
    kind: ObjectKind
    key: str
    size: Int64
    crc: Int64
    index_start: Int64
    created_ms: Int64
    format_version: Int64 = 1
    index_crc: Int64 = 0

    @classmethod
    def of_mixed(cls, key: str, sealed: SealedObject) -> ObjectDescription:
        """Describe the mixed object that is or will be stored under `key`."""
        footer = sealed.footer
        return cls(
            object_id=footer.object_id,
            kind=ObjectKind.MIXED,
            key=key,
            size=sealed.size,
            crc=sealed.crc,
            index_start=footer.data_length,
            created_ms=footer.created_ms,
        )


def uploaded_key(prefix: str, number: int) -> str:
    """Return the key of the object that a session with this prefix uploads for commit `number`."""
    return f"{prefix}{number:012d}"


class RunProposal(Value, frozen=True):
    """Adjacent batches of one partition, at [start, start + length) of the object.

    `transactions`: one entry per batch; empty if no batch is transactional. An entry is the number of the transaction
    that the producer had open when the agent received the batch (`current_transactions`), or ANY_TRANSACTION.
    ANY_TRANSACTION means that the batch's epoch identifies the transaction (transaction version 2: each end of a
    transaction bumps the epoch), and that the first batch begins it.
    `may_skip`: treat missing sequences before a batch as lost (a committer that does not know this field refuses the
    batch).
    """

    topic_id: UUID
    partition: Int64
    start: Int64
    length: Int64
    batches: list[BatchCoordinates]
    transactions: list[Int64] = []
    may_skip: bool = False


class CommitRequest(Value, frozen=True):
    """One sealed buffer. `object` is None if its upload failed permanently (an empty commit).

    A batch that was answered SEQUENCE_GAP is retried without a new upload: a commit with the next number names the same
    object and a run of just that batch.
    `answered_below`: all commits with a lower number were answered and will not be retried.
    """

    session_id: UUID
    number: Int64
    answered_below: Int64
    object: ObjectDescription | None
    runs: list[RunProposal]


ANY_TRANSACTION = -1


class BatchStatus(enum.IntEnum):
    """The status of a batch in a run's batch table."""

    STORED = 0
    DUPLICATE = 1
    REFUSED = 2


class BatchError(enum.IntEnum):
    """The outcome of one batch. DUPLICATE is a success, with the offset of the first answer."""

    NONE = 0
    DUPLICATE = 1
    SEQUENCE_GAP = 2
    OUT_OF_ORDER_SEQUENCE = 3
    UNKNOWN_PRODUCER_ID = 4
    INVALID_PRODUCER_EPOCH = 5
    UNKNOWN_TOPIC_OR_PARTITION = 6
    TRANSACTION_CLOSED = 7


class BatchOutcome(Value, frozen=True):
    """`base_offset` is the offset of the batch if it is stored (NONE or DUPLICATE). For UNKNOWN_PRODUCER_ID it is the
    offset at which an earlier transaction stored these sequences, if one did. Otherwise it is -1."""

    error: BatchError
    base_offset: int


class RunOutcome(Value, frozen=True):
    """One outcome per batch, in the order of the proposal."""

    outcomes: list[BatchOutcome]
    log_start_offset: int


class CommitAnswer(Value, frozen=True):
    """One outcome per proposed run, in the order of the request."""

    commit_number: int
    runs: list[RunOutcome]


class WrittenObject(Value, frozen=True):
    """An object of a write, and the session under which it was uploaded. Its batches have no producer."""

    session_id: UUID
    object: ObjectDescription
    runs: list[RunProposal]


class WriteRequest(Value, frozen=True):
    """All objects that a job wrote, to be committed together.

    `epoch`: numbers the commits of one `write_id`. Epochs increase and may leave gaps. A request whose epoch is not
    above the last one is a repeat, whatever its objects are. `is_stream`: repeats may arrive much later, when a stream
    is restarted.
    """

    write_id: UUID
    epoch: Int64
    is_stream: bool
    objects: list[WrittenObject]


class WriteAnswer(Value, frozen=True):
    """`commit_number`: of the last epoch. `is_repeat`: this request stored nothing."""

    commit_number: int
    is_repeat: bool
