"""ListGroups (API key 16): which groups there are."""

from __future__ import annotations

from typing import Annotated

from tailrace.kafka.schema import Int16, Int32, Message, On, String


class ListGroupsRequest(Message):
    """ListGroups request."""

    states_filter: Annotated[list[String], On("4+")] = []
    types_filter: Annotated[list[String], On("5+")] = []


class ListedGroup(Message):
    """Each group in the response."""

    group_id: String = ""
    protocol_type: String = ""
    group_state: Annotated[String, On("4+", ignorable=True)] = ""
    group_type: Annotated[String, On("5+", ignorable=True)] = ""


class ListGroupsResponse(Message):
    """ListGroups response."""

    throttle_time_ms: Annotated[Int32, On("1+", ignorable=True)] = 0
    error_code: Int16 = 0
    groups: list[ListedGroup] = []
