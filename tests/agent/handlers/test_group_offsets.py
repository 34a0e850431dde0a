"""A group's positions, by the versions that name topics, groups and errors differently."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from tailrace.kafka import ApiKey
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tailrace.kafka.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from tests.support.agents import AgentBench, agent_bench, codes

NIL = UUID(int=0)


async def commit(
    bench: AgentBench, version: int, *offsets: tuple[int, int, str], name: str = "t", topic_id: UUID = NIL
) -> list[Any]:
    await located(bench)
    rows = [OffsetCommitRequestPartition(each, offset, -1, said) for each, offset, said in offsets]
    request = OffsetCommitRequest("g", topics=[OffsetCommitRequestTopic(name, topic_id, rows)])
    found: list[Any] = (await bench.ask(ApiKey.OFFSET_COMMIT, version, request)).topics[0].partitions
    return found


async def located(bench: AgentBench) -> None:
    """Have the group placed on this agent, as FindCoordinator does."""
    from tailrace.kafka.messages.find_coordinator import FindCoordinatorRequest

    await bench.ask(ApiKey.FIND_COORDINATOR, 3, FindCoordinatorRequest("g"))


async def test_each_offset_that_cannot_be_committed_has_its_own_code() -> None:
    async with agent_bench() as bench:
        topic = await bench.topic()
        rows = await commit(bench, 9, (0, 5, "note"), (1, 6, "x" * 5000), (7, 1, ""))
        assert codes(rows) == [
            0, ErrorCode.OFFSET_METADATA_TOO_LARGE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        ]  # fmt: skip
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert codes(await commit(bench, 2, (0, 1, ""), name="nowhere")) == [unknown]
        assert codes(await commit(bench, 10, (0, 9, ""), topic_id=topic.topic_id)) == [0]
        assert codes(await commit(bench, 10, (0, 1, ""), topic_id=UUID(int=4))) == [
            ErrorCode.UNKNOWN_TOPIC_ID
        ]


@pytest.mark.parametrize("version", [9, 10])
async def test_a_groups_refusal_leaves_the_codes_of_partitions_that_do_not_exist(version: int) -> None:
    async with agent_bench() as bench:
        known = await bench.topic()
        await located(bench)
        rows = [
            OffsetCommitRequestPartition(each, 5, -1, said)
            for each, said in ((0, ""), (1, "x" * 5000), (7, ""))
        ]
        topics = [
            OffsetCommitRequestTopic("t", known.topic_id, rows),
            OffsetCommitRequestTopic("nowhere", UUID(int=4), rows),
        ]
        request = OffsetCommitRequest("g", 3, "nobody", topics=topics)
        answered = (await bench.ask(ApiKey.OFFSET_COMMIT, version, request)).topics
        refused, beyond = ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        unknown = beyond if version < 10 else ErrorCode.UNKNOWN_TOPIC_ID
        assert [codes(topic.partitions) for topic in answered] == [
            [refused, refused, beyond], [unknown, unknown, unknown]
        ]  # fmt: skip
        request.topics = topics[1:]
        (alone,) = (await bench.ask(ApiKey.OFFSET_COMMIT, version, request)).topics
        assert codes(alone.partitions) == [unknown, unknown, unknown]


async def test_positions_are_fetched_by_every_version() -> None:
    async with agent_bench() as bench:
        topic = await bench.topic()
        await commit(bench, 9, (0, 5, "note"))
        for version in (1, 5, 7):
            asked = OffsetFetchRequest("g", [OffsetFetchRequestTopic("t", [0, 1])])
            response = await bench.ask(ApiKey.OFFSET_FETCH, version, asked)
            rows = response.topics[0].partitions
            assert [(row.committed_offset, row.metadata) for row in rows] == [(5, "note"), (-1, "")]
        for version in (8, 9, 10):
            named = OffsetFetchRequestTopics("t", topic.topic_id, [0, 1])
            groups = [OffsetFetchRequestGroup(each, topics=[named]) for each in ("g", "other")]
            found, other = (
                await bench.ask(ApiKey.OFFSET_FETCH, version, OffsetFetchRequest(groups=groups))
            ).groups
            assert [row.committed_offset for row in found.topics[0].partitions] == [5, -1]
            assert [row.committed_offset for row in other.topics[0].partitions] == [-1, -1]


async def test_without_a_list_all_positions_are_fetched() -> None:
    async with agent_bench() as bench:
        await bench.topic()
        await commit(bench, 9, (1, 6, ""), (0, 5, ""))
        response = await bench.ask(ApiKey.OFFSET_FETCH, 2, OffsetFetchRequest("g", None))
        assert [row.committed_offset for row in response.topics[0].partitions] == [5, 6]
        groups = [OffsetFetchRequestGroup("g", topics=None)]
        response = await bench.ask(ApiKey.OFFSET_FETCH, 8, OffsetFetchRequest(groups=groups))
        assert [row.committed_offset for row in response.groups[0].topics[0].partitions] == [5, 6]


async def test_a_groups_error_is_in_the_field_of_the_version() -> None:
    async with agent_bench() as bench:
        asked = [OffsetFetchRequestTopic("t", [0])]
        response = await bench.ask(ApiKey.OFFSET_FETCH, 1, OffsetFetchRequest("", asked))
        assert codes(response.topics[0].partitions) == [ErrorCode.INVALID_GROUP_ID]
        response = await bench.ask(ApiKey.OFFSET_FETCH, 2, OffsetFetchRequest("", asked))
        assert response.error_code == ErrorCode.INVALID_GROUP_ID
        groups = [OffsetFetchRequestGroup("")]
        response = await bench.ask(ApiKey.OFFSET_FETCH, 8, OffsetFetchRequest(groups=groups))
        assert codes(response.groups) == [ErrorCode.INVALID_GROUP_ID]


async def test_an_unknown_topic_has_no_position_by_name_and_an_error_by_id() -> None:
    async with agent_bench() as bench:
        for version, code in ((9, 0), (10, ErrorCode.UNKNOWN_TOPIC_ID)):
            named = OffsetFetchRequestTopics("nowhere", UUID(int=8), [0])
            groups = [OffsetFetchRequestGroup("g", topics=[named])]
            response = await bench.ask(ApiKey.OFFSET_FETCH, version, OffsetFetchRequest(groups=groups))
            (row,) = response.groups[0].topics[0].partitions
            assert (row.committed_offset, row.error_code) == (-1, code)
