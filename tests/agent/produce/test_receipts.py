"""Answers on receipt: when producers are answered, what stays charged, and how lost batches are counted."""

from __future__ import annotations

import pytest
import structlog

from agent.handlers.produce import handle_at_once
from agent.produce.receipts import WARNING_SECONDS
from agent.produce.request_memory import ELEMENT_BYTES
from agent.services import Deferred
from sequencer.api.commits import BatchError
from sequencer.api.producers import InitProducer
from sequencer.api.topics import Topic
from sequencer.settings import SequencerSettings
from tailrace.configs.broker_config import check_broker_configs
from tailrace.configs.topic_config import (
    TOPIC_CONFIGS,
    Flush,
    InvalidConfigValue,
    check_topic_configs,
    topic_settings,
)
from tailrace.kafka.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.agent.produce.test_lanes import high_watermark, objects_of
from tests.agent.test_produce_fast_path import Client, produce
from tests.support.agents import AgentBench, agent_bench, batch, context, settle
from tests.support.faulty_store import FaultPlan, Faults, Latency, Operation

A_PUT_TAKES_A_SECOND = FaultPlan(put=Faults(latency=Latency(1_000, 1_000)))
A_PUT_HANGS = FaultPlan(put=Faults(hangs_before=1.0, hang_seconds=6.0))


async def async_topic(bench: AgentBench, name: str = "t") -> Topic:
    return await bench.topic(name, tailrace_flush="async")


async def send(bench: AgentBench, data: bytes, *, acks: int = -1, topic: str = "t") -> tuple[int, int] | None:
    """Error code and base offset, if they are there without any time going by."""
    request = ProduceRequest(
        acks=acks,
        topic_data=[TopicProduceData(topic, partition_data=[PartitionProduceData(0, memoryview(data))])],
    )
    deferred = handle_at_once(bench.services, context(9), request)
    assert isinstance(deferred, Deferred)
    answered: list[Deferred] = []
    deferred.then(answered.append)
    if not answered:
        return None
    (row,) = answered[0].response().responses[0].partition_responses
    return row.error_code, row.base_offset


async def producer_of(bench: AgentBench) -> int:
    return int((await bench.sequencer.init_producer(InitProducer())).producer_id)


def lost(bench: AgentBench) -> dict[str, tuple[float, float]]:
    """Batches and records by cause."""
    value = bench.services.telemetry.registry.get_sample_value
    found = {}
    for cause in ("storage", "timeout", *(error.name.lower() for error in BatchError)):
        batches = value("tailrace_lost_batches_total", {"cause": cause})
        if batches:
            records = value("tailrace_lost_records_total", {"cause": cause})
            assert records is not None
            found[cause] = (batches, records)
    return found


@pytest.mark.parametrize("acks", [1, -1])
async def test_a_batch_is_answered_on_receipt_and_read_after_its_commit_alone(acks: int) -> None:
    async with agent_bench() as bench:
        topic = await async_topic(bench)
        bench.sequencer.may_commit.clear()
        assert await send(bench, batch(b"1", b"2"), acks=acks) == (0, -1)
        await bench.advance(2)
        assert await high_watermark(bench, topic) == 0
        bench.sequencer.may_commit.set()
        await bench.advance(0.5)
        assert await high_watermark(bench, topic) == 2
        assert lost(bench) == {}


async def test_requests_like_their_connections_last_one_are_answered_on_receipt_too() -> None:
    async with agent_bench() as bench:
        topic = await async_topic(bench)
        client = Client(bench, budget=bench.memory)
        client.feed(produce() * 2)
        bench.sequencer.may_commit.clear()
        client.feed(produce() * 3)
        assert client.connection.fast_path is not None
        assert client.answers() == [(0, -1)] * 5
        bench.sequencer.may_commit.set()
        await bench.advance(1)
        assert await high_watermark(bench, topic) == 5
        assert bench.memory.used == 0


async def test_a_request_to_both_kinds_of_topic_waits_for_the_commit() -> None:
    async with agent_bench() as bench:
        await async_topic(bench)
        await bench.topic("sync")
        client = Client(bench)
        data = [PartitionProduceData(0, memoryview(batch(b"v")))]
        request = ProduceRequest(
            acks=-1, topic_data=[TopicProduceData(name, partition_data=data) for name in ("t", "sync")]
        )
        deferred = handle_at_once(bench.services, context(9), request)
        assert isinstance(deferred, Deferred)
        answered: list[Deferred] = []
        deferred.then(answered.append)
        assert not answered and client.answers() == []
        await bench.advance(0.5)
        rows = [topic.partition_responses[0].base_offset for topic in answered[0].response().responses]
        assert rows == [-1, 0]


async def test_a_batch_answered_on_receipt_stays_charged_until_its_commit() -> None:
    async with agent_bench() as bench:
        await async_topic(bench)
        data = batch(b"v" * 1000)
        bench.sequencer.may_commit.clear()
        for _ in range(3):
            assert await send(bench, data) == (0, -1)
        await bench.advance(1)
        assert bench.memory.used == 3 * (len(data) + ELEMENT_BYTES)
        bench.sequencer.may_commit.set()
        await bench.advance(1)
        assert bench.memory.used == 0


async def test_an_upload_that_misses_its_deadline_is_counted_with_one_warning_in_30_seconds() -> None:
    async with agent_bench(upload_deadline_ms=1_000) as bench:
        await async_topic(bench)
        with structlog.testing.capture_logs() as logs:
            bench.store.outage.begin(Operation.PUT)
            for _ in range(3):
                assert await send(bench, batch(b"1", b"2")) == (0, -1)
                await bench.advance(2)
            bench.store.outage.end()
            assert lost(bench) == {"storage": (3, 6)}
            assert [entry["records"] for entry in logs if "were acknowledged" in entry["event"]] == [2]
            await bench.advance(WARNING_SECONDS, step=1.0)
            bench.store.outage.begin(Operation.PUT)
            assert await send(bench, batch(b"1")) == (0, -1)
            await bench.advance(2)
            assert [entry["records"] for entry in logs if "were acknowledged" in entry["event"]] == [2, 5]
        assert bench.memory.used == 0


async def test_a_batch_whose_commit_is_late_is_not_lost() -> None:
    async with agent_bench(commit_deadline_ms=1_000) as bench:
        topic = await async_topic(bench)
        bench.sequencer.may_commit.clear()
        assert await send(bench, batch(b"1")) == (0, -1)
        await bench.advance(5)
        assert lost(bench) == {}
        bench.sequencer.may_commit.set()
        await bench.advance(1)
        assert await high_watermark(bench, topic) == 1
        assert lost(bench) == {} and bench.memory.used == 0


async def test_a_lost_batch_leaves_a_gap_that_those_behind_it_skip() -> None:
    async with agent_bench(gap_deadline_ms=1_000) as bench:
        topic, producer = await async_topic(bench), await producer_of(bench)
        for sequence in (0, 2, 3):
            assert await send(bench, batch(b"v", producer=producer, sequence=sequence)) == (0, -1)
        await bench.advance(0.8)
        assert await high_watermark(bench, topic) == 1, "the missing one may still come"
        await bench.advance(1.2)
        assert await high_watermark(bench, topic) == 3
        assert await send(bench, batch(b"v", producer=producer, sequence=4)) == (0, -1)
        await bench.advance(0.5)
        assert await high_watermark(bench, topic) == 4
        assert lost(bench) == {} and len(set(objects_of(bench))) == 2


async def test_a_gap_whose_retry_has_no_answer_at_its_deadline_is_skipped_and_not_lost() -> None:
    async with agent_bench(gap_deadline_ms=1_000) as bench:
        topic, producer = await async_topic(bench), await producer_of(bench)
        for sequence in (0, 2):
            assert await send(bench, batch(b"v", producer=producer, sequence=sequence)) == (0, -1)
        await bench.advance(0.3)
        bench.sequencer.may_commit.clear()
        await bench.advance(3)
        assert lost(bench) == {}
        bench.sequencer.may_commit.set()
        await bench.advance(2)
        assert await high_watermark(bench, topic) == 2
        assert lost(bench) == {} and bench.memory.used == 0


async def test_a_gap_is_skipped_while_its_object_can_still_be_named() -> None:
    async with agent_bench(SequencerSettings(deletion_grace_ms=8_000), gap_deadline_ms=60_000) as bench:
        topic, producer = await async_topic(bench), await producer_of(bench)
        for sequence in (0, 2):
            assert await send(bench, batch(b"v", producer=producer, sequence=sequence)) == (0, -1)
        await bench.advance(3)
        assert await high_watermark(bench, topic) == 2
        assert lost(bench) == {}


async def test_a_missing_batch_that_comes_in_time_is_stored_before_those_behind_it() -> None:
    async with agent_bench(gap_deadline_ms=1_000) as bench:
        topic, producer = await async_topic(bench), await producer_of(bench)
        await send(bench, batch(b"second", producer=producer, sequence=1))
        await bench.advance(0.5)
        await send(bench, batch(b"first", producer=producer, sequence=0))
        await bench.advance(1)
        assert await high_watermark(bench, topic) == 2
        assert lost(bench) == {}


async def test_a_batch_that_comes_twice_is_stored_once() -> None:
    async with agent_bench() as bench:
        topic, producer = await async_topic(bench), await producer_of(bench)
        for _ in range(3):
            assert await send(bench, batch(b"v", producer=producer, sequence=0)) == (0, -1)
            await bench.advance(0.3)
        assert await high_watermark(bench, topic) == 1
        assert lost(bench) == {}


async def test_a_batch_of_an_old_epoch_is_not_stored_and_counted() -> None:
    async with agent_bench(gap_deadline_ms=1_000) as bench:
        topic, producer = await async_topic(bench), await producer_of(bench)
        await send(bench, batch(b"v", producer=producer, epoch=1, sequence=0))
        await bench.advance(0.3)
        await send(bench, batch(b"v", b"w", producer=producer, epoch=0, sequence=7))
        await bench.advance(2)
        assert await high_watermark(bench, topic) == 1
        assert lost(bench) == {"invalid_producer_epoch": (1, 2)}


async def test_acks_0_and_other_topics_are_as_ever() -> None:
    async with agent_bench() as bench:
        await async_topic(bench)
        await bench.topic("sync")
        bench.store.plan = A_PUT_TAKES_A_SECOND
        assert await send(bench, batch(b"v"), acks=0) is None
        assert await send(bench, batch(b"v"), topic="sync") is None
        assert bench.memory.used == 0


async def test_a_draining_agent_commits_what_it_acknowledged() -> None:
    async with agent_bench(quiet_ms=60_000, linger_ms=30_000, max_puts_per_second=0.001) as bench:
        topic = await async_topic(bench)
        assert await send(bench, batch(b"v")) == (0, -1)
        closing = bench.lane.close(5)
        await closing
        assert await high_watermark(bench, topic) == 1


async def test_a_batch_is_refused_and_not_acknowledged_where_no_buffer_takes_it() -> None:
    async with agent_bench() as bench:
        await async_topic(bench)
        await bench.lane.close(5)
        code, _ = await send(bench, batch(b"v")) or (0, 0)
        assert code != 0 and lost(bench) == {} and bench.memory.used == 0


def test_the_config_is_one_of_two_values_and_has_a_default_of_the_cluster() -> None:
    with pytest.raises(InvalidConfigValue, match=r"'later' was given, allowed are sync, async"):
        check_topic_configs({"tailrace.flush": "later"})
    with pytest.raises(InvalidConfigValue, match=r"'later' was given, allowed are sync, async"):
        check_broker_configs({"tailrace.flush": "later"})
    assert topic_settings({}).flush is Flush.SYNC
    assert topic_settings({}, {"tailrace.flush": "async"}).flush is Flush.ASYNC
    assert topic_settings({"tailrace.flush": "sync"}, {"tailrace.flush": "async"}).flush is Flush.SYNC


@pytest.mark.parametrize(
    "stored",
    [
        {"tailrace.flush": "later"},
        {"tailrace.latency": "soonest"},
        {"max.message.bytes": "1MiB"},
        {"max.message.bytes": str(2**31)},
        {"message.timestamp.after.max.ms": ""},
        {"retention.ms": "-2"},
        {"min.compaction.lag.ms": "1.5"},
        {"min.cleanable.dirty.ratio": "half"},
        {"min.cleanable.dirty.ratio": "nan"},
    ],
)
def test_a_stored_value_that_this_version_does_not_know_is_the_default_with_one_warning(
    stored: dict[str, str],
) -> None:
    with structlog.testing.capture_logs() as logs:
        for _ in range(2):
            assert topic_settings(stored) == topic_settings({})
            assert topic_settings(
                {}, {TOPIC_CONFIGS[name].broker_name or name: stored[name] for name in stored}
            ) == (topic_settings({}))
    (name,) = stored
    (warning,) = logs
    assert (warning["log_level"], warning["config"], warning["value"]) == ("warning", name, stored[name])


@pytest.mark.parametrize("size", [200, 20_000])
async def test_a_producer_that_is_answered_on_receipt_is_not_read_beyond_the_memory_budget(size: int) -> None:
    async with agent_bench(memory_budget_bytes=16 << 20) as bench:
        await async_topic(bench)
        client = Client(bench, budget=bench.memory)
        bench.sequencer.may_commit.clear()
        request = produce(batch(b"v" * size))
        fed = 0
        while not client.transport.is_paused and fed < 8 * bench.memory.limit:
            client.feed(request)
            fed += len(request)
            if size > 1_000:
                await settle()
            assert bench.memory.used <= bench.memory.limit
        assert client.transport.is_paused, "the producer is read without end"
        assert fed <= bench.memory.limit
        assert all(answer == (0, -1) for answer in client.answers())
        bench.sequencer.may_commit.set()
        await bench.advance(3)
        assert not client.transport.is_paused
        assert bench.memory.used == 0


async def test_before_a_hanging_store_receipts_end_at_the_budget_and_all_is_stored_or_counted() -> None:
    async with agent_bench(memory_budget_bytes=16 << 20) as bench:
        topic = await async_topic(bench)
        client = Client(bench, budget=bench.memory)
        bench.store.plan = A_PUT_HANGS
        request = produce(batch(b"v" * 20_000))
        fed = 0
        while not client.transport.is_paused and fed < 8 * bench.memory.limit:
            client.feed(request)
            fed += len(request)
            await settle()
            assert bench.memory.used <= bench.memory.limit
        assert client.transport.is_paused and fed <= bench.memory.limit
        bench.store.plan = FaultPlan()
        await bench.advance(10)
        assert not client.transport.is_paused and bench.memory.used == 0
        for _ in range(3):
            client.feed(request)
        await bench.advance(3)
        answers = client.answers()
        assert answers and all(answer == (0, -1) for answer in answers)
        of_hung = lost(bench)
        assert of_hung and sum(records for _, records in of_hung.values()) < len(answers)
        assert await high_watermark(bench, topic) + sum(records for _, records in of_hung.values()) == len(
            answers
        )
        assert bench.memory.used == 0
