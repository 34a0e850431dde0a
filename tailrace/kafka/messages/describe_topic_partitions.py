"""DescribeTopicPartitions: topics with their partitions, in pages."""

from __future__ import annotations

from typing import Annotated, ClassVar

from tailrace.kafka.api_keys import ApiKey
from tailrace.kafka.schema import NIL_UUID, Api, Bool, Int16, Int32, Message, On, TopicId, TopicName


class TopicRequest(Message):
    name: TopicName = ""


class Cursor(Message):
    """The first topic and partition index to fetch details for."""

    topic_name: TopicName = ""
    partition_index: Int32 = 0


class DescribeTopicPartitionsRequest(Message):
    api: ClassVar[Api] = Api(ApiKey.DESCRIBE_TOPIC_PARTITIONS, "0", flexible="0+")

    topics: list[TopicRequest] = []
    response_partition_limit: Int32 = 2000
    cursor: Annotated[Cursor | None, On(nullable="0+")] = None


class DescribeTopicPartitionsResponsePartition(Message):
    error_code: Int16 = 0
    partition_index: Int32 = 0
    leader_id: Int32 = 0
    leader_epoch: Int32 = -1
    replica_nodes: list[Int32] = []
    isr_nodes: list[Int32] = []
    eligible_leader_replicas: Annotated[list[Int32] | None, On(nullable="0+")] = None
    last_known_elr: Annotated[list[Int32] | None, On(nullable="0+")] = None
    offline_replicas: list[Int32] = []


class DescribeTopicPartitionsResponseTopic(Message):
    error_code: Int16 = 0
    name: Annotated[TopicName | None, On(nullable="0+")] = ""
    topic_id: TopicId = NIL_UUID
    is_internal: Bool = False
    partitions: list[DescribeTopicPartitionsResponsePartition] = []
    topic_authorized_operations: Int32 = -2147483648


class DescribeTopicPartitionsResponse(Message):
    throttle_time_ms: Int32 = 0
    topics: list[DescribeTopicPartitionsResponseTopic] = []
    next_cursor: Annotated[Cursor | None, On(nullable="0+")] = None
