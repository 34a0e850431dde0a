"""Requests about missing groups create none."""

from __future__ import annotations

from typing import Any

import pytest

from sequencer.api.values import Empty
from sequencer.settings import SequencerSettings
from tailrace.kafka import ApiKey
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.delete_groups import DeleteGroupsRequest
from tailrace.kafka.messages.describe_groups import DescribeGroupsRequest
from tailrace.kafka.messages.find_coordinator import FindCoordinatorRequest
from tailrace.kafka.messages.heartbeat import HeartbeatRequest
from tailrace.kafka.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from tailrace.kafka.messages.leave_group import LeaveGroupRequest, MemberIdentity
from tailrace.kafka.messages.list_groups import ListGroupsRequest
from tailrace.kafka.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tailrace.kafka.messages.offset_delete import OffsetDeleteRequest
from tailrace.kafka.messages.offset_fetch import OffsetFetchRequest
from tailrace.kafka.messages.sync_group import SyncGroupRequest
from tests.support.agents import agent_bench

POSITIONS = [OffsetCommitRequestTopic("t", partitions=[OffsetCommitRequestPartition(0, 1)])]


async def test_no_question_about_a_group_makes_one() -> None:
    async with agent_bench() as bench:
        await bench.topic()
        asked: list[tuple[int, int, Any]] = [
            (ApiKey.FIND_COORDINATOR, 3, FindCoordinatorRequest("g")),
            (ApiKey.DESCRIBE_GROUPS, 5, DescribeGroupsRequest(["g"])),
            (ApiKey.OFFSET_FETCH, 5, OffsetFetchRequest("g", None)),
            (ApiKey.HEARTBEAT, 4, HeartbeatRequest("g", 3, "m")),
            (ApiKey.SYNC_GROUP, 5, SyncGroupRequest("g", 3, "m", None, "consumer", "range")),
            (ApiKey.LEAVE_GROUP, 4, LeaveGroupRequest("g", members=[MemberIdentity("m")])),
            (ApiKey.OFFSET_COMMIT, 8, OffsetCommitRequest("g", 3, "m", topics=POSITIONS)),
            (ApiKey.OFFSET_DELETE, 0, OffsetDeleteRequest("g")),
            (ApiKey.DELETE_GROUPS, 2, DeleteGroupsRequest(["g"])),
            (ApiKey.LIST_GROUPS, 4, ListGroupsRequest()),
            (ApiKey.JOIN_GROUP, 7, JoinGroupRequest("g", 10_000, protocol_type="consumer")),
            (ApiKey.JOIN_GROUP, 7, joining("g", member_id="of another group")),
            (ApiKey.JOIN_GROUP, 7, joining("g")),  # it is told its id, and may never come back
        ]
        for api, version, request in asked:
            await bench.ask(api, version, request)
            assert (await bench.sequencer.statistics(Empty())).groups == 0, ApiKey(api).name


@pytest.mark.parametrize(("version", "message"), [(1, "NONE"), (3, "NONE"), (4, ""), (6, "")])
@pytest.mark.parametrize("key_type", [0, 1])
async def test_a_coordinator_is_reported_with_kafkas_message(
    version: int, message: str, key_type: int
) -> None:
    async with agent_bench() as bench:
        one = FindCoordinatorRequest("g", key_type)
        many = FindCoordinatorRequest(key_type=key_type, coordinator_keys=["g"])
        answer = await bench.ask(ApiKey.FIND_COORDINATOR, version, one if version < 4 else many)
        found = answer if version < 4 else answer.coordinators[0]
        assert (found.error_code, found.error_message) == (ErrorCode.NONE, message)


@pytest.mark.parametrize("named", [(None, "range"), ("consumer", None), (None, None)])
async def test_a_sync_names_the_protocol_and_its_type(named: tuple[str | None, str | None]) -> None:
    async with agent_bench() as bench:
        for version, code in (
            (4, ErrorCode.UNKNOWN_MEMBER_ID),
            (5, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ):
            request = SyncGroupRequest("g", 3, "m", None, *named)
            assert (await bench.ask(ApiKey.SYNC_GROUP, version, request)).error_code == code


def joining(group_id: str, member_id: str = "") -> JoinGroupRequest:
    protocols = [JoinGroupRequestProtocol("range", b"")]
    return JoinGroupRequest(
        group_id, 10_000, member_id=member_id, protocol_type="consumer", protocols=protocols
    )


async def test_at_the_group_limit_new_groups_get_a_retriable_error_and_known_groups_continue() -> None:
    async with agent_bench(SequencerSettings(max_groups=1), group_initial_rebalance_delay_ms=0) as bench:
        await bench.topic()

        async def commit(group_id: str) -> int:
            asked = OffsetCommitRequest(group_id, topics=POSITIONS)
            answer = await bench.ask(ApiKey.OFFSET_COMMIT, 8, asked)
            code: int = answer.topics[0].partitions[0].error_code
            return code

        assert await commit("known") == ErrorCode.NONE
        assert await commit("too-many") == ErrorCode.COORDINATOR_NOT_AVAILABLE
        known = await bench.ask(ApiKey.JOIN_GROUP, 7, joining("too-many"))
        assert known.error_code == ErrorCode.MEMBER_ID_REQUIRED
        refused = await bench.ask(ApiKey.JOIN_GROUP, 7, joining("too-many", known.member_id))
        assert refused.error_code == ErrorCode.NOT_COORDINATOR
        assert await commit("known") == ErrorCode.NONE
