"""ConsumerGroupHeartbeat (API key 68): join, stay in or leave a group of the new protocol (KIP-848)."""

from __future__ import annotations

from typing import Annotated

from tailrace.kafka.schema import NIL_UUID, Int16, Int32, Message, On, String, Uuid


class TopicPartitions(Message):
    """Null if it didn't change since the last heartbeat; the partitions owned by the member."""

    topic_id: Uuid = NIL_UUID
    partitions: list[Int32] = []


class ConsumerGroupHeartbeatRequest(Message):
    """ConsumerGroupHeartbeat request."""

    group_id: String = ""
    member_id: String = ""
    member_epoch: Int32 = 0
    instance_id: Annotated[String | None, On(nullable="0+")] = None
    rack_id: Annotated[String | None, On(nullable="0+")] = None
    rebalance_timeout_ms: Int32 = -1
    subscribed_topic_names: Annotated[list[String] | None, On(nullable="0+")] = None
    subscribed_topic_regex: Annotated[String | None, On("1+", nullable="1+")] = None
    server_assignor: Annotated[String | None, On(nullable="0+")] = None
    topic_partitions: Annotated[list[TopicPartitions] | None, On(nullable="0+")] = None


class Assignment(Message):
    """The partitions of a member."""

    topic_partitions: list[TopicPartitions] = []


class ConsumerGroupHeartbeatResponse(Message):
    """ConsumerGroupHeartbeat response."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: Annotated[String | None, On(nullable="0+")] = None
    member_id: Annotated[String | None, On(nullable="0+")] = None
    member_epoch: Int32 = 0
    heartbeat_interval_ms: Int32 = 0
    assignment: Annotated[Assignment | None, On(nullable="0+")] = None
