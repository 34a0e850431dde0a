"""ConsumerGroupHeartbeat: join, stay in and leave a consumer group, and get its assignment (KIP-848)."""

from __future__ import annotations

from typing import Annotated, ClassVar

from tailrace.kafka.api_keys import ApiKey
from tailrace.kafka.schema import (
    NIL_UUID,
    Api,
    ErrorMessage,
    GroupId,
    Int16,
    Int32,
    Message,
    On,
    String,
    TopicId,
    TopicName,
    TopicRegex,
)


class ConsumerGroupHeartbeatTopicPartitions(Message):
    topic_id: TopicId = NIL_UUID
    partitions: list[Int32] = []


class ConsumerGroupHeartbeatRequest(Message):
    api: ClassVar[Api] = Api(ApiKey.CONSUMER_GROUP_HEARTBEAT, "0-1", flexible="0+")

    group_id: GroupId = ""
    member_id: String = ""
    member_epoch: Int32 = 0
    instance_id: Annotated[String | None, On(nullable="0+")] = None
    rack_id: Annotated[String | None, On(nullable="0+")] = None
    rebalance_timeout_ms: Int32 = -1
    subscribed_topic_names: Annotated[list[TopicName] | None, On(nullable="0+")] = None
    subscribed_topic_regex: Annotated[TopicRegex | None, On("1+", nullable="1+")] = None
    server_assignor: Annotated[String | None, On(nullable="0+")] = None
    topic_partitions: Annotated[list[ConsumerGroupHeartbeatTopicPartitions] | None, On(nullable="0+")] = None


class ConsumerGroupHeartbeatAssignment(Message):
    topic_partitions: list[ConsumerGroupHeartbeatTopicPartitions] = []


class ConsumerGroupHeartbeatResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: Annotated[ErrorMessage | None, On(nullable="0+")] = None
    member_id: Annotated[String | None, On(nullable="0+")] = None
    member_epoch: Int32 = 0
    heartbeat_interval_ms: Int32 = 0
    assignment: Annotated[ConsumerGroupHeartbeatAssignment | None, On(nullable="0+")] = None
