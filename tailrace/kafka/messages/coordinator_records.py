"""The keys and values of the records that Kafka's coordinators write to their topics.

An int16 precedes each: the type of a key, or the version of a value. Keys are never flexible.
"""

from __future__ import annotations

from typing import Annotated

from tailrace.kafka.schema import NIL_UUID, Bytes, Int8, Int16, Int32, Int64, Message, On, String, Uuid


class OffsetCommitKey(Message):
    """A key in __consumer_offsets, type 1."""

    group: String = ""
    topic: String = ""
    partition: Int32 = 0


class OffsetCommitValue(Message):
    """The value of an offset commit, version 3 or 4 (flexible)."""

    offset: Int64 = 0
    leader_epoch: Int32 = -1
    metadata: String = ""
    commit_timestamp: Int64 = 0
    topic_id: Annotated[Uuid, On("4+", tag=0, ignorable=True)] = NIL_UUID


class GroupMetadataKey(Message):
    """A key in __consumer_offsets, type 2: a classic group."""

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
    """The value of a classic group, version 3."""

    protocol_type: String = ""
    generation: Int32 = 0
    protocol: Annotated[String | None, On(nullable="0+")] = ""
    leader: Annotated[String | None, On(nullable="0+")] = ""
    current_state_timestamp: Int64 = -1
    members: list[MemberMetadata] = []


class TransactionLogKey(Message):
    """A key in __transaction_state, type 0."""

    transactional_id: String = ""


class PartitionsSchema(Message):
    topic: String = ""
    partition_ids: list[Int32] = []


class TransactionLogValue(Message):
    """The value of a transaction, version 1 (flexible)."""

    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    transaction_timeout_ms: Int32 = 0
    transaction_status: Int8 = 0
    transaction_partitions: Annotated[list[PartitionsSchema] | None, On(nullable="0+")] = []
    transaction_last_update_timestamp_ms: Int64 = 0
    transaction_start_timestamp_ms: Int64 = 0
