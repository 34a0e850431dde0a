"""SyncGroup (API key 14): hand out, or receive, the assignment of a generation."""

from __future__ import annotations

from typing import Annotated

from tailrace.kafka.schema import Bytes, Int16, Int32, Message, On, String


class SyncGroupRequestAssignment(Message):
    """Each assignment."""

    member_id: String = ""
    assignment: Bytes = b""


class SyncGroupRequest(Message):
    """SyncGroup request."""

    group_id: String = ""
    generation_id: Int32 = 0
    member_id: String = ""
    group_instance_id: Annotated[String | None, On("3+", nullable="3+")] = None
    protocol_type: Annotated[String | None, On("5+", nullable="5+", ignorable=True)] = None
    protocol_name: Annotated[String | None, On("5+", nullable="5+", ignorable=True)] = None
    assignments: list[SyncGroupRequestAssignment] = []


class SyncGroupResponse(Message):
    """SyncGroup response."""

    throttle_time_ms: Annotated[Int32, On("1+", ignorable=True)] = 0
    error_code: Int16 = 0
    protocol_type: Annotated[String | None, On("5+", nullable="5+", ignorable=True)] = None
    protocol_name: Annotated[String | None, On("5+", nullable="5+", ignorable=True)] = None
    assignment: Bytes = b""
