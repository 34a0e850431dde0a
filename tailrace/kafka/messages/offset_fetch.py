"""OffsetFetch: get a group's committed offsets."""

from __future__ import annotations

from typing import Annotated, ClassVar

from tailrace.kafka.api_keys import ApiKey
from tailrace.kafka.schema import (
    NIL_UUID,
    Api,
    Bool,
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


class OffsetFetchRequestTopic(Message):
    name: Annotated[TopicName, On("0-7")] = ""
    partition_indexes: Annotated[list[Int32], On("0-7")] = []


class OffsetFetchRequestTopics(Message):
    name: Annotated[TopicName, On("8-9", ignorable=True)] = ""
    topic_id: Annotated[TopicId, On("10+", ignorable=True)] = NIL_UUID
    partition_indexes: Annotated[list[Int32], On("8+")] = []


class OffsetFetchRequestGroup(Message):
    group_id: Annotated[GroupId, On("8+")] = ""
    member_id: Annotated[String | None, On("9+", nullable="9+", ignorable=True)] = None
    member_epoch: Annotated[Int32, On("9+", ignorable=True)] = -1
    topics: Annotated[list[OffsetFetchRequestTopics] | None, On("8+", nullable="8+")] = []


class OffsetFetchRequest(Message):
    api: ClassVar[Api] = Api(ApiKey.OFFSET_FETCH, "1-10", flexible="6+")

    group_id: Annotated[GroupId, On("0-7")] = ""
    topics: Annotated[list[OffsetFetchRequestTopic] | None, On("0-7", nullable="2+")] = []
    groups: Annotated[list[OffsetFetchRequestGroup], On("8+")] = []
    require_stable: Annotated[Bool, On("7+")] = False


class OffsetFetchResponsePartition(Message):
    partition_index: Annotated[Int32, On("0-7")] = 0
    committed_offset: Annotated[Int64, On("0-7")] = 0
    committed_leader_epoch: Annotated[Int32, On("5-7", ignorable=True)] = -1
    metadata: Annotated[String | None, On("0-7", nullable="0+")] = ""
    error_code: Annotated[Int16, On("0-7")] = 0


class OffsetFetchResponseTopic(Message):
    name: Annotated[TopicName, On("0-7")] = ""
    partitions: Annotated[list[OffsetFetchResponsePartition], On("0-7")] = []


class OffsetFetchResponsePartitions(Message):
    partition_index: Annotated[Int32, On("8+")] = 0
    committed_offset: Annotated[Int64, On("8+")] = 0
    committed_leader_epoch: Annotated[Int32, On("8+", ignorable=True)] = -1
    metadata: Annotated[String | None, On("8+", nullable="8+")] = ""
    error_code: Annotated[Int16, On("8+")] = 0


class OffsetFetchResponseTopics(Message):
    name: Annotated[TopicName, On("8-9", ignorable=True)] = ""
    topic_id: Annotated[TopicId, On("10+", ignorable=True)] = NIL_UUID
    partitions: Annotated[list[OffsetFetchResponsePartitions], On("8+")] = []


class OffsetFetchResponseGroup(Message):
    group_id: Annotated[GroupId, On("8+")] = ""
    topics: Annotated[list[OffsetFetchResponseTopics], On("8+")] = []
    error_code: Annotated[Int16, On("8+")] = 0


class OffsetFetchResponse(Message):
    throttle_time_ms: Annotated[Int32, On("3+", ignorable=True)] = 0
    topics: Annotated[list[OffsetFetchResponseTopic], On("0-7")] = []
    error_code: Annotated[Int16, On("2-7", ignorable=True)] = 0
    groups: Annotated[list[OffsetFetchResponseGroup], On("8+")] = []
