"""TxnOffsetCommit: commit a group's offsets as part of a transaction."""

from __future__ import annotations

from typing import Annotated, ClassVar

from tailrace.kafka.api_keys import ApiKey
from tailrace.kafka.schema import (
    Api,
    GroupId,
    Int16,
    Int32,
    Int64,
    Message,
    On,
    String,
    TopicName,
    TransactionalId,
)


class TxnOffsetCommitRequestPartition(Message):
    partition_index: Int32 = 0
    committed_offset: Int64 = 0
    committed_leader_epoch: Annotated[Int32, On("2+", ignorable=True)] = -1
    committed_metadata: Annotated[String | None, On(nullable="0+")] = ""


class TxnOffsetCommitRequestTopic(Message):
    name: TopicName = ""
    partitions: list[TxnOffsetCommitRequestPartition] = []


class TxnOffsetCommitRequest(Message):
    api: ClassVar[Api] = Api(ApiKey.TXN_OFFSET_COMMIT, "0-5", flexible="3+")

    transactional_id: TransactionalId = ""
    group_id: GroupId = ""
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    generation_id: Annotated[Int32, On("3+")] = -1
    member_id: Annotated[String, On("3+")] = ""
    group_instance_id: Annotated[String | None, On("3+", nullable="3+")] = None
    topics: list[TxnOffsetCommitRequestTopic] = []


class TxnOffsetCommitResponsePartition(Message):
    partition_index: Int32 = 0
    error_code: Int16 = 0


class TxnOffsetCommitResponseTopic(Message):
    name: TopicName = ""
    partitions: list[TxnOffsetCommitResponsePartition] = []


class TxnOffsetCommitResponse(Message):
    throttle_time_ms: Int32 = 0
    topics: list[TxnOffsetCommitResponseTopic] = []
