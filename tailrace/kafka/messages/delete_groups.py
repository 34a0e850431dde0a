"""DeleteGroups (API key 42): delete groups that have no members."""

from __future__ import annotations

from tailrace.kafka.schema import Int16, Int32, Message, String


class DeleteGroupsRequest(Message):
    """DeleteGroups request."""

    groups_names: list[String] = []


class DeletableGroupResult(Message):
    """The deletion results."""

    group_id: String = ""
    error_code: Int16 = 0


class DeleteGroupsResponse(Message):
    """DeleteGroups response."""

    throttle_time_ms: Int32 = 0
    results: list[DeletableGroupResult] = []
