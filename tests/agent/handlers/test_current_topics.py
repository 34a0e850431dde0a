"""Topics that were changed through another agent: the bench's catalog is old until it asks."""

from __future__ import annotations

from typing import Any

from sequencer.api.topics import CreatePartitions, CreateTopic, DeleteTopic, Topic
from tailrace.kafka import ApiKey
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from tailrace.kafka.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from tests.agent.handlers.test_fetch import fetch, rows_of
from tests.agent.handlers.test_fetch import request_of as fetch_request
from tests.agent.handlers.test_group_offsets import commit
from tests.agent.handlers.test_list_offsets import asked
from tests.agent.handlers.test_produce import produce
from tests.support.agents import AgentBench, agent_bench, batch, codes

UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def elsewhere_grown(bench: AgentBench, topic: Topic) -> None:
    await bench.sequencer.create_partitions(CreatePartitions(topic.topic_id, 5))


async def elsewhere_made_anew(bench: AgentBench, topic: Topic) -> Topic:
    await bench.sequencer.delete_topic(DeleteTopic(topic.topic_id))
    made: Topic = await bench.sequencer.create_topic(CreateTopic(topic.name, 2, {}))
    return made


async def position(bench: AgentBench, partition: int) -> int:
    request = OffsetFetchRequest("g", [OffsetFetchRequestTopic("t", [partition])])
    response = await bench.ask(ApiKey.OFFSET_FETCH, 7, request)
    offset: int = response.topics[0].partitions[0].committed_offset
    return offset


async def deleted_records(bench: AgentBench, partition: int) -> Any:
    parts = [DeleteRecordsPartition(partition, 0)]
    response = await bench.ask(
        ApiKey.DELETE_RECORDS, 2, DeleteRecordsRequest([DeleteRecordsTopic("t", parts)])
    )
    return response.topics[0].partitions[0]


async def test_a_partition_that_another_agent_added_takes_records_at_once() -> None:
    async with agent_bench() as bench:
        await elsewhere_grown(bench, await bench.topic())
        (row,) = await produce(bench, (4, batch(b"1")))
        assert (row.error_code, row.base_offset) == (0, 0)


async def test_a_partition_that_another_agent_added_is_read_at_once() -> None:
    async with agent_bench() as bench:
        topic = await bench.topic()
        await elsewhere_grown(bench, topic)
        (row,) = rows_of(await fetch(bench, fetch_request(topic, (4, 0))))
        assert (row.error_code, row.high_watermark) == (0, 0)


async def test_a_partition_that_another_agent_added_has_offsets_at_once() -> None:
    async with agent_bench() as bench:
        await elsewhere_grown(bench, await bench.topic())
        assert (await asked(bench, -1, partition=4)).error_code == 0


async def test_a_position_on_a_partition_that_another_agent_added_is_stored_at_once() -> None:
    async with agent_bench() as bench:
        await elsewhere_grown(bench, await bench.topic())
        assert codes(await commit(bench, 9, (4, 7, ""))) == [0]
        assert await position(bench, 4) == 7


async def test_a_topic_that_another_agent_recreated_is_the_new_one_for_positions() -> None:
    async with agent_bench() as bench:
        topic = await bench.topic()
        assert codes(await commit(bench, 9, (0, 7, ""))) == [0]
        await elsewhere_made_anew(bench, topic)
        assert codes(await commit(bench, 9, (0, 3, ""))) == [0]
        assert await position(bench, 0) == 3


async def test_a_position_of_a_topic_that_another_agent_recreated_is_found() -> None:
    async with agent_bench() as bench:
        topic = await bench.topic()
        made = await elsewhere_made_anew(bench, topic)
        stale = bench.services.catalog.snapshot
        assert codes(await commit(bench, 10, (0, 3, ""), topic_id=made.topic_id)) == [0]
        bench.services.catalog.snapshot = stale
        assert await position(bench, 0) == 3


async def test_a_topic_that_another_agent_recreated_is_read_and_cut_as_the_new_one() -> None:
    async with agent_bench() as bench:
        topic = await bench.topic()
        await produce(bench, (0, batch(b"old")))
        await elsewhere_made_anew(bench, topic)
        assert (await asked(bench, -1)).offset == 0
        stale = bench.services.catalog.snapshot
        for ask in (lambda: fetch(bench, fetch_request(topic, (0, 0))), lambda: deleted_records(bench, 0)):
            bench.services.catalog.snapshot = stale
            answer = await ask()
            row = rows_of(answer)[0] if hasattr(answer, "responses") else answer
            assert row.error_code == 0


async def test_a_producer_is_sent_once_to_look_for_a_topic_that_was_recreated() -> None:
    async with agent_bench() as bench:
        await elsewhere_made_anew(bench, await bench.topic())
        assert codes(await produce(bench, (0, batch(b"1")))) == [UNKNOWN]
        assert codes(await produce(bench, (0, batch(b"1")))) == [0]


async def test_a_topic_that_another_agent_deleted_is_gone_by_name_and_by_id() -> None:
    async with agent_bench() as bench:
        topic = await bench.topic()
        stale = bench.services.catalog.snapshot
        await bench.sequencer.delete_topic(DeleteTopic(topic.topic_id))
        for version, code in ((12, UNKNOWN), (13, ErrorCode.UNKNOWN_TOPIC_ID)):
            bench.services.catalog.snapshot = stale
            (row,) = rows_of(await fetch(bench, fetch_request(topic, (0, 0)), version=version))
            assert row.error_code == code
        bench.services.catalog.snapshot = stale
        assert codes(await commit(bench, 9, (0, 3, ""))) == [UNKNOWN]
        bench.services.catalog.snapshot = stale
        assert codes(await commit(bench, 10, (0, 3, ""), topic_id=topic.topic_id)) == [
            ErrorCode.UNKNOWN_TOPIC_ID
        ]


async def test_while_nobody_can_be_asked_the_first_answer_is() -> None:
    async with agent_bench() as bench:
        await bench.topic()
        bench.sequencer.is_away = True
        assert (await asked(bench, -1, partition=9)).error_code == UNKNOWN
