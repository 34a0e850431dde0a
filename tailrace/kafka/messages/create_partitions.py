"""CreatePartitions (API key 37): give topics more partitions."""

from __future__ import annotations

from typing import Annotated

from tailrace.kafka.schema import Bool, Int16, Int32, Message, On, String


class CreatePartitionsAssignment(Message):
    """The new partition assignments."""

    broker_ids: list[Int32] = []


class CreatePartitionsTopic(Message):
    """Each topic that we want to create new partitions inside."""

    name: String = ""
    count: Int32 = 0
    assignments: Annotated[list[CreatePartitionsAssignment] | None, On(nullable="0+")] = []


class CreatePartitionsRequest(Message):
    """CreatePartitions request."""

    topics: list[CreatePartitionsTopic] = []
    timeout_ms: Int32 = 0
    validate_only: Bool = False


class CreatePartitionsTopicResult(Message):
    """The partition creation results for each topic."""

    name: String = ""
    error_code: Int16 = 0
    error_message: Annotated[String | None, On(nullable="0+")] = None


class CreatePartitionsResponse(Message):
    """CreatePartitions response."""

    throttle_time_ms: Int32 = 0
    results: list[CreatePartitionsTopicResult] = []
