"""Metadata: topics that a request creates, and the leader in each client's zone."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest

import agent.handlers.metadata as metadata_handler
from agent.answer_cache import AnswerCache
from agent.handlers.metadata import MIN_PARTITIONS_OF_KEPT
from tailrace.kafka import ApiKey, decode_response, encode_response
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.support.agents import AgentBench, agent_bench, context


async def metadata(
    bench: AgentBench, *names: str, version: int = 12, create: bool = True, client_id: str | None = None
) -> Any:
    topics = [MetadataRequestTopic(name=name) for name in names]
    return await bench.ask(ApiKey.METADATA, version, MetadataRequest(topics, create), client_id)


async def test_an_unknown_topic_is_created_when_client_and_agent_allow_it() -> None:
    async with agent_bench(default_partitions=3) as bench:
        (refused,) = (await metadata(bench, "fresh", create=False)).topics
        assert refused.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        (made,) = (await metadata(bench, "fresh")).topics
        assert (made.error_code, len(made.partitions)) == (0, 3)
        (illegal,) = (await metadata(bench, "no/slash")).topics
        assert illegal.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


async def test_an_agent_may_be_told_not_to_create() -> None:
    async with agent_bench(auto_create_topics=False) as bench:
        (refused,) = (await metadata(bench, "fresh")).topics
        assert refused.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_kafkas_own_topics_are_not_made_up_for_a_client_that_reads_them() -> None:
    async with agent_bench() as bench:
        for name in ("__consumer_offsets", "__transaction_state", "__share_group_state"):
            (refused,) = (await metadata(bench, name)).topics
            assert refused.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_leaders_are_of_the_clients_zone() -> None:
    async with agent_bench() as bench:
        await bench.topic(partitions=16)
        zones = {bench.identity.broker_id: "az-a"}
        for number, zone in ((2, "az-b"), (3, "az-b")):
            zones[(await bench.join(zone, number)).broker_id] = zone
        for zone in ("az-a", "az-b"):
            response = await metadata(bench, "t", client_id=f"x,tailrace_az={zone}")
            leaders = {row.leader_id for row in response.topics[0].partitions}
            assert {zones[leader] for leader in leaders} == {zone}
            assert len(response.brokers) == 3
        leaders = {row.leader_id for row in (await metadata(bench, "t")).topics[0].partitions}
        assert leaders == {bench.identity.broker_id}, "a client that says nothing is in the agent's zone"


async def test_topics_are_named_by_id_too_and_no_list_means_all() -> None:
    async with agent_bench() as bench:
        topic = await bench.topic()
        asked = [MetadataRequestTopic(each, None) for each in (topic.topic_id, UUID(int=1))]
        found, unknown = (await bench.ask(ApiKey.METADATA, 12, MetadataRequest(asked))).topics
        assert (found.name, found.error_code) == ("t", 0)
        assert (unknown.name, unknown.error_code) == (None, ErrorCode.UNKNOWN_TOPIC_ID)
        for version, topics in ((0, []), (1, None), (13, None)):
            response = await bench.ask(ApiKey.METADATA, version, MetadataRequest(topics))
            assert [row.name for row in response.topics] == ["t"]
        assert (await bench.ask(ApiKey.METADATA, 4, MetadataRequest([]))).topics == []


async def test_a_large_answer_is_made_once_for_all_who_ask_the_same_and_again_after_a_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[int] = []
    answer = metadata_handler._answer

    async def counted(services: Any, context: Any, request: Any, snapshot: Any, refused: Any) -> Any:
        made.append(snapshot.version)
        return await answer(services, context, request, snapshot, refused)

    monkeypatch.setattr(metadata_handler, "_answer", counted)

    async with agent_bench() as bench:
        await bench.topic(partitions=300)
        first, *others = await asyncio.gather(*(metadata(bench, "t") for _ in range(5)))
        assert len(first.topics[0].partitions) == 300
        assert others == [first] * 4 and len(made) == 1
        assert (await metadata(bench, "t", version=9)).topics[0].partitions[299].partition_index == 299
        in_another_zone = await metadata(bench, "t", client_id="x,tailrace_az=az-b")
        assert len(in_another_zone.topics[0].partitions) == 300 and len(made) == 3, (
            "what differs is not shared"
        )
        await bench.join("az-b", 2)
        assert len((await metadata(bench, "t")).brokers) == 2 and len(made) == 4


async def test_a_large_answer_is_what_the_codec_gives() -> None:
    async with agent_bench() as bench:
        await bench.topic(partitions=MIN_PARTITIONS_OF_KEPT)
        for version in range(14):
            request = MetadataRequest([MetadataRequestTopic(name="t")])
            kept = await bench.ask(ApiKey.METADATA, version, request)
            snapshot = bench.services.catalog.snapshot
            made = await metadata_handler._answer(bench.services, context(version), request, snapshot, {})
            parts = encode_response(7, ApiKey.METADATA, version, made)
            assert decode_response(ApiKey.METADATA, version, memoryview(b"".join(parts))[4:]) == (7, kept)


async def test_cached_answers_stay_within_their_limit() -> None:
    answers, made = AnswerCache(max_bytes=10), []

    async def get(asked: str, length: int) -> None:
        async def make() -> bytes:
            made.append(asked)
            return bytes(length)

        assert len(await answers.get(asked, make)) == length

    for asked, length in (
        ("a", 4),
        ("b", 4),
        ("a", 4),
        ("c", 4),
        ("a", 4),
        ("b", 4),
        ("too large", 11),
        ("b", 4),
    ):
        await get(asked, length)
    assert made == ["a", "b", "c", "b", "too large"]


async def test_clients_of_zones_without_agents_share_one_answer() -> None:
    async with agent_bench() as bench:
        await bench.topic("large", MIN_PARTITIONS_OF_KEPT)
        made = 0
        inner = metadata_handler._answer

        async def counted(*args: Any, **named: Any) -> Any:
            nonlocal made
            made += 1
            return await inner(*args, **named)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(metadata_handler, "_answer", counted)
            for number in range(5):
                await metadata(bench, "large", client_id=f"tailrace_az=invented-{number}")
        assert made == 1
        assert len(bench.services.catalog.snapshot.replicas._ranked) <= MIN_PARTITIONS_OF_KEPT
