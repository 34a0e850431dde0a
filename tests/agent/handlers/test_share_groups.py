"""ShareGroupHeartbeat and ShareGroupDescribe, and what other APIs say of share groups (KIP-932)."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.kafka import ApiKey
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.list_groups import ListGroupsRequest
from tailrace.kafka.messages.share_group_describe import ShareGroupDescribeRequest
from tailrace.kafka.messages.share_group_heartbeat import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatTopicPartitions,
)
from tests.agent.handlers.test_consumer_groups import FULL
from tests.agent.handlers.test_consumer_groups import beat as consumer_beat
from tests.agent.handlers.test_group_offsets import located
from tests.support.agents import AgentBench, agent_bench


async def beat(bench: AgentBench, epoch: int, member: str = "m-1", **said: Any) -> Any:
    request = ShareGroupHeartbeatRequest("g", member, epoch, **said)
    return await bench.ask(ApiKey.SHARE_GROUP_HEARTBEAT, 1, request, "reader")


async def joined(bench: AgentBench) -> Any:
    await bench.topic("t", 2)
    await located(bench)
    answer = await beat(bench, 0, subscribed_topic_names=["t"])
    assert answer.error_code == 0, answer.error_message
    return answer


async def described(bench: AgentBench, group: str = "g") -> Any:
    request = ShareGroupDescribeRequest([group], include_authorized_operations=True)
    (row,) = (await bench.ask(ApiKey.SHARE_GROUP_DESCRIBE, 1, request)).groups
    return row


async def test_a_group_that_came_from_another_agent_is_described_with_topics_that_are_new_here() -> None:
    async with agent_bench() as bench:
        stale = bench.services.catalog.snapshot
        await joined(bench)
        bench.services.catalog.snapshot = stale
        (member,) = (await described(bench)).members
        assert [each.topic_name for each in member.assignment.topic_partitions] == ["t"]


async def test_a_member_joins_and_gets_its_partitions() -> None:
    async with agent_bench() as bench:
        answer = await joined(bench)

        topic_id = bench.services.catalog.snapshot.by_name["t"].topic.topic_id
        assert (answer.member_id, answer.member_epoch, answer.heartbeat_interval_ms) == ("m-1", 1, 5_000)
        assert answer.assignment.topic_partitions == [ShareGroupHeartbeatTopicPartitions(topic_id, [0, 1])]
        again = await beat(bench, 1)
        assert (again.error_code, again.assignment) == (0, None)


async def test_a_group_is_described_and_listed() -> None:
    async with agent_bench() as bench:
        await joined(bench)

        row = await described(bench)
        assert (row.error_code, row.group_state, row.group_epoch, row.assignor_name) == (
            0,
            "Stable",
            1,
            "simple",
        )
        (member,) = row.members
        assert (member.client_id, member.client_host, member.subscribed_topic_names) == (
            "reader",
            "/client-host",
            ["t"],
        )
        assert member.assignment.topic_partitions[0].topic_name == "t"
        (listed,) = (await bench.ask(ApiKey.LIST_GROUPS, 5, ListGroupsRequest(types_filter=["share"]))).groups
        assert (listed.group_id, listed.protocol_type, listed.group_type) == ("g", "share", "share")


@pytest.mark.parametrize(
    ("epoch", "member", "names"),
    [(0, "", ["t"]), (-2, "m-1", None), (0, "m-1", None), (0, "m-1", []), (1, "m-1", [""])],
)
async def test_a_value_that_kafka_refuses_is_an_invalid_request(
    epoch: int, member: str, names: list[str] | None
) -> None:
    async with agent_bench() as bench:
        await located(bench)

        answer = await beat(bench, epoch, member, subscribed_topic_names=names)

        assert answer.error_code == ErrorCode.INVALID_REQUEST


async def test_a_share_group_stays_one_when_its_members_have_left() -> None:
    async with agent_bench() as bench:
        await joined(bench)
        assert (await beat(bench, -1)).member_epoch == -1

        assert (await consumer_beat(bench, 0, **FULL)).error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert (await described(bench)).group_state == "Empty"


async def test_other_groups_and_unknown_ones_are_not_found() -> None:
    async with agent_bench() as bench:
        await bench.topic("t", 2)
        await located(bench)
        await consumer_beat(bench, 0, **FULL)

        assert (await described(bench)).error_message == "Group g is not a share group."
        assert (await described(bench, "other")).error_message == "Group other not found."
        answer = await beat(bench, 0, "m-2", subscribed_topic_names=["t"])
        assert answer.error_code == ErrorCode.GROUP_ID_NOT_FOUND
