"""ListOffsets (API key 2): the offset that belongs to a timestamp, or to an end of the log."""

from __future__ import annotations

from typing import Annotated

from tailrace.kafka.schema import Int8, Int16, Int32, Int64, Message, On, String


class ListOffsetsPartition(Message):
    """Each partition in the request."""

    partition_index: Int32 = 0
    current_leader_epoch: Annotated[Int32, On("4+", ignorable=True)] = -1
    timestamp: Int64 = 0


class ListOffsetsTopic(Message):
    """Each topic in the request."""

    name: String = ""
    partitions: list[ListOffsetsPartition] = []


class ListOffsetsRequest(Message):
    """ListOffsets request."""

    replica_id: Int32 = 0
    isolation_level: Annotated[Int8, On("2+")] = 0
    topics: list[ListOffsetsTopic] = []
    timeout_ms: Annotated[Int32, On("10+", ignorable=True)] = 0


class ListOffsetsPartitionResponse(Message):
    """Each partition in the response."""

    partition_index: Int32 = 0
    error_code: Int16 = 0
    timestamp: Int64 = -1
    offset: Int64 = -1
    leader_epoch: Annotated[Int32, On("4+")] = -1


class ListOffsetsTopicResponse(Message):
    """Each topic in the response."""

    name: String = ""
    partitions: list[ListOffsetsPartitionResponse] = []


class ListOffsetsResponse(Message):
    """ListOffsets response."""

    throttle_time_ms: Annotated[Int32, On("2+", ignorable=True)] = 0
    topics: list[ListOffsetsTopicResponse] = []
