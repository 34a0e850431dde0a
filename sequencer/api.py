"""The sequencer's interface and its values: what agents, caches and the compactor may call.

Every method takes one versionable struct and returns one, so that the RPC server and client need no
code per method. Structs are `array_like`: fields are only ever appended, with defaults.

`request_id` names one request that is meant, however often it is sent: the first answer is the answer
(sequencer.rules.repeats). SequencerClient gives one to each request that has none.

Time stamps are milliseconds since the Unix epoch; `end_offset` is exclusive, `last_offset` inclusive.
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
    """Base of everything that travels to or from the sequencer."""


# --- errors ---------------------------------------------------------------------------------------


class SequencerError(Exception):
    """The sequencer refused; the subclass says why in the caller's terms. `code` names it on the wire."""

    code: ClassVar[str] = "sequencer_error"


class SequencerUnavailable(SequencerError):
    """No committer answers, or the database is away. Retry with the same ids."""

    code = "unavailable"


class SequencerOverloaded(SequencerError):
    """The committer's queue is full. Slow down and retry with the same ids."""

    code = "overloaded"


class RequestFailed(SequencerError):
    """This request can't be carried out, for an unforeseen reason: its values don't fit the database, or a bug. It
    changed nothing. A retry fails too."""

    code = "request_failed"


class IncarnationChanged(SequencerError):
    """The database is another (older or recovered) one than this caller knew: drop all state and stop."""

    code = "incarnation_changed"


class SessionClosed(SequencerError):
    """This upload session has ended; nothing may be committed under it."""

    code = "session_closed"


class CommitOutOfOrder(SequencerError):
    """The commit's number is not the next one; the message says which number is expected."""

    code = "commit_expected"


class LeaseLost(SequencerError):
    """The lease named (agent, compactor, committer) is over or was taken by a higher epoch."""

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
    """The epoch is not the transactional id's; the producer may ask for a new one (KIP-360)."""

    code = "invalid_producer_epoch"


class InvalidProducerIdMapping(SequencerError):
    """The producer id is not the one that this transactional id has."""

    code = "invalid_producer_id_mapping"


class InvalidTransactionState(SequencerError):
    """The transaction is not in a state in which this may be done; the message says which it is in."""

    code = "invalid_transaction_state"


class InvalidTransactionTimeout(SequencerError):
    code = "invalid_transaction_timeout"


class UnknownTransactionalId(SequencerError):
    code = "unknown_transactional_id"


class SwapRefused(SequencerError):
    """The runs are no longer what the compactor read (or its lease is over): plan again."""

    code = "swap_refused"


class UnknownToken(SequencerError):
    """There is no such delegation token, or no more."""

    code = "unknown_token"


class TokenExpired(SequencerError):
    """The delegation token has expired."""

    code = "token_expired"


class NotTokenOwner(SequencerError):
    """Neither the owner nor a renewer of the delegation token asks."""

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
    """Nothing to say."""


# --- upload sessions and commits ---------------------------------------------------------------------


class OpenSession(Value, frozen=True):
    """An agent's request for a prefix to upload under. `predecessor` is the lane's session before this.

    `name`: of a writer's (WRITER_BROKER_ID) session, so that all tasks of a job have one: an open one is renewed.
    """

    broker_id: Int64
    agent_epoch: Int64
    predecessor: UUID | None = None
    name: UUID | None = None


class SessionGrant(Value, frozen=True):
    """`prefix` (ends in '/') is the only place the session may write. Numbers start at 0. `collected_ms`: what is put
    within this time after the session has ended is collected."""

    session_id: UUID
    prefix: str
    lease_ms: int
    incarnation: int
    collected_ms: int = 86_400_000


class SessionRef(Value, frozen=True):
    session_id: UUID


class ObjectKind(enum.IntEnum):
    """What a run's bytes are in. MARKERS: in no object; a run of transaction markers, which are rows."""

    MIXED = 0
    PARQUET = 1
    MARKERS = 2


class ObjectDescription(Value, frozen=True):
    """One stored object. `index_start`: the byte at which its footer begins.

    `index_crc`: CRC-32C of the bytes from there to the end, for footers without a checksum of their own
    (Parquet's); 0: not known.
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
        """The mixed object that is, or will be, stored under a key."""
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
    """The key of the object that a session with this prefix uploads for its commit of this number."""
    return f"{prefix}{number:012d}"


class RunProposal(Value, frozen=True):
    """Batches of one partition that stand next to each other at [start, start + length) of the object.

    `transactions`: one per batch, or empty when none is transactional. The number of the producer's
    transaction that was open when the agent received the batch (`current_transactions`), or ANY_TRANSACTION: the
    batch's epoch says which one (transaction version 2: every end bumps it), and the first batch begins it.
    `may_skip`: the sequences before a batch are taken as lost (a committer that doesn't know this refuses the batch).
    """

    topic_id: UUID
    partition: Int64
    start: Int64
    length: Int64
    batches: list[BatchCoordinates]
    transactions: list[Int64] = []
    may_skip: bool = False


class CommitRequest(Value, frozen=True):
    """One sealed buffer. `object` is None when its upload failed for good (an empty commit).

    A batch that was answered SEQUENCE_GAP is retried by a commit (with the next number) that names the same
    object and a run of just that batch: no new upload.
    `answered_below`: numbers below it were answered and will not be retried.
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
    """A batch's own outcome. DUPLICATE is a success with the first answer's offset."""

    NONE = 0
    DUPLICATE = 1
    SEQUENCE_GAP = 2
    OUT_OF_ORDER_SEQUENCE = 3
    UNKNOWN_PRODUCER_ID = 4
    INVALID_PRODUCER_EPOCH = 5
    UNKNOWN_TOPIC_OR_PARTITION = 6
    TRANSACTION_CLOSED = 7


class BatchOutcome(Value, frozen=True):
    """`base_offset` is -1 unless the batch is stored (error NONE or DUPLICATE), or an earlier transaction stored its
    sequences (UNKNOWN_PRODUCER_ID); then that is where."""

    error: BatchError
    base_offset: int


class RunOutcome(Value, frozen=True):
    """One outcome per batch, in the proposal's order."""

    outcomes: list[BatchOutcome]
    log_start_offset: int


class CommitAnswer(Value, frozen=True):
    """One run outcome per proposed run, in order."""

    commit_number: int
    runs: list[RunOutcome]


class WrittenObject(Value, frozen=True):
    """An object of a write, under the session that it was uploaded under. Its batches are of no producer."""

    session_id: UUID
    object: ObjectDescription
    runs: list[RunProposal]


class WriteRequest(Value, frozen=True):
    """What a job wrote: all its objects, committed together.

    `epoch`: numbers the commits of one `write_id`; they rise, and may leave some out. An epoch that is not above the
    last one is a repeat, whatever its objects. `is_stream`: repeats may come as late as a stream is started again.
    """

    write_id: UUID
    epoch: Int64
    is_stream: bool
    objects: list[WrittenObject]


class WriteAnswer(Value, frozen=True):
    """`commit_number`: of the last epoch. `is_repeat`: nothing was stored now."""

    commit_number: int
    is_repeat: bool


# --- agents and the ring -------------------------------------------------------------------------------


class AgentInfo(Value, frozen=True):
    """How an agent is reached. `peer_*` is its cache-peer RPC; port 0 means it serves no peers. `listeners`: advertised
    host and port by the listener's name, where there is more than the plain one at `host` and `port`. `request_id`: a
    registration has one, and is carried out once."""

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
        """Where clients of this listener ('' for the only one) find the agent; None where it has no such listener."""
        return self.listeners.get(listener) if listener else (self.host, self.port)


class NewestVersions(Value, frozen=True):
    """The newest versions of what every agent keeps: topics and their configs, the ring, users and ACLs, and what is
    configured for clients."""

    metadata: int
    ring_generation: int
    security: int
    client_configs: int


class AgentLease(Value, frozen=True):
    """`silence_ms`: an agent that renews three times in this time is never suspected; a coordinator answers from memory
    only while its last renewal is younger (0 from a sequencer that ends no lease early). `early_puts`, `rows`: the
    agent's shares of the cluster's budgets, per second; -1: nothing new. `newest`: as of a renewal, so that an agent
    asks for metadata only where there is something new (None from an older sequencer)."""

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
    """`draining` takes the agent out of leadership and group placement, but keeps its lease. `early_puts`, `rows`: how
    many a second the agent has a use for."""

    broker_id: Int64
    epoch: Int64
    draining: bool = False
    early_puts: float = 0.0
    rows: float = 0.0


class Member(Value, frozen=True):
    """A live agent as others see it."""

    broker_id: int
    epoch: int
    info: AgentInfo
    draining: bool


class Ring(Value, frozen=True):
    """The live agents, ordered by broker id; `generation` never falls and is metadata's leader epoch.

    `departed`: the last that have left, as clients may wait for them.
    """

    generation: int
    members: list[Member]
    departed: list[Member] = []


class RingChange(Value, frozen=True):
    """What leads from the ring of generation `since` to that of `generation`. `members`: those that are new or
    different; `left`: the broker ids of those that are no members any more; `departed`: those of the ring's that were
    neither members nor departed before."""

    since: int
    generation: int
    members: list[Member]
    left: list[int]
    departed: list[Member] = []


# --- topics ---------------------------------------------------------------------------------------------


MAX_REPLICATION_FACTOR = 32
"""More replicas than this are a mistake; each is a number in every metadata answer, for every partition."""


class Topic(Value, frozen=True):
    """`configs` holds only what was set; defaults live in tailrace.topic_config. `replication_factor` is what its
    creator asked for, kept to be reported: the object store replicates."""

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
    """`known_version` and `known_generation`: what the caller has; -1 for nothing. `takes_changes`: it keeps the topics
    of its version, and takes the changes since; `takes_ring_changes`: the same of the ring."""

    known_version: Int64 = -1
    known_generation: Int64 = -1
    takes_changes: bool = False
    takes_ring_changes: bool = False


class Metadata(Value, frozen=True, kw_only=True):
    """`topics`/`ring` are None when the caller's are current. `topics` is also None where the caller takes changes:
    `changed` has the topics that are new or different, `deleted` the ids of those that are gone. `security_version`:
    of the users and ACLs; a caller that has others asks `security`. `client_configs_version`: the same of what
    `client_configs` answers. `ring_change`: in place of `ring`, where the caller takes it."""

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
    """`name`: topic name, broker id as text ('' for the cluster-wide default), a quota's entity (tailrace.quotas) as
    text, or a group's id. `replace`: drop what isn't named."""

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
    """`known_version`: what the caller has; -1 for nothing. `takes_pages`: the caller asks for what follows, `after`
    the `next` of the page before: its version, and the scope and name of its last entry. In another version the listing
    begins anew."""

    known_version: Int64 = -1
    takes_pages: bool = False
    after: tuple[Int64, ConfigScope, str] | None = None


class ClientConfig(Value, frozen=True):
    """What is set under one name of a scope that is neither a topic nor a broker."""

    scope: ConfigScope
    name: str
    configs: dict[str, str]


class ClientConfigs(Value, frozen=True):
    """Everything that is configured for clients, by page; None when the caller's is current."""

    version: int
    configs: list[ClientConfig] | None
    next: tuple[Int64, ConfigScope, str] | None = None


# --- reading -----------------------------------------------------------------------------------------------


class RunBatch(Value, frozen=True):
    """A row of a run's batch table, in the order of the bytes. `base_offset` is -1 unless STORED."""

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
    """A committed run: [base_offset, end_offset) of one partition, out of one object.

    Of a mixed object: its batches stand at [start, start + length), one after another.
    Of a Parquet object: offsets may have holes, `batches` is empty, and the object's own index, whose CRC-32C
    is `index_crc` (0: not known), tells more.
    Of markers: one control batch per entry of `markers`, of `length` bytes together, in no object (nil
    `object_id`, no key); `max_timestamp` is -1, so that no look-up by time finds a marker.
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
    """Records of the producer at [first_offset, last_offset] were aborted; `last_offset` is the marker's."""

    producer_id: int
    first_offset: int
    last_offset: int


class FindPartition(Value, frozen=True):
    """`max_bytes` bounds the runs returned (at least one, if there is any at `offset`)."""

    topic_id: UUID
    partition: Int64
    offset: Int64
    max_bytes: Int64


class FindRequest(Value, frozen=True):
    """`max_bytes` bounds the runs of all partitions together, in the order asked. An answer may always have less:
    with its first partition that has a run at its offset comes at least that run."""

    partitions: list[FindPartition]
    max_bytes: Int64 = INT64_MAX


class PartitionError(enum.IntEnum):
    NONE = 0
    UNKNOWN_TOPIC_OR_PARTITION = 1
    OFFSET_OUT_OF_RANGE = 2


class FoundPartition(Value, frozen=True, kw_only=True):
    """The partition at one commit number, and the runs from the one that holds `offset` on, in order,
    tiling. Where they end below the high watermark there are more.

    `inner_bytes`: bytes of the log in all runs but the first and the last, if no run is of a Parquet object; -1: not
    said.
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
    """`from_offset`: where a stopped look-up continues (its `next_offset`); -1: at log start. `end_offset`: for
    MAX_TIMESTAMP, only runs that begin below it count; an earlier sequencer knows no such bound."""

    topic_id: UUID
    partition: Int64
    timestamp: Int64
    read_committed: bool = False
    from_offset: Int64 = -1
    end_offset: Int64 = INT64_MAX


class OffsetsRequest(Value, frozen=True):
    queries: list[OffsetQuery]


class OffsetResult(Value, frozen=True, kw_only=True):
    """For EARLIEST/LATEST, `offset` is the answer. For a time or MAX_TIMESTAMP, `run` is the first run with a
    record at or after the time (the run with the largest timestamp), None when there is none; the caller
    looks inside it, from `log_start_offset` on, and, where it asked `read_committed`, takes nothing that it
    finds at or above `last_stable_offset` (the run may reach above it).

    `timestamp`: the largest, where its run is not told because all of it is above `last_stable_offset`; else -1.

    `next_offset`: where the look-up was stopped after many runs; -1: it reached the end. Of the runs
    before that, `run` has the largest timestamp; none reaches the time."""

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
    """In the order asked. There may be fewer results than queries, at least one: ask for the rest."""

    commit_number: int
    results: list[OffsetResult]


class EpochQuery(Value, frozen=True):
    topic_id: UUID
    partition: Int64
    leader_epoch: Int64


class EpochRequest(Value, frozen=True):
    queries: list[EpochQuery]


class EpochResult(Value, frozen=True):
    """The end of the log's epoch (Kafka's OffsetForLeaderEpoch): -1, -1 for an unknown one."""

    error: PartitionError
    leader_epoch: int
    end_offset: int


class EpochAnswer(Value, frozen=True):
    results: list[EpochResult]


class PartitionUpdate(Value, frozen=True, kw_only=True):
    """A partition's bounds now, and the runs added since, in order."""

    topic_id: UUID
    partition: int
    log_start_offset: int
    high_watermark: int
    last_stable_offset: int
    leader_epoch: int
    runs: list[Run]


class FeedRequest(Value, frozen=True):
    """Wait until something was committed after `after` in one of `partitions` ([] means all), or
    `max_wait_ms`. Without `wants_runs` the answer has no runs: it only wakes."""

    after: Int64
    partitions: list[tuple[UUID, Int64]]
    max_wait_ms: Int64
    wants_runs: bool = True


class FeedAnswer(Value, frozen=True):
    """`reset`: `after` is too old to continue from; drop what is known and continue from `commit_number`. That may be
    below the newest: one answer has no room for more."""

    commit_number: int
    reset: bool
    updates: list[PartitionUpdate]


class WatchRequest(Value, frozen=True):
    """One call of a subscription to partitions: change what is watched, and wait up to `max_wait_ms` for changes.

    `subscriber`: new for each subscription. `turn`: how often this subscription was changed, this time included;
    `added` and `removed` are taken over once a turn, in the order removed, added, however often the call arrives.
    `taken`: how many changes the subscriber has taken; these are not sent again. A newer call of the same subscriber
    ends the wait of an older one.
    """

    subscriber: UUID
    turn: Int64
    taken: Int64
    added: list[tuple[UUID, Int64]]
    removed: list[tuple[UUID, Int64]]
    max_wait_ms: Int64


class PartitionChange(Value, frozen=True, kw_only=True):
    """A watched partition's bounds from `commit_number` on, and what that commit changed of its runs.

    `is_start`: the partition is watched from here on; `runs`, if any, end at its high watermark. Otherwise `runs`
    follow those of the changes before. `aborted`: the transactions whose abort markers are in `runs`. Below
    `replaced_below` compaction has replaced runs (-1: it has not). `is_gone`: the partition does not exist (any more)
    and is no longer watched; its bounds are -1.
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
    """The changes after the first `taken`, in commit order, without a gap. What was watched before this answer did not
    change otherwise up to `commit_number`.

    `epoch`: of the committer that answers. `is_reset`: it does not know the subscription, or has dropped it; nothing
    of it is true any longer, begin a new one. `pause_ms`: how long the subscriber lets pass between two calls, so
    that all of them together ask no more than the committer can answer.
    """

    epoch: int
    commit_number: int
    taken: int
    changes: list[PartitionChange]
    is_reset: bool = False
    pause_ms: int = 0


# --- producers ---------------------------------------------------------------------------------------------


class InitProducer(Value, frozen=True):
    """For an idempotent producer, or (with a transactional id) for a transactional one.

    A transactional id that is known gets a higher epoch, its open transaction is aborted. `producer_id` and
    `producer_epoch`, where given, are what the caller has now (KIP-360): ProducerFenced if it isn't current.
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
    """`after`: the `next` of the page before."""

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
    """A page, by producer id. `next`: its last entry, where there are more; else -1."""

    error: PartitionError
    producers: list[ActiveProducer]
    next: int = -1


# --- transactions --------------------------------------------------------------------------------------


class TransactionRef(Value, frozen=True):
    """A producer's transaction, as its client names it."""

    transactional_id: str
    producer_id: Int64
    producer_epoch: Int64


class AddToTransaction(Value, frozen=True):
    """Partitions, or a group, that the transaction will write to; it begins with the first. `verify_only`:
    change nothing, raise InvalidTransactionState if one is not in it.

    `number`: the transaction that the client means, as the agent found when it got the request (`transactions`); a
    request that arrives after its end must not begin another one. -1: whichever is open, or the next."""

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
    """Asks for the open transaction of each batch that a client of transaction version 0 or 1 has just sent."""

    batches: list[CurrentTransactionQuery]


class CurrentTransaction(Value, frozen=True):
    """`number` -1 with an error: the producer has no open transaction there, or is not the current one."""

    error: BatchError
    number: int


class CurrentTransactionsAnswer(Value, frozen=True):
    """One for each batch asked, in order."""

    transactions: list[CurrentTransaction]


class EndTransaction(Value, frozen=True):
    """Commit or abort, for all partitions and group offsets at once. A retry gets the first answer.

    `bumps_epoch`: transaction version 2; the answer's producer id and epoch are those to go on with.
    `number`: the transaction that was open when the agent got the request (`transactions`), so that without
    a bump a retried end doesn't end the next transaction; -1: whichever is open.
    """

    transaction: TransactionRef
    is_commit: bool
    bumps_epoch: bool
    number: Int64 = -1


class TransactionsRequest(Value, frozen=True):
    """`transactional_ids` None: all. `after`: the `next` of the page before."""

    transactional_ids: list[str] | None
    after: str | None = None


class TransactionState(enum.StrEnum):
    """Kafka's names. Prepare states don't occur: an end is one transaction of the database."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"


class TransactionDescription(Value, frozen=True, kw_only=True):
    """`number` counts the producer's transactions. `started_ms` is -1 when none is open."""

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
    """A page, in the order of transactional ids; unknown ones are left out. `next`: its last entry, where there are
    more."""

    transactions: list[TransactionDescription]
    next: str | None = None


class AbortProducer(Value, frozen=True):
    """An operator's abort of what a producer has open in these partitions (WriteTxnMarkers).

    The transaction that is open there ends everywhere, and its producer is fenced."""

    producer_id: Int64
    producer_epoch: Int64
    partitions: list[tuple[UUID, Int64]]
    request_id: UUID | None = None


class AbortedProducer(Value, frozen=True):
    """One error per partition; NONE also where nothing was open."""

    errors: list[PartitionError]


# --- groups ------------------------------------------------------------------------------------------------


class LocateGroup(Value, frozen=True):
    """Asks which agent coordinates the group. Without a live owner it is the first live one of `candidates`."""

    group_id: str
    candidates: list[Int64]


class GroupOwner(Value, frozen=True):
    broker_id: int
    host: str
    port: int


class LoadGroup(Value, frozen=True):
    """An agent takes up a group it was located on. `lease_epoch` is the agent's."""

    group_id: str
    broker_id: Int64
    lease_epoch: Int64


CLASSIC_GROUP, CONSUMER_GROUP, SHARE_GROUP = "classic", "consumer", "share"
"""Types of groups: whose members make the assignment, or whose coordinator does (KIP-848); whose members share
partitions record by record (KIP-932)."""


class GroupState(Value, frozen=True):
    """`blob` is the coordinator's own encoding (empty for a new group); `generation` and `members` are its
    keys. `term`: how often the group was taken up by a coordinator, this time included."""

    group_id: str
    generation: Int64
    state: str
    protocol_type: str
    members: list[str]
    blob: bytes
    term: Int64 = 0
    type: str = CLASSIC_GROUP


def first_turn(term: int) -> int:
    """The turn before the first of a coordinator that took the group up for the `term`-th time: higher than all turns
    of earlier coordinators."""
    return term << 40


class SaveGroup(Value, frozen=True):
    """`may_create`: the group had no state when this agent took it up, and was not saved since. Without a row it gets
    one, once for a `request_id`. `turn`: as in CommitOffsets; a state of an earlier turn than the one kept changes
    nothing."""

    broker_id: Int64
    lease_epoch: Int64
    group: GroupState
    may_create: bool = True
    turn: Int64 = 0
    request_id: UUID | None = None


class OffsetPosition(Value, frozen=True):
    """`has_pending`: an open transaction will, if it commits, change this position; `is_unknown`: there is no such
    partition (both in `fetch_offsets` only)."""

    topic_id: UUID
    partition: Int64
    offset: Int64
    leader_epoch: Int64
    metadata: str
    commit_ms: Int64 = -1
    has_pending: bool = False
    is_unknown: bool = False


class CommitOffsets(Value, frozen=True):
    """`generation` -1 and `member_id` '' is only for an empty group, and needs no owner.

    With a `transaction` the positions stay pending until it ends; generation -1 and member '' then mean a
    client that doesn't tell them (before KIP-447), whatever the group. `joins`: the group is added to the
    transaction by this (transaction version 2), else it must have been (`add_to_transaction`). `number`: the
    transaction that the client means, as in AddToTransaction.

    `turn`: a coordinator's commits for a group in the order in which it sends them, see `first_turn`; 0: in none. A
    position is not replaced by one of an earlier turn, which is answered as if it had come in time. Without turns the
    first answer to a `request_id` is the answer.
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
    """One error per asked position."""

    commit_number: int
    errors: list[PartitionError]


class FetchOffsets(Value, frozen=True):
    """`partitions` None: all of the group's; of which at most `limit` after `after`, the `next` of the page
    before. Offsets of deleted topics are gone."""

    group_id: str
    partitions: list[tuple[UUID, Int64]] | None
    after: tuple[UUID, Int64] | None = None
    limit: Int64 = 5_000


class OffsetPositions(Value, frozen=True):
    """In the order asked; offset -1 for none. There may be fewer than asked, at least one: ask for the rest.

    Where all were asked: a page, by topic id and partition. `next`: its last entry, where there are more."""

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
    """`after`: the `next` of the page before."""

    after: str | None = None


class GroupListing(Value, frozen=True):
    group_id: str
    state: str
    protocol_type: str
    owner: int
    type: str = CLASSIC_GROUP


class GroupListings(Value, frozen=True):
    """A page, by group id. `next`: its last entry, where there are more."""

    groups: list[GroupListing]
    next: str | None = None


class LagsRequest(Value, frozen=True):
    """`after`: the `next` of the page before. `owner`: only of groups that this agent coordinates, -1 for all;
    `with_orphans`: also of those whose coordinator is gone, or that never had one."""

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
    """A page, by group id, topic id and partition. `next`: its last entry, where there are more."""

    lags: list[Lag]
    next: tuple[str, UUID, int] | None = None


# --- share groups -----------------------------------------------------------------------------------------


class AcknowledgeType(enum.IntEnum):
    """What a member says of a record that it acquired, by Kafka's numbers. GAP: there is no record at this offset."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


class ShareError(enum.IntEnum):
    """Why a member's acknowledgements of a partition changed nothing."""

    NONE = 0
    INVALID_RECORD_STATE = 1
    UNKNOWN_TOPIC_OR_PARTITION = 2
    LIMIT_REACHED = 3
    """As many share partitions are known as may be."""


class Acknowledged(Value, frozen=True):
    """`types`: one for all offsets from `first_offset` to `last_offset`, or one for each."""

    first_offset: Int64
    last_offset: Int64
    types: list[AcknowledgeType]


class AcquireSpan(Value, frozen=True):
    """What an agent has read and would hand out: offsets from `first_offset` up to before `end_offset`. `skipped`: what
    is not for members, markers and aborted records, as first offset and end; in order."""

    first_offset: Int64
    end_offset: Int64
    max_records: Int64
    skipped: list[tuple[Int64, Int64]] = []


class ShareWork(Value, frozen=True):
    """What is asked of one partition, in this order: take the acknowledgements, give back all that the member has
    (`releases`), acquire. `written`: what is in the group's dead-letter topic (KIP-1191), as first offset and end, in
    order. `refused`: have this agent write there what was given up. `start_offset`: where a group begins that has never
    read the partition; -1: as its limits say."""

    topic_id: UUID
    partition: Int64
    acknowledged: list[Acknowledged] = []
    releases: bool = False
    acquire: AcquireSpan | None = None
    written: list[tuple[Int64, Int64]] = []
    refused: bool = False
    start_offset: Int64 = -1


class ShareLimits(Value, frozen=True, kw_only=True):
    """The group's settings. `max_in_flight`: offsets between the first record that is not done and the last that was
    ever handed out. `from_earliest`: where a partition that the group has never read begins; else at its end."""

    lock_ms: Int64 = 30_000
    max_deliveries: Int64 = 5
    max_in_flight: Int64 = 2_000
    from_earliest: bool = False
    read_committed: bool = False


class ShareRequest(Value, frozen=True):
    """A member acknowledges and acquires records. Only members of the group acquire any. `session`: the share session
    in which it acquires; with `releases`, that whose records are given back (0: all that it has)."""

    group_id: str
    member_id: str
    limits: ShareLimits
    partitions: list[ShareWork]
    request_id: UUID | None = None
    session: Int64 = 0


class AcquiredRecords(Value, frozen=True):
    """`deliveries`: how often these records were handed out, this time included."""

    first_offset: Int64
    last_offset: Int64
    deliveries: Int64


class ShareOutcome(Value, frozen=True):
    """Of one partition. `available`: the first stretch of offsets that could be acquired, as far as the log has them,
    as first offset and end; None: nothing can be had before other records are done. `refused`: what this agent is to
    write to the dead-letter topic within the time of a lock; then it is another's task."""

    error: ShareError = ShareError.NONE
    acquired: list[AcquiredRecords] = []
    available: tuple[Int64, Int64] | None = None
    refused: list[AcquiredRecords] = []


class ShareAnswer(Value, frozen=True):
    """In the order of the request's partitions."""

    partitions: list[ShareOutcome]


class ShareOffset(Value, frozen=True):
    """`start_offset`: the first record that the group is not done with. `lag`: how many offsets are not done, up to the
    high watermark."""

    topic_id: UUID
    partition: Int64
    start_offset: Int64
    lag: Int64 = -1


class ShareOffsetsRequest(Value, frozen=True):
    """`after`: the `next` of the page before."""

    group_id: str
    after: tuple[UUID, Int64] | None = None


class ShareOffsets(Value, frozen=True):
    """A page of the partitions that the group has read. `next`: its last entry, where there are more."""

    offsets: list[ShareOffset]
    next: tuple[UUID, Int64] | None = None


class AlterShareOffsets(Value, frozen=True):
    """Begin anew at these offsets. Those with a negative start are forgotten. Only while the group has no members."""

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
    """Objects whose grace is over (delete the bytes, then `forget_objects`), and ended sessions to sweep."""

    objects: list[tuple[UUID, str]]
    sessions: list[DeadSession]


class ForgetObjects(Value, frozen=True):
    object_ids: list[UUID]


class KnownKeys(Value, frozen=True):
    """Asks which of these keys belong to an object that has a row; the answer has only those."""

    keys: list[str]


class SweptSession(Value, frozen=True):
    """`was_empty`: no orphan was found under the prefix."""

    session_id: UUID
    was_empty: bool


class TakeLease(Value, frozen=True):
    """A named lease ('compactor', ...). Epoch 0 to take it anew (once for a `request_id`), the held epoch to renew."""

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
    """Partitions with at least `min_bytes` of mixed runs below the last stable offset, or older than
    `min_age_ms`. `skip`: runs, as (topic id, partition, base offset), to be left where they are and passed by.

    `max_runs` bounds the runs of all candidates together. `after`: the `next` of the page before. `runs_each`: a
    candidate has no more runs than this, or than the partitions of its topic can have in one page, whichever is more;
    0: no such bound. So a page of a topic with many partitions has a little of each.

    `is_of_merges`: asked are small Parquet objects to be merged in place of mixed runs; `min_bytes`, `min_age_ms`,
    `skip` and `runs_each` don't matter, and `after` names a topic.
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
    """Small Parquet objects of one stretch of a topic's time: all live runs of each, object by object in the order of
    time."""

    topic: Topic
    runs: list[Run]


class CompactionCandidates(Value, frozen=True):
    """A page, in the order of topic id and partition. `next`: the last partition that was looked at, where there
    are more; a page may be empty and still have one. `commit_number`: of the last commit before it was looked up."""

    candidates: list[CompactionCandidate]
    next: tuple[UUID, int] | None = None
    merges: list[MergeCandidate] = []
    commit_number: int = 0


class KeyDrops(Value, frozen=True):
    """What a replacement leaves out because of its keys: records that have a later one of their key below
    `newest_below`, and tombstones below `tombstones_below` whose time is over (0: none)."""

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
    """One atomic exchange. A retry with the same `swap_id` gets the first answer."""

    swap_id: UUID
    lease_epoch: Int64
    session_id: UUID
    object: ObjectDescription
    runs: list[ReplacementRun]


class SwapAnswer(Value, frozen=True):
    commit_number: int


class CleanPointsRequest(Value, frozen=True):
    """`first`: the `next` of the page before."""

    topic_id: UUID
    first: Int64 = 0


class CleanPoint(Value, frozen=True):
    """How far a partition is clean: below `clean_end` no key has two records. Then, at `cleaned_ms`, the log below it
    took `clean_bytes`."""

    partition: int
    log_start_offset: int
    last_stable_offset: int
    clean_end: int
    clean_bytes: int
    cleaned_ms: int


class CleanPoints(Value, frozen=True):
    """A page of a topic's partitions. `now_ms`: the database's clock. `next`: where the next page begins, if any."""

    points: list[CleanPoint]
    now_ms: int
    next: int | None = None


class MarkClean(Value, frozen=True):
    """All swaps of a pass over a partition's keys are done: it is clean below `clean_end`, and was below
    `clean_end_before` when the pass began."""

    lease_epoch: Int64
    topic_id: UUID
    partition: Int64
    clean_end_before: Int64
    clean_end: Int64
    clean_bytes: Int64


class PinTable(Value, frozen=True):
    """A topic has a table: its Parquet objects that are retired from now on are kept, until a later call says from when
    on the table's snapshots need them (`kept_from_ms`, which never falls; -1: as it was)."""

    topic_id: UUID
    kept_from_ms: Int64 = -1
    request_id: UUID | None = None


class TablePin(Value, frozen=True):
    """`now_ms`: the database's clock. What is listed after this call names no object that was retired before."""

    topic_id: UUID
    topic_name: str
    kept_from_ms: int
    now_ms: int


class ReleaseTable(Value, frozen=True):
    """The topic has no table any more: no snapshot of it names an object."""

    topic_id: UUID
    request_id: UUID | None = None


class TablePinsRequest(Value, frozen=True):
    """`after`: the `next` of the page before."""

    after: UUID | None = None


class TablePins(Value, frozen=True):
    """A page, by topic id; also of topics that were deleted. `next`: its last entry, where there are more."""

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
    """A topic's live Parquet runs from (partition, offset) `after` on, the `next` of the page before."""

    topic_id: UUID
    after: tuple[Int64, Int64] | None = None


class LiveRun(Value, frozen=True):
    """[base_offset, end_offset) of the partition is in this Parquet object. Below the log start, nothing is live."""

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
    """A page, in the order of partitions and offsets, with the objects that its runs name.

    Pages are of one state of the log where no run of a later page has a higher commit number than the first page: no
    swap came in between. What was deleted in between is left out of later pages.
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
    """`topic_ids` None: all. `after`: the `next` of the page before."""

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
    """A page, by topic id and partition. `next`: its last entry, where there are more."""

    sizes: list[PartitionSize]
    next: tuple[UUID, int] | None = None


class Statistics(Value, frozen=True, kw_only=True):
    """Rows and garbage, for metrics. Counts of rows per kind, bytes of objects by state.

    `oldest_transaction_ms`: for how long the oldest open transaction has been open. `small_objects`: live Parquet
    objects of less than 64 MiB, which are merged. `group_bytes`: of what the members of groups say of themselves."""

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
    """Which credentials: a user has one set for each mechanism."""

    user: str
    mechanism: ScramMechanism


class ScramCredentials(Value, frozen=True):
    """What a server needs to check a user's password (RFC 5802). The password can't be found from it but by trying."""

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
    """`missing`: credentials to be deleted that there are not."""

    missing: list[ScramName]


class CreateAcls(Value, frozen=True):
    """Bindings that exist already are left as they are."""

    acls: list[Acl]
    request_id: UUID | None = None


class DeleteAcls(Value, frozen=True):
    """`takes_parts`: the caller asks again for what one answer did not get to."""

    filters: list[AclFilter]
    request_id: UUID | None = None
    takes_parts: bool = False


class DeletedAcls(Value, frozen=True):
    """What each filter deleted. A binding that several filters match stands with each.

    `done`: for so many filters nothing is left; the caller asks again for those after them. The next one may have
    deleted a part of its matches. -1: for all.
    """

    matches: list[list[Acl]]
    done: int = -1


class SecurityCursor(Value, frozen=True):
    """The last of a page: a user, or after all users an ACL. In another version the listing begins anew."""

    version: Int64
    user: ScramName | None = None
    acl: Acl | None = None


class SecurityRequest(Value, frozen=True):
    """`known_version`: what the caller has; -1 for nothing. `takes_pages`: the caller asks for what follows, `after`
    the `next` of the page before."""

    known_version: Int64 = -1
    takes_pages: bool = False
    after: SecurityCursor | None = None


class Security(Value, frozen=True):
    """All users and ACLs, by page: users first. Both are None when the caller's are current."""

    version: int
    users: list[ScramCredentials] | None
    acls: list[Acl] | None
    next: SecurityCursor | None = None


class DelegationToken(Value, frozen=True):
    """What its holder can log in by as the owner (KIP-48). Principals are as ACLs write them.

    `fingerprint`: the SHA-256 of its HMAC, in hex: who has the HMAC finds the token, and who has the fingerprint can't
    log in by it. Times are of the database's clock; `left_ms`: how long the token was good when this was answered.
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
    """`lifetime_ms`: from now on the token can be renewed; `expiry_ms`: it expires unless it is."""

    fingerprint: str
    token_id: str
    owner: str
    requester: str
    renewers: list[str]
    lifetime_ms: Int64
    expiry_ms: Int64
    request_id: UUID | None = None


class AlterToken(Value, frozen=True):
    """Have the token expire `period_ms` from now, at the end of its lifetime at most; up to 0 it ends at once.
    `principal`: who asks."""

    fingerprint: str
    principal: str
    period_ms: Int64
    request_id: UUID | None = None


class TokensRequest(Value, frozen=True):
    """`fingerprint`: of the only token that is meant. `principal`: only those of which it is the owner, the requester
    or a renewer. `after`: the `next` of the page before."""

    fingerprint: str | None = None
    principal: str | None = None
    after: str | None = None


class Tokens(Value, frozen=True):
    """Those that have not expired, in the order of their fingerprints; `next` is None after the last."""

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
