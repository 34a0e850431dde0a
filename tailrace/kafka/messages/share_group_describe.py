"""ShareGroupDescribe: state, members and assignments of share groups (KIP-932)."""

from __future__ import annotations

from typing import Annotated, ClassVar

from tailrace.kafka.api_keys import ApiKey
from tailrace.kafka.messages.consumer_group_describe import DescribedAssignment
from tailrace.kafka.schema import (
    Api,
    Bool,
    ErrorMessage,
    GroupId,
    Int16,
    Int32,
    Message,
    On,
    String,
    TopicName,
)


class ShareGroupDescribeRequest(Message):
    api: ClassVar[Api] = Api(ApiKey.SHARE_GROUP_DESCRIBE, "1", flexible="0+")

    group_ids: list[GroupId] = []
    include_authorized_operations: Bool = False


class DescribedShareMember(Message):
    member_id: String = ""
    rack_id: Annotated[String | None, On(nullable="0+")] = None
    member_epoch: Int32 = 0
    client_id: String = ""
    client_host: String = ""
    subscribed_topic_names: list[TopicName] = []
    assignment: DescribedAssignment = DescribedAssignment()


class DescribedShareGroup(Message):
    error_code: Int16 = 0
    error_message: Annotated[ErrorMessage | None, On(nullable="0+")] = None
    group_id: GroupId = ""
    group_state: String = ""
    group_epoch: Int32 = 0
    assignment_epoch: Int32 = 0
    assignor_name: String = ""
    members: list[DescribedShareMember] = []
    authorized_operations: Int32 = -2147483648


class ShareGroupDescribeResponse(Message):
    throttle_time_ms: Int32 = 0
    groups: list[DescribedShareGroup] = []
