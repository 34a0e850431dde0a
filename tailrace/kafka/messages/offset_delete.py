"""OffsetDelete: delete a group's committed offsets."""

from __future__ import annotations

from typing import ClassVar

from tailrace.kafka.api_keys import ApiKey
from tailrace.kafka.schema import Api, GroupId, Int16, Int32, Message, TopicName


class OffsetDeleteRequestPartition(Message):
    partition_index: Int32 = 0


class OffsetDeleteRequestTopic(Message):
    name: TopicName = ""
    partitions: list[OffsetDeleteRequestPartition] = []


class OffsetDeleteRequest(Message):
    api: ClassVar[Api] = Api(ApiKey.OFFSET_DELETE, "0")

    group_id: GroupId = ""
    topics: list[OffsetDeleteRequestTopic] = []


class OffsetDeleteResponsePartition(Message):
    partition_index: Int32 = 0
    error_code: Int16 = 0


class OffsetDeleteResponseTopic(Message):
    name: TopicName = ""
    partitions: list[OffsetDeleteResponsePartition] = []


class OffsetDeleteResponse(Message):
    error_code: Int16 = 0
    throttle_time_ms: Int32 = 0
    topics: list[OffsetDeleteResponseTopic] = []
