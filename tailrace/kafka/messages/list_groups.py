"""ListGroups: list the groups of a coordinator."""

from __future__ import annotations

from typing import Annotated, ClassVar

from tailrace.kafka.api_keys import ApiKey
from tailrace.kafka.schema import Api, GroupId, Int16, Int32, Message, On, String


class ListGroupsRequest(Message):
    api: ClassVar[Api] = Api(ApiKey.LIST_GROUPS, "0-5", flexible="3+")

    states_filter: Annotated[list[String], On("4+")] = []
    types_filter: Annotated[list[String], On("5+")] = []


class ListedGroup(Message):
    group_id: GroupId = ""
    protocol_type: String = ""
    group_state: Annotated[String, On("4+", ignorable=True)] = ""
    group_type: Annotated[String, On("5+", ignorable=True)] = ""


class ListGroupsResponse(Message):
    throttle_time_ms: Annotated[Int32, On("1+", ignorable=True)] = 0
    error_code: Int16 = 0
    groups: list[ListedGroup] = []
