"""ConsumerGroupHeartbeat and ConsumerGroupDescribe, and what the older APIs say of such groups (KIP-848)."""

from __future__ import annotations

from typing import Any

import pytest

from agent.groups.subscription import read_assignment, write_assignment
from sequencer.api.topics import AlterConfig, ConfigChange, ConfigOperation, ConfigScope
from tailrace.kafka import ApiKey
from tailrace.kafka.embedded import write_embedded
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from tailrace.kafka.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatTopicPartitions,
)
from tailrace.kafka.messages.consumer_protocol import ConsumerProtocolSubscription
from tailrace.kafka.messages.delete_groups import DeleteGroupsRequest
from tailrace.kafka.messages.describe_groups import DescribeGroupsRequest
from tailrace.kafka.messages.heartbeat import HeartbeatRequest
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
from tailrace.kafka.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tests.agent.handlers.test_group_offsets import located
from tests.support.agents import AgentBench, agent_bench

FULL: dict[str, Any] = {
    "rebalance_timeout_ms": 1_000,
    "subscribed_topic_names": ["t"],
    "topic_partitions": [],
}


def metadata_of(*topics: str) -> bytes:
    """A classic client's subscription."""
    return write_embedded(ConsumerProtocolSubscription(list(topics)), b"\0\0")


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


async def committed(bench: AgentBench, epoch: int, member: str = "m-1", version: int = 9) -> int:
    topic = bench.services.catalog.snapshot.by_name["t"].topic
    request = OffsetCommitRequest(
        "g",
        epoch,
        member,
        topics=[OffsetCommitRequestTopic("t", topic.topic_id, [OffsetCommitRequestPartition(0, 7)])],
    )
    answer = await bench.ask(ApiKey.OFFSET_COMMIT, version, request)
    return int(answer.topics[0].partitions[0].error_code)


@pytest.mark.parametrize("epoch", [3, -1])
async def test_a_member_of_an_unknown_group_is_told_to_join_again(epoch: int) -> None:
    async with agent_bench() as bench:
        await located(bench)
        answer = await beat(bench, epoch)
        assert answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID
        assert (await beat(bench, 0, **FULL)).error_code == 0


async def test_a_member_joins_and_gets_its_partitions() -> None:
    async with agent_bench() as bench:
        answer = await joined(bench)

        topic_id = bench.services.catalog.snapshot.by_name["t"].topic.topic_id
        assert (answer.member_id, answer.member_epoch, answer.heartbeat_interval_ms) == ("m-1", 1, 5_000)
        assert answer.assignment.topic_partitions == [ConsumerGroupHeartbeatTopicPartitions(topic_id, [0, 1])]
        again = await beat(bench, 1)
        assert (again.error_code, again.assignment) == (0, None)


async def test_a_member_commits_by_a_version_that_has_member_epochs() -> None:
    async with agent_bench() as bench:
        epoch = (await joined(bench)).member_epoch
        for wrong in (0, 1):
            code = await committed(bench, epoch - wrong, version=8)
            assert code == ErrorCode.UNSUPPORTED_VERSION, "whatever its epoch is"
        assert await committed(bench, epoch, "nobody", version=8) == ErrorCode.UNKNOWN_MEMBER_ID
        assert await committed(bench, epoch) == ErrorCode.NONE


async def test_a_groups_own_configs_hold_from_the_next_heartbeat_on() -> None:
    async with agent_bench() as bench:
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


async def test_before_version_1_the_coordinator_names_the_member() -> None:
    async with agent_bench() as bench:
        await located(bench)

        answer = await beat(bench, 0, "", version=0, **FULL)

        assert answer.error_code == 0 and len(answer.member_id) == 36


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
async def test_an_error_is_reported_with_its_reason(
    epoch: int, member: str, said: dict[str, Any], code: ErrorCode
) -> None:
    async with agent_bench() as bench:
        await located(bench)

        answer = await beat(bench, epoch, member, **said)

        assert answer.error_code == code and answer.error_message


async def test_a_member_may_join_that_reads_nothing_yet() -> None:
    async with agent_bench() as bench:
        await located(bench)
        nothing = FULL | {"subscribed_topic_names": None, "subscribed_topic_regex": ""}
        answer = await beat(bench, 0, **nothing)
        assert (answer.error_code, answer.assignment.topic_partitions) == (0, [])


async def test_a_group_is_described_with_what_members_have_and_are_to_have() -> None:
    async with agent_bench() as bench:
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
        assert first.subscribed_topic_regex == second.subscribed_topic_regex == ""

        topic_id = bench.services.catalog.snapshot.by_name["t"].topic.topic_id
        told = await beat(
            bench, 1, topic_partitions=[ConsumerGroupHeartbeatTopicPartitions(topic_id, [0, 1])]
        )
        assert len(told.assignment.topic_partitions[0].partitions) == 1
        first, _ = (await described(bench)).members
        assert first.assignment.topic_partitions[0].partitions == [0, 1], (
            "it still reads what it is to give up"
        )


async def test_a_group_that_came_from_another_agent_is_described_with_topics_that_are_new_here() -> None:
    async with agent_bench() as bench:
        stale = bench.services.catalog.snapshot
        await joined(bench)
        bench.services.catalog.snapshot = stale
        (member,) = (await described(bench)).members
        assert [each.topic_name for each in member.assignment.topic_partitions] == ["t"]


async def test_tools_of_classic_groups_see_that_it_is_none() -> None:
    async with agent_bench() as bench:
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


async def test_offsets_are_committed_and_fetched_at_the_members_epoch_only() -> None:
    async with agent_bench() as bench:
        await joined(bench)
        await beat(bench, 0, "m-2", **FULL)  # the group is at epoch 2, m-1 still at 1

        assert await committed(bench, 1) == ErrorCode.NONE
        assert await committed(bench, 2) == ErrorCode.STALE_MEMBER_EPOCH
        assert await committed(bench, 1, "m-9") == ErrorCode.UNKNOWN_MEMBER_ID
        for member, epoch, code in (
            (None, -1, ErrorCode.NONE),
            ("m-1", 1, ErrorCode.NONE),
            ("m-1", 0, ErrorCode.STALE_MEMBER_EPOCH),
            ("m-1", -1, ErrorCode.STALE_MEMBER_EPOCH),
            ("", -1, ErrorCode.UNKNOWN_MEMBER_ID),
        ):
            topics = [OffsetFetchRequestTopics("t", partition_indexes=[0])]
            request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup("g", member, epoch, topics)])
            (group,) = (await bench.ask(ApiKey.OFFSET_FETCH, 9, request)).groups
            assert group.error_code == code
            assert [topic.name for topic in group.topics] == ([] if code else ["t"])


async def test_an_empty_group_becomes_what_its_next_member_asks_for() -> None:
    async with agent_bench() as bench:
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
        assert refused.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "its rebalance has to end first"


async def test_a_group_with_members_changes_its_protocol_and_back() -> None:
    async def join(bench: AgentBench, member: str) -> Any:
        subscribed = JoinGroupRequestProtocol("range", metadata_of("t"))
        request = JoinGroupRequest("g", 10_000, 10_000, member, None, "consumer", [subscribed])
        return await bench.ask(ApiKey.JOIN_GROUP, 5, request)

    async def sync(bench: AgentBench, member: str, generation: int, given: bytes = b"") -> Any:
        assignments = [SyncGroupRequestAssignment(member, given)] if given else []
        request = SyncGroupRequest("g", generation, member, None, "consumer", "range", assignments)
        return await bench.ask(ApiKey.SYNC_GROUP, 5, request)

    async with agent_bench() as bench:
        await bench.topic("t", 2)
        await located(bench)
        old = (await join(bench, "")).member_id
        generation = (await join(bench, old)).generation_id
        await sync(bench, old, generation, write_assignment(metadata_of("t"), {"t": [0, 1]}))

        assert (await beat(bench, 0, **FULL)).error_code == 0
        heartbeat = HeartbeatRequest("g", generation, old)
        code = (await bench.ask(ApiKey.HEARTBEAT, 4, heartbeat)).error_code
        assert code == ErrorCode.REBALANCE_IN_PROGRESS
        assert await committed(bench, generation, old) == 0, "what it has read until now"
        again = await join(bench, old)
        assert (again.error_code, again.leader, again.generation_id) == (0, "", generation + 1)
        given = await sync(bench, old, again.generation_id)
        assert read_assignment(bytes(given.assignment)).assigned_partitions[0].partitions == [0]
        assert await committed(bench, generation - 1, old) == ErrorCode.ILLEGAL_GENERATION
        row = await described(bench)
        assert {member.member_id: member.member_type for member in row.members} == {old: 0, "m-1": 1}

        assert (await beat(bench, -1)).member_epoch == -1
        (group,) = (await bench.ask(ApiKey.DESCRIBE_GROUPS, 6, DescribeGroupsRequest(["g"]))).groups
        assert group.group_state == "PreparingRebalance"
        heartbeat = HeartbeatRequest("g", again.generation_id, old)
        code = (await bench.ask(ApiKey.HEARTBEAT, 4, heartbeat)).error_code
        assert code == ErrorCode.REBALANCE_IN_PROGRESS
        last = await join(bench, old)
        assert (last.leader, last.generation_id) == (old, again.generation_id + 1)


async def test_a_policy_keeps_groups_in_their_protocol() -> None:
    async with agent_bench(group_consumer_migration_policy="disabled") as bench:
        await joined(bench)
        assert (await beat(bench, -1)).member_epoch == -1
        subscribed = JoinGroupRequestProtocol("range", metadata_of("t"))
        join = JoinGroupRequest("g", 10_000, 10_000, "", None, "consumer", [subscribed])
        member = await bench.ask(ApiKey.JOIN_GROUP, 3, join)
        given = [SyncGroupRequestAssignment(member.member_id, b"")]
        sync = SyncGroupRequest("g", member.generation_id, member.member_id, None, "consumer", "range", given)
        assert (await bench.ask(ApiKey.SYNC_GROUP, 5, sync)).error_code == 0

        refused = await beat(bench, 0, **FULL)

        assert refused.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert "is a classic group" in refused.error_message


async def test_a_policy_keeps_classic_members_out_of_consumer_groups() -> None:
    async with agent_bench(group_consumer_migration_policy="disabled") as bench:
        await joined(bench)
        subscribed = JoinGroupRequestProtocol("range", metadata_of("t"))
        join = JoinGroupRequest("g", 10_000, 10_000, "", None, "consumer", [subscribed])
        refused = await bench.ask(ApiKey.JOIN_GROUP, 3, join)
        assert refused.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


async def test_a_group_without_members_can_be_deleted() -> None:
    async with agent_bench() as bench:
        await joined(bench)
        request = DeleteGroupsRequest(["g"])
        (kept,) = (await bench.ask(ApiKey.DELETE_GROUPS, 2, request)).results
        assert kept.error_code == ErrorCode.NON_EMPTY_GROUP

        await beat(bench, -1)
        (gone,) = (await bench.ask(ApiKey.DELETE_GROUPS, 2, request)).results

        assert gone.error_code == ErrorCode.NONE
        assert (await described(bench)).error_code == ErrorCode.GROUP_ID_NOT_FOUND


async def test_a_member_that_names_a_topic_twice_owns_all_that_it_names() -> None:
    async with agent_bench() as bench:
        first = await joined(bench)
        (assigned,) = first.assignment.topic_partitions
        assert assigned.partitions == [0, 1]
        await beat(bench, 0, "m-2", **FULL)
        told = await beat(bench, first.member_epoch)
        (kept,) = told.assignment.topic_partitions[0].partitions
        named = [
            ConsumerGroupHeartbeatTopicPartitions(assigned.topic_id, [place]) for place in (1 - kept, kept)
        ]
        answer = await beat(bench, told.member_epoch, **FULL | {"topic_partitions": named})
        assert answer.error_code == 0
        second = (await described(bench)).members[1]
        again = await beat(bench, second.member_epoch, "m-2")
        assert again.error_code == 0 and not (again.assignment and again.assignment.topic_partitions)
