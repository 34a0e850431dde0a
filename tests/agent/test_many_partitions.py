"""A request that names 100,000 different partitions leaves the loop to others: the agent's, and the committer's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest

from agent.groups.coordinator import MAX_POSITIONS
from agent.handlers.accepted_batches import PARTITIONS_IN_A_TURN
from agent.tenants.translation import translating
from sequencer.api.groups import FetchOffsets
from sequencer.api.topics import Topic
from tailrace.batches.records import NewRecord, encode_batch
from tailrace.kafka import ApiKey, decode_response, encode_request
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareOffsetsPartition,
    AlterShareOffsetsTopic,
)
from tailrace.kafka.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareOffsetsGroup,
)
from tailrace.kafka.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from tailrace.kafka.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tailrace.kafka.messages.metadata import MetadataRequest, MetadataRequestTopic
from tailrace.kafka.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tailrace.kafka.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from tailrace.kafka.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tailrace.kafka.messages.share_acknowledge import (
    AcknowledgePartition,
    AcknowledgeTopic,
    ShareAcknowledgeRequest,
)
from tailrace.kafka.messages.share_fetch import (
    AcknowledgementBatch,
    ShareFetchableTopicResponse,
    ShareFetchPartition,
    ShareFetchRequest,
    ShareFetchResponse,
    ShareFetchTopic,
    SharePartitionData,
)
from tailrace.kafka.source_writer import STEP
from tests.agent.test_produce_fast_path import VERSION, Client, idempotent
from tests.support.agents import AgentBench, agent_bench, batch, codes, settle
from tests.support.frames import frames_of
from tests.support.short_turns import asked_together
from tests.support.turns import least_of_three

TOPICS = 10
OF_EACH = range(10_000)
SMALL = memoryview(batch(b"x"))


def produce(topics: Sequence[Topic], records: memoryview = SMALL) -> ProduceRequest:
    """A batch for each partition."""
    data = [
        TopicProduceData(topic.name, partition_data=[PartitionProduceData(each, records) for each in OF_EACH])
        for topic in topics
    ]
    return ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=data)


def commit(topics: Sequence[Topic], offset: int = 1) -> OffsetCommitRequest:
    """A position of each partition."""
    positions = [
        OffsetCommitRequestTopic(
            topic.name, partitions=[OffsetCommitRequestPartition(each, offset) for each in OF_EACH]
        )
        for topic in topics
    ]
    return OffsetCommitRequest("g", topics=positions)


def fetch(topics: Sequence[Topic], session_id: int = 0, epoch: int = 0) -> FetchRequest:
    """All partitions, from their beginning."""
    wanted = [
        FetchTopic(
            topic.name,
            topic.topic_id,
            [FetchPartition(each, 0, partition_max_bytes=1 << 20) for each in OF_EACH],
        )
        for topic in topics
    ]
    return FetchRequest(
        session_id=session_id, session_epoch=epoch, max_wait_ms=0, max_bytes=50 << 20, topics=wanted
    )


async def topics_of(bench: AgentBench) -> list[Topic]:
    """The topics of which every partition is named."""
    return [await bench.topic(f"t{number}", partitions=len(OF_EACH)) for number in range(TOPICS)]


async def asked(bench: AgentBench, key: ApiKey, version: int, request: Any) -> Any:
    """The answer. Raises HeldTooLong if a turn was long until it was made."""
    (answer,) = await asked_together(bench, key, version, [request], seconds=3_600)
    return answer


@least_of_three
async def test_batches_for_100_000_partitions_leave_the_loop_to_others() -> None:
    async with agent_bench() as bench:
        answer = await asked(bench, ApiKey.PRODUCE, 8, produce(await topics_of(bench)))
        assert [codes(each.partition_responses) for each in answer.responses] == [[0] * len(OF_EACH)] * TOPICS


@least_of_three
async def test_batches_of_nobodys_transaction_are_refused_in_turns() -> None:
    async with agent_bench() as bench:
        records = encode_batch(
            [NewRecord(b"k", b"v")],
            timestamps=[1_700_000_000_000],
            producer_id=5,
            producer_epoch=0,
            base_sequence=0,
            is_transactional=True,
        )
        request = produce(await topics_of(bench), memoryview(records))
        request.transactional_id = "nobody's"
        answer = await asked(bench, ApiKey.PRODUCE, 8, request)
        refused = [ErrorCode.INVALID_PRODUCER_ID_MAPPING] * len(OF_EACH)
        assert [codes(each.partition_responses) for each in answer.responses] == [refused] * TOPICS


@least_of_three
async def test_a_commit_with_the_most_positions_does_not_block_the_loop_and_a_larger_one_changes_nothing() -> (
    None
):
    async with agent_bench() as bench:
        topics = await topics_of(bench)
        most = MAX_POSITIONS // len(OF_EACH)
        taken = await asked(bench, ApiKey.OFFSET_COMMIT, 8, commit(topics[:most]))
        refused = await asked(bench, ApiKey.OFFSET_COMMIT, 8, commit(topics[: most + 1], offset=2))
        assert [codes(each.partitions) for each in taken.topics] == [[0] * len(OF_EACH)] * most
        too_many = [ErrorCode.INVALID_COMMIT_OFFSET_SIZE] * len(OF_EACH)
        assert [codes(each.partitions) for each in refused.topics] == [too_many] * (most + 1)
        kept = await bench.sequencer.fetch_offsets(FetchOffsets("g", [(topics[0].topic_id, 0)]))
        assert [each.offset for each in kept.positions] == [1]


@least_of_three
async def test_a_fetch_session_of_100_000_partitions_leaves_the_loop_to_others() -> None:
    async with agent_bench() as bench:
        topics = await topics_of(bench)
        half = TOPICS // 2
        opened = await asked(bench, ApiKey.FETCH, 12, fetch(topics))
        waits = FetchRequest(session_id=opened.session_id, session_epoch=1, max_wait_ms=500, min_bytes=1)
        await asked(bench, ApiKey.FETCH, 12, waits)
        changed = fetch(topics[:half], opened.session_id, 2)
        changed.forgotten_topics_data = [
            ForgottenTopic(topic.name, topic.topic_id, list(OF_EACH)) for topic in topics[half:]
        ]
        after = await asked(bench, ApiKey.FETCH, 12, changed)
        assert sum(len(each.partitions) for each in opened.responses) == TOPICS * len(OF_EACH)
        assert after.error_code == 0


@least_of_three
async def test_offsets_by_time_of_100_000_partitions_leave_the_loop_to_others() -> None:
    async with agent_bench() as bench:
        by_time = [
            ListOffsetsTopic(topic.name, [ListOffsetsPartition(each, timestamp=5) for each in OF_EACH])
            for topic in await topics_of(bench)
        ]
        answer = await asked(
            bench, ApiKey.LIST_OFFSETS, 7, ListOffsetsRequest(isolation_level=1, topics=by_time)
        )
        rows = [row for each in answer.topics for row in each.partitions]
        assert [(row.error_code, row.offset) for row in rows] == [(0, -1)] * TOPICS * len(OF_EACH)


@least_of_three
async def test_positions_of_190_000_groups_and_topics_with_190_000_ids_are_looked_up_in_turns() -> None:
    async with agent_bench(auto_create_topics=False) as bench:
        groups = [OffsetFetchRequestGroup(f"g{number}") for number in range(190_000)]
        positions = await asked(bench, ApiKey.OFFSET_FETCH, 8, OffsetFetchRequest(groups=groups))
        assert len(positions.groups) == len(groups)
        topics = [MetadataRequestTopic(UUID(int=number), name=None) for number in range(1_000_000, 1_190_000)]
        metadata = await asked(bench, ApiKey.METADATA, 12, MetadataRequest(topics=topics))
        assert codes(metadata.topics) == [ErrorCode.UNKNOWN_TOPIC_ID] * len(topics)


@least_of_three
async def test_100_000_partitions_of_a_share_session_leave_the_loop_to_others() -> None:
    async with agent_bench() as bench:
        topics = await topics_of(bench)
        member = {"group_id": "g", "member_id": "m"}
        batches = [AcknowledgementBatch(5, 5, [1])]

        def share_fetch(epoch: int, named: list[ShareFetchTopic]) -> ShareFetchRequest:
            return ShareFetchRequest(
                **member, share_session_epoch=epoch, max_bytes=1 << 20, max_records=500, topics=named
            )

        opening = [
            ShareFetchTopic(each.topic_id, [ShareFetchPartition(p) for p in OF_EACH]) for each in topics
        ]
        opened = await asked(bench, ApiKey.SHARE_FETCH, 1, share_fetch(0, opening))
        assert [codes(each.partitions) for each in opened.responses] == [[0] * len(OF_EACH)] * TOPICS
        half = OF_EACH[: len(OF_EACH) // 2]
        saying = [
            ShareFetchTopic(each.topic_id, [ShareFetchPartition(p, batches) for p in half]) for each in topics
        ]
        again = await asked(bench, ApiKey.SHARE_FETCH, 1, share_fetch(1, saying))
        assert sum(len(each.partitions) for each in again.responses) == TOPICS * len(half)
        named = [
            AcknowledgeTopic(each.topic_id, [AcknowledgePartition(p, batches) for p in half])
            for each in topics
        ]
        acknowledging = ShareAcknowledgeRequest(**member, share_session_epoch=2, topics=named)
        answer = await asked(bench, ApiKey.SHARE_ACKNOWLEDGE, 1, acknowledging)
        refused = [ErrorCode.INVALID_RECORD_STATE] * len(half)
        assert [codes(each.partitions) for each in answer.responses] == [refused] * TOPICS


@least_of_three
async def test_a_share_groups_positions_in_19_000_partitions_are_set_and_described_in_turns() -> None:
    async with agent_bench() as bench:
        topics = await topics_of(bench)
        wanted = [
            AlterShareOffsetsTopic(each.name, [AlterShareOffsetsPartition(p, 0) for p in OF_EACH[:9_500]])
            for each in topics[:2]
        ]
        altering = AlterShareGroupOffsetsRequest("g", wanted)
        altered = await asked(bench, ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, altering)
        assert [codes(each.partitions) for each in altered.responses] == [[0] * 9_500] * 2
        describing = DescribeShareGroupOffsetsRequest([DescribeShareOffsetsGroup("g", None)])
        described = await asked(bench, ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 0, describing)
        assert [len(each.partitions) for each in described.groups[0].topics] == [9_500] * 2


def test_a_tenants_answer_is_translated_in_steps_even_where_it_has_no_names() -> None:
    partitions = [SharePartitionData(each) for each in range(1_000)]
    answer = ShareFetchResponse(responses=[ShareFetchableTopicResponse(UUID(int=1), partitions)])
    assert sum(1 for _ in translating(answer, {})) > len(partitions)


MANY = STEP + PARTITIONS_IN_A_TURN
"""So many that a request is not handled at once, and is stored in turns."""


def produce_many(records: bytes) -> bytes:
    """A frame with the same batch for each of MANY partitions."""
    data = [PartitionProduceData(each, memoryview(records)) for each in range(MANY)]
    request = ProduceRequest(None, -1, 30_000, [TopicProduceData("t", partition_data=data)])
    return b"".join(encode_request(7, ApiKey.PRODUCE, VERSION, request))


@pytest.mark.parametrize("is_lost_between_parts", [False, True])
async def test_a_lost_connections_long_request_is_charged_until_its_batches_are_stored(
    monkeypatch: pytest.MonkeyPatch, is_lost_between_parts: bool
) -> None:
    async with agent_bench() as bench:
        await bench.topic(partitions=MANY)
        client = Client(bench)
        bench.sequencer.may_commit.clear()
        really_submit = bench.services.lanes.submit

        def submit(batches: Any) -> None:
            really_submit(batches)
            if is_lost_between_parts and len(batches) > 1:
                client.connection.connection_lost(None)

        monkeypatch.setattr(bench.services.lanes, "submit", submit)
        sent = produce_many(batch(b"x"))
        client.feed(sent)
        await settle(200)
        if not is_lost_between_parts:
            client.connection.connection_lost(None)
            await settle()
        assert client.budget.used >= len(sent), "the buffer still holds them"
        bench.sequencer.may_commit.set()
        await bench.advance(1)
        await settle(200)
        assert client.budget.used == 0


async def test_a_long_request_that_waits_for_the_one_behind_it_is_no_hindrance_to_that() -> None:
    async with agent_bench() as bench:
        await bench.topic(partitions=MANY)
        client = Client(bench)
        client.feed(produce_many(idempotent(1)) + produce_many(idempotent(0)))
        for _ in range(40):
            await bench.advance(0.05)
        answers = [
            decode_response(ApiKey.PRODUCE, VERSION, memoryview(frame)[4:])[1].responses[0]
            for frame in frames_of(b"".join(client.transport.sent))
        ]
        assert [codes(each.partition_responses) for each in answers] == [[0] * MANY] * 2
