"""Where errors become Kafka's error codes: the one place."""

from __future__ import annotations

from agent.protocol.error_codes import ErrorCode
from cache.chunk import ObjectRotten
from sequencer.api import (
    BatchError,
    GroupNotEmpty,
    IncarnationChanged,
    InvalidConfig,
    InvalidRequest,
    LeaseLost,
    LimitReached,
    OffsetOutOfRange,
    PartitionError,
    SequencerError,
    SequencerOverloaded,
    SequencerUnavailable,
    StaleGroup,
    TopicExists,
    UnknownGroup,
    UnknownPartition,
    UnknownTopic,
)
from tailrace.object_store.api import StoreError
from tailrace.record_batch import (
    BatchTooLarge,
    InvalidBatch,
    InvalidRecordBatch,
    InvalidTimestamp,
    UnknownCompression,
    UnsupportedMagic,
)

_CODES: tuple[tuple[type[Exception], ErrorCode], ...] = (
    (BatchTooLarge, ErrorCode.MESSAGE_TOO_LARGE),
    (InvalidTimestamp, ErrorCode.INVALID_TIMESTAMP),
    (UnknownCompression, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    (UnsupportedMagic, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
    (InvalidRecordBatch, ErrorCode.INVALID_RECORD),
    (InvalidBatch, ErrorCode.CORRUPT_MESSAGE),
    (TopicExists, ErrorCode.TOPIC_ALREADY_EXISTS),
    (UnknownTopic, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    (UnknownPartition, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    (OffsetOutOfRange, ErrorCode.OFFSET_OUT_OF_RANGE),
    (InvalidConfig, ErrorCode.INVALID_CONFIG),
    (InvalidRequest, ErrorCode.INVALID_REQUEST),
    (UnknownGroup, ErrorCode.GROUP_ID_NOT_FOUND),
    (GroupNotEmpty, ErrorCode.NON_EMPTY_GROUP),
    (StaleGroup, ErrorCode.ILLEGAL_GENERATION),
    (LimitReached, ErrorCode.POLICY_VIOLATION),
    (LeaseLost, ErrorCode.NOT_COORDINATOR),
    (IncarnationChanged, ErrorCode.BROKER_NOT_AVAILABLE),
    (SequencerOverloaded, ErrorCode.REQUEST_TIMED_OUT),
    (SequencerUnavailable, ErrorCode.REQUEST_TIMED_OUT),
    (SequencerError, ErrorCode.UNKNOWN_SERVER_ERROR),
    (ObjectRotten, ErrorCode.CORRUPT_MESSAGE),
    (StoreError, ErrorCode.KAFKA_STORAGE_ERROR),
)

EXPECTED = (SequencerError, StoreError, InvalidBatch, ObjectRotten)
"""What a handler answers with an error code; anything else is a bug."""


def code_of(error: Exception) -> ErrorCode:
    """The Kafka error that says what went wrong: the first match of the table."""
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return ErrorCode.UNKNOWN_SERVER_ERROR


PARTITION_CODES: dict[PartitionError, ErrorCode] = {
    PartitionError.NONE: ErrorCode.NONE,
    PartitionError.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    PartitionError.OFFSET_OUT_OF_RANGE: ErrorCode.OFFSET_OUT_OF_RANGE,
}

BATCH_CODES: dict[BatchError, ErrorCode] = {
    BatchError.NONE: ErrorCode.NONE,
    BatchError.DUPLICATE: ErrorCode.NONE,
    BatchError.SEQUENCE_GAP: ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    BatchError.OUT_OF_ORDER_SEQUENCE: ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    BatchError.UNKNOWN_PRODUCER_ID: ErrorCode.UNKNOWN_PRODUCER_ID,
    BatchError.INVALID_PRODUCER_EPOCH: ErrorCode.INVALID_PRODUCER_EPOCH,
    BatchError.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    BatchError.TRANSACTION_CLOSED: ErrorCode.INVALID_TXN_STATE,
}
