"""DescribeGroups, ListGroups, DeleteGroups, OffsetDelete: groups as tools see them."""

from __future__ import annotations

import asyncio
from typing import Any

from tailrace.kafka import ApiKey
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.delete_groups import DeleteGroupsRequest
from tailrace.kafka.messages.describe_groups import DescribeGroupsRequest
from tailrace.kafka.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from tailrace.kafka.messages.list_groups import ListGroupsRequest
from tailrace.kafka.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from tailrace.kafka.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from tailrace.kafka.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tests.agent.handlers.test_group_offsets import commit, located
from tests.support.agents import AgentBench, agent_bench
from tests.support.transactions import TransactionalProducer

SUBSCRIBED_TO_T = b"\0\0" + b"\0\0\0\1" + b"\0\1t" + b"\xff\xff\xff\xff"
"""A ConsumerProtocolSubscription, version 0, of the topic t."""


async def joined(bench: AgentBench, metadata: bytes = SUBSCRIBED_TO_T, kind: str = "consumer") -> str:
    """One member, with its assignment; its id."""
    await located(bench)
    request = JoinGroupRequest(
        "g", 10_000, 10_000, protocol_type=kind, protocols=[JoinGroupRequestProtocol("range", metadata)]
    )
    answer = await bench.until(asyncio.ensure_future(bench.ask(ApiKey.JOIN_GROUP, 3, request, "tool")))
    assert answer.error_code == 0
    sync = SyncGroupRequest(
        "g",
        answer.generation_id,
        answer.member_id,
        assignments=[SyncGroupRequestAssignment(answer.member_id, b"mine")],
    )
    assert (await bench.ask(ApiKey.SYNC_GROUP, 3, sync)).error_code == 0
    member: str = answer.member_id
    return member


async def described(bench: AgentBench, group: str, version: int = 5) -> Any:
    (row,) = (await bench.ask(ApiKey.DESCRIBE_GROUPS, version, DescribeGroupsRequest([group]))).groups
    return row


async def listed(bench: AgentBench, **filters: list[str]) -> list[tuple[str, str, str]]:
    response = await bench.ask(ApiKey.LIST_GROUPS, 5, ListGroupsRequest(**filters))
    return [(row.group_id, row.group_state, row.protocol_type) for row in response.groups]


async def deleted(bench: AgentBench, group: str = "g") -> int:
    (row,) = (await bench.ask(ApiKey.DELETE_GROUPS, 2, DeleteGroupsRequest([group]))).results
    return int(row.error_code)


async def offset_deleted(bench: AgentBench, topic: str = "t", group: str = "g") -> tuple[int, int]:
    """The group's code and the partition's."""
    named = [OffsetDeleteRequestTopic(topic, [OffsetDeleteRequestPartition(0)])]
    response = await bench.ask(ApiKey.OFFSET_DELETE, 0, OffsetDeleteRequest(group, named))
    rows = [row.error_code for each in response.topics for row in each.partitions]
    return response.error_code, rows[0] if rows else 0


async def test_a_group_with_a_member_is_described_whole() -> None:
    async with agent_bench() as bench:
        await bench.topic()
        member_id = await joined(bench)
        row = await described(bench, "g")
        assert (row.group_state, row.protocol_type, row.protocol_data) == ("Stable", "consumer", "range")
        (member,) = row.members
        assert (member.member_id, member.client_id, member.client_host) == (member_id, "tool", "/client-host")
        assert (bytes(member.member_metadata), bytes(member.member_assignment)) == (SUBSCRIBED_TO_T, b"mine")


async def test_members_are_described_in_a_rebalance_with_the_assignments_that_they_had() -> None:
    async with agent_bench() as bench:
        await bench.topic()
        await joined(bench)
        protocols = [JoinGroupRequestProtocol("range", SUBSCRIBED_TO_T)]
        request = JoinGroupRequest("g", 10_000, 10_000, protocol_type="consumer", protocols=protocols)
        second = asyncio.ensure_future(bench.ask(ApiKey.JOIN_GROUP, 3, request))
        await asyncio.sleep(0)
        row = await described(bench, "g")
        while row.group_state == "Stable":
            row = await described(bench, "g")
        assert (row.group_state, row.protocol_data) == ("PreparingRebalance", "")
        assert [(bytes(row.member_metadata), bytes(row.member_assignment)) for row in row.members] == [
            (b"", b"mine"),
            (b"", b""),
        ]
        second.cancel()


async def test_an_unknown_group_is_dead_and_from_version_6_on_an_error() -> None:
    async with agent_bench() as bench:
        old, new = await described(bench, "x"), await described(bench, "x", 6)
        assert (old.group_state, old.error_code) == ("Dead", 0)
        assert (new.group_state, new.error_code) == ("Dead", ErrorCode.GROUP_ID_NOT_FOUND)


async def test_groups_are_listed_by_state_and_type() -> None:
    async with agent_bench() as bench:
        await bench.topic()
        await located(bench)
        assert await listed(bench) == []
        await commit(bench, 9, (0, 5, ""))
        assert await listed(bench) == [("g", "Empty", "")]
        await joined(bench)
        assert await listed(bench, states_filter=["stable"]) == [("g", "Stable", "consumer")]
        assert await listed(bench, states_filter=["Empty"]) == []
        assert await listed(bench, types_filter=["consumer"]) == []


async def test_only_a_group_without_members_is_deleted_and_its_offsets_with_it() -> None:
    async with agent_bench() as bench:
        await bench.topic()
        assert await deleted(bench) == ErrorCode.GROUP_ID_NOT_FOUND
        await commit(bench, 9, (0, 5, ""))
        assert await deleted(bench) == 0
        asked = OffsetFetchRequest("g", [OffsetFetchRequestTopic("t", [0])])
        response = await bench.ask(ApiKey.OFFSET_FETCH, 5, asked)
        assert response.topics[0].partitions[0].committed_offset == -1
        await joined(bench)
        assert await deleted(bench) == ErrorCode.NON_EMPTY_GROUP


async def test_offsets_are_deleted_of_topics_that_nobody_subscribes_to() -> None:
    async with agent_bench() as bench:
        await bench.topic()
        await bench.topic("other")
        assert (await offset_deleted(bench, group="x"))[0] == ErrorCode.GROUP_ID_NOT_FOUND
        await commit(bench, 9, (0, 5, ""))
        assert await offset_deleted(bench, "nowhere") == (0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        assert await offset_deleted(bench) == (0, 0)
        await joined(bench)
        assert await offset_deleted(bench) == (0, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
        assert await offset_deleted(bench, "other") == (0, 0)


async def test_offsets_of_an_open_transaction_are_deleted_also_where_the_group_has_no_others() -> None:
    async with agent_bench() as bench:
        await bench.topic()
        producer = TransactionalProducer(bench)
        await producer.init()
        assert await producer.commit_offset(7) == 0
        assert await offset_deleted(bench) == (0, 0)
        assert await producer.end(commit=True) == 0
        asked = OffsetFetchRequest("g", [OffsetFetchRequestTopic("t", [0])])
        response = await bench.ask(ApiKey.OFFSET_FETCH, 5, asked)
        assert response.topics[0].partitions[0].committed_offset == -1


async def test_the_topics_of_members_that_are_not_consumers_are_unknown() -> None:
    async with agent_bench() as bench:
        await bench.topic()
        await joined(bench, b"anything", "connect")
        assert (await offset_deleted(bench))[0] == ErrorCode.NON_EMPTY_GROUP
