"""LeaveGroup: leave a group."""

from __future__ import annotations

from typing import Annotated, ClassVar

from tailrace.kafka.api_keys import ApiKey
from tailrace.kafka.schema import Api, GroupId, Int16, Int32, Message, On, String


class MemberIdentity(Message):
    member_id: Annotated[String, On("3+")] = ""
    group_instance_id: Annotated[String | None, On("3+", nullable="3+")] = None
    reason: Annotated[String | None, On("5+", nullable="5+", ignorable=True)] = None


class LeaveGroupRequest(Message):
    api: ClassVar[Api] = Api(ApiKey.LEAVE_GROUP, "0-5", flexible="4+")

    group_id: GroupId = ""
    member_id: Annotated[String, On("0-2")] = ""
    members: Annotated[list[MemberIdentity], On("3+")] = []


class MemberResponse(Message):
    member_id: Annotated[String, On("3+")] = ""
    group_instance_id: Annotated[String | None, On("3+", nullable="3+")] = ""
    error_code: Annotated[Int16, On("3+")] = 0


class LeaveGroupResponse(Message):
    throttle_time_ms: Annotated[Int32, On("1+", ignorable=True)] = 0
    error_code: Int16 = 0
    members: Annotated[list[MemberResponse], On("3+")] = []
