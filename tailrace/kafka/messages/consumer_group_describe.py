"""ConsumerGroupDescribe (API key 69): state and members of groups of the new protocol (KIP-848)."""

from __future__ import annotations

from typing import Annotated

from tailrace.kafka.schema import NIL_UUID, Bool, Int8, Int16, Int32, Message, MessageValue, On, String, Uuid


class ConsumerGroupDescribeRequest(Message):
    """ConsumerGroupDescribe request."""

    group_ids: list[String] = []
    include_authorized_operations: Bool = False


class TopicPartitions(Message):
    """Partitions of one topic."""

    topic_id: Uuid = NIL_UUID
    topic_name: String = ""
    partitions: list[Int32] = []


class Assignment(MessageValue, frozen=True):
    """The partitions of a member."""

    topic_partitions: list[TopicPartitions] = []


class Member(Message):
    """The members."""

    member_id: String = ""
    instance_id: Annotated[String | None, On(nullable="0+")] = None
    rack_id: Annotated[String | None, On(nullable="0+")] = None
    member_epoch: Int32 = 0
    client_id: String = ""
    client_host: String = ""
    subscribed_topic_names: list[String] = []
    subscribed_topic_regex: Annotated[String | None, On(nullable="0+")] = None
    assignment: Assignment = Assignment()
    target_assignment: Assignment = Assignment()
    member_type: Annotated[Int8, On("1+", ignorable=True)] = -1


class DescribedGroup(Message):
    """Each described group."""

    error_code: Int16 = 0
    error_message: Annotated[String | None, On(nullable="0+")] = None
    group_id: String = ""
    group_state: String = ""
    group_epoch: Int32 = 0
    assignment_epoch: Int32 = 0
    assignor_name: String = ""
    members: list[Member] = []
    authorized_operations: Int32 = -2147483648


class ConsumerGroupDescribeResponse(Message):
    """ConsumerGroupDescribe response."""

    throttle_time_ms: Int32 = 0
    groups: list[DescribedGroup] = []
