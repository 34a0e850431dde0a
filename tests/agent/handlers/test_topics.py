"""Topics: created, grown, cut and deleted, each failing on its own and with its own code."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import pytest

from agent.handlers.colliding_names import collisions
from sequencer.api import topics as api
from sequencer.api.errors import SequencerUnavailable
from sequencer.api.topics import MAX_REPLICATION_FACTOR, CreateTopic, DeleteTopic, Topic
from tailrace.kafka import ApiKey
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from tailrace.kafka.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from tailrace.kafka.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from tailrace.kafka.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from tailrace.kafka.messages.describe_topic_partitions import DescribeTopicPartitionsRequest, TopicRequest
from tailrace.kafka.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.agent.handlers.test_produce import produce
from tests.support.agents import AgentBench, agent_bench, batch, codes
from tests.support.turns import passes_of


async def create(bench: AgentBench, *topics: CreatableTopic, validate_only: bool = False) -> list[Any]:
    request = CreateTopicsRequest(list(topics), validate_only=validate_only)
    found: list[Any] = (await bench.ask(ApiKey.CREATE_TOPICS, 7, request)).topics
    return found


def configured(name: str, value: str | None) -> CreatableTopic:
    return CreatableTopic("c", 1, 1, configs=[CreatableTopicConfig(name, value)])


async def test_a_topic_that_cannot_be_created_does_not_hinder_the_others() -> None:
    async with agent_bench() as bench:
        await bench.topic("there")
        rows = await create(
            bench,
            CreatableTopic("good", 3, 1),
            CreatableTopic("defaults", -1, -1),
            CreatableTopic("there", 1, 1),
            CreatableTopic("a/b", 1, 1),
            CreatableTopic("..", 1, 1),
            CreatableTopic("none", 0, 1),
            CreatableTopic("replicas", 1, 0),
            CreatableTopic("twice", 1, 1),
            CreatableTopic("twice", 1, 1),
            CreatableTopic("holes", -1, -1, [CreatableReplicaAssignment(1, [1])]),
        )
        assert codes(rows) == [
            0, 0, ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.INVALID_TOPIC_EXCEPTION,
            ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.INVALID_PARTITIONS,
            ErrorCode.INVALID_REPLICATION_FACTOR, ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_REQUEST,
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ]  # fmt: skip
        assert [row.num_partitions for row in rows[:3]] == [3, 1, -1]
        assert set(bench.services.catalog.snapshot.by_name) == {"there", "good", "defaults"}


async def test_a_name_that_differs_from_a_topics_by_dots_and_underscores_is_refused() -> None:
    async with agent_bench() as bench:
        for name in ("a.b", "plain", "x.y_z"):
            await bench.topic(name)
        names = ["a_b", "a.b", "plain_", "x_y.z", "p.q", "p_q"]
        rows = await create(bench, *(CreatableTopic(name, 1, 1) for name in names))
        wrong = ErrorCode.INVALID_TOPIC_EXCEPTION
        assert codes(rows[:4]) == [wrong, ErrorCode.TOPIC_ALREADY_EXISTS, 0, wrong]
        assert codes(rows[4:]) == [0, 0], "as in Kafka, which looks at topics that are there"
        assert rows[0].error_message == "Topic 'a_b' collides with existing topic: a.b"
        request = MetadataRequest(
            [MetadataRequestTopic(name="a_b"), MetadataRequestTopic(name="fresh_one")], True
        )
        assert codes((await bench.ask(ApiKey.METADATA, 12, request)).topics) == [wrong, 0]


async def test_a_name_does_not_collide_with_that_of_a_topic_that_was_deleted_by_another_agent() -> None:
    async with agent_bench() as bench:
        gone = await bench.topic("a.b")
        await bench.sequencer.delete_topic(DeleteTopic(gone.topic_id))
        assert "a.b" in bench.services.catalog.snapshot.by_name
        assert codes(await create(bench, CreatableTopic("a_b", 1, 1))) == [0]


async def test_all_topics_are_scanned_for_colliding_names_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with agent_bench() as bench:
        for name in ("a.b", "c", "d"):
            await bench.topic(name)
        monkeypatch.setattr("agent.handlers.colliding_names.NAMES_IN_A_TURN", 1)
        snapshot = bench.services.catalog.snapshot
        first = await passes_of(collisions(["a_b"], snapshot))
        assert await passes_of(collisions(["a_b"], snapshot)) == first - 3
        assert await collisions(["a_b", "a.b", "e_"], snapshot) == {"a_b": "a.b"}


async def test_configs_that_cannot_be_are_refused() -> None:
    async with agent_bench() as bench:
        for topic in (
            configured("no.such.config", "1"),
            configured("retention.ms", "soon"),
            configured("retention.ms", None),
            configured("follower.replication.throttled.replicas", "some"),
        ):
            (row,) = await create(bench, topic)
            assert row.error_code == ErrorCode.INVALID_CONFIG and row.error_message
        (row,) = await create(bench, configured("retention.ms", "1000"))
        assert {each.name: each.value for each in row.configs}["retention.ms"] == "1000"


async def test_a_topic_whose_creation_is_answered_late_is_created_and_not_said_to_exist(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with agent_bench() as bench:
        asked: list[CreateTopic] = []

        async def slow(request: CreateTopic) -> Topic:
            asked.append(request)
            topic = await bench.sequencer.inner.create_topic(request)
            if len(asked) < 4:
                await bench.clock.sleep(4.0)
                raise SequencerUnavailable("it was carried out, but no checkpoint has it yet; retry")
            return topic

        monkeypatch.setattr(bench.sequencer, "create_topic", slow, raising=False)
        creating = asyncio.ensure_future(create(bench, CreatableTopic("t", 2, 1)))
        while not creating.done():
            await bench.advance(0.5)
        (row,) = await creating
        assert (row.error_code, row.num_partitions) == (0, 2)
        assert len(asked) == 4 and len({request.request_id for request in asked}) == 1


async def test_a_completed_request_is_answered_though_the_sequencer_goes_away_right_after(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with agent_bench() as bench:
        inner = bench.sequencer.inner
        is_away = False

        async def metadata(request: api.MetadataRequest) -> api.Metadata:
            if is_away:
                raise SequencerUnavailable("there is no committer now; retry with the same ids")
            return await inner.metadata(request)

        def last(change: Callable[[Any], Awaitable[Any]]) -> Callable[[Any], Awaitable[Any]]:
            async def carry_out(request: Any) -> Any:
                nonlocal is_away
                answer = await change(request)
                is_away = True
                return answer

            return carry_out

        monkeypatch.setattr(bench.sequencer, "metadata", metadata, raising=False)
        for name in ("create_topic", "create_partitions", "delete_topic"):
            monkeypatch.setattr(bench.sequencer, name, last(getattr(inner, name)), raising=False)
        (row,) = await create(bench, CreatableTopic("t", 2, 1))
        assert row.error_code == 0
        is_away = False
        await bench.services.catalog.refresh()
        grow = CreatePartitionsRequest([CreatePartitionsTopic("t", 3)], timeout_ms=1_000)
        (grown,) = (await bench.ask(ApiKey.CREATE_PARTITIONS, 3, grow)).results
        assert grown.error_code == 0
        is_away = False
        gone = DeleteTopicsRequest([DeleteTopicState("t")])
        (deleted,) = (await bench.ask(ApiKey.DELETE_TOPICS, 6, gone)).responses
        assert deleted.error_code == 0


@pytest.mark.parametrize(
    ("partitions", "factor", "config", "code"),
    [
        (0, 0, ("no.such.config", "1"), ErrorCode.INVALID_CONFIG),
        (0, 0, ("retention.ms", "1"), ErrorCode.INVALID_REPLICATION_FACTOR),
        (0, 1, ("retention.ms", "1"), ErrorCode.INVALID_PARTITIONS),
    ],
)
async def test_a_topic_that_exists_is_said_to_exist_whatever_else_is_wrong(
    partitions: int, factor: int, config: tuple[str, str], code: ErrorCode
) -> None:
    async with agent_bench() as bench:
        configs = [CreatableTopicConfig(*config)]
        (row,) = await create(bench, CreatableTopic("t", partitions, factor, [], configs))
        assert row.error_code == code
        await bench.sequencer.create_topic(CreateTopic("t", 1, {}))  # through another agent
        (row,) = await create(bench, CreatableTopic("t", partitions, factor, [], configs))
        assert row.error_code == ErrorCode.TOPIC_ALREADY_EXISTS


async def test_validation_only_creates_nothing() -> None:
    async with agent_bench() as bench:
        (row,) = await create(bench, CreatableTopic("t", 1, 1), validate_only=True)
        assert row.error_code == 0 and "t" not in bench.services.catalog.snapshot.by_name


async def test_topics_are_deleted_by_name_or_by_id() -> None:
    async with agent_bench() as bench:
        first, second = await bench.topic("a"), await bench.topic("b")
        states = [
            DeleteTopicState("a"), DeleteTopicState(None, second.topic_id), DeleteTopicState("nowhere"),
            DeleteTopicState(None, UUID(int=1)), DeleteTopicState("a", first.topic_id),
        ]  # fmt: skip
        rows = (await bench.ask(ApiKey.DELETE_TOPICS, 6, DeleteTopicsRequest(states))).responses
        assert codes(rows) == [
            0, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INVALID_REQUEST
        ]  # fmt: skip
        assert [row.error_message is None for row in rows] == [row.error_code == 0 for row in rows]
        assert rows[1].name == "b"
        assert not bench.services.catalog.snapshot.by_name


async def test_a_topic_that_a_deletion_names_twice_or_not_at_all_is_not_deleted() -> None:
    async with agent_bench() as bench:
        first, second = await bench.topic("a"), await bench.topic("b")
        states = [
            DeleteTopicState("a"), DeleteTopicState(None, first.topic_id), DeleteTopicState(None),
            DeleteTopicState(None, second.topic_id),
        ]  # fmt: skip
        rows = (await bench.ask(ApiKey.DELETE_TOPICS, 6, DeleteTopicsRequest(states))).responses
        assert codes(rows) == [ErrorCode.INVALID_REQUEST] * 3 + [0]
        assert list(bench.services.catalog.snapshot.by_name) == ["a"]


async def test_a_topic_that_is_named_twice_does_not_grow() -> None:
    async with agent_bench() as bench:
        await bench.topic()
        asked = [CreatePartitionsTopic("t", count) for count in (5, 6)]
        rows = (await bench.ask(ApiKey.CREATE_PARTITIONS, 3, CreatePartitionsRequest(asked))).results
        assert codes(rows) == [ErrorCode.INVALID_REQUEST] * 2
        assert bench.services.catalog.snapshot.by_name["t"].topic.partitions == 2


async def test_topics_only_grow() -> None:
    async with agent_bench() as bench:
        await bench.topic(partitions=2)
        await bench.topic("u")
        asked = [CreatePartitionsTopic(name, count) for name, count in (("t", 2), ("u", 5), ("x", 5))]
        rows = (await bench.ask(ApiKey.CREATE_PARTITIONS, 3, CreatePartitionsRequest(asked))).results
        assert codes(rows) == [ErrorCode.INVALID_PARTITIONS, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert bench.services.catalog.snapshot.by_name["u"].topic.partitions == 5


async def test_records_are_cut_up_to_an_offset() -> None:
    async with agent_bench() as bench:
        await bench.topic()
        await bench.topic("kept", cleanup_policy="compact")
        await produce(bench, (0, batch(b"1", b"2", b"3")))
        partitions = [
            DeleteRecordsPartition(0, 2),
            DeleteRecordsPartition(1, 9),
            DeleteRecordsPartition(7, 0),
        ]
        request = DeleteRecordsRequest(
            [
                DeleteRecordsTopic("t", partitions),
                DeleteRecordsTopic("kept", [DeleteRecordsPartition(0, 0)]),
                DeleteRecordsTopic("x", [DeleteRecordsPartition(0, 0)]),
            ]
        )
        topics = (await bench.ask(ApiKey.DELETE_RECORDS, 2, request)).topics
        assert codes(topics[0].partitions) == [
            0, ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        ]  # fmt: skip
        assert topics[0].partitions[0].low_watermark == 2
        assert codes(topics[1].partitions) == [ErrorCode.POLICY_VIOLATION]
        assert codes(topics[2].partitions) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


async def test_a_topics_replication_factor_is_reported_as_it_was_asked_for() -> None:
    async with agent_bench() as bench:
        assigned = [CreatableReplicaAssignment(index, [7, 8]) for index in range(2)]
        rows = await create(
            bench,
            CreatableTopic("three", 2, 3),
            CreatableTopic("default", 1, -1),
            CreatableTopic("two", -1, -1, assigned),
        )
        assert [row.replication_factor for row in rows] == [3, 1, 2]
        request = MetadataRequest([MetadataRequestTopic(name=name) for name in ("three", "default", "two")])
        topics = (await bench.ask(ApiKey.METADATA, 9, request)).topics
        seen = [[len(partition.replica_nodes) for partition in topic.partitions] for topic in topics]
        assert seen == [[3, 3], [1], [2, 2]]
        assert all(partition.isr_nodes == partition.replica_nodes for partition in topics[0].partitions)
        described = await bench.ask(
            ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, DescribeTopicPartitionsRequest([TopicRequest("three")])
        )
        assert [len(each.replica_nodes) for each in described.topics[0].partitions] == [3, 3]


async def test_a_replication_factor_that_makes_no_sense_is_refused() -> None:
    async with agent_bench() as bench:
        uneven = [CreatableReplicaAssignment(0, [1]), CreatableReplicaAssignment(1, [1, 2])]
        rows = await create(
            bench,
            CreatableTopic("most", 1, MAX_REPLICATION_FACTOR),
            CreatableTopic("more", 1, MAX_REPLICATION_FACTOR + 1),
            CreatableTopic("uneven", -1, -1, uneven),
            CreatableTopic("nobody", -1, -1, [CreatableReplicaAssignment(0, [])]),
        )
        assert codes(rows) == [
            0, ErrorCode.INVALID_REPLICATION_FACTOR,
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ]  # fmt: skip
