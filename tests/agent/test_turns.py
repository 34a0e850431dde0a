"""No request blocks an agent's loop for long."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace

from agent.catalog import KnownTopic
from agent.dispatch import Dispatcher
from agent.groups.consumer_group import ConsumerGroup, ConsumerHeartbeat
from agent.groups.coordinator import ASSIGNED_IN_A_TURN
from agent.groups.topic_names import NO_TOPICS
from agent.long_work import LongWork
from cache.ring import Replicas
from sequencer.api.agents import Ring
from sequencer.api.groups import CommitOffsets, OffsetPosition
from sequencer.api.topics import Topic
from tailrace.configs.topic_config import topic_settings
from tailrace.kafka import ApiKey, encode_request
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from tailrace.kafka.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from tailrace.kafka.messages.delete_groups import DeleteGroupsRequest
from tailrace.kafka.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from tailrace.kafka.messages.describe_groups import DescribeGroupsRequest
from tailrace.kafka.messages.describe_topic_partitions import DescribeTopicPartitionsRequest
from tailrace.kafka.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tailrace.kafka.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from tailrace.kafka.messages.list_groups import ListGroupsRequest
from tailrace.kafka.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from tailrace.kafka.messages.metadata import MetadataRequest, MetadataRequestTopic
from tailrace.kafka.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tailrace.kafka.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
)
from tailrace.kafka.messages.share_group_describe import ShareGroupDescribeRequest
from tailrace.kafka.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tailrace.turns import Turns, in_turns
from tests.support.agents import agent_bench, batch, connection
from tests.support.compaction import Log
from tests.support.short_turns import HELD_SECONDS, asked_together
from tests.support.turns import least_of_three, measured_turns

PARTITIONS = 1_000


@least_of_three
async def test_a_fetch_of_1_000_partitions_of_small_batches_leaves_the_loop_to_others() -> None:
    async with agent_bench() as bench:
        topic = await bench.topic(partitions=PARTITIONS)
        log = Log(bench.sequencer.inner, bench.objects, bench.clock, topics={"t": topic})
        small = batch(b"x" * 10)
        await log.produce(*[("t", partition, small) for partition in range(PARTITIONS) for _ in range(20)])
        fetch = FetchRequest(
            topics=[
                FetchTopic(
                    topic.name,
                    topic.topic_id,
                    [FetchPartition(each, 0, partition_max_bytes=1 << 20) for each in range(PARTITIONS)],
                )
            ],
            max_bytes=50 << 20,
        )
        by_time = ListOffsetsRequest(
            topics=[
                ListOffsetsTopic(
                    topic.name,
                    [ListOffsetsPartition(partition_index=each, timestamp=5) for each in range(PARTITIONS)],
                )
            ]
        )
        with measured_turns() as turns:
            response = await bench.ask(ApiKey.FETCH, 12, fetch)
            rows = [row for each in response.responses for row in each.partitions]
            assert sum(len(row.records) for row in rows) > 500_000
            offsets = await bench.ask(ApiKey.LIST_OFFSETS, 5, by_time)
            assert [row.offset for row in offsets.topics[0].partitions] == [0] * PARTITIONS
            await bench.ask(ApiKey.METADATA, 9, MetadataRequest(topics=None))
        turns.check(HELD_SECONDS)


async def test_others_have_their_turns_while_a_consumer_of_everything_is_served() -> None:
    async with agent_bench() as bench:
        topic = await bench.topic(partitions=PARTITIONS)
        log = Log(bench.sequencer.inner, bench.objects, bench.clock, topics={"t": topic})
        small = batch(b"x" * 10)
        await log.produce(*[("t", partition, small) for partition in range(PARTITIONS)])
        partitions = [FetchPartition(each, 0, partition_max_bytes=1 << 20) for each in range(PARTITIONS)]
        fetch = FetchRequest(topics=[FetchTopic(topic.name, topic.topic_id, partitions)], max_bytes=50 << 20)
        await bench.ask(
            ApiKey.FETCH, 12, fetch
        )  # what it reads is in the cache now, so that nothing is waited for
        turns_of_others = 0

        async def other() -> None:
            nonlocal turns_of_others
            while True:
                turns_of_others += 1
                await asyncio.sleep(0)

        beside = asyncio.ensure_future(other())
        response = await bench.ask(ApiKey.FETCH, 12, fetch)
        beside.cancel()
        assert sum(len(each.partitions) for each in response.responses) == PARTITIONS
        assert turns_of_others >= 10


async def test_ten_connections_with_long_requests_do_one_step_in_a_pass_of_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    give, begun = Turns.give, 0

    async def counted(turns: Turns) -> None:
        nonlocal begun
        await give(turns)
        begun += 1

    monkeypatch.setattr(Turns, "give", counted)
    request = MetadataRequest(topics=[MetadataRequestTopic(name=f"n{each}") for each in range(20_000)])
    sent = memoryview(b"".join(encode_request(7, ApiKey.METADATA, 12, request)))[4:]

    async with agent_bench(auto_create_topics=False) as bench:
        dispatch = Dispatcher(bench.services)
        answering = asyncio.gather(*(dispatch(sent, connection()) for _ in range(10)))
        in_a_pass = []
        while not answering.done():
            before = begun
            await asyncio.sleep(0)
            in_a_pass.append(begun - before)
        assert max(in_a_pass) == 1
        assert sum(in_a_pass) >= 10 * 20
        await answering


@least_of_three
async def test_1_000_agents_are_placed_in_turns() -> None:
    async with agent_bench() as bench:
        topic = await bench.topic(partitions=PARTITIONS)
        committed = [OffsetPosition(topic.topic_id, 0, 1, 0, "")]
        for number in range(200):
            await bench.sequencer.commit_offsets(CommitOffsets(f"g{number}", -1, -1, -1, "", committed))
        catalog = bench.services.catalog
        snapshot = await catalog.refresh()
        (member,) = snapshot.ring.members
        ring = Ring(snapshot.ring.generation, [replace(member, broker_id=each) for each in range(1, 1_001)])
        for api, version, request in (
            (ApiKey.METADATA, 12, MetadataRequest(topics=None)),
            (ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, DescribeTopicPartitionsRequest()),
            (ApiKey.LIST_GROUPS, 4, ListGroupsRequest()),
        ):
            catalog.snapshot = dataclasses.replace(snapshot, replicas=Replicas(ring))
            with measured_turns() as turns:
                await asyncio.create_task(bench.ask(api, version, request))
            turns.check(HELD_SECONDS)


@pytest.mark.parametrize(("count", "partitions", "members"), [(2_000, 1, 100), (10_000, 10, 3)])
@least_of_three
async def test_members_that_read_the_same_topics_are_assigned_in_short_turns(
    count: int, partitions: int, members: int
) -> None:
    settings = topic_settings({}, {})
    topics = {
        f"t{number}": KnownTopic(Topic(UUID(int=number), f"t{number}", partitions, {}, 0), settings)
        for number in range(count)
    }
    group = ConsumerGroup("g")

    async def heartbeat(known: dict[str, KnownTopic], member_id: str, epoch: int) -> None:
        asked = ConsumerHeartbeat(
            member_id, epoch, rebalance_seconds=60.0, topics=NO_TOPICS, pattern="t.*", owned={}
        )
        steps = group.heartbeat(0.0, asked, known)
        assert (await in_turns(steps, Turns(ASSIGNED_IN_A_TURN))).code is ErrorCode.NONE

    with measured_turns() as turns:
        for number in range(members):
            await asyncio.create_task(heartbeat(topics, f"m{number}", 0))
        more = topics | {"t": KnownTopic(Topic(UUID(int=count), "t", 1, {}, 0), settings)}
        await asyncio.create_task(heartbeat(more, "m0", group.members["m0"].epoch))
    places = [len(held) for each in group.members.values() for held in each.target.values()]
    assert sum(places) == count * partitions + 1
    turns.check(HELD_SECONDS)


@least_of_three
async def test_a_group_of_1_000_members_leaves_the_loop_to_others() -> None:
    async with agent_bench(group_initial_rebalance_delay_ms=500) as bench:
        join = JoinGroupRequest(
            "g", 45_000, 4_000, "", None, "consumer", [JoinGroupRequestProtocol("range", b"x" * 100)]
        )
        bench.services.long_work = LongWork(time.thread_time)
        joined = await asked_together(bench, ApiKey.JOIN_GROUP, 3, [join] * 1_000)
        assert {each.error_code for each in joined} == {0}
        (leader,) = [each for each in joined if each.members]
        assert len(leader.members) == 1_000
        plan = [SyncGroupRequestAssignment(each.member_id, b"y" * 100) for each in leader.members]
        syncs = [
            SyncGroupRequest(
                "g",
                each.generation_id,
                each.member_id,
                assignments=plan if each.member_id == leader.member_id else [],
            )
            for each in joined
        ]
        synced = await asked_together(bench, ApiKey.SYNC_GROUP, 3, syncs)
        assert {each.assignment for each in synced} == {b"y" * 100}
        with measured_turns() as turns:
            described = await bench.ask(ApiKey.DESCRIBE_GROUPS, 4, DescribeGroupsRequest(groups=["g"]))
            assert len(described.groups[0].members) == 1_000
            await bench.ask(ApiKey.LIST_GROUPS, 4, ListGroupsRequest())
        turns.check(HELD_SECONDS)


@least_of_three
async def test_1_000_short_requests_that_come_together_leave_the_loop_to_others() -> None:
    async with agent_bench() as bench:
        await bench.topic(partitions=100)
        bench.services.long_work = LongWork(time.thread_time)
        topics = [OffsetFetchRequestTopic("t", list(range(100)))]
        request = OffsetFetchRequest("g", topics=topics)
        sent = memoryview(b"".join(encode_request(7, ApiKey.OFFSET_FETCH, 7, request)))[4:]
        dispatch = Dispatcher(bench.services)
        with measured_turns() as turns:
            replies = await asyncio.gather(*(dispatch(sent, connection()) for _ in range(1_000)))
        assert all(reply.parts for reply in replies)
        turns.check(HELD_SECONDS)


REPEATS = 5_000
OF_A_TOPIC = DescribeConfigsResource(2, "t", None)
OF_THE_BROKER = DescribeConfigsResource(4, "", None)
ALL_POSITIONS = OffsetFetchRequestGroup("g", topics=None)


@pytest.mark.parametrize(
    ("api", "version", "request_of", "rows"),
    [
        (
            ApiKey.DESCRIBE_CONFIGS,
            4,
            lambda times: DescribeConfigsRequest([OF_A_TOPIC, OF_THE_BROKER] * times, True, True),
            lambda response: response.results,
        ),
        (
            ApiKey.METADATA,
            12,
            lambda times: MetadataRequest([MetadataRequestTopic(name="t")] * times),
            lambda response: response.topics,
        ),
        (
            ApiKey.OFFSET_FETCH,
            8,
            lambda times: OffsetFetchRequest(groups=[ALL_POSITIONS] * times),
            lambda response: response.groups,
        ),
        (
            ApiKey.DESCRIBE_GROUPS,
            5,
            lambda times: DescribeGroupsRequest(groups=["g", "other"] * times),
            lambda response: response.groups,
        ),
        (
            ApiKey.CONSUMER_GROUP_DESCRIBE,
            1,
            lambda times: ConsumerGroupDescribeRequest(group_ids=["g", "other"] * times),
            lambda response: response.groups,
        ),
        (
            ApiKey.SHARE_GROUP_DESCRIBE,
            1,
            lambda times: ShareGroupDescribeRequest(group_ids=["g", "other"] * times),
            lambda response: response.groups,
        ),
        (
            ApiKey.DELETE_GROUPS,
            2,
            lambda times: DeleteGroupsRequest(groups_names=["g", "other"] * times),
            lambda response: response.results,
        ),
    ],
)
@least_of_three
async def test_a_name_given_repeatedly_is_answered_once(
    api: ApiKey, version: int, request_of: Callable[[int], Any], rows: Callable[[Any], list[Any]]
) -> None:
    async with agent_bench() as bench:
        await bench.topic(partitions=PARTITIONS)
        partitions = [OffsetCommitRequestPartition(each, 1) for each in range(PARTITIONS)]
        commit = OffsetCommitRequest("g", topics=[OffsetCommitRequestTopic("t", partitions=partitions)])
        await bench.ask(ApiKey.OFFSET_COMMIT, 8, commit)
        once = await bench.ask(api, version, request_of(1))
        if api is ApiKey.DELETE_GROUPS:
            await bench.ask(ApiKey.OFFSET_COMMIT, 8, commit)
        with measured_turns() as turns:
            often = await bench.ask(api, version, request_of(REPEATS))
        assert rows(often) == rows(once)
        turns.check(HELD_SECONDS)


@least_of_three
async def test_a_request_that_adds_to_40_000_transactions_leaves_the_loop_to_others() -> None:
    async with agent_bench() as bench:
        await bench.topic("t")
        topics = [AddPartitionsToTxnTopic("t", [99])]
        adding = AddPartitionsToTxnRequest([AddPartitionsToTxnTransaction("x", 1, 1, topics=topics)] * 40_000)
        sent = memoryview(b"".join(encode_request(7, ApiKey.ADD_PARTITIONS_TO_TXN, 5, adding)))[4:]
        with measured_turns() as turns:
            await bench.until(asyncio.ensure_future(Dispatcher(bench.services)(sent, connection())))
        turns.check(HELD_SECONDS)
