"""The usage of each topic: counted by an agent, divided among topics, and equal in sum to the store's requests."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from agent.telemetry_observers import StoreMetrics
from agent.topic_counters import DELETED_TOPICS, MAX_TOPICS, OTHER_TOPICS, TopicCounters, TopicCounts
from agent.topic_usage import COUNTED, NO_TOPIC, ProcessCounts, read_counts, usage_by_topic
from cache.chunk_cache import ChunkCache
from cache.reader import BatchReader
from cache.settings import CacheSettings
from sequencer.api.topics import Topic
from tailrace.cost import Usage, bill_of, read_prices
from tailrace.kafka import ApiKey
from tailrace.kafka.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tailrace.kafka.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tailrace.object_store.metered import MeteredStore
from tailrace_cli.running.process_metrics import add_process_metrics
from tests.support.agents import ALONE, AgentBench, agent_bench, batch

PRICES = read_prices()


def counted_store(bench: AgentBench) -> MeteredStore:
    """From now on the agent's requests to its store are counted, and exported as metrics."""
    store = MeteredStore(bench.store, bench.clock, StoreMetrics(bench.services.telemetry.registry))
    bench.lane._uploader._store = store
    return store


def read_through(bench: AgentBench, store: MeteredStore) -> None:
    """From now on fetches find nothing in memory: they read through a new cache."""
    bench.cache = ChunkCache(store, CacheSettings(memory_bytes=8 << 20), lambda: ALONE)
    bench.services.reader = BatchReader(bench.cache, bench.clock, ThreadPoolExecutor(1))


async def produce(bench: AgentBench, sizes: dict[str, int], client_id: str = "c") -> None:
    """One request with a batch for each topic."""
    data = [
        TopicProduceData(name, partition_data=[PartitionProduceData(0, memoryview(batch(b"x" * size)))])
        for name, size in sizes.items()
    ]
    request = ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=data)
    asked = asyncio.ensure_future(bench.ask(ApiKey.PRODUCE, 9, request, client_id))
    await bench.until(asked)


async def fetch(bench: AgentBench, topic: Topic, client_id: str = "c") -> Any:
    wanted = [FetchTopic(topic.name, topic.topic_id, [FetchPartition(0, partition_max_bytes=1 << 20)])]
    return await bench.ask(ApiKey.FETCH, 12, FetchRequest(topics=wanted), client_id)


def counts(bench: AgentBench) -> ProcessCounts:
    return read_counts(bench.services.telemetry.registry.collect())


async def test_the_topics_bills_are_within_5_percent_of_what_the_store_was_asked_for() -> None:
    async with agent_bench() as bench:
        large, small = await bench.topic("large"), await bench.topic("small")
        store = counted_store(bench)
        for _ in range(20):
            await produce(bench, {"large": 9_000, "small": 1_000})
        await produce(bench, {"small": 1_000})
        read_through(bench, store)
        for topic in (large, small):
            await fetch(bench, topic)

        used = usage_by_topic(counts(bench))
        billed = sum(bill_of(each, PRICES).total for each in used.values())

        counted = store.counts
        assert counted.puts == 21 and counted.gets > 0
        asked = Usage(puts=counted.puts + counted.lists, gets=counted.gets + counted.heads)
        assert billed == pytest.approx(bill_of(asked, PRICES).total, rel=0.05)
        assert used["large"].puts == pytest.approx(20 * 0.9, rel=0.05)
        assert used["small"].puts == pytest.approx(20 * 0.1 + 1, rel=0.05)
        assert used["large"].gets > used["small"].gets > 0
        assert used["large"].sql_rows == 20 and used["small"].sql_rows == 21


async def test_fetches_out_of_memory_cost_no_request() -> None:
    async with agent_bench() as bench:
        topic = await bench.topic()
        counted_store(bench)
        await produce(bench, {"t": 5_000})
        await fetch(bench, topic)
        used = counts(bench).topics["t"]
        assert used.fetched_bytes == used.stored_bytes > 5_000 and used.missed_bytes == 0


async def test_bytes_to_and_from_another_zone_are_counted_when_the_client_names_its_zone() -> None:
    async with agent_bench() as bench:
        topic = await bench.topic()
        await produce(bench, {"t": 1_000})
        await fetch(bench, topic, "c,tailrace_az=az-a")
        assert counts(bench).topics["t"].cross_zone_bytes == 0
        await produce(bench, {"t": 1_000}, "c,tailrace_az=az-b")
        stored = counts(bench).topics["t"].stored_bytes
        assert counts(bench).topics["t"].cross_zone_bytes == stored / 2
        await fetch(bench, topic, "c,tailrace_az=az-b")
        assert counts(bench).topics["t"].cross_zone_bytes == 1.5 * stored


def test_a_scraped_page_says_the_same_as_the_registry() -> None:
    registry = CollectorRegistry()
    counters = TopicCounters(registry)
    counters.stored([("a", 300), ("b", 100)])
    page = generate_latest(registry).decode()
    assert read_counts(text_string_to_metric_families(page)) == read_counts(registry.collect())
    assert read_counts(registry.collect()).topics["a"].objects == 0.75


def test_a_part_of_the_registry_has_all_that_is_counted() -> None:
    registry = CollectorRegistry()
    add_process_metrics(registry, version="1", kind="agent")
    TopicCounters(registry).stored([("a", 300)])
    StoreMetrics(registry).observe(
        "put", requests=1, sent_bytes=300, received_bytes=0, seconds=0.1, error=None
    )
    counted = read_counts(registry.restricted_registry(COUNTED).collect())
    assert counted.process.cpu_seconds > 0 and counted.started_at > 0
    assert counted.process.puts == 1 and counted.process.put_bytes == 300
    assert counted.topics["a"].stored_bytes == 300


def test_topics_without_counters_of_their_own_are_counted_together() -> None:
    counters = TopicCounters(CollectorRegistry())
    for number in range(MAX_TOPICS + 3):
        counters.stored([(f"t{number}", 10)])
    assert len(counters.topics) == MAX_TOPICS + 1
    assert counters.topics[OTHER_TOPICS].rows == 3


def test_counters_of_deleted_topics_make_room() -> None:
    counters, existing = TopicCounters(CollectorRegistry()), {"kept": None}
    counters.forget_deleted_of(lambda: existing)
    counters.stored([("kept", 10)])
    for number in range(MAX_TOPICS):
        counters.stored([(f"t{number}", 10)])
    counters.stored([("new", 10)])
    assert counters.topics[DELETED_TOPICS].rows == MAX_TOPICS - 1
    assert counters.topics["kept"].rows == 1 and counters.topics["new"].rows == 1
    assert OTHER_TOPICS not in counters.topics


def test_topics_that_were_added_up_between_two_looks_count_once() -> None:
    before = ProcessCounts(Usage(), {"old": TopicCounts(rows=5), DELETED_TOPICS: TopicCounts(rows=1)})
    later = ProcessCounts(Usage(), {"t": TopicCounts(rows=2), DELETED_TOPICS: TopicCounts(rows=8)})
    since = later.since(before).topics
    assert since[DELETED_TOPICS].rows == 2 and since["t"].rows == 2


def test_usage_that_no_topic_caused_is_charged_to_none() -> None:
    counted = ProcessCounts(Usage(puts=10, gets=4, cpu_seconds=1), {"t": TopicCounts(objects=2)})
    used = usage_by_topic(counted)
    assert used["t"].puts == 10 and used[NO_TOPIC] == Usage(gets=4, cpu_seconds=1)


def test_a_process_that_restarted_between_two_looks_counts_whole() -> None:
    before = ProcessCounts(Usage(puts=10), {"t": TopicCounts(objects=2)}, started_at=1.0)
    later = ProcessCounts(Usage(puts=12), {"t": TopicCounts(objects=5)}, started_at=1.0)
    anew = ProcessCounts(Usage(puts=3), {"t": TopicCounts(objects=3)}, started_at=9.0)
    assert later.since(before).process.puts == 2 and later.since(before).topics["t"].objects == 3
    assert anew.since(before) == anew
