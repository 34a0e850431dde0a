"""TxnOffsetCommit (API key 28): store a group's positions as a part of a transaction."""

from __future__ import annotations

from typing import Annotated

from tailrace.kafka.schema import Int16, Int32, Int64, Message, On, String


class TxnOffsetCommitRequestPartition(Message):
    """The partitions inside the topic that we want to commit offsets for."""

    partition_index: Int32 = 0
    committed_offset: Int64 = 0
    committed_leader_epoch: Annotated[Int32, On("2+", ignorable=True)] = -1
    committed_metadata: Annotated[String | None, On(nullable="0+")] = ""


class TxnOffsetCommitRequestTopic(Message):
    """Each topic that we want to commit offsets for."""

    name: String = ""
    partitions: list[TxnOffsetCommitRequestPartition] = []


class TxnOffsetCommitRequest(Message):
    """TxnOffsetCommit request."""

    transactional_id: String = ""
    group_id: String = ""
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    generation_id: Annotated[Int32, On("3+")] = -1
    member_id: Annotated[String, On("3+")] = ""
    group_instance_id: Annotated[String | None, On("3+", nullable="3+")] = None
    topics: list[TxnOffsetCommitRequestTopic] = []


class TxnOffsetCommitResponsePartition(Message):
    """The responses for each partition in the topic."""

    partition_index: Int32 = 0
    error_code: Int16 = 0


class TxnOffsetCommitResponseTopic(Message):
    """The responses for each topic."""

    name: String = ""
    partitions: list[TxnOffsetCommitResponsePartition] = []


class TxnOffsetCommitResponse(Message):
    """TxnOffsetCommit response."""

    throttle_time_ms: Int32 = 0
    topics: list[TxnOffsetCommitResponseTopic] = []
