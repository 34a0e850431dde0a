"""ListOffsets: find the offset for a timestamp, or of an end of the log."""

from __future__ import annotations

from typing import Annotated, ClassVar

from tailrace.kafka.api_keys import ApiKey
from tailrace.kafka.schema import Api, Int8, Int16, Int32, Int64, Message, On, TopicName


class ListOffsetsPartition(Message):
    partition_index: Int32 = 0
    current_leader_epoch: Annotated[Int32, On("4+", ignorable=True)] = -1
    timestamp: Int64 = 0


class ListOffsetsTopic(Message):
    name: TopicName = ""
    partitions: list[ListOffsetsPartition] = []


class ListOffsetsRequest(Message):
    api: ClassVar[Api] = Api(ApiKey.LIST_OFFSETS, "1-11", flexible="6+")

    replica_id: Int32 = 0
    isolation_level: Annotated[Int8, On("2+")] = 0
    topics: list[ListOffsetsTopic] = []
    timeout_ms: Annotated[Int32, On("10+", ignorable=True)] = 0


class ListOffsetsPartitionResponse(Message):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    timestamp: Int64 = -1
    offset: Int64 = -1
    leader_epoch: Annotated[Int32, On("4+")] = -1


class ListOffsetsTopicResponse(Message):
    name: TopicName = ""
    partitions: list[ListOffsetsPartitionResponse] = []


class ListOffsetsResponse(Message):
    throttle_time_ms: Annotated[Int32, On("2+", ignorable=True)] = 0
    topics: list[ListOffsetsTopicResponse] = []
