"""ListPartitionReassignments: list the partitions that are being moved to other brokers."""

from __future__ import annotations

from typing import Annotated, ClassVar

from tailrace.kafka.api_keys import ApiKey
from tailrace.kafka.schema import Api, ErrorMessage, Int16, Int32, Message, On, TopicName


class ListPartitionReassignmentsTopics(Message):
    name: TopicName = ""
    partition_indexes: list[Int32] = []


class ListPartitionReassignmentsRequest(Message):
    api: ClassVar[Api] = Api(ApiKey.LIST_PARTITION_REASSIGNMENTS, "0", flexible="0+")

    timeout_ms: Int32 = 60_000
    topics: Annotated[list[ListPartitionReassignmentsTopics] | None, On(nullable="0+")] = None


class OngoingPartitionReassignment(Message):
    partition_index: Int32 = 0
    replicas: list[Int32] = []
    adding_replicas: list[Int32] = []
    removing_replicas: list[Int32] = []


class OngoingTopicReassignment(Message):
    name: TopicName = ""
    partitions: list[OngoingPartitionReassignment] = []


class ListPartitionReassignmentsResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: Annotated[ErrorMessage | None, On(nullable="0+")] = ""
    topics: list[OngoingTopicReassignment] = []
