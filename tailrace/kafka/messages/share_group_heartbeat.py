"""ShareGroupHeartbeat: join, stay in and leave a share group, and get its assignment (KIP-932)."""

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
)


class ShareGroupHeartbeatRequest(Message):
    api: ClassVar[Api] = Api(ApiKey.SHARE_GROUP_HEARTBEAT, "1", flexible="0+")

    group_id: GroupId = ""
    member_id: String = ""
    member_epoch: Int32 = 0
    rack_id: Annotated[String | None, On(nullable="0+")] = None
    subscribed_topic_names: Annotated[list[TopicName] | None, On(nullable="0+")] = None


class ShareGroupHeartbeatTopicPartitions(Message):
    topic_id: TopicId = NIL_UUID
    partitions: list[Int32] = []


class ShareGroupHeartbeatAssignment(Message):
    topic_partitions: list[ShareGroupHeartbeatTopicPartitions] = []


class ShareGroupHeartbeatResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: Annotated[ErrorMessage | None, On(nullable="0+")] = None
    member_id: Annotated[String | None, On(nullable="0+")] = None
    member_epoch: Int32 = 0
    heartbeat_interval_ms: Int32 = 0
    assignment: Annotated[ShareGroupHeartbeatAssignment | None, On(nullable="0+")] = None
