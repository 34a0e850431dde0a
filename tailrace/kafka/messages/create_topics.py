"""CreateTopics: create topics."""

from __future__ import annotations

from typing import Annotated, ClassVar

from tailrace.kafka.api_keys import ApiKey
from tailrace.kafka.schema import (
    NIL_UUID,
    Api,
    Bool,
    ErrorMessage,
    Int8,
    Int16,
    Int32,
    Message,
    On,
    String,
    TopicId,
    TopicName,
)


class CreatableReplicaAssignment(Message):
    partition_index: Int32 = 0
    broker_ids: list[Int32] = []


class CreatableTopicConfig(Message):
    name: String = ""
    value: Annotated[String | None, On(nullable="0+")] = ""


class CreatableTopic(Message):
    name: TopicName = ""
    num_partitions: Int32 = 0
    replication_factor: Int16 = 0
    assignments: list[CreatableReplicaAssignment] = []
    configs: list[CreatableTopicConfig] = []


class CreateTopicsRequest(Message):
    api: ClassVar[Api] = Api(ApiKey.CREATE_TOPICS, "2-7", flexible="5+")

    topics: list[CreatableTopic] = []
    timeout_ms: Int32 = 60000
    validate_only: Bool = False


class CreatableTopicConfigs(Message):
    name: Annotated[String, On("5+")] = ""
    value: Annotated[String | None, On("5+", nullable="5+")] = ""
    read_only: Annotated[Bool, On("5+")] = False
    config_source: Annotated[Int8, On("5+", ignorable=True)] = -1
    is_sensitive: Annotated[Bool, On("5+")] = False


class CreatableTopicResult(Message):
    name: TopicName = ""
    topic_id: Annotated[TopicId, On("7+", ignorable=True)] = NIL_UUID
    error_code: Int16 = 0
    error_message: Annotated[ErrorMessage | None, On(nullable="0+")] = ""
    topic_config_error_code: Annotated[Int16, On("5+", tag=0, ignorable=True)] = 0
    num_partitions: Annotated[Int32, On("5+", ignorable=True)] = -1
    replication_factor: Annotated[Int16, On("5+", ignorable=True)] = -1
    configs: Annotated[list[CreatableTopicConfigs] | None, On("5+", nullable="5+", ignorable=True)] = []


class CreateTopicsResponse(Message):
    throttle_time_ms: Int32 = 0
    topics: list[CreatableTopicResult] = []
