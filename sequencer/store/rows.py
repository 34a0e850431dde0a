"""Rows: the sequencer's data. `sequencer.store.row_store` is the interface of the stores that hold it.

*Hot* rows (topics, sessions, transactions, groups, ...) are all in the committer's memory and mirrored to the store.
Their number is limited by what is alive, not by what was ever written. *Cold* rows (objects, runs) are in the store and
are looked up. So are producers and the positions of groups, but those that were written last are in memory too
(sequencer.store.recent_rows).
"""

from __future__ import annotations

from operator import attrgetter
from typing import Annotated, NamedTuple, TypeAlias, cast
from uuid import UUID

import msgspec

from sequencer.api.commits import ObjectKind
from sequencer.api.groups import CLASSIC_GROUP
from sequencer.api.transactions import TransactionState

Int32 = Annotated[int, "int32"]
"""An integer that fits into a 32-bit column."""


class Row(msgspec.Struct, frozen=True, gc=False):
    """Base of the rows. Rows are immutable; a change is a new row under the same key (the fields named in KEYS)."""


class CounterRow(Row, frozen=True):
    """A named counter: 'commit_number', 'metadata_version', 'ring_generation', 'broker_id', 'producer_id', 'epoch',
    'security_version', 'client_configs_version', the position of the journal (sequencer.reading.journal) and the sums
    of sequencer.store.sums."""

    name: str
    value: int


class TopicRow(Row, frozen=True):
    topic_id: UUID
    name: str
    partitions: Int32
    configs: dict[str, str]
    created_ms: int
    replication_factor: Int32 = 1


class LogEpoch(NamedTuple):
    """The log has this epoch from `start_offset` on. Stored as an array."""

    epoch: int
    start_offset: int


class PartitionRow(Row, frozen=True):
    """A partition. `epochs`: the log's epochs, ascending; the last is the current one. `running_max_timestamp` is that
    of the newest run."""

    topic_id: UUID
    partition: Int32
    log_start_offset: int
    end_offset: int
    running_max_timestamp: int
    epochs: list[LogEpoch]


def advanced(row: PartitionRow, end_offset: int, max_timestamp: int) -> PartitionRow:
    """Return the partition after a run was appended."""
    running_max = row.running_max_timestamp
    if max_timestamp > running_max:
        running_max = max_timestamp
    return PartitionRow(
        topic_id=row.topic_id,
        partition=row.partition,
        log_start_offset=row.log_start_offset,
        end_offset=end_offset,
        running_max_timestamp=running_max,
        epochs=row.epochs,
    )


class SessionRow(Row, frozen=True):
    """An upload session. `expires_ms` is on the database's clock; `closed_ms` is None while the session is open;
    `empty_sweeps` counts the sweeps that found nothing, the last of them at `swept_ms`."""

    session_id: UUID
    broker_id: int
    prefix: str
    predecessor: UUID | None
    next_number: int
    expires_ms: int
    closed_ms: int | None
    empty_sweeps: Int32 = 0
    swept_ms: int = 0


class CommitRow(Row, frozen=True):
    """The answer to (session, number), kept until the agent confirms that it has received it. `answer`: encoded
    CommitAnswer."""

    session_id: UUID
    number: int
    answer: bytes


class AgentRow(Row, frozen=True):
    """A broker id and its lease. `info`: encoded AgentInfo. `expires_ms` 0: the lease has ended."""

    broker_id: int
    epoch: int
    info: bytes
    expires_ms: int
    draining: bool


class RememberedBatch(NamedTuple):
    """A stored batch, remembered to recognize its retries. Stored as an array."""

    base_sequence: int
    last_sequence: int
    base_offset: int


ProducerKey: TypeAlias = tuple[UUID, int, int]
"""Topic id, partition, producer id."""


class ProducerRow(Row, frozen=True):
    """An idempotent producer's state in one partition. `recent`: the last five batches, oldest first."""

    topic_id: UUID
    partition: Int32
    producer_id: int
    producer_epoch: Int32
    recent: list[RememberedBatch]
    last_timestamp: int
    updated_ms: int

    @property
    def key(self) -> ProducerKey:
        return self.topic_id, self.partition, self.producer_id


class GroupRow(Row, frozen=True):
    """A group. `owner` is -1 for none; `owner_epoch` is the epoch of the owner's lease. `term` counts how often an
    owner loaded the group. `turn`: the turn of the stored state (see api.SaveGroup). `positions`: the number of the
    group's positions; `has_expiries`: whether some of them may have their own expiry time
    (sequencer.rules.positions)."""

    group_id: str
    owner: int
    owner_epoch: int
    generation: int
    state: str
    protocol_type: str
    members: list[str]
    blob: bytes
    updated_ms: int
    term: int = 0
    turn: int = 0
    type: str = CLASSIC_GROUP
    positions: int = 0
    has_expiries: bool = False


PositionKey: TypeAlias = tuple[str, UUID, int]
"""Group id, topic id, partition."""


class GroupOffsetRow(Row, frozen=True):
    """A group's position. `turn`: the turn of the commit that set it (see api.CommitOffsets)."""

    group_id: str
    topic_id: UUID
    partition: Int32
    offset: int
    leader_epoch: Int32
    metadata: str
    commit_ms: int
    expires_ms: int | None
    turn: int = 0

    @property
    def key(self) -> PositionKey:
        return self.group_id, self.topic_id, self.partition


class ShareSpan(NamedTuple):
    """Offsets in the same state (sequencer.rules.share_partition): from the end of the previous span up to `end_offset`
    (exclusive). `lock`: index in the row's locks, -1 for none. Stored as an array."""

    end_offset: int
    state: int
    deliveries: int
    lock: int


class ShareLock(NamedTuple):
    """The member that holds acquired records, and until when; `session`: the share session in which it acquired them, 0
    for none. Stored as an array."""

    member_id: str
    until_ms: int
    session: int = 0


class ShareAnswered(NamedTuple):
    """The answer to a request, kept for its retries. `acquired`: first offset, last offset, deliveries. Stored as an
    array."""

    request_id: UUID
    error: int
    acquired: list[tuple[int, int, int]]


class ShareRow(Row, frozen=True):
    """A partition in a share group: all below `start_offset` is done; offsets at or above the end of the last span were
    never acquired. `answered`: the answers to the last requests that changed the row."""

    group_id: str
    topic_id: UUID
    partition: Int32
    start_offset: int
    spans: list[ShareSpan]
    locks: list[ShareLock]
    answered: list[ShareAnswered]
    updated_ms: int


class ProducerRef(NamedTuple):
    producer_id: int
    producer_epoch: int


class EndedTransaction(NamedTuple):
    """The end of a transaction: the transaction, and the producer id and epoch that the caller was granted for it."""

    producer: ProducerRef
    number: int
    is_commit: bool
    granted: ProducerRef


NO_PRODUCER = ProducerRef(-1, -1)


class TransactionRow(Row, frozen=True):
    """A transactional id: its current producer and its transaction.

    `number` counts the producer's transactions; it is the number of the open one, or of the last. `partitions` and
    `groups` are those of the open one; `started_ms` is -1 if none is open. The fields from `previous_id` to
    `answered_epoch` store `previous` and `last_end`, column by column; -1 stands for None.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: Int32
    number: int
    state: TransactionState
    timeout_ms: int
    started_ms: int
    partitions: list[tuple[UUID, int]]
    groups: list[str]
    previous_id: int
    previous_epoch: Int32
    ended_id: int
    ended_epoch: Int32
    ended_number: int
    ended_is_commit: bool
    answered_id: int
    answered_epoch: Int32
    updated_ms: int

    @classmethod
    def new(cls, transactional_id: str, *, producer_id: int, timeout_ms: int, now_ms: int) -> TransactionRow:
        """Return the row of a transactional id that has had no transaction."""
        return cls(
            transactional_id=transactional_id,
            producer_id=producer_id,
            producer_epoch=0,
            number=0,
            state=TransactionState.EMPTY,
            timeout_ms=timeout_ms,
            started_ms=-1,
            partitions=[],
            groups=[],
            previous_id=-1,
            previous_epoch=-1,
            ended_id=-1,
            ended_epoch=-1,
            ended_number=-1,
            ended_is_commit=False,
            answered_id=-1,
            answered_epoch=-1,
            updated_ms=now_ms,
        )

    @property
    def producer(self) -> ProducerRef:
        return ProducerRef(self.producer_id, self.producer_epoch)

    @property
    def previous(self) -> ProducerRef | None:
        """The producer before the current one, as long as a retry of its request is granted the current one."""
        return None if self.previous_id < 0 else ProducerRef(self.previous_id, self.previous_epoch)

    @property
    def last_end(self) -> EndedTransaction | None:
        """The last requested end of a transaction."""
        if self.ended_id < 0:
            return None
        return EndedTransaction(
            producer=ProducerRef(self.ended_id, self.ended_epoch),
            number=self.ended_number,
            is_commit=self.ended_is_commit,
            granted=ProducerRef(self.answered_id, self.answered_epoch),
        )

    def with_previous(self, previous: ProducerRef | None) -> TransactionRow:
        """Return the row with another `previous`."""
        previous_id, previous_epoch = previous or NO_PRODUCER
        return msgspec.structs.replace(self, previous_id=previous_id, previous_epoch=previous_epoch)

    def with_last_end(self, end: EndedTransaction | None) -> TransactionRow:
        """Return the row with another `last_end`."""
        producer, number, is_commit, granted = end or (NO_PRODUCER, -1, False, NO_PRODUCER)
        return msgspec.structs.replace(
            self,
            ended_id=producer.producer_id,
            ended_epoch=producer.producer_epoch,
            ended_number=number,
            ended_is_commit=is_commit,
            answered_id=granted.producer_id,
            answered_epoch=granted.producer_epoch,
        )


class OpenRangeRow(Row, frozen=True):
    """The beginning of a producer's open transaction in a partition: its first stored batch."""

    topic_id: UUID
    partition: Int32
    producer_id: int
    first_offset: int


class AbortedRow(Row, frozen=True):
    """An aborted transaction in a partition. `last_offset` is the offset of its marker, which no other row of the
    partition has."""

    topic_id: UUID
    partition: Int32
    producer_id: int
    first_offset: int
    last_offset: int


class PendingOffsetRow(Row, frozen=True):
    """A position that becomes the group's when the producer's open transaction commits."""

    group_id: str
    topic_id: UUID
    partition: Int32
    producer_id: int
    offset: int
    leader_epoch: Int32
    metadata: str
    commit_ms: int
    expires_ms: int | None
    turn: int = 0


class BrokerConfigRow(Row, frozen=True):
    """`name`: broker id as text, '' for the cluster-wide default."""

    name: str
    configs: dict[str, str]


class ScramRow(Row, frozen=True):
    """A user's credentials for one mechanism (api.ScramMechanism): keys derived from the password, never the
    password."""

    user_name: str
    mechanism: Int32
    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: Int32


class AclRow(Row, frozen=True):
    """One binding (tailrace.security.acls); all of its fields form the key."""

    resource_type: Int32
    resource_name: str
    pattern_type: Int32
    principal: str
    host: str
    operation: Int32
    permission: Int32
    created_ms: int


class ClientConfigRow(Row, frozen=True):
    """Client configs: `scope` and `name` as in api.AlterConfig."""

    scope: Int32
    name: str
    configs: dict[str, str]


class DelegationTokenRow(Row, frozen=True):
    """A delegation token (api.DelegationToken), without its HMAC and without the secret from which the HMAC is
    computed."""

    fingerprint: str
    token_id: str
    owner: str
    requester: str
    renewers: list[str]
    issued_ms: int
    expires_ms: int
    max_ms: int


class LeaseRow(Row, frozen=True):
    name: str
    holder: str
    epoch: int
    expires_ms: int


class TablePinRow(Row, frozen=True):
    """A topic that has a table: an unexpired snapshot of the table may refer to objects that were retired at or after
    `kept_from_ms`."""

    topic_id: UUID
    topic_name: str
    kept_from_ms: int


class SmallObjectRow(Row, frozen=True):
    """A live Parquet object that may be merged with others of its topic (sequencer.rules.levels). `ended_ms`: when its
    newest records were compacted."""

    topic_id: UUID
    object_id: UUID
    ended_ms: int
    size: int


class CleanedRow(Row, frozen=True):
    """A partition that was compacted by key: no two records below `clean_end` have the same key. At `cleaned_ms` the
    log below it had `clean_bytes`."""

    topic_id: UUID
    partition: int
    clean_end: int
    clean_bytes: int
    cleaned_ms: int


class SwapRow(Row, frozen=True):
    """The answer to a swap, kept for retries."""

    swap_id: UUID
    commit_number: int
    created_ms: int


class WriteRow(Row, frozen=True):
    """The last epoch of a write, kept to recognize repeats; forgotten at `expires_ms`."""

    write_id: UUID
    epoch: int
    commit_number: int
    expires_ms: int


REFUSED = b"\xc1"
"""The first byte of a stored refusal; the code of the error follows. No encoded answer begins with it."""


class AnswerRow(Row, frozen=True):
    """The first answer to a request that may be retried, encoded; for a refusal (`is_refusal`) the code of the
    error."""

    request_id: UUID
    answer: bytes
    created_ms: int

    @property
    def is_refusal(self) -> bool:
        return self.answer.startswith(REFUSED)


class ObjectRow(Row, frozen=True):
    """An object. `live_runs` is the number of run rows that name it; at 0 it is retired (`retired_ms`), and after the
    grace period it is deleted and forgotten."""

    object_id: UUID
    kind: ObjectKind
    key: str
    size: int
    crc: int
    index_start: int
    created_ms: int
    format_version: Int32
    live_runs: int
    retired_ms: int | None
    index_crc: int = 0


class RunRow(Row, frozen=True):
    """A run, with the key (topic_id, partition, base_offset). `batches`: encoded list[RunBatch]. `markers`: encoded
    list[Marker] if the kind is MARKERS, and then `object_id` is nil; otherwise b""."""

    topic_id: UUID
    partition: Int32
    base_offset: int
    end_offset: int
    object_id: UUID
    start: int
    length: int
    max_timestamp: int
    running_max_timestamp: int
    commit_number: int
    created_ms: int
    kind: ObjectKind
    batches: bytes
    markers: bytes = b""


class JournalRow(Row, frozen=True):
    """The hot rows that one transaction changed, encoded (sequencer.reading.journal).

    Numbers have no gaps. `chain`: a checksum of the changes and of the chain before them.
    """

    number: int
    chain: int
    changes: bytes


KEYS: dict[type[Row], tuple[str, ...]] = {
    CounterRow: ("name",),
    TopicRow: ("topic_id",),
    PartitionRow: ("topic_id", "partition"),
    SessionRow: ("session_id",),
    CommitRow: ("session_id", "number"),
    AgentRow: ("broker_id",),
    ProducerRow: ("topic_id", "partition", "producer_id"),
    GroupRow: ("group_id",),
    GroupOffsetRow: ("group_id", "topic_id", "partition"),
    ShareRow: ("group_id", "topic_id", "partition"),
    TransactionRow: ("transactional_id",),
    OpenRangeRow: ("topic_id", "partition", "producer_id"),
    AbortedRow: ("topic_id", "partition", "producer_id", "first_offset"),
    PendingOffsetRow: ("group_id", "topic_id", "partition", "producer_id"),
    BrokerConfigRow: ("name",),
    ScramRow: ("user_name", "mechanism"),
    AclRow: (
        "resource_type",
        "resource_name",
        "pattern_type",
        "principal",
        "host",
        "operation",
        "permission",
    ),
    ClientConfigRow: ("scope", "name"),
    DelegationTokenRow: ("fingerprint",),
    LeaseRow: ("name",),
    TablePinRow: ("topic_id",),
    SmallObjectRow: ("topic_id", "object_id"),
    CleanedRow: ("topic_id", "partition"),
    SwapRow: ("swap_id",),
    WriteRow: ("write_id",),
    AnswerRow: ("request_id",),
    ObjectRow: ("object_id",),
    RunRow: ("topic_id", "partition", "base_offset"),
    JournalRow: ("number",),
}
"""The kinds of rows with the fields of their primary keys. Each kind is one SQL table; this is the order of locks and
writes."""

JOURNALED: tuple[type[Row], ...] = tuple(kind for kind in KEYS if kind not in (ObjectRow, RunRow, JournalRow))
"""The kinds whose changes followers read in the journal."""

LOOKED_UP: tuple[type[Row], ...] = (ProducerRow, GroupOffsetRow)
"""The kinds that are looked up; only the rows that were written last are in memory."""

HOT: tuple[type[Row], ...] = tuple(kind for kind in JOURNALED if kind not in LOOKED_UP)
"""The kinds that a server loads and holds in memory completely."""


_FIELDS = {kind: attrgetter(*fields) for kind, fields in KEYS.items()}


def key_of(row: Row) -> tuple[object, ...]:
    """Return the row's primary key."""
    kind = type(row)
    key = _FIELDS[kind](row)
    return cast("tuple[object, ...]", key) if len(KEYS[kind]) > 1 else (key,)


class Changes:
    """The changes of one transaction: the newest row per key, or None for a deleted row. Ordered by kind."""

    __slots__ = ("by_kind",)

    def __init__(self) -> None:
        self.by_kind: dict[type[Row], dict[tuple[object, ...], Row | None]] = {}

    def put(self, row: Row) -> None:
        self.by_kind.setdefault(type(row), {})[key_of(row)] = row

    def of(self, kind: type[Row]) -> dict[tuple[object, ...], Row | None]:
        """Return the changes of a kind, for a caller that adds rows whose keys it already has."""
        return self.by_kind.setdefault(kind, {})

    def delete(self, kind: type[Row], key: tuple[object, ...]) -> None:
        self.by_kind.setdefault(kind, {})[key] = None

    def __bool__(self) -> bool:
        return bool(self.by_kind)

    def __len__(self) -> int:
        return sum(map(len, self.by_kind.values()))
