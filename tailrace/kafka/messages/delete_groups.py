"""DeleteGroups: delete groups that have no members."""

from __future__ import annotations

from typing import ClassVar

from tailrace.kafka.api_keys import ApiKey
from tailrace.kafka.schema import Api, GroupId, Int16, Int32, Message


class DeleteGroupsRequest(Message):
    api: ClassVar[Api] = Api(ApiKey.DELETE_GROUPS, "0-2", flexible="2+")

    groups_names: list[GroupId] = []


class DeletableGroupResult(Message):
    group_id: GroupId = ""
    error_code: Int16 = 0


class DeleteGroupsResponse(Message):
    throttle_time_ms: Int32 = 0
    results: list[DeletableGroupResult] = []
