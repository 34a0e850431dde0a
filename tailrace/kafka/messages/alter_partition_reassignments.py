"""AlterPartitionReassignments: move partitions to other brokers, or cancel a move."""

from __future__ import annotations

from typing import Annotated, ClassVar

from tailrace.kafka.api_keys import ApiKey
from tailrace.kafka.schema import Api, Bool, ErrorMessage, Int16, Int32, Message, On, TopicName


class ReassignablePartition(Message):
    partition_index: Int32 = 0
    replicas: Annotated[list[Int32] | None, On(nullable="0+")] = None


class ReassignableTopic(Message):
    name: TopicName = ""
    partitions: list[ReassignablePartition] = []


class AlterPartitionReassignmentsRequest(Message):
    api: ClassVar[Api] = Api(ApiKey.ALTER_PARTITION_REASSIGNMENTS, "0-1", flexible="0+")

    timeout_ms: Int32 = 60_000
    allow_replication_factor_change: Annotated[Bool, On("1+", ignorable=True)] = True
    topics: list[ReassignableTopic] = []


class ReassignablePartitionResponse(Message):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: Annotated[ErrorMessage | None, On(nullable="0+")] = ""


class ReassignableTopicResponse(Message):
    name: TopicName = ""
    partitions: list[ReassignablePartitionResponse] = []


class AlterPartitionReassignmentsResponse(Message):
    throttle_time_ms: Int32 = 0
    allow_replication_factor_change: Annotated[Bool, On("1+", ignorable=True)] = True
    error_code: Int16 = 0
    error_message: Annotated[ErrorMessage | None, On(nullable="0+")] = ""
    responses: list[ReassignableTopicResponse] = []
