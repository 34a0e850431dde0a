"""DescribeShareGroupOffsets: the start offsets of share groups by partition (KIP-932)."""

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


class DescribeShareOffsetsTopic(Message):
    topic_name: TopicName = ""
    partitions: list[Int32] = []


class DescribeShareOffsetsGroup(Message):
    group_id: GroupId = ""
    topics: Annotated[list[DescribeShareOffsetsTopic] | None, On(nullable="0+")] = []


class DescribeShareGroupOffsetsRequest(Message):
    api: ClassVar[Api] = Api(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, "0-1", flexible="0+")

    groups: list[DescribeShareOffsetsGroup] = []


class DescribedShareOffset(Message):
    partition_index: Int32 = 0
    start_offset: Int64 = 0
    leader_epoch: Int32 = 0
    lag: Annotated[Int64, On("1+", ignorable=True)] = -1
    error_code: Int16 = 0
    error_message: Annotated[ErrorMessage | None, On(nullable="0+")] = None


class DescribedShareTopic(Message):
    topic_name: TopicName = ""
    topic_id: TopicId = NIL_UUID
    partitions: list[DescribedShareOffset] = []


class DescribedShareOffsets(Message):
    group_id: GroupId = ""
    topics: list[DescribedShareTopic] = []
    error_code: Int16 = 0
    error_message: Annotated[ErrorMessage | None, On(nullable="0+")] = None


class DescribeShareGroupOffsetsResponse(Message):
    throttle_time_ms: Int32 = 0
    groups: list[DescribedShareOffsets] = []
