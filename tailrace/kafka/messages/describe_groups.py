"""DescribeGroups: state and members of groups."""

from __future__ import annotations

from typing import Annotated, ClassVar

from tailrace.kafka.api_keys import ApiKey
from tailrace.kafka.schema import (
    Api,
    AssignmentBytes,
    Bool,
    ErrorMessage,
    GroupId,
    Int16,
    Int32,
    Message,
    On,
    String,
    SubscriptionBytes,
)


class DescribeGroupsRequest(Message):
    api: ClassVar[Api] = Api(ApiKey.DESCRIBE_GROUPS, "0-6", flexible="5+")

    groups: list[GroupId] = []
    include_authorized_operations: Annotated[Bool, On("3+")] = False


class DescribedGroupMember(Message):
    member_id: String = ""
    group_instance_id: Annotated[String | None, On("4+", nullable="4+", ignorable=True)] = None
    client_id: String = ""
    client_host: String = ""
    member_metadata: SubscriptionBytes = b""
    member_assignment: AssignmentBytes = b""


class DescribedGroup(Message):
    error_code: Int16 = 0
    error_message: Annotated[ErrorMessage | None, On("6+", nullable="6+")] = None
    group_id: GroupId = ""
    group_state: String = ""
    protocol_type: String = ""
    protocol_data: String = ""
    members: list[DescribedGroupMember] = []
    authorized_operations: Annotated[Int32, On("3+")] = -2147483648


class DescribeGroupsResponse(Message):
    throttle_time_ms: Annotated[Int32, On("1+", ignorable=True)] = 0
    groups: list[DescribedGroup] = []
