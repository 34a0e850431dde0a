"""The only place where errors become Kafka error codes."""

from __future__ import annotations

from cache.chunk import ObjectCorrupt
from sequencer.api import errors
from sequencer.api.commits import BatchError
from sequencer.api.reads import PartitionError
from tailrace.batches.record_batch import (
    BatchTooLarge,
    InvalidBatch,
    InvalidRecordBatch,
    InvalidTimestamp,
    UnknownCompression,
    UnsupportedMagic,
)
from tailrace.kafka.error_codes import ErrorCode
from tailrace.object_store.api import StoreError
from tailrace.tenants import is_topic_name


class AnswerMemoryExhausted(Exception):
    """Other answers held all the memory for large answers for as long as a client waits."""


class RequestMemoryExhausted(Exception):
    """Other requests' objects held all their memory for as long as a client waits."""


_CODES: tuple[tuple[type[Exception], ErrorCode], ...] = (
    (BatchTooLarge, ErrorCode.MESSAGE_TOO_LARGE),
    (InvalidTimestamp, ErrorCode.INVALID_TIMESTAMP),
    (UnknownCompression, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    (UnsupportedMagic, ErrorCode.INVALID_RECORD),
    (InvalidRecordBatch, ErrorCode.INVALID_RECORD),
    (InvalidBatch, ErrorCode.CORRUPT_MESSAGE),
    (errors.TopicExists, ErrorCode.TOPIC_ALREADY_EXISTS),
    (errors.UnknownTopic, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    (errors.UnknownPartition, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    (errors.OffsetOutOfRange, ErrorCode.OFFSET_OUT_OF_RANGE),
    (errors.InvalidConfig, ErrorCode.INVALID_CONFIG),
    (errors.InvalidRequest, ErrorCode.INVALID_REQUEST),
    (errors.UnknownGroup, ErrorCode.GROUP_ID_NOT_FOUND),
    (errors.GroupNotEmpty, ErrorCode.NON_EMPTY_GROUP),
    (errors.StaleGroup, ErrorCode.ILLEGAL_GENERATION),
    (errors.ProducerFenced, ErrorCode.PRODUCER_FENCED),
    (errors.InvalidProducerIdMapping, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
    (errors.InvalidTransactionState, ErrorCode.INVALID_TXN_STATE),
    (errors.InvalidTransactionTimeout, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
    (errors.UnknownTransactionalId, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND),
    (errors.UnknownToken, ErrorCode.DELEGATION_TOKEN_NOT_FOUND),
    (errors.TokenExpired, ErrorCode.DELEGATION_TOKEN_EXPIRED),
    (errors.NotTokenOwner, ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH),
    (errors.LimitReached, ErrorCode.POLICY_VIOLATION),
    (errors.LeaseLost, ErrorCode.NOT_COORDINATOR),
    (errors.IncarnationChanged, ErrorCode.BROKER_NOT_AVAILABLE),
    (errors.SequencerOverloaded, ErrorCode.REQUEST_TIMED_OUT),
    (errors.SequencerUnavailable, ErrorCode.REQUEST_TIMED_OUT),
    (errors.SequencerError, ErrorCode.UNKNOWN_SERVER_ERROR),
    (ObjectCorrupt, ErrorCode.CORRUPT_MESSAGE),
    (StoreError, ErrorCode.KAFKA_STORAGE_ERROR),
    (AnswerMemoryExhausted, ErrorCode.REQUEST_TIMED_OUT),
)


class RequestRefused(Exception):
    """One part of a request (a topic, a config, a user) is refused with a Kafka error code."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


def invalid(message: str) -> RequestRefused:
    """Return a refusal with INVALID_REQUEST."""
    return RequestRefused(ErrorCode.INVALID_REQUEST, message)


class AnswerTooLarge(RequestRefused):
    """The answer would take more memory than one answer may."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.POLICY_VIOLATION, message)


EXPECTED = (errors.SequencerError, StoreError, InvalidBatch, ObjectCorrupt)
"""Errors that a handler answers with an error code. Any other error is a bug."""


def code_of(error: Exception) -> ErrorCode:
    """Return the Kafka error code for an error: the refusal's own, or the first match in the table."""
    if isinstance(error, RequestRefused):
        return error.code
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return ErrorCode.UNKNOWN_SERVER_ERROR


_CODES_OF_FETCHES = frozenset(
    {
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    }
)


def fetch_code_of(error: Exception) -> ErrorCode:
    """Return the code for a partition of a fetch. If the sequencer can't be asked, it is NOT_LEADER_OR_FOLLOWER: every
    client then looks for the leader and retries. Java's consumer throws at REQUEST_TIMED_OUT and at most other codes,
    which ends its application."""
    code = code_of(error)
    return code if code in _CODES_OF_FETCHES else ErrorCode.NOT_LEADER_OR_FOLLOWER


PARTITION_CODES: dict[PartitionError, ErrorCode] = {
    PartitionError.NONE: ErrorCode.NONE,
    PartitionError.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    PartitionError.OFFSET_OUT_OF_RANGE: ErrorCode.OFFSET_OUT_OF_RANGE,
}

BATCH_CODES: dict[BatchError, ErrorCode] = {
    BatchError.NONE: ErrorCode.NONE,
    BatchError.DUPLICATE: ErrorCode.NONE,
    # Not OUT_OF_ORDER_SEQUENCE_NUMBER: librdkafka would bump its epoch for all its partitions and send again, under the
    # new epoch, batches that another agent may have stored before it died. They would be stored twice. Decision 0012.
    BatchError.SEQUENCE_GAP: ErrorCode.REQUEST_TIMED_OUT,
    BatchError.OUT_OF_ORDER_SEQUENCE: ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    BatchError.UNKNOWN_PRODUCER_ID: ErrorCode.UNKNOWN_PRODUCER_ID,
    BatchError.INVALID_PRODUCER_EPOCH: ErrorCode.INVALID_PRODUCER_EPOCH,
    BatchError.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    BatchError.TRANSACTION_CLOSED: ErrorCode.INVALID_TXN_STATE,
}

FIRST_ABORTABLE_PRODUCE_VERSION = 11
"""From this Produce version on, clients know TRANSACTION_ABORTABLE (KIP-890, part 1)."""

_RETRIED = (errors.SequencerUnavailable, errors.SequencerOverloaded, errors.LeaseLost, errors.StaleGroup)


def produce_code(
    error: BatchError, version: int, *, is_transactional: bool, is_alone: bool = False
) -> ErrorCode:
    """Return the code of one batch's outcome in a Produce response.

    Args:
        is_alone: no other agent can have the batches missing before a gap, so a gap gets Kafka's error.
    """
    if error is BatchError.SEQUENCE_GAP and is_alone:
        return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    if (
        error is BatchError.TRANSACTION_CLOSED
        and is_transactional
        and version >= FIRST_ABORTABLE_PRODUCE_VERSION
    ):
        return ErrorCode.TRANSACTION_ABORTABLE
    return BATCH_CODES[error]


def unknown_topic_code(name: str) -> ErrorCode:
    """Return the code for a name that no topic has: Kafka tells names that no topic can have from the others."""
    is_possible = is_topic_name(name)
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_possible else ErrorCode.INVALID_TOPIC_EXCEPTION


def producer_id_code(error: Exception) -> ErrorCode:
    """Return the code for a producer id without a transactional id. If the sequencer is unreachable, it is Kafka's for
    an unreachable controller: older producers take REQUEST_TIMED_OUT as fatal."""
    return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if isinstance(error, _RETRIED) else code_of(error)


def transaction_code(error: Exception, *, knows_fenced: bool) -> ErrorCode:
    """Return the code for a request about a transaction.

    If the sequencer is unreachable, the code is COORDINATOR_NOT_AVAILABLE: in every such request, every client then
    looks for the coordinator and retries. A limit that is reached for now (of transactional ids, of open transactions)
    gets the same code, because Java's producer treats POLICY_VIOLATION as fatal here. An unknown id gets
    INVALID_PRODUCER_ID_MAPPING, as in Kafka.

    Args:
        knows_fenced: whether the request's version knows PRODUCER_FENCED (KIP-588).
    """
    if isinstance(error, (*_RETRIED, errors.LimitReached)):
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if isinstance(error, errors.UnknownTransactionalId):
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if isinstance(error, errors.ProducerFenced) and not knows_fenced:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code_of(error)
