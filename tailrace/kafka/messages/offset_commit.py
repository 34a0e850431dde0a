"""OffsetCommit: commit a group's offsets."""

from __future__ import annotations

from typing import Annotated, ClassVar

from tailrace.kafka.api_keys import ApiKey
from tailrace.kafka.schema import (
    NIL_UUID,
    Api,
    GroupId,
    Int16,
    Int32,
    Int64,
    Message,
    On,
    String,
    TopicId,
    TopicName,
)


class OffsetCommitRequestPartition(Message):
    partition_index: Int32 = 0
    committed_offset: Int64 = 0
    committed_leader_epoch: Annotated[Int32, On("6+", ignorable=True)] = -1
    committed_metadata: Annotated[String | None, On(nullable="0+")] = ""


class OffsetCommitRequestTopic(Message):
    name: Annotated[TopicName, On("0-9", ignorable=True)] = ""
    topic_id: Annotated[TopicId, On("10+", ignorable=True)] = NIL_UUID
    partitions: list[OffsetCommitRequestPartition] = []


class OffsetCommitRequest(Message):
    api: ClassVar[Api] = Api(ApiKey.OFFSET_COMMIT, "2-10", flexible="8+")

    group_id: GroupId = ""
    generation_id_or_member_epoch: Int32 = -1
    member_id: String = ""
    group_instance_id: Annotated[String | None, On("7+", nullable="7+")] = None
    retention_time_ms: Annotated[Int64, On("0-4", ignorable=True)] = -1
    topics: list[OffsetCommitRequestTopic] = []


class OffsetCommitResponsePartition(Message):
    partition_index: Int32 = 0
    error_code: Int16 = 0


class OffsetCommitResponseTopic(Message):
    name: Annotated[TopicName, On("0-9", ignorable=True)] = ""
    topic_id: Annotated[TopicId, On("10+", ignorable=True)] = NIL_UUID
    partitions: list[OffsetCommitResponsePartition] = []


class OffsetCommitResponse(Message):
    throttle_time_ms: Annotated[Int32, On("3+", ignorable=True)] = 0
    topics: list[OffsetCommitResponseTopic] = []
