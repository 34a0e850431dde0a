"""What Kafka's coordinators write to their topics: keys and values of records.

The number of its type stands before a key, that of its version before a value (int16). Keys are never flexible.
"""

from __future__ import annotations

from typing import Annotated

from tailrace.kafka.schema import NIL_UUID, Bytes, Int8, Int16, Int32, Int64, Message, On, String, Uuid


class OffsetCommitKey(Message):
    """Of __consumer_offsets, type 1."""

    group: String = ""
    topic: String = ""
    partition: Int32 = 0


class OffsetCommitValue(Message):
    """Versions 3 and, flexible, 4."""

    offset: Int64 = 0
    leader_epoch: Int32 = -1
    metadata: String = ""
    commit_timestamp: Int64 = 0
    topic_id: Annotated[Uuid, On("4+", tag=0, ignorable=True)] = NIL_UUID


class GroupMetadataKey(Message):
    """Of __consumer_offsets, type 2: a classic group."""

    group: String = ""


class MemberMetadata(Message):
    member_id: String = ""
    group_instance_id: Annotated[String | None, On("3+", nullable="3+", ignorable=True)] = None
    client_id: String = ""
    client_host: String = ""
    rebalance_timeout: Int32 = -1
    session_timeout: Int32 = 0
    subscription: Bytes = b""
    assignment: Bytes = b""


class GroupMetadataValue(Message):
    """Version 3."""

    protocol_type: String = ""
    generation: Int32 = 0
    protocol: Annotated[String | None, On(nullable="0+")] = ""
    leader: Annotated[String | None, On(nullable="0+")] = ""
    current_state_timestamp: Int64 = -1
    members: list[MemberMetadata] = []


class TransactionLogKey(Message):
    """Of __transaction_state, type 0."""

    transactional_id: String = ""


class PartitionsSchema(Message):
    topic: String = ""
    partition_ids: list[Int32] = []


class TransactionLogValue(Message):
    """Version 1, flexible."""

    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    transaction_timeout_ms: Int32 = 0
    transaction_status: Int8 = 0
    transaction_partitions: Annotated[list[PartitionsSchema] | None, On(nullable="0+")] = []
    transaction_last_update_timestamp_ms: Int64 = 0
    transaction_start_timestamp_ms: Int64 = 0
