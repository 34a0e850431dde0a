"""Fetch by Kafka's rules: how long it waits, how much it gives, and what it says of what isn't there."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest
from structlog.testing import capture_logs

import agent.handlers.fetch as fetch_module
from agent.dispatch import Dispatcher
from agent.fetch.alignment import LEAST_REQUEST_BYTES
from agent.handlers.fetch import handle
from cache.chunk import ObjectCorrupt
from cache.chunk_cache import ChunkCache
from cache.mixed_reader import MixedReader
from cache.reader import BatchReader
from cache.settings import CacheSettings
from sequencer.api.errors import (
    IncarnationChanged,
    LeaseLost,
    SequencerError,
    SequencerOverloaded,
    SequencerUnavailable,
)
from sequencer.api.topics import CreateTopic, DeleteTopic, Topic
from tailrace.batches.record_batch import split
from tailrace.ids import TopicPartition
from tailrace.kafka import ApiKey, encode_request
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from tests.agent.handlers.test_produce import produce
from tests.support.agents import ALONE, AgentBench, agent_bench, batch, connection, context, made, settle
from tests.support.cancelled import CancelledAt


def request_of(
    topic: Topic, *parts: tuple[int, int], partition_max_bytes: int = 1 << 20, **more: Any
) -> FetchRequest:
    """Of (partition, offset)s. `more`: fields of the request, such as its own `max_bytes`."""
    return FetchRequest(
        topics=[
            FetchTopic(
                topic.name,
                topic.topic_id,
                [
                    FetchPartition(each, fetch_offset=offset, partition_max_bytes=partition_max_bytes)
                    for each, offset in parts
                ],
            )
        ],
        **more,
    )


async def fetch(bench: AgentBench, request: FetchRequest, version: int = 12) -> Any:
    return await bench.ask(ApiKey.FETCH, version, request)


def rows_of(response: Any) -> list[PartitionData]:
    return [row for topic in response.responses for row in topic.partitions]


def offsets(row: PartitionData) -> list[int]:
    return [header.base_offset for header, _ in split(memoryview(bytes(row.records or b"")))]  # type: ignore[arg-type]


async def filled(bench: AgentBench, batches: int = 3, size: int = 500) -> Topic:
    topic = await bench.topic()
    for _ in range(batches):
        await produce(bench, (0, batch(b"x" * size)))
    return topic


async def test_existing_records_are_returned_from_the_offset_on_with_the_bounds() -> None:
    async with agent_bench() as bench:
        topic = await filled(bench)
        (row,) = rows_of(await fetch(bench, request_of(topic, (0, 1))))
        assert offsets(row) == [1, 2]
        assert (row.high_watermark, row.last_stable_offset, row.log_start_offset) == (3, 3, 0)
        (row,) = rows_of(await fetch(bench, request_of(topic, (0, 0)), version=13))
        assert offsets(row) == [0, 1, 2]


async def test_a_fetch_waits_for_its_bytes_and_the_feed_wakes_it() -> None:
    async with agent_bench() as bench:
        topic = await filled(bench)
        asked = asyncio.ensure_future(
            fetch(bench, request_of(topic, (0, 3), min_bytes=1, max_wait_ms=20_000))
        )
        await settle()
        assert not asked.done()
        before = bench.clock.monotonic()
        await produce(bench, (1, batch(b"another partition")))
        await settle()
        assert not asked.done()
        await produce(bench, (0, batch(b"awaited")))
        (row,) = rows_of(await bench.until(asked))
        assert offsets(row) == [3]
        assert bench.clock.monotonic() - before < 1


async def test_too_few_bytes_are_given_when_the_wait_is_over() -> None:
    async with agent_bench() as bench:
        topic = await filled(bench)
        asked = asyncio.ensure_future(
            fetch(bench, request_of(topic, (0, 2), min_bytes=50_000, max_wait_ms=1_000))
        )
        await bench.advance(0.9)
        assert not asked.done()
        (row,) = rows_of(await bench.until(asked, 0.3))
        assert offsets(row) == [2]
        empty = asyncio.ensure_future(fetch(bench, request_of(topic, (0, 3), min_bytes=1, max_wait_ms=100)))
        (row,) = rows_of(await bench.until(empty, 0.3))
        assert (row.error_code, bytes(row.records or b"")) == (0, b"")  # type: ignore[arg-type]


async def test_max_bytes_bound_the_answer_but_the_first_batch_is_always_whole() -> None:
    async with agent_bench() as bench:
        topic = await filled(bench)
        await produce(bench, (1, batch(b"y" * 500)))
        (row,) = rows_of(await fetch(bench, request_of(topic, (0, 0), partition_max_bytes=1_300)))
        assert offsets(row) == [0, 1]
        (row,) = rows_of(await fetch(bench, request_of(topic, (0, 0), partition_max_bytes=1)))
        assert offsets(row) == [0]
        for max_bytes in (1, 0, -1):
            first, second = rows_of(
                await fetch(bench, request_of(topic, (0, 0), (1, 0), max_bytes=max_bytes))
            )
            assert (offsets(first), offsets(second)) == ([0], [])
        first, second = rows_of(await fetch(bench, request_of(topic, (1, 0), (0, 0), max_bytes=1_300)))
        assert (offsets(first), offsets(second)) == ([0], [0])


async def test_more_bytes_than_the_request_allows_are_not_waited_for() -> None:
    async with agent_bench() as bench:
        topic = await filled(bench)
        asked = request_of(topic, (0, 2), max_bytes=100, min_bytes=50_000, max_wait_ms=20_000)
        before = bench.clock.monotonic()
        (row,) = rows_of(await bench.until(asyncio.ensure_future(fetch(bench, asked))))
        assert offsets(row) == [2] and bench.clock.monotonic() - before < 1


async def test_partitions_beyond_the_sequencers_limit_are_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sequencer.bounds.MAX_ANSWER_RUNS", 2)

    async with agent_bench() as bench:
        topic = await filled(bench)
        for _ in range(3):
            await produce(bench, (1, batch(b"y" * 500)))
        asked = request_of(topic, (0, 0), (1, 0), min_bytes=50_000, max_wait_ms=20_000, session_epoch=0)
        opened = await fetch(bench, asked)
        assert [offsets(row) for row in rows_of(opened)] == [[0, 1], []]
        session = {"session_id": opened.session_id, "min_bytes": 1}
        next_one = await fetch(bench, FetchRequest(topics=[], session_epoch=1, **session))
        rows = {row.partition_index: offsets(row) for row in rows_of(next_one)}
        assert rows == {1: [0, 1]}  # the one that got nothing comes first


async def test_an_offset_outside_of_the_log_is_reported_at_once() -> None:
    async with agent_bench() as bench:
        topic = await filled(bench)
        for offset in (4, -1, 1 << 40):
            (row,) = rows_of(
                await fetch(bench, request_of(topic, (0, offset), min_bytes=1, max_wait_ms=9_000))
            )
            assert row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        failures = bench.services.telemetry.fetch_failures.labels("OFFSET_OUT_OF_RANGE")
        assert failures._value.get() == 3


async def test_unknown_topics_and_partitions_have_their_codes() -> None:
    async with agent_bench() as bench:
        topic = await filled(bench)
        nowhere = Topic(UUID(int=3), "nowhere", 1, {}, 0)
        (row,) = rows_of(await fetch(bench, request_of(nowhere, (0, 0))))
        assert row.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        (row,) = rows_of(await fetch(bench, request_of(nowhere, (0, 0)), version=13))
        assert row.error_code == ErrorCode.UNKNOWN_TOPIC_ID
        good, bad = rows_of(await fetch(bench, request_of(topic, (0, 0), (5, 0))))
        assert (good.error_code, bad.error_code) == (0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        assert offsets(good) == [0, 1, 2]


async def test_a_deleted_topic_is_gone_at_once_even_for_who_waits() -> None:
    async with agent_bench() as bench:
        topic = await filled(bench)
        asked = asyncio.ensure_future(fetch(bench, request_of(topic, (0, 3), min_bytes=1, max_wait_ms=5_000)))
        await settle()
        await bench.sequencer.delete_topic(DeleteTopic(topic.topic_id))
        (row,) = rows_of(await fetch(bench, request_of(topic, (0, 0))))
        assert row.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        (row,) = rows_of(await bench.until(asked))
        assert row.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_session_gets_only_changes() -> None:
    async with agent_bench() as bench:
        topic = await filled(bench)
        opened = await fetch(bench, request_of(topic, (0, 3), (1, 0), session_epoch=0))
        assert opened.session_id and len(rows_of(opened)) == 2
        quiet = await fetch(bench, FetchRequest(session_id=opened.session_id, session_epoch=1))
        assert quiet.session_id == opened.session_id and rows_of(quiet) == []
        await produce(bench, (0, batch(b"new")))
        await bench.advance(0.1)
        (row,) = rows_of(await fetch(bench, FetchRequest(session_id=opened.session_id, session_epoch=2)))
        assert (row.partition_index, offsets(row)) == (0, [3])
        refused = await fetch(bench, FetchRequest(session_id=opened.session_id, session_epoch=2))
        assert refused.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH


async def test_a_sequencer_or_store_that_is_away_is_a_retriable_error() -> None:
    async with agent_bench() as bench:
        topic = await filled(bench)
        bench.sequencer.is_away = True
        (row,) = rows_of(await fetch(bench, request_of(topic, (0, 0))))
        assert row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize("is_moved_on", [False, True])
async def test_a_fetch_that_is_cancelled_anywhere_gives_its_memory_back(
    monkeypatch: pytest.MonkeyPatch, is_moved_on: bool
) -> None:
    monkeypatch.setattr(fetch_module, "PARTITIONS_IN_A_TURN", 1)

    async with agent_bench() as bench:
        topic = await filled(bench)
        memory = bench.services.fetch_memory
        number, is_whole = 0, False
        while not is_whole:
            number += 1
            if is_moved_on:
                await bench.sequencer.create_topic(CreateTopic(f"another-{number}", 1, {}))
            request = request_of(topic, (0, 0), (1, 0), (9, 0))
            try:
                held = await CancelledAt(handle(bench.services, context(12, "az-b"), request), number)
                held.release()
                is_whole = True
            except asyncio.CancelledError:
                pass
            assert memory.used == 0, f"cancelled when it waited for the {number}th time"
        assert number > 10, "it waits for the catalog, and gives turns to others"


async def test_an_answer_on_its_way_counts_the_chunks_that_it_keeps_until_it_has_left() -> None:
    async with agent_bench() as bench:
        topic = await bench.topic(partitions=8)
        await produce(bench, *((number, batch(bytes(70_000))) for number in range(8)))
        cold = ChunkCache(bench.store, CacheSettings(), lambda: ALONE)
        bench.services.reader = BatchReader(cold, bench.clock, bench._pool)
        asked = b"".join(encode_request(7, ApiKey.FETCH, 12, request_of(topic, (3, 0)), None))
        reply = await Dispatcher(bench.services)(memoryview(asked)[4:], connection())
        memory = bench.services.fetch_memory
        assert await made(reply) is not None
        assert memory.used < 80_000 and 500_000 < memory.pinned < 600_000
        assert reply.on_sent is not None
        reply.on_sent()
        assert (memory.used, memory.pinned) == (0, 0)


async def test_chunks_that_records_keep_are_counted_while_other_partitions_are_still_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with agent_bench() as bench:
        topic = await bench.topic(partitions=3)
        await produce(bench, (0, batch(bytes(70_000))), (1, batch(bytes(500_000))))
        await produce(bench, (2, batch(b"x")))
        cold = ChunkCache(bench.store, CacheSettings(), lambda: ALONE)
        bench.services.reader = BatchReader(cold, bench.clock, bench._pool)
        get, may_get = bench.store.get_range, asyncio.Event()

        async def get_the_second_later(key: str, start: int, length: int) -> Any:
            if length < 70_000:
                await may_get.wait()
            return await get(key, start, length)

        monkeypatch.setattr(bench.store, "get_range", get_the_second_later)
        memory = bench.services.fetch_memory
        asked = asyncio.ensure_future(handle(bench.services, context(12), request_of(topic, (0, 0), (2, 0))))
        await settle()
        assert not asked.done() and 500_000 < memory.pinned < 600_000
        may_get.set()
        (await asked).release()
        assert (memory.used, memory.pinned) == (0, 0)


async def test_parts_that_may_not_keep_their_chunks_are_copied_in_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with agent_bench() as bench:
        topic = await bench.topic(partitions=8)
        await produce(bench, *((number, batch(bytes(70_000))) for number in range(8)))
        passes: list[int] = []
        for limit, in_a_turn in ((0, 100_000), (0, 1), (bench.services.fetch_memory.limit, 1)):
            cold = ChunkCache(bench.store, CacheSettings(), lambda: ALONE)
            bench.services.reader = BatchReader(cold, bench.clock, bench._pool)
            bench.services.fetch_memory._buffers.limit = limit
            monkeypatch.setattr(fetch_module, "COPIED_IN_A_TURN", in_a_turn)
            asked = asyncio.ensure_future(
                handle(bench.services, context(12), request_of(topic, *((number, 0) for number in range(8))))
            )
            passes.append(0)
            while not asked.done():
                await asyncio.sleep(0)
                passes[-1] += 1
            held = await asked
            assert [sum(map(len, row.records)) > 70_000 for row in rows_of(held.response)] == [True] * 8
            held.release()
        assert passes[1] == passes[0] + 4 == passes[2] + 8


async def test_partitions_that_are_framed_for_one_fetch_are_not_framed_in_one_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with agent_bench() as bench:
        topic = await bench.topic(partitions=8)
        await produce(bench, *((number, batch(b"x")) for number in range(8)))
        monkeypatch.setattr(fetch_module, "FRAMED_AT_ONCE", 1)
        passes, framed, frame = 0, list[int](), MixedReader._frame

        def noted(self: MixedReader, *rest: Any) -> Any:
            framed.append(passes)
            return frame(self, *rest)

        monkeypatch.setattr(MixedReader, "_frame", noted)
        asked = asyncio.ensure_future(fetch(bench, request_of(topic, *((number, 0) for number in range(8)))))
        while not asked.done():
            await asyncio.sleep(0)
            passes += 1
        assert [offsets(row) for row in rows_of(await asked)] == [[0]] * 8
        assert len(set(framed)) == len(framed) == 8


async def side_by_side(bench: AgentBench, rounds: int) -> Topic:
    """Two partitions, old: the first has ten batches in each object, the second one."""
    topic = await bench.topic()
    for _ in range(rounds):
        await produce(bench, (0, batch(b"x" * 5_000)), (1, batch(b"y" * 500)))
    bench.clock.advance(60)
    await settle()
    return topic


async def test_a_reader_of_old_records_gets_ahead_in_no_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BatchReader, "reach_bytes", 4 * 6_000)

    async with agent_bench() as bench:
        topic = await side_by_side(bench, 40)
        at = [0, 0]
        while min(at) < 40:
            asked = request_of(topic, (1, at[1]), (0, at[0]), partition_max_bytes=16_000)
            for row in rows_of(await fetch(bench, asked)):
                at[row.partition_index] += len(offsets(row))
            assert abs(at[0] - at[1]) <= 5
        assert at == [40, 40]


@pytest.mark.parametrize(
    "error",
    [
        SequencerUnavailable("away"),
        SequencerOverloaded("busy"),
        IncarnationChanged("recovered"),
        LeaseLost("expired"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_a_consumer_gets_a_retriable_error_when_the_sequencer_is_away(
    monkeypatch: pytest.MonkeyPatch, error: SequencerError
) -> None:
    async def away(*asked: Any) -> Any:
        raise error

    async with agent_bench() as bench:
        topic = await filled(bench)
        monkeypatch.setattr(bench.services.tail, "find", lambda *asked, **more: None)
        monkeypatch.setattr(bench.sequencer, "find_batches", away)
        (row,) = rows_of(await fetch(bench, request_of(topic, (0, 0))))
        assert row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER, "Java's consumer throws at other codes"


async def test_the_log_says_what_is_corrupt_and_where_to_continue(monkeypatch: pytest.MonkeyPatch) -> None:
    async def corrupt(reader: BatchReader, runs: Any, request: Any) -> Any:
        raise ObjectCorrupt(runs[0].key, 8, 90, "planted")

    async with agent_bench() as bench:
        topic = await bench.topic()
        sent = (batch(b"a", b"b"), batch(b"c", b"d", b"e"), batch(b"f"))
        await asyncio.gather(*(produce(bench, (0, each)) for each in sent))
        monkeypatch.setattr(bench.services.reader, "read_held", lambda runs, request: None)
        monkeypatch.setattr(BatchReader, "read", corrupt)
        with capture_logs() as lines:
            (row,) = rows_of(await fetch(bench, request_of(topic, (0, 3))))
        assert row.error_code == ErrorCode.CORRUPT_MESSAGE
        (line,) = lines  # the batch with offset 3 is in a run with others, and ends before offset 5
        assert (line["topic"], line["partition"], line["offset"], line["next_offset"]) == ("t", 0, 3, 5)
        assert "mixed/" in line["error"] and "`tailrace audit --full`" in line["error"]


async def test_an_unreadable_partition_delays_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BatchReader, "reach_bytes", 4 * 6_000)

    async with agent_bench() as bench:
        topic = await side_by_side(bench, 10)
        asked = request_of(topic, (0, 0), (1, 6), min_bytes=1 << 20, max_wait_ms=20_000)
        _, waits = rows_of(await fetch(bench, asked))
        assert offsets(waits) == []
        asked_for = [
            bench.services.request_sizes.of(TopicPartition(topic.topic_id, each), 1 << 20) for each in (0, 1)
        ]
        assert asked_for == [LEAST_REQUEST_BYTES, LEAST_REQUEST_BYTES]
        monkeypatch.setattr(bench.services.reader, "read_held", lambda runs, request: None)
        read = BatchReader.read

        async def without_the_first(self: BatchReader, runs: Any, request: Any) -> Any:
            if runs[0].partition == 0:
                raise ObjectCorrupt(runs[0].key, 0, 1, "planted")
            return await read(self, runs, request)

        monkeypatch.setattr(BatchReader, "read", without_the_first)
        failed, waits = rows_of(await fetch(bench, request_of(topic, (0, 0), (1, 6))))
        assert (failed.error_code, offsets(waits)) == (ErrorCode.CORRUPT_MESSAGE, [6, 7, 8, 9])
