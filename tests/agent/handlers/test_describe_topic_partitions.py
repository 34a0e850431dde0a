"""DescribeTopicPartitions: pages in order of name and partition."""

from __future__ import annotations

from typing import Any

from tailrace.kafka import ApiKey
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    TopicRequest,
)
from tests.support.agents import AgentBench, agent_bench


async def page(bench: AgentBench, *names: str, limit: int = 2000, cursor: Cursor | None = None) -> Any:
    request = DescribeTopicPartitionsRequest([TopicRequest(name) for name in names], limit, cursor)
    return await bench.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, request)


def rows(response: Any) -> list[tuple[str, list[int]]]:
    return [
        (topic.name, [row.partition_index for row in topic.partitions])
        for topic in response.topics
        if not topic.error_code
    ]


async def test_all_topics_come_in_order_of_name_page_by_page() -> None:
    async with agent_bench() as bench:
        await bench.topic("b", 3)
        await bench.topic("a", 2)
        whole = await page(bench)
        assert rows(whole) == [("a", [0, 1]), ("b", [0, 1, 2])] and whole.next_cursor is None
        seen: list[tuple[str, int]] = []
        cursor: Cursor | None = None
        while True:
            part = await page(bench, limit=2, cursor=cursor)
            seen += [(name, index) for name, indexes in rows(part) for index in indexes]
            cursor = part.next_cursor
            if cursor is None:
                break
        assert seen == [("a", 0), ("a", 1), ("b", 0), ("b", 1), ("b", 2)]


async def test_every_partition_is_led_by_a_live_agent_and_an_unknown_topic_is_reported() -> None:
    async with agent_bench() as bench:
        await bench.topic("t", 2)
        response = await page(bench, "t", "nowhere")
        unknown, known = response.topics
        assert (unknown.name, unknown.error_code) == ("nowhere", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        assert {row.leader_id for row in known.partitions} == {bench.identity.broker_id}
        assert all(row.isr_nodes == [row.leader_id] for row in known.partitions)
        (unknown,) = (await page(bench, "a/b")).topics
        assert unknown.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


async def test_a_full_page_ends_before_the_next_topic_whether_or_not_it_is_known() -> None:
    async with agent_bench() as bench:
        await bench.topic("a", 2)
        full = await page(bench, "a", "b", limit=2)
        assert [topic.name for topic in full.topics] == ["a"] and full.next_cursor == Cursor("b", 0)
        rest = await page(bench, "a", "b", limit=2, cursor=full.next_cursor)
        assert [topic.name for topic in rest.topics] == ["b"] and rest.next_cursor is None


async def test_a_negative_cursor_is_refused() -> None:
    async with agent_bench() as bench:
        await bench.topic("a", 2)
        refused = await page(bench, "a", "b", cursor=Cursor("a", -1))
        assert [topic.error_code for topic in refused.topics] == [ErrorCode.INVALID_REQUEST] * 2
        assert refused.next_cursor is None
