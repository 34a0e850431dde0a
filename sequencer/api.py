"""The sequencer's interface and its values: what agents, caches and the compactor may call.

Every method takes one struct and returns one, so the RPC server and client need no code per method. Structs are
`array_like`: fields are only ever appended, with defaults.

`request_id` identifies a request across all its retries: every retry gets the first answer (sequencer.rules.repeats).
SequencerClient sets it on each request that has the field and no value for it.

Timestamps are milliseconds since the Unix epoch; `end_offset` is exclusive, `last_offset` inclusive.
"""

from __future__ import annotations

import enum
from typing import ClassVar, Protocol
from uuid import UUID

import msgspec

from tailrace.acls import Acl, AclFilter
from tailrace.limits import INT64_MAX, Int64
from tailrace.mixed_object import BatchCoordinates, SealedObject


class Value(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Base of all values that are sent to or by the sequencer."""


# --- errors ---------------------------------------------------------------------------------------


class SequencerError(Exception):
    """The sequencer refused the request; the subclass says why in the caller's terms. `code` names it on the wire."""

    code: ClassVar[str] = "sequencer_error"


class SequencerUnavailable(SequencerError):
    """There is no committer, or the database is unreachable. Retry with the same ids."""

    code = "unavailable"


class SequencerOverloaded(SequencerError):
    """The committer's queue is full. Slow down and retry with the same ids."""

    code = "overloaded"


class RequestFailed(SequencerError):
    """The request can't be carried out for an unforeseen reason: its values don't fit the database, or there is a bug.
    It changed nothing. A retry fails too."""

    code = "request_failed"


class IncarnationChanged(SequencerError):
    """The database is not the one that this caller knew (it is older or was recovered): drop all state and stop."""

    code = "incarnation_changed"


class SessionClosed(SequencerError):
    """This upload session has ended; nothing may be committed under it."""

    code = "session_closed"


class CommitOutOfOrder(SequencerError):
    """The commit's number is not the next one; the message says which number is expected."""

    code = "commit_expected"


class LeaseLost(SequencerError):
    """The named lease (agent, compactor, committer) has ended or was taken with a higher epoch."""

    code = "lease_lost"


class TopicExists(SequencerError):
    code = "topic_exists"


class UnknownTopic(SequencerError):
    code = "unknown_topic"


class UnknownPartition(SequencerError):
    code = "unknown_partition"


class InvalidRequest(SequencerError):
    """A value is out of bounds; the message says what was given and what is allowed."""

    code = "invalid_request"


class InvalidConfig(SequencerError):
    code = "invalid_config"


class OffsetOutOfRange(SequencerError):
    code = "offset_out_of_range"


class UnknownGroup(SequencerError):
    code = "unknown_group"


class GroupNotEmpty(SequencerError):
    code = "group_not_empty"


class StaleGroup(SequencerError):
    """Owner epoch, generation or member is not the group's current one."""

    code = "stale_group"


class LimitReached(SequencerError):
    """A configured limit (topics, partitions, groups, ...) is reached; the message names the setting."""

    code = "limit_reached"


class ProducerFenced(SequencerError):
    """A producer with a higher epoch has taken this transactional id; this one must stop."""

    code = "producer_fenced"


class InvalidProducerEpoch(SequencerError):
    """The epoch is not the current one of the transactional id; the producer may ask for a new one (KIP-360)."""

    code = "invalid_producer_epoch"


class InvalidProducerIdMapping(SequencerError):
    """The producer id is not the current one of this transactional id."""

    code = "invalid_producer_id_mapping"


class InvalidTransactionState(SequencerError):
    """The transaction's state does not allow the request; the message names the state."""

    code = "invalid_transaction_state"


class InvalidTransactionTimeout(SequencerError):
    code = "invalid_transaction_timeout"


class UnknownTransactionalId(SequencerError):
    code = "unknown_transactional_id"


class SwapRefused(SequencerError):
    """The runs are no longer those that the compactor read, or its lease has ended: plan again."""

    code = "swap_refused"


class UnknownToken(SequencerError):
    """There is no such delegation token, or it no longer exists."""

    code = "unknown_token"


class TokenExpired(SequencerError):
    """The delegation token has expired."""

    code = "token_expired"


class NotTokenOwner(SequencerError):
    """The caller is neither the owner nor a renewer of the delegation token."""

    code = "not_token_owner"


ERRORS: dict[str, type[SequencerError]] = {
    error.code: error
    for error in (
        SequencerError, SequencerUnavailable, SequencerOverloaded, RequestFailed, IncarnationChanged, SessionClosed,
        CommitOutOfOrder, LeaseLost, TopicExists, UnknownTopic, UnknownPartition, InvalidRequest, InvalidConfig,
        OffsetOutOfRange, UnknownGroup, GroupNotEmpty, StaleGroup, LimitReached, ProducerFenced,
        InvalidProducerEpoch, InvalidProducerIdMapping, InvalidTransactionState, InvalidTransactionTimeout,
        UnknownTransactionalId, SwapRefused, UnknownToken, TokenExpired, NotTokenOwner,
    )
}  # fmt: skip


class Empty(Value, frozen=True):
    """A request or an answer without content."""


# --- upload sessions and commits ---------------------------------------------------------------------


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
    that are uploaded up to this long after the end of the session are garbage collected."""

    session_id: UUID
    prefix: str
    lease_ms: int
    incarnation: int
    collected_ms: int = 86_400_000


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


# --- agents and the ring -------------------------------------------------------------------------------


class AgentInfo(Value, frozen=True):
    """The addresses of an agent. `peer_*` is its cache-peer RPC; port 0 means that it serves no peers. `listeners`:
    advertised host and port by listener name, if there are listeners in addition to the plain one at `host` and `port`.
    `request_id` makes a repeated registration take effect once."""

    host: str
    port: Int64
    peer_host: str
    peer_port: Int64
    http_port: Int64
    zone: str
    version: str
    instance: UUID
    listeners: dict[str, tuple[str, Int64]] = {}
    request_id: UUID | None = None

    def address_of(self, listener: str) -> tuple[str, int] | None:
        """Return the address of the agent for clients of this listener ('' for the plain one); None if it has no such
        listener."""
        return self.listeners.get(listener) if listener else (self.host, self.port)


class NewestVersions(Value, frozen=True):
    """The newest versions of the state that every agent keeps: topics and their configs; the ring; users and ACLs;
    client configs."""

    metadata: int
    ring_generation: int
    security: int
    client_configs: int


class AgentLease(Value, frozen=True):
    """An agent's lease. `silence_ms`: an agent that renews three times in this period is never suspected. A coordinator
    answers from memory only while its last renewal is younger than this (0 from a sequencer that ends no lease early).
    `early_puts`, `rows`: the agent's shares of the cluster's budgets, per second; -1: unchanged. `newest`: the newest
    versions as of a renewal, so that an agent requests metadata only if there is something new (None from an older
    sequencer)."""

    broker_id: int
    epoch: int
    lease_ms: int
    incarnation: int
    silence_ms: int = 0
    early_puts: float = -1.0
    rows: float = -1.0
    newest: NewestVersions | None = None


class AgentRef(Value, frozen=True):
    broker_id: Int64
    epoch: Int64


class RenewAgent(Value, frozen=True):
    """`draining` takes the agent out of leadership and group placement, but it keeps its lease. `early_puts`, `rows`:
    how many per second the agent could use."""

    broker_id: Int64
    epoch: Int64
    draining: bool = False
    early_puts: float = 0.0
    rows: float = 0.0


class Member(Value, frozen=True):
    """A live agent as other agents see it."""

    broker_id: int
    epoch: int
    info: AgentInfo
    draining: bool


class Ring(Value, frozen=True):
    """The live agents, ordered by broker id. `generation` never decreases; metadata uses it as leader epoch.

    `departed`: the agents that left last, because clients may still wait for them.
    """

    generation: int
    members: list[Member]
    departed: list[Member] = []


class RingChange(Value, frozen=True):
    """The difference between the rings of the generations `since` and `generation`. `members`: members that are new or
    changed. `left`: broker ids that are no longer members. `departed`: those of the ring's departed agents that were
    neither members nor departed before."""

    since: int
    generation: int
    members: list[Member]
    left: list[int]
    departed: list[Member] = []


# --- topics ---------------------------------------------------------------------------------------------


MAX_REPLICATION_FACTOR = 32
"""A higher number is certainly a mistake; each replica takes a number in every metadata answer, for every partition."""


class Topic(Value, frozen=True):
    """A topic. `configs` holds only the configs that were set; defaults are in tailrace.topic_config.
    `replication_factor` is the one that the topic was created with. It is only reported: the object store
    replicates."""

    topic_id: UUID
    name: str
    partitions: int
    configs: dict[str, str]
    created_ms: int
    replication_factor: int = 1


class CreateTopic(Value, frozen=True):
    name: str
    partitions: Int64
    configs: dict[str, str]
    validate_only: bool = False
    replication_factor: Int64 = 1
    request_id: UUID | None = None


class DeleteTopic(Value, frozen=True):
    topic_id: UUID
    request_id: UUID | None = None


class CreatePartitions(Value, frozen=True):
    topic_id: UUID
    partitions: Int64
    validate_only: bool = False
    request_id: UUID | None = None


class MetadataRequest(Value, frozen=True):
    """`known_version`, `known_generation`: the versions that the caller has; -1 for none. `takes_changes`: the caller
    keeps the topics of its version and accepts the changes since then. `takes_ring_changes`: the same for the ring."""

    known_version: Int64 = -1
    known_generation: Int64 = -1
    takes_changes: bool = False
    takes_ring_changes: bool = False


class Metadata(Value, frozen=True, kw_only=True):
    """`topics` and `ring` are None if the caller's are current. If the caller takes changes, `topics` is None too:
    `changed` has the new and changed topics, `deleted` the ids of deleted ones. `security_version`: version of the
    users and ACLs; a caller with another version calls `security`. `client_configs_version`: the same for
    `client_configs`. `ring_change` replaces `ring` if the caller takes ring changes."""

    cluster_id: str
    incarnation: int
    version: int
    topics: list[Topic] | None
    ring: Ring | None
    changed: list[Topic] = []
    deleted: list[UUID] = []
    security_version: int = 0
    client_configs_version: int = 0
    ring_change: RingChange | None = None


class ConfigScope(enum.IntEnum):
    TOPIC = 0
    BROKER = 1
    QUOTA = 2
    GROUP = 3
    CLIENT_METRICS = 4


class ConfigOperation(enum.IntEnum):
    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigChange(Value, frozen=True):
    name: str
    operation: ConfigOperation
    value: str | None = None


class AlterConfig(Value, frozen=True):
    """`name`: a topic name, a broker id as text ('' for the cluster-wide default), a quota's entity (tailrace.quotas)
    as text, or a group id. `replace`: remove all configs that are not named."""

    scope: ConfigScope
    name: str
    changes: list[ConfigChange]
    replace: bool = False
    validate_only: bool = False
    request_id: UUID | None = None


class BrokerConfigsRequest(Value, frozen=True):
    name: str


class Configs(Value, frozen=True):
    configs: dict[str, str]


class ClientConfigsRequest(Value, frozen=True):
    """`known_version`: the version that the caller has; -1 for none. `takes_pages`: the caller requests the following
    pages with the `next` of the previous page as `after`: its version, and the scope and name of its last entry. If the
    version has changed, the listing starts again from the beginning."""

    known_version: Int64 = -1
    takes_pages: bool = False
    after: tuple[Int64, ConfigScope, str] | None = None


class ClientConfig(Value, frozen=True):
    """The configs under one name of a scope that is neither a topic nor a broker."""

    scope: ConfigScope
    name: str
    configs: dict[str, str]


class ClientConfigs(Value, frozen=True):
    """A page of all client configs; `configs` is None if the caller's are current."""

    version: int
    configs: list[ClientConfig] | None
    next: tuple[Int64, ConfigScope, str] | None = None


# --- reading -----------------------------------------------------------------------------------------------


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
    """Results in the order of the request. There may be fewer results than queries, but at least one: request the rest
    again."""

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


# --- producers ---------------------------------------------------------------------------------------------


class InitProducer(Value, frozen=True):
    """Initialize an idempotent producer, or (with a transactional id) a transactional one.

    A known transactional id gets a higher epoch, and its open transaction is aborted. `producer_id` and
    `producer_epoch`, if given, are the caller's current ones (KIP-360); if they are not current, the call raises
    ProducerFenced.
    """

    producer_id: Int64 = -1
    producer_epoch: Int64 = -1
    transactional_id: str | None = None
    timeout_ms: Int64 = 0
    request_id: UUID | None = None


class ProducerGrant(Value, frozen=True):
    producer_id: int
    producer_epoch: int


class ProducerQuery(Value, frozen=True):
    """`after`: the `next` of the previous page."""

    topic_id: UUID
    partition: Int64
    after: Int64 = -1


class ActiveProducer(Value, frozen=True, kw_only=True):
    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    transaction_start_offset: int = -1


class ProducersAnswer(Value, frozen=True):
    """A page, ordered by producer id. `next`: the last entry if there are more pages; else -1."""

    error: PartitionError
    producers: list[ActiveProducer]
    next: int = -1


# --- transactions --------------------------------------------------------------------------------------


class TransactionRef(Value, frozen=True):
    """A producer's transaction, as its client identifies it."""

    transactional_id: str
    producer_id: Int64
    producer_epoch: Int64


class AddToTransaction(Value, frozen=True):
    """Add partitions or a group that the transaction will write to; the first addition begins the transaction.
    `verify_only`: change nothing, but raise InvalidTransactionState if one of them is not in the transaction.

    `number`: the number of the transaction that the client means, as the agent looked it up when it received the
    request (`transactions`). It keeps a request that arrives after the end of that transaction from beginning another
    one. -1: the open transaction, or else the next.
    """

    transaction: TransactionRef
    partitions: list[tuple[UUID, Int64]]
    group_id: str | None = None
    verify_only: bool = False
    number: Int64 = -1


class CurrentTransactionQuery(Value, frozen=True):
    topic_id: UUID
    partition: Int64
    producer_id: Int64
    producer_epoch: Int64


class CurrentTransactionsRequest(Value, frozen=True):
    """Requests the open transaction of each batch that a client of transaction version 0 or 1 has just sent."""

    batches: list[CurrentTransactionQuery]


class CurrentTransaction(Value, frozen=True):
    """`number` is -1 with an error: the producer has no open transaction in the partition, or is not the current
    producer."""

    error: BatchError
    number: int


class CurrentTransactionsAnswer(Value, frozen=True):
    """One entry per batch, in the order of the request."""

    transactions: list[CurrentTransaction]


class EndTransaction(Value, frozen=True):
    """Commit or abort a transaction, for all its partitions and group offsets at once. A retry gets the first answer.

    `bumps_epoch`: transaction version 2; the producer continues with the producer id and epoch of the answer.
    `number`: the transaction that was open when the agent received the request (`transactions`). Without an epoch bump
    it keeps a retried end from ending the next transaction; -1: whichever is open.
    """

    transaction: TransactionRef
    is_commit: bool
    bumps_epoch: bool
    number: Int64 = -1


class TransactionsRequest(Value, frozen=True):
    """`transactional_ids` None: all. `after`: the `next` of the previous page."""

    transactional_ids: list[str] | None
    after: str | None = None


class TransactionState(enum.StrEnum):
    """Kafka's state names. The prepare states don't occur, because a transaction ends in one database transaction."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"


class TransactionDescription(Value, frozen=True, kw_only=True):
    """`number` counts the producer's transactions. `started_ms` is -1 if no transaction is open."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    number: int
    state: TransactionState
    timeout_ms: int
    started_ms: int
    partitions: list[tuple[UUID, int]]
    groups: list[str]


class TransactionDescriptions(Value, frozen=True):
    """A page, ordered by transactional id; unknown ids are left out. `next`: the last entry if there are more pages."""

    transactions: list[TransactionDescription]
    next: str | None = None


class AbortProducer(Value, frozen=True):
    """Abort, on behalf of an operator, what a producer has open in these partitions (WriteTxnMarkers).

    The transaction that is open there is aborted in all its partitions, and its producer is fenced.
    """

    producer_id: Int64
    producer_epoch: Int64
    partitions: list[tuple[UUID, Int64]]
    request_id: UUID | None = None


class AbortedProducer(Value, frozen=True):
    """One error per partition; NONE even if nothing was open."""

    errors: list[PartitionError]


# --- groups ------------------------------------------------------------------------------------------------


class LocateGroup(Value, frozen=True):
    """Requests the agent that coordinates the group. If the group has no live owner, the first live agent of
    `candidates` becomes it."""

    group_id: str
    candidates: list[Int64]


class GroupOwner(Value, frozen=True):
    broker_id: int
    host: str
    port: int


class LoadGroup(Value, frozen=True):
    """Sent by an agent that begins to coordinate a group. `lease_epoch` is the epoch of the agent's lease."""

    group_id: str
    broker_id: Int64
    lease_epoch: Int64


CLASSIC_GROUP, CONSUMER_GROUP, SHARE_GROUP = "classic", "consumer", "share"
"""Group types. In a classic group a member computes the assignment; in a consumer group the coordinator does (KIP-848).
The members of a share group share partitions record by record (KIP-932)."""


class GroupState(Value, frozen=True):
    """`blob` is the coordinator's own encoding (empty for a new group); `generation` and `members` repeat what the
    sequencer checks. `term`: how many times a coordinator has loaded the group, including this time."""

    group_id: str
    generation: Int64
    state: str
    protocol_type: str
    members: list[str]
    blob: bytes
    term: Int64 = 0
    type: str = CLASSIC_GROUP


def first_turn(term: int) -> int:
    """Return the turn that precedes the first turn of the coordinator of this `term`. It is higher than all turns of
    earlier coordinators."""
    return term << 40


class SaveGroup(Value, frozen=True):
    """`may_create`: the group had no state when this agent loaded it, and was not saved since. If the group has no row
    it is created, once per `request_id`. `turn`: as in CommitOffsets; a state of an earlier turn than the stored one
    changes nothing."""

    broker_id: Int64
    lease_epoch: Int64
    group: GroupState
    may_create: bool = True
    turn: Int64 = 0
    request_id: UUID | None = None


class OffsetPosition(Value, frozen=True):
    """`has_pending`: an open transaction will change this position if it commits. `is_unknown`: there is no such
    partition. Only `fetch_offsets` sets these two."""

    topic_id: UUID
    partition: Int64
    offset: Int64
    leader_epoch: Int64
    metadata: str
    commit_ms: Int64 = -1
    has_pending: bool = False
    is_unknown: bool = False


class CommitOffsets(Value, frozen=True):
    """Commit offsets of a group. `generation` -1 with `member_id` '' is only allowed for an empty group, and needs no
    owner.

    With a `transaction` the positions are pending until it ends; generation -1 with member '' then means a client that
    does not send them (before KIP-447), whatever the group's state. `joins`: this request adds the group to the
    transaction (transaction version 2); otherwise `add_to_transaction` must have added it. `number`: the transaction
    that the client means, as in AddToTransaction.

    `turn`: numbers a coordinator's commits for a group in the order in which it sends them, see `first_turn`; 0: no
    turn. A commit of an earlier turn does not overwrite a position of a later one, but is answered as if it had arrived
    in time. Without turns, retries with the same `request_id` get the first answer.
    """

    group_id: str
    broker_id: Int64
    lease_epoch: Int64
    generation: Int64
    member_id: str
    offsets: list[OffsetPosition]
    retention_ms: Int64 = -1
    transaction: TransactionRef | None = None
    joins: bool = False
    turn: Int64 = 0
    number: Int64 = -1
    request_id: UUID | None = None


class OffsetErrors(Value, frozen=True):
    """One error per requested position."""

    commit_number: int
    errors: list[PartitionError]


class FetchOffsets(Value, frozen=True):
    """`partitions` None: all of the group's, in pages of at most `limit`; `after` is the `next` of the previous page.
    Offsets of deleted topics are gone."""

    group_id: str
    partitions: list[tuple[UUID, Int64]] | None
    after: tuple[UUID, Int64] | None = None
    limit: Int64 = 5_000


class OffsetPositions(Value, frozen=True):
    """Positions in the order of the request; offset -1 if there is none. There may be fewer than requested, but at
    least one: request the rest again.

    If all partitions were requested, this is a page ordered by topic id and partition. `next`: the last entry if there
    are more pages.
    """

    positions: list[OffsetPosition]
    next: tuple[UUID, int] | None = None


class DeleteOffsets(Value, frozen=True):
    group_id: str
    partitions: list[tuple[UUID, Int64]]
    request_id: UUID | None = None


class GroupRef(Value, frozen=True):
    group_id: str
    request_id: UUID | None = None


class ListGroups(Value, frozen=True):
    """`after`: the `next` of the previous page."""

    after: str | None = None


class GroupListing(Value, frozen=True):
    group_id: str
    state: str
    protocol_type: str
    owner: int
    type: str = CLASSIC_GROUP


class GroupListings(Value, frozen=True):
    """A page, ordered by group id. `next`: the last entry if there are more pages."""

    groups: list[GroupListing]
    next: str | None = None


class LagsRequest(Value, frozen=True):
    """`after`: the `next` of the previous page. `owner`: only groups that this agent coordinates; -1 for all.
    `with_orphans`: also groups whose coordinator is gone or that never had one."""

    after: tuple[str, UUID, Int64] | None = None
    owner: Int64 = -1
    with_orphans: bool = False


class Lag(Value, frozen=True):
    group_id: str
    topic: str
    partition: int
    committed: int
    high_watermark: int


class Lags(Value, frozen=True):
    """A page, ordered by group id, topic id and partition. `next`: the last entry if there are more pages."""

    lags: list[Lag]
    next: tuple[str, UUID, int] | None = None


# --- share groups -----------------------------------------------------------------------------------------


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


# --- retention, garbage, compaction ------------------------------------------------------------------------


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


class TakeLease(Value, frozen=True):
    """Take or renew a named lease ('compactor', ...). Epoch 0 takes it anew (once per `request_id`); the held epoch
    renews it."""

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


# --- users and access control lists -----------------------------------------------------------------------


class ScramMechanism(enum.IntEnum):
    """Kafka's numbers (KIP-554)."""

    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2


class ScramName(Value, frozen=True):
    """Identifies credentials: a user has one set per mechanism."""

    user: str
    mechanism: ScramMechanism


class ScramCredentials(Value, frozen=True):
    """What a server needs to check a user's password (RFC 5802). The password can be found from it only by guessing."""

    name: ScramName
    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: Int64


class AlterScram(Value, frozen=True):
    upserts: list[ScramCredentials]
    deletes: list[ScramName]
    request_id: UUID | None = None


class AlteredScram(Value, frozen=True):
    """`missing`: credentials that were to be deleted but do not exist."""

    missing: list[ScramName]


class CreateAcls(Value, frozen=True):
    """Existing bindings are left as they are."""

    acls: list[Acl]
    request_id: UUID | None = None


class DeleteAcls(Value, frozen=True):
    """`takes_parts`: the caller repeats the request for filters that one answer did not finish."""

    filters: list[AclFilter]
    request_id: UUID | None = None
    takes_parts: bool = False


class DeletedAcls(Value, frozen=True):
    """The bindings that each filter deleted. A binding that several filters match is listed for each of them.

    `done`: this many filters are finished; the caller requests the others again. The first of those may have deleted a
    part of its matches. -1: all are finished.
    """

    matches: list[list[Acl]]
    done: int = -1


class SecurityCursor(Value, frozen=True):
    """The last entry of a page: a user, or after all users an ACL. If the version has changed, the listing starts again
    from the beginning."""

    version: Int64
    user: ScramName | None = None
    acl: Acl | None = None


class SecurityRequest(Value, frozen=True):
    """`known_version`: the version that the caller has; -1 for none. `takes_pages`: the caller requests the following
    pages with the `next` of the previous page as `after`."""

    known_version: Int64 = -1
    takes_pages: bool = False
    after: SecurityCursor | None = None


class Security(Value, frozen=True):
    """A page of all users and ACLs, users first. Both are None if the caller's are current."""

    version: int
    users: list[ScramCredentials] | None
    acls: list[Acl] | None
    next: SecurityCursor | None = None


class DelegationToken(Value, frozen=True):
    """A delegation token, which lets its holder log in as its owner (KIP-48). Principals are written as in ACLs.

    `fingerprint`: the SHA-256 of the token's HMAC, in hex. The HMAC leads to the fingerprint, but the fingerprint is
    not enough to log in. Times are of the database's clock; `left_ms`: how much longer the token was valid when this
    was answered.
    """

    fingerprint: str
    token_id: str
    owner: str
    requester: str
    renewers: list[str]
    issued_ms: Int64
    expires_ms: Int64
    max_ms: Int64
    left_ms: Int64


class CreateToken(Value, frozen=True):
    """`lifetime_ms`: how long from now the token can be renewed; `expiry_ms`: when it expires unless it is renewed,
    from now."""

    fingerprint: str
    token_id: str
    owner: str
    requester: str
    renewers: list[str]
    lifetime_ms: Int64
    expiry_ms: Int64
    request_id: UUID | None = None


class AlterToken(Value, frozen=True):
    """Make the token expire `period_ms` from now, at the latest at the end of its lifetime; 0 or less ends it now.
    `principal`: the caller."""

    fingerprint: str
    principal: str
    period_ms: Int64
    request_id: UUID | None = None


class TokensRequest(Value, frozen=True):
    """`fingerprint`: request only this token. `principal`: only tokens of which it is the owner, the requester or a
    renewer. `after`: the `next` of the previous page."""

    fingerprint: str | None = None
    principal: str | None = None
    after: str | None = None


class Tokens(Value, frozen=True):
    """A page of the tokens that have not expired, ordered by fingerprint; `next` is None after the last page."""

    tokens: list[DelegationToken]
    next: str | None = None


class Sequencer(Protocol):
    """All methods. Each may raise SequencerUnavailable or SequencerOverloaded."""

    # Upload sessions and commits.
    async def open_session(self, request: OpenSession) -> SessionGrant: ...
    async def renew_session(self, request: SessionRef) -> SessionGrant: ...
    async def close_session(self, request: SessionRef) -> Empty: ...
    async def commit(self, request: CommitRequest) -> CommitAnswer: ...
    async def commit_write(self, request: WriteRequest) -> WriteAnswer: ...

    # Agents and the ring.
    async def register_agent(self, request: AgentInfo) -> AgentLease: ...
    async def renew_agent(self, request: RenewAgent) -> AgentLease: ...
    async def release_agent(self, request: AgentRef) -> Empty: ...
    async def suspect_agent(self, request: AgentRef) -> Empty: ...

    # Topics and configs.
    async def metadata(self, request: MetadataRequest) -> Metadata: ...
    async def create_topic(self, request: CreateTopic) -> Topic: ...
    async def delete_topic(self, request: DeleteTopic) -> Empty: ...
    async def create_partitions(self, request: CreatePartitions) -> Topic: ...
    async def alter_config(self, request: AlterConfig) -> Empty: ...
    async def broker_configs(self, request: BrokerConfigsRequest) -> Configs: ...
    async def client_configs(self, request: ClientConfigsRequest) -> ClientConfigs: ...

    # Users and access control lists.
    async def security(self, request: SecurityRequest) -> Security: ...
    async def alter_scram(self, request: AlterScram) -> AlteredScram: ...
    async def create_acls(self, request: CreateAcls) -> Empty: ...
    async def delete_acls(self, request: DeleteAcls) -> DeletedAcls: ...
    async def create_token(self, request: CreateToken) -> DelegationToken: ...
    async def alter_token(self, request: AlterToken) -> DelegationToken: ...
    async def tokens(self, request: TokensRequest) -> Tokens: ...

    # Reading.
    async def find_batches(self, request: FindRequest) -> FindAnswer: ...
    async def list_offsets(self, request: OffsetsRequest) -> OffsetsAnswer: ...
    async def offsets_for_epochs(self, request: EpochRequest) -> EpochAnswer: ...
    async def feed(self, request: FeedRequest) -> FeedAnswer: ...
    async def watch(self, request: WatchRequest) -> WatchAnswer: ...
    async def sizes(self, request: SizesRequest) -> SizesAnswer: ...
    async def live_files(self, request: LiveFilesRequest) -> LiveFiles: ...

    # Producers.
    async def init_producer(self, request: InitProducer) -> ProducerGrant: ...
    async def describe_producers(self, request: ProducerQuery) -> ProducersAnswer: ...

    # Transactions.
    async def add_to_transaction(self, request: AddToTransaction) -> Empty: ...
    async def current_transactions(
        self, request: CurrentTransactionsRequest
    ) -> CurrentTransactionsAnswer: ...
    async def end_transaction(self, request: EndTransaction) -> ProducerGrant: ...
    async def transactions(self, request: TransactionsRequest) -> TransactionDescriptions: ...
    async def abort_producer(self, request: AbortProducer) -> AbortedProducer: ...

    # Groups.
    async def locate_group(self, request: LocateGroup) -> GroupOwner: ...
    async def load_group(self, request: LoadGroup) -> GroupState: ...
    async def save_group(self, request: SaveGroup) -> Empty: ...
    async def delete_group(self, request: GroupRef) -> Empty: ...
    async def list_groups(self, request: ListGroups) -> GroupListings: ...
    async def commit_offsets(self, request: CommitOffsets) -> OffsetErrors: ...
    async def fetch_offsets(self, request: FetchOffsets) -> OffsetPositions: ...
    async def delete_offsets(self, request: DeleteOffsets) -> OffsetErrors: ...
    async def lags(self, request: LagsRequest) -> Lags: ...
    async def share_records(self, request: ShareRequest) -> ShareAnswer: ...
    async def share_offsets(self, request: ShareOffsetsRequest) -> ShareOffsets: ...
    async def alter_share_offsets(self, request: AlterShareOffsets) -> OffsetErrors: ...

    # Retention, garbage, compaction.
    async def delete_records(self, request: DeleteRecords) -> DeletedRecords: ...
    async def apply_retention(self, request: Empty) -> RetentionSummary: ...
    async def garbage(self, request: GarbageRequest) -> Garbage: ...
    async def forget_objects(self, request: ForgetObjects) -> Empty: ...
    async def known_keys(self, request: KnownKeys) -> KnownKeys: ...
    async def session_swept(self, request: SweptSession) -> Empty: ...
    async def take_lease(self, request: TakeLease) -> NamedLease: ...
    async def compaction_candidates(self, request: CompactionRequest) -> CompactionCandidates: ...
    async def swap(self, request: SwapRequest) -> SwapAnswer: ...
    async def clean_points(self, request: CleanPointsRequest) -> CleanPoints: ...
    async def mark_clean(self, request: MarkClean) -> Empty: ...
    async def pin_table(self, request: PinTable) -> TablePin: ...
    async def release_table(self, request: ReleaseTable) -> Empty: ...
    async def table_pins(self, request: TablePinsRequest) -> TablePins: ...
    async def objects(self, request: ObjectsRequest) -> ObjectsAnswer: ...
    async def object_runs(self, request: ObjectRef) -> RunsAnswer: ...
    async def statistics(self, request: Empty) -> Statistics: ...

    async def close(self) -> None: ...
