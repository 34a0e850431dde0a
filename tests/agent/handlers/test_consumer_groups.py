"""ConsumerGroupHeartbeat and ConsumerGroupDescribe, and what the older APIs say of such groups (KIP-848)."""

from __future__ import annotations

from typing import Any

import pytest

from sequencer.api import AlterConfig, ConfigChange, ConfigOperation, ConfigScope
from tailrace.kafka import ApiKey
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from tailrace.kafka.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatTopicPartitions,
)
from tailrace.kafka.messages.delete_groups import DeleteGroupsRequest
from tailrace.kafka.messages.describe_groups import DescribeGroupsRequest
from tailrace.kafka.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from tailrace.kafka.messages.list_groups import ListGroupsRequest
from tailrace.kafka.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tailrace.kafka.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from tests.agent.handlers.test_group_offsets import located
from tests.support.agents import AgentBench, run

FULL: dict[str, Any] = {
    "rebalance_timeout_ms": 1_000,
    "subscribed_topic_names": ["t"],
    "topic_partitions": [],
}


async def beat(bench: AgentBench, epoch: int, member: str = "m-1", version: int = 1, **said: Any) -> Any:
    request = ConsumerGroupHeartbeatRequest("g", member, epoch, **said)
    return await bench.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, version, request, "reader")


async def joined(bench: AgentBench) -> Any:
    await bench.topic("t", 2)
    await located(bench)
    answer = await beat(bench, 0, **FULL)
    assert answer.error_code == 0, answer.error_message
    return answer


async def described(bench: AgentBench, group: str = "g") -> Any:
    request = ConsumerGroupDescribeRequest([group], include_authorized_operations=True)
    (row,) = (await bench.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, request)).groups
    return row


async def committed(bench: AgentBench, epoch: int, member: str = "m-1") -> int:
    topic = bench.services.catalog.snapshot.by_name["t"].topic
    request = OffsetCommitRequest(
        "g",
        epoch,
        member,
        topics=[OffsetCommitRequestTopic("t", topic.topic_id, [OffsetCommitRequestPartition(0, 7)])],
    )
    answer = await bench.ask(ApiKey.OFFSET_COMMIT, 9, request)
    return int(answer.topics[0].partitions[0].error_code)


def test_a_member_joins_and_is_told_its_partitions() -> None:
    async def scenario(bench: AgentBench) -> None:
        answer = await joined(bench)

        topic_id = bench.services.catalog.snapshot.by_name["t"].topic.topic_id
        assert (answer.member_id, answer.member_epoch, answer.heartbeat_interval_ms) == ("m-1", 1, 5_000)
        assert answer.assignment.topic_partitions == [ConsumerGroupHeartbeatTopicPartitions(topic_id, [0, 1])]
        again = await beat(bench, 1)
        assert (again.error_code, again.assignment) == (0, None)

    run(scenario)


def test_a_groups_own_configs_hold_from_the_next_heartbeat_on() -> None:
    async def scenario(bench: AgentBench) -> None:
        first = await joined(bench)
        assert first.heartbeat_interval_ms == bench.settings.group_consumer_heartbeat_interval_ms
        changes = [
            ConfigChange("consumer.heartbeat.interval.ms", ConfigOperation.SET, "9000"),
            ConfigChange("consumer.session.timeout.ms", ConfigOperation.SET, "60000"),
        ]
        await bench.sequencer.alter_config(AlterConfig(ConfigScope.GROUP, "g", changes))
        await bench.services.catalog.refresh()
        answer = await beat(bench, first.member_epoch)
        assert answer.heartbeat_interval_ms == 9_000
        (member,) = bench.services.groups._held["g"].group.members.values()
        assert member.session_deadline == bench.clock.monotonic() + 60

    run(scenario)


def test_before_version_1_the_coordinator_names_the_member() -> None:
    async def scenario(bench: AgentBench) -> None:
        await located(bench)

        answer = await beat(bench, 0, "", version=0, **FULL)

        assert answer.error_code == 0 and len(answer.member_id) == 36

    run(scenario)


@pytest.mark.parametrize(
    ("epoch", "member", "said", "code"),
    [
        (0, "", FULL, ErrorCode.INVALID_REQUEST),
        (-3, "m-1", {}, ErrorCode.INVALID_REQUEST),
        (-2, "m-1", {}, ErrorCode.INVALID_REQUEST),
        (0, "m-1", FULL | {"rebalance_timeout_ms": -1}, ErrorCode.INVALID_REQUEST),
        (0, "m-1", FULL | {"subscribed_topic_names": None}, ErrorCode.INVALID_REQUEST),
        (0, "m-1", FULL | {"subscribed_topic_names": [""]}, ErrorCode.INVALID_REQUEST),
        (0, "m-1", FULL | {"instance_id": ""}, ErrorCode.INVALID_REQUEST),
        (
            0,
            "m-1",
            FULL | {"topic_partitions": [ConsumerGroupHeartbeatTopicPartitions()]},
            ErrorCode.INVALID_REQUEST,
        ),
        (0, "m-1", FULL | {"server_assignor": "best"}, ErrorCode.UNSUPPORTED_ASSIGNOR),
        (0, "m-1", FULL | {"subscribed_topic_regex": "(t"}, ErrorCode.INVALID_REGULAR_EXPRESSION),
        (3, "m-1", {}, ErrorCode.UNKNOWN_MEMBER_ID),
        (-1, "m-1", {}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_what_is_wrong_is_said(epoch: int, member: str, said: dict[str, Any], code: ErrorCode) -> None:
    async def scenario(bench: AgentBench) -> None:
        await located(bench)

        answer = await beat(bench, epoch, member, **said)

        assert answer.error_code == code and answer.error_message

    run(scenario)


def test_a_group_is_described_with_what_members_have_and_are_to_have() -> None:
    async def scenario(bench: AgentBench) -> None:
        await joined(bench)
        await beat(bench, 0, "m-2", **FULL)

        group = await described(bench)

        assert (group.error_code, group.group_state, group.assignor_name) == (0, "Reconciling", "uniform")
        assert group.group_epoch == group.assignment_epoch == 2 and group.authorized_operations > 0
        first, second = group.members
        assert (first.member_id, first.client_id, first.member_type) == ("m-1", "reader", 1)
        assert first.assignment.topic_partitions[0].partitions == [0, 1]
        assert len(first.target_assignment.topic_partitions[0].partitions) == 1
        assert second.assignment.topic_partitions == []

    run(scenario)


def test_tools_of_classic_groups_see_that_it_is_none() -> None:
    async def scenario(bench: AgentBench) -> None:
        await joined(bench)

        (old,) = (await bench.ask(ApiKey.DESCRIBE_GROUPS, 6, DescribeGroupsRequest(["g"]))).groups
        assert (old.error_code, old.group_state) == (ErrorCode.GROUP_ID_NOT_FOUND, "Dead")
        listed = (await bench.ask(ApiKey.LIST_GROUPS, 5, ListGroupsRequest())).groups
        assert [(row.group_id, row.group_state, row.group_type) for row in listed] == [
            ("g", "Stable", "consumer")
        ]
        classic = await bench.ask(ApiKey.LIST_GROUPS, 5, ListGroupsRequest(types_filter=["classic"]))
        assert classic.groups == []
        assert (await described(bench, "unknown")).error_code == ErrorCode.GROUP_ID_NOT_FOUND

    run(scenario)


def test_offsets_are_taken_and_told_at_the_members_epoch_only() -> None:
    async def scenario(bench: AgentBench) -> None:
        await joined(bench)
        await beat(bench, 0, "m-2", **FULL)  # the group is at epoch 2, m-1 still at 1

        assert await committed(bench, 1) == ErrorCode.NONE
        assert await committed(bench, 2) == ErrorCode.STALE_MEMBER_EPOCH
        assert await committed(bench, 1, "m-9") == ErrorCode.UNKNOWN_MEMBER_ID
        for epoch, code in ((1, ErrorCode.NONE), (0, ErrorCode.STALE_MEMBER_EPOCH)):
            topics = [OffsetFetchRequestTopics("t", partition_indexes=[0])]
            request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup("g", "m-1", epoch, topics)])
            (group,) = (await bench.ask(ApiKey.OFFSET_FETCH, 9, request)).groups
            assert group.error_code == code
        assert group.topics == []

    run(scenario)


def test_an_empty_group_becomes_what_its_next_member_asks_for() -> None:
    async def scenario(bench: AgentBench) -> None:
        await joined(bench)
        join = JoinGroupRequest(
            "g",
            10_000,
            10_000,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol("range", b"")],
        )
        refused = await bench.ask(ApiKey.JOIN_GROUP, 3, join)
        assert refused.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL

        assert (await beat(bench, -1)).member_epoch == -1
        taken = await bench.ask(ApiKey.JOIN_GROUP, 3, join)
        assert taken.error_code == 0
        refused = await beat(bench, 0, **FULL)
        assert refused.error_code == ErrorCode.GROUP_ID_NOT_FOUND

    run(scenario)


def test_a_group_without_members_can_be_deleted() -> None:
    async def scenario(bench: AgentBench) -> None:
        await joined(bench)
        request = DeleteGroupsRequest(["g"])
        (kept,) = (await bench.ask(ApiKey.DELETE_GROUPS, 2, request)).results
        assert kept.error_code == ErrorCode.NON_EMPTY_GROUP

        await beat(bench, -1)
        (gone,) = (await bench.ask(ApiKey.DELETE_GROUPS, 2, request)).results

        assert gone.error_code == ErrorCode.NONE
        assert (await described(bench)).error_code == ErrorCode.GROUP_ID_NOT_FOUND

    run(scenario)
