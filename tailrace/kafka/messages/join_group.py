"""JoinGroup: join a group's next generation."""

from __future__ import annotations

from typing import Annotated, ClassVar

from tailrace.kafka.api_keys import ApiKey
from tailrace.kafka.schema import Api, Bool, GroupId, Int16, Int32, Message, On, String, SubscriptionBytes


class JoinGroupRequestProtocol(Message):
    name: String = ""
    metadata: SubscriptionBytes = b""


class JoinGroupRequest(Message):
    api: ClassVar[Api] = Api(ApiKey.JOIN_GROUP, "0-9", flexible="6+")

    group_id: GroupId = ""
    session_timeout_ms: Int32 = 0
    rebalance_timeout_ms: Annotated[Int32, On("1+", ignorable=True)] = -1
    member_id: String = ""
    group_instance_id: Annotated[String | None, On("5+", nullable="5+")] = None
    protocol_type: String = ""
    protocols: list[JoinGroupRequestProtocol] = []
    reason: Annotated[String | None, On("8+", nullable="8+", ignorable=True)] = None


class JoinGroupResponseMember(Message):
    member_id: String = ""
    group_instance_id: Annotated[String | None, On("5+", nullable="5+", ignorable=True)] = None
    metadata: SubscriptionBytes = b""


class JoinGroupResponse(Message):
    throttle_time_ms: Annotated[Int32, On("2+", ignorable=True)] = 0
    error_code: Int16 = 0
    generation_id: Int32 = -1
    protocol_type: Annotated[String | None, On("7+", nullable="7+", ignorable=True)] = None
    protocol_name: Annotated[String | None, On(nullable="7+")] = ""
    leader: String = ""
    skip_assignment: Annotated[Bool, On("9+")] = False
    member_id: String = ""
    members: list[JoinGroupResponseMember] = []
