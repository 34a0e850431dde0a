"""OffsetDelete (API key 47): delete a group's positions."""

from __future__ import annotations

from tailrace.kafka.schema import Int16, Int32, Message, String


class OffsetDeleteRequestPartition(Message):
    """Each partition to delete offsets for."""

    partition_index: Int32 = 0


class OffsetDeleteRequestTopic(Message):
    """The topics to delete offsets for."""

    name: String = ""
    partitions: list[OffsetDeleteRequestPartition] = []


class OffsetDeleteRequest(Message):
    """OffsetDelete request."""

    group_id: String = ""
    topics: list[OffsetDeleteRequestTopic] = []


class OffsetDeleteResponsePartition(Message):
    """The responses for each partition in the topic."""

    partition_index: Int32 = 0
    error_code: Int16 = 0


class OffsetDeleteResponseTopic(Message):
    """The responses for each topic."""

    name: String = ""
    partitions: list[OffsetDeleteResponsePartition] = []


class OffsetDeleteResponse(Message):
    """OffsetDelete response."""

    error_code: Int16 = 0
    throttle_time_ms: Int32 = 0
    topics: list[OffsetDeleteResponseTopic] = []
