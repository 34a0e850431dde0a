"""ConsumerGroupDescribe: state, members and assignments of consumer groups (KIP-848)."""

from __future__ import annotations

from typing import Annotated, ClassVar

from tailrace.kafka.api_keys import ApiKey
from tailrace.kafka.schema import (
    NIL_UUID,
    Api,
    Bool,
    ErrorMessage,
    GroupId,
    Int8,
    Int16,
    Int32,
    Message,
    MessageValue,
    On,
    String,
    TopicId,
    TopicName,
    TopicRegex,
)


class ConsumerGroupDescribeRequest(Message):
    api: ClassVar[Api] = Api(ApiKey.CONSUMER_GROUP_DESCRIBE, "0-1", flexible="0+")

    group_ids: list[GroupId] = []
    include_authorized_operations: Bool = False


class DescribedTopicPartitions(Message):
    topic_id: TopicId = NIL_UUID
    topic_name: TopicName = ""
    partitions: list[Int32] = []


class DescribedAssignment(MessageValue, frozen=True):
    topic_partitions: list[DescribedTopicPartitions] = []


class DescribedConsumer(Message):
    member_id: String = ""
    instance_id: Annotated[String | None, On(nullable="0+")] = None
    rack_id: Annotated[String | None, On(nullable="0+")] = None
    member_epoch: Int32 = 0
    client_id: String = ""
    client_host: String = ""
    subscribed_topic_names: list[TopicName] = []
    subscribed_topic_regex: Annotated[TopicRegex | None, On(nullable="0+")] = None
    assignment: DescribedAssignment = DescribedAssignment()
    target_assignment: DescribedAssignment = DescribedAssignment()
    member_type: Annotated[Int8, On("1+", ignorable=True)] = -1


class DescribedConsumerGroup(Message):
    error_code: Int16 = 0
    error_message: Annotated[ErrorMessage | None, On(nullable="0+")] = None
    group_id: GroupId = ""
    group_state: String = ""
    group_epoch: Int32 = 0
    assignment_epoch: Int32 = 0
    assignor_name: String = ""
    members: list[DescribedConsumer] = []
    authorized_operations: Int32 = -2147483648


class ConsumerGroupDescribeResponse(Message):
    throttle_time_ms: Int32 = 0
    groups: list[DescribedConsumerGroup] = []
