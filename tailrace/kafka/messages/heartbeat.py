"""Heartbeat: stay a member of a group."""

from __future__ import annotations

from typing import Annotated, ClassVar

from tailrace.kafka.api_keys import ApiKey
from tailrace.kafka.schema import Api, GroupId, Int16, Int32, Message, On, String


class HeartbeatRequest(Message):
    api: ClassVar[Api] = Api(ApiKey.HEARTBEAT, "0-4", flexible="4+")

    group_id: GroupId = ""
    generation_id: Int32 = 0
    member_id: String = ""
    group_instance_id: Annotated[String | None, On("3+", nullable="3+")] = None


class HeartbeatResponse(Message):
    throttle_time_ms: Annotated[Int32, On("1+", ignorable=True)] = 0
    error_code: Int16 = 0
