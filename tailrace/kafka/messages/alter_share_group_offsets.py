"""AlterShareGroupOffsets: set the start offsets of a share group without members (KIP-932)."""

from __future__ import annotations

from typing import Annotated, ClassVar

from tailrace.kafka.api_keys import ApiKey
from tailrace.kafka.schema import (
    NIL_UUID,
    Api,
    ErrorMessage,
    GroupId,
    Int16,
    Int32,
    Int64,
    Message,
    On,
    TopicId,
    TopicName,
)


class AlterShareOffsetsPartition(Message):
    partition_index: Int32 = 0
    start_offset: Int64 = 0


class AlterShareOffsetsTopic(Message):
    topic_name: TopicName = ""
    partitions: list[AlterShareOffsetsPartition] = []


class AlterShareGroupOffsetsRequest(Message):
    api: ClassVar[Api] = Api(ApiKey.ALTER_SHARE_GROUP_OFFSETS, "0", flexible="0+")

    group_id: GroupId = ""
    topics: list[AlterShareOffsetsTopic] = []


class AlteredShareOffset(Message):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: Annotated[ErrorMessage | None, On(nullable="0+")] = None


class AlteredShareTopic(Message):
    topic_name: TopicName = ""
    topic_id: TopicId = NIL_UUID
    partitions: list[AlteredShareOffset] = []


class AlterShareGroupOffsetsResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: Annotated[ErrorMessage | None, On(nullable="0+")] = None
    responses: list[AlteredShareTopic] = []
