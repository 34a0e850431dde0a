"""CreateTopics (API key 19): create topics."""

from __future__ import annotations

from typing import Annotated

from tailrace.kafka.schema import NIL_UUID, Bool, Int8, Int16, Int32, Message, On, String, Uuid


class CreatableReplicaAssignment(Message):
    """The manual partition assignment, or the empty array if we are using automatic assignment."""

    partition_index: Int32 = 0
    broker_ids: list[Int32] = []


class CreatableTopicConfig(Message):
    """The custom topic configurations to set."""

    name: String = ""
    value: Annotated[String | None, On(nullable="0+")] = ""


class CreatableTopic(Message):
    """The topics to create."""

    name: String = ""
    num_partitions: Int32 = 0
    replication_factor: Int16 = 0
    assignments: list[CreatableReplicaAssignment] = []
    configs: list[CreatableTopicConfig] = []


class CreateTopicsRequest(Message):
    """CreateTopics request."""

    topics: list[CreatableTopic] = []
    timeout_ms: Int32 = 60000
    validate_only: Bool = False


class CreatableTopicConfigs(Message):
    """Configuration of the topic."""

    name: Annotated[String, On("5+")] = ""
    value: Annotated[String | None, On("5+", nullable="5+")] = ""
    read_only: Annotated[Bool, On("5+")] = False
    config_source: Annotated[Int8, On("5+", ignorable=True)] = -1
    is_sensitive: Annotated[Bool, On("5+")] = False


class CreatableTopicResult(Message):
    """Results for each topic we tried to create."""

    name: String = ""
    topic_id: Annotated[Uuid, On("7+", ignorable=True)] = NIL_UUID
    error_code: Int16 = 0
    error_message: Annotated[String | None, On(nullable="0+")] = ""
    topic_config_error_code: Annotated[Int16, On("5+", tag=0, ignorable=True)] = 0
    num_partitions: Annotated[Int32, On("5+", ignorable=True)] = -1
    replication_factor: Annotated[Int16, On("5+", ignorable=True)] = -1
    configs: Annotated[list[CreatableTopicConfigs] | None, On("5+", nullable="5+", ignorable=True)] = []


class CreateTopicsResponse(Message):
    """CreateTopics response."""

    throttle_time_ms: Int32 = 0
    topics: list[CreatableTopicResult] = []
