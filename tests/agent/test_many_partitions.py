"""A request that names 100,000 different partitions leaves the loop to others: the agent's, and the committer's."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from agent.dispatch import Dispatcher
from agent.groups.coordinator import MAX_POSITIONS
from sequencer.api import FetchOffsets, Topic
from tailrace.kafka import ApiKey, decode_response, encode_request
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from tailrace.kafka.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tailrace.kafka.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.support.agents import AgentBench, batch, codes, connection, made, run
from tests.support.turns import least_of_three, measured_turns

HELD_SECONDS = 0.05
TOPICS = 10
OF_EACH = range(10_000)
SMALL = memoryview(batch(b"x"))


def produce(topics: Sequence[Topic]) -> ProduceRequest:
    """A batch for each partition."""
    data = [
        TopicProduceData(topic.name, partition_data=[PartitionProduceData(each, SMALL) for each in OF_EACH])
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
    sent = memoryview(b"".join(encode_request(7, key, version, request)))[4:]
    dispatch = Dispatcher(bench.services)
    with measured_turns() as turns:
        answering = asyncio.create_task(dispatch(sent, connection()), name=key.name)
        reply = await bench.until(answering, 3_600)
    turns.check(HELD_SECONDS)
    parts = await made(reply)
    if reply.on_sent is not None:
        reply.on_sent()
    return decode_response(key, version, memoryview(b"".join(parts or ()))[4:])[1]


@least_of_three
def test_batches_for_100_000_partitions_leave_the_loop_to_others() -> None:
    async def scenario(bench: AgentBench) -> None:
        answer = await asked(bench, ApiKey.PRODUCE, 8, produce(await topics_of(bench)))
        assert [codes(each.partition_responses) for each in answer.responses] == [[0] * len(OF_EACH)] * TOPICS

    run(scenario)


@least_of_three
def test_as_many_positions_as_one_commit_may_have_leave_the_loop_to_others_and_more_change_nothing() -> None:
    async def scenario(bench: AgentBench) -> None:
        topics = await topics_of(bench)
        most = MAX_POSITIONS // len(OF_EACH)
        taken = await asked(bench, ApiKey.OFFSET_COMMIT, 8, commit(topics[:most]))
        refused = await asked(bench, ApiKey.OFFSET_COMMIT, 8, commit(topics[: most + 1], offset=2))
        assert [codes(each.partitions) for each in taken.topics] == [[0] * len(OF_EACH)] * most
        too_many = [ErrorCode.INVALID_COMMIT_OFFSET_SIZE] * len(OF_EACH)
        assert [codes(each.partitions) for each in refused.topics] == [too_many] * (most + 1)
        kept = await bench.sequencer.fetch_offsets(FetchOffsets("g", [(topics[0].topic_id, 0)]))
        assert [each.offset for each in kept.positions] == [1]

    run(scenario)


@least_of_three
def test_a_fetch_session_of_100_000_partitions_leaves_the_loop_to_others() -> None:
    async def scenario(bench: AgentBench) -> None:
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

    run(scenario)
