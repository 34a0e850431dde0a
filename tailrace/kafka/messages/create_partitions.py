"""CreatePartitions: give topics more partitions."""

from __future__ import annotations

from typing import Annotated, ClassVar

from tailrace.kafka.api_keys import ApiKey
from tailrace.kafka.schema import Api, Bool, ErrorMessage, Int16, Int32, Message, On, TopicName


class CreatePartitionsAssignment(Message):
    broker_ids: list[Int32] = []


class CreatePartitionsTopic(Message):
    name: TopicName = ""
    count: Int32 = 0
    assignments: Annotated[list[CreatePartitionsAssignment] | None, On(nullable="0+")] = []


class CreatePartitionsRequest(Message):
    api: ClassVar[Api] = Api(ApiKey.CREATE_PARTITIONS, "0-3", flexible="2+")

    topics: list[CreatePartitionsTopic] = []
    timeout_ms: Int32 = 0
    validate_only: Bool = False


class CreatePartitionsTopicResult(Message):
    name: TopicName = ""
    error_code: Int16 = 0
    error_message: Annotated[ErrorMessage | None, On(nullable="0+")] = None


class CreatePartitionsResponse(Message):
    throttle_time_ms: Int32 = 0
    results: list[CreatePartitionsTopicResult] = []
