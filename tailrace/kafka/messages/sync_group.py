"""SyncGroup: send (as the leader) and receive the assignment of a generation."""

from __future__ import annotations

from typing import Annotated, ClassVar

from tailrace.kafka.api_keys import ApiKey
from tailrace.kafka.schema import Api, AssignmentBytes, GroupId, Int16, Int32, Message, On, String


class SyncGroupRequestAssignment(Message):
    member_id: String = ""
    assignment: AssignmentBytes = b""


class SyncGroupRequest(Message):
    api: ClassVar[Api] = Api(ApiKey.SYNC_GROUP, "0-5", flexible="4+")

    group_id: GroupId = ""
    generation_id: Int32 = 0
    member_id: String = ""
    group_instance_id: Annotated[String | None, On("3+", nullable="3+")] = None
    protocol_type: Annotated[String | None, On("5+", nullable="5+", ignorable=True)] = None
    protocol_name: Annotated[String | None, On("5+", nullable="5+", ignorable=True)] = None
    assignments: list[SyncGroupRequestAssignment] = []


class SyncGroupResponse(Message):
    throttle_time_ms: Annotated[Int32, On("1+", ignorable=True)] = 0
    error_code: Int16 = 0
    protocol_type: Annotated[String | None, On("5+", nullable="5+", ignorable=True)] = None
    protocol_name: Annotated[String | None, On("5+", nullable="5+", ignorable=True)] = None
    assignment: AssignmentBytes = b""
