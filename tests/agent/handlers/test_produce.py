"""Produce by Kafka's rules: what is refused with which code, and what is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from msgspec import structs

from agent.handlers.accepted_batches import PARTITIONS_IN_A_TURN
from agent.handlers.current_leaders import MAX_NAMED, name_leaders
from agent.handlers.produce import handle
from agent.produce.lanes import Lanes
from agent.services import Deferred
from sequencer.api.agents import RenewAgent
from sequencer.api.reads import FindPartition, FindRequest
from sequencer.api.topics import CreateTopic
from tailrace.batches.record_batch import Compression, MarkerKind, control_batch, crc_of, read_header
from tailrace.batches.records import NewRecord, encode_batch
from tailrace.ids import NIL_TOPIC_ID
from tailrace.kafka import ApiKey, encode_request
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.init_producer_id import InitProducerIdRequest
from tailrace.kafka.messages.produce import (
    LeaderIdAndEpoch,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from tests.agent.test_produce_fast_path import Client
from tests.support.agents import AgentBench, agent_bench, batch, settle
from tests.support.agents import context as context_of
from tests.support.faulty_store import Operation

HOUR_MS = 3_600_000
MANY = 3_000


def request_of(
    *parts: tuple[int, bytes | None], name: str = "t", topic_id: UUID = NIL_TOPIC_ID, acks: int = -1
) -> ProduceRequest:
    data = [
        PartitionProduceData(index, None if records is None else memoryview(records))
        for index, records in parts
    ]
    return ProduceRequest(acks=acks, topic_data=[TopicProduceData(name, topic_id, data)])


async def produce(
    bench: AgentBench, *parts: tuple[int, bytes | None], version: int = 9, **more: Any
) -> list[PartitionProduceResponse]:
    asked = asyncio.ensure_future(bench.ask(ApiKey.PRODUCE, version, request_of(*parts, **more)))
    response = await bench.until(asked)
    return [row for topic in response.responses for row in topic.partition_responses]


def with_bytes(data: bytes, position: int, changed: bytes, *, sum_again: bool) -> bytes:
    out = bytearray(data)
    out[position : position + len(changed)] = changed
    if sum_again:
        out[17:21] = crc_of(out).to_bytes(4, "big")
    return bytes(out)


async def test_each_batch_gets_its_offset() -> None:
    async with agent_bench() as bench:
        await bench.topic()
        assert [
            row.base_offset for row in await produce(bench, (0, batch(b"1", b"2")), (1, batch(b"3")))
        ] == [0, 0]
        (row,) = await produce(bench, (0, batch(b"4")))
        assert (row.error_code, row.base_offset, row.log_start_offset, row.log_append_time_ms) == (
            0,
            2,
            0,
            -1,
        )


async def test_a_refused_batch_does_not_hinder_the_others() -> None:
    async with agent_bench() as bench:
        await bench.topic()
        broken = with_bytes(batch(b"hello"), 70, b"\xff", sum_again=False)
        bad, good, unknown = await produce(bench, (0, broken), (1, batch(b"1")), (9, batch(b"1")))
        assert (bad.error_code, bad.base_offset) == (ErrorCode.CORRUPT_MESSAGE, -1)
        assert "CRC" in (bad.error_message or "")
        assert (good.error_code, good.base_offset) == (0, 0)
        assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (lambda data: with_bytes(data, 57, b"\0\0\0\7", sum_again=True), ErrorCode.INVALID_RECORD),
        (lambda data: with_bytes(data, 23, b"\0\0\0\7", sum_again=True), ErrorCode.INVALID_RECORD),
        (lambda data: with_bytes(data, 16, b"\1", sum_again=True), ErrorCode.INVALID_RECORD),
        (lambda data: with_bytes(data, 16, b"\3", sum_again=True), ErrorCode.CORRUPT_MESSAGE),
        (lambda data: with_bytes(data, 21, b"\0\7", sum_again=True), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (lambda data: data[:-3], ErrorCode.CORRUPT_MESSAGE),
        (lambda data: data[:20], ErrorCode.CORRUPT_MESSAGE),
        (lambda data: data + data, ErrorCode.INVALID_RECORD),
        (lambda data: b"", ErrorCode.INVALID_RECORD),
        (lambda data: None, ErrorCode.INVALID_RECORD),
    ],
    ids=[
        "count",
        "last delta",
        "magic",
        "unknown magic",
        "codec",
        "cut",
        "cut header",
        "two batches",
        "empty",
        "null",
    ],
)
async def test_a_batch_that_is_not_sound_is_refused(
    spoil: Callable[[bytes], bytes | None], code: ErrorCode
) -> None:
    async with agent_bench() as bench:
        await bench.topic()
        (row,) = await produce(bench, (0, spoil(batch(b"1", b"2"))))
        assert (row.error_code, row.base_offset) == (code, -1)
        assert bool(row.record_errors) == (code is ErrorCode.INVALID_RECORD)
        assert not bench.sequencer.commits


@pytest.mark.parametrize(
    ("version", "codec", "code"),
    [
        (6, Compression.ZSTD, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (6, Compression.LZ4, ErrorCode.NONE),
        (7, Compression.ZSTD, ErrorCode.NONE),
    ],
)
async def test_zstd_is_refused_before_the_version_that_knows_it(
    version: int, codec: Compression, code: ErrorCode
) -> None:
    async with agent_bench() as bench:
        await bench.topic()
        data = encode_batch([NewRecord(b"k", b"v")], timestamps=[0], compression=codec)
        (row,) = await produce(bench, (0, data), version=version)
        assert row.error_code == code
        assert bool(bench.sequencer.commits) == (code is ErrorCode.NONE)


async def test_a_batch_above_the_topics_limit_is_too_large() -> None:
    async with agent_bench() as bench:
        await bench.topic(max_message_bytes="200")
        large, small = await produce(bench, (0, batch(b"x" * 200)), (1, batch(b"x")))
        assert (large.error_code, small.error_code) == (ErrorCode.MESSAGE_TOO_LARGE, 0)


async def test_times_outside_of_the_topics_bounds_are_refused() -> None:
    async with agent_bench() as bench:
        await bench.topic(
            message_timestamp_before_max_ms=str(HOUR_MS), message_timestamp_after_max_ms=str(HOUR_MS)
        )
        now = bench.clock.wall_ms()
        early, late = await produce(
            bench, (0, batch(b"1", at=now - HOUR_MS - 60_000)), (1, batch(b"1", at=now + HOUR_MS + 60_000))
        )
        assert early.error_code == late.error_code == ErrorCode.INVALID_TIMESTAMP
        (row,) = await produce(bench, (0, batch(b"1", at=now - HOUR_MS + 60_000)))
        assert row.error_code == 0


async def test_a_topic_may_stamp_its_own_time() -> None:
    async with agent_bench() as bench:
        topic = await bench.topic(message_timestamp_type="LogAppendTime")
        (row,) = await produce(bench, (0, batch(b"1", at=1)))
        assert row.error_code == 0
        assert row.log_append_time_ms == bench.clock.wall_ms() or row.log_append_time_ms > 1_600_000_000_000
        found = await bench.sequencer.find_batches(
            FindRequest([FindPartition(topic.topic_id, 0, 0, 1 << 20)])
        )
        (run_,) = found.partitions[0].runs
        stored = await bench.objects.get_range(run_.key, run_.start, run_.length)
        assert read_header(stored).max_timestamp == row.log_append_time_ms


async def test_a_marker_from_a_client_is_refused() -> None:
    async with agent_bench() as bench:
        await bench.topic()
        marker = control_batch(MarkerKind.COMMIT, producer_id=1, producer_epoch=0, timestamp_ms=0)
        (row,) = await produce(bench, (0, marker), version=12)
        assert row.error_code == ErrorCode.INVALID_RECORD
        assert not bench.sequencer.commits


async def test_a_transactional_batch_needs_a_transactional_id() -> None:
    async with agent_bench() as bench:
        await bench.topic()
        data = encode_batch(
            [NewRecord(None, b"v")],
            timestamps=[bench.clock.wall_ms()],
            producer_id=1,
            producer_epoch=0,
            base_sequence=0,
            is_transactional=True,
        )
        ours, other = await produce(bench, (0, data), (1, batch(b"1")))
        assert ours.error_code == other.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


async def test_an_unknown_topic_is_refused_by_name_and_by_id() -> None:
    async with agent_bench() as bench:
        (row,) = await produce(bench, (0, batch(b"1")), name="nowhere")
        assert row.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        (row,) = await produce(bench, (0, batch(b"1")), version=13, topic_id=UUID(int=5))
        assert row.error_code == ErrorCode.UNKNOWN_TOPIC_ID


async def test_version_13_names_topics_by_id() -> None:
    async with agent_bench() as bench:
        topic = await bench.topic()
        response = await bench.until(
            asyncio.ensure_future(
                bench.ask(
                    ApiKey.PRODUCE, 13, request_of((0, batch(b"1")), name="ignored", topic_id=topic.topic_id)
                )
            )
        )
        (answered,) = response.responses
        assert answered.topic_id == topic.topic_id
        assert [row.error_code for row in answered.partition_responses] == [0]


async def test_a_topic_created_elsewhere_is_found_without_waiting() -> None:
    async with agent_bench() as bench:
        await bench.sequencer.create_topic(CreateTopic("fresh", 1, {}))
        (row,) = await produce(bench, (0, batch(b"1")), name="fresh")
        assert row.error_code == 0


async def test_the_acks_and_versions_that_cannot_be_are_refused() -> None:
    async with agent_bench() as bench:
        await bench.topic()
        (row,) = await produce(bench, (0, batch(b"1")), acks=2)
        assert row.error_code == ErrorCode.INVALID_REQUIRED_ACKS
        (row,) = await produce(bench, (0, batch(b"1")), version=2)
        assert row.error_code == ErrorCode.UNSUPPORTED_VERSION
        (row,) = await produce(bench, (0, batch(b"1")), acks=1)
        assert row.error_code == 0


async def test_with_acks_0_nothing_is_answered_and_all_is_stored() -> None:
    async with agent_bench() as bench:
        await bench.topic()
        asked = asyncio.ensure_future(bench.ask(ApiKey.PRODUCE, 9, request_of((0, batch(b"1")), acks=0)))
        assert await bench.until(asked) is None
        assert await bench.ask(ApiKey.PRODUCE, 9, request_of((7, batch(b"1")), acks=0)) is None
        (row,) = await produce(bench, (0, batch(b"2")))
        assert row.base_offset == 1


@pytest.mark.parametrize(
    ("refused", "others"),
    [
        ("unknown topic", 0),
        ("keyless", 0),
        *[
            (refused, others)
            for refused in ("unknown partition", "corrupt", "not stored", None)
            for others in (0, MANY)
        ],
    ],
)
async def test_with_acks_0_a_refused_batch_ends_the_connection(refused: str | None, others: int) -> None:
    async with agent_bench(max_rows_per_second=1e6) as bench:
        await bench.topic(partitions=2 + others)
        await bench.topic("compacted", cleanup_policy="compact")
        records = {"corrupt": b"x" * 61, "keyless": encode_batch([NewRecord(None, b"1")], timestamps=[1])}
        topic = {"unknown topic": "nowhere", "keyless": "compacted"}.get(refused or "", "t")
        if refused == "not stored":
            bench.store.outage.begin(Operation.PUT)
        good = [PartitionProduceData(number, memoryview(batch(b"1"))) for number in range(1, 2 + others)]
        index = 2 + others if refused == "unknown partition" else 0
        bad = PartitionProduceData(index, memoryview(records.get(refused or "", batch(b"1"))))
        request = ProduceRequest(acks=0, topic_data=[TopicProduceData(topic, partition_data=[*good, bad])])
        client = Client(bench)
        client.feed(b"".join(encode_request(7, ApiKey.PRODUCE, 9, request, "c")))
        await settle(200)
        await bench.advance(12, step=0.5)
        assert client.transport.closed == (refused is not None)
        assert client.transport.sent == []
        assert client.budget.used == bench.services.request_memory.used == 0
        failures = bench.services.telemetry.registry.get_sample_value
        assert not failures("tailrace_request_failures_total", {"api": "PRODUCE"})
        if refused in ("unknown partition", "corrupt", None):
            (row,) = await produce(bench, (1, batch(b"2")))
            assert row.base_offset == 1, "the others are stored"


async def test_a_forgotten_producer_gets_the_log_start_once_no_agent_can_have_its_earlier_batches() -> None:
    """With it Java's producer raises its epoch and sends the batch again."""

    async with agent_bench() as bench:
        await bench.topic()
        request = InitProducerIdRequest(transactional_id=None)
        producer = (await bench.ask(ApiKey.INIT_PRODUCER_ID, 5, request)).producer_id
        started, answered = bench.clock.monotonic(), []
        for _ in range(12):
            (row,) = await produce(bench, (0, batch(b"1", producer=producer, sequence=9)))
            assert row.error_code == ErrorCode.UNKNOWN_PRODUCER_ID
            answered.append((bench.clock.monotonic() - started, row.log_start_offset))
        assert {log_start for seconds, log_start in answered if seconds < 45} == {-1}
        assert {log_start for seconds, log_start in answered if seconds > 55} == {0}
        (row,) = await produce(bench, (0, batch(b"1", producer=producer, epoch=1, sequence=0)))
        assert (row.error_code, row.base_offset) == (0, 0)


async def test_a_store_that_fails_is_a_retriable_error() -> None:
    async with agent_bench() as bench:
        await bench.topic()
        bench.store.outage.begin(Operation.PUT)
        (row,) = await produce(bench, (0, batch(b"1")))
        assert row.error_code == ErrorCode.KAFKA_STORAGE_ERROR


async def test_a_sequencer_that_is_away_is_a_retriable_error() -> None:
    async with agent_bench(commit_deadline_ms=500) as bench:
        await bench.topic()
        bench.sequencer.is_away = True
        (known,) = await produce(bench, (0, batch(b"1")))
        (unknown,) = await produce(bench, (0, batch(b"1")), name="asked-for")
        assert known.error_code == unknown.error_code == ErrorCode.REQUEST_TIMED_OUT


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.ZSTD])
async def test_a_compacted_topic_refuses_records_without_a_key_and_says_which(
    compression: Compression,
) -> None:
    async with agent_bench() as bench:
        await bench.topic(cleanup_policy="compact,delete")
        records = [NewRecord(None, b"1"), NewRecord(b"", b"2"), NewRecord(None, None), NewRecord(b"k", None)]
        mixed = encode_batch(records, timestamps=[1, 2, 3, 4], compression=compression)
        refused, stored = await produce(bench, (0, mixed), (1, batch(b"1", b"2")))
        assert (refused.error_code, refused.base_offset) == (ErrorCode.INVALID_RECORD, -1)
        assert [error.batch_index for error in refused.record_errors] == [0, 2]
        assert refused.error_message == "2 records have no key, which a compacted topic needs"
        assert (stored.error_code, stored.base_offset) == (0, 0)


async def test_records_of_a_compacted_topic_that_cannot_be_read_are_refused() -> None:
    async with agent_bench() as bench:
        await bench.topic(cleanup_policy="compact")
        broken = with_bytes(batch(b"1"), 61, b"\xff", sum_again=True)
        (row,) = await produce(bench, (0, broken))
        assert row.error_code == ErrorCode.INVALID_RECORD


async def test_an_agent_that_leaves_sends_producers_elsewhere_but_for_those_who_want_no_answer() -> None:
    async with agent_bench() as bench:
        topic = await bench.topic()
        bench.identity.is_leaving = True
        (row,) = await produce(bench, (0, batch(b"elsewhere")))
        assert row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        await bench.ask(ApiKey.PRODUCE, 9, request_of((0, batch(b"kept")), acks=0))
        await bench.lane.flush(5)
        found = await bench.sequencer.find_batches(
            FindRequest([FindPartition(topic.topic_id, 0, 0, 1 << 20)])
        )
        assert found.partitions[0].high_watermark == 1


@pytest.fixture
def buffered(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the lanes' buffers are given from now on."""
    given: list[Any] = []
    really_submit = Lanes.submit

    def submit(lanes: Lanes, batches: Any) -> None:
        given.extend(batch.data for _, _, batch in batches)
        really_submit(lanes, batches)

    monkeypatch.setattr(Lanes, "submit", submit)
    return given


async def test_refused_batches_are_not_kept_with_the_accepted_ones_of_a_request(buffered: list[Any]) -> None:
    async with agent_bench() as bench:
        await bench.topic()
        (row,) = await produce(bench, (0, batch(b"x" * 1000)))
        assert row.base_offset == 0
        kept, refused = await produce(bench, (0, batch(b"y" * 1000)), (99, b"z" * 5_000))
        assert kept.base_offset == 1 and refused.error_code
        assert [type(data) for data in buffered] == [memoryview, bytes]


@pytest.mark.parametrize("count", [1, PARTITIONS_IN_A_TURN + 1])
async def test_a_batch_with_a_new_time_in_front_does_not_keep_what_was_refused(
    buffered: list[Any], count: int
) -> None:
    async with agent_bench() as bench:
        await bench.topic("stamps", message_timestamp_type="LogAppendTime")
        await bench.topic(partitions=count, cleanup_policy="compact")
        request = request_of((0, batch(b"x" * 100)), name="stamps")
        kept = [(index, batch(b"y" * 100)) for index in range(count)]
        request.topic_data += request_of(*kept, (count, b"z" * 500 * count)).topic_data
        asked = asyncio.ensure_future(bench.ask(ApiKey.PRODUCE, 9, request))
        stamped, others = (await bench.until(asked)).responses
        assert [each.error_code for each in stamped.partition_responses] == [0]
        assert [each.error_code for each in others.partition_responses[:-1]] == [0] * count
        assert [type(data) for data in buffered] == [bytearray] + [bytes] * count


async def test_a_producer_in_a_transaction_is_sent_away_only_when_it_gets_the_leader_at_once() -> None:
    async with agent_bench() as bench:
        await bench.topic()
        bench.identity.is_leaving = True
        request = request_of((0, batch(b"in a transaction")))
        request.transactional_id = "t"
        refused = await handle(bench.services, context_of(9), request)
        assert isinstance(refused, ProduceResponse)
        assert refused.responses[0].partition_responses[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        stored = await handle(bench.services, structs.replace(context_of(9), is_first_waiting=False), request)
        assert isinstance(stored, Deferred)
        ready = asyncio.get_running_loop().create_future()
        stored.then(ready.set_result)
        await bench.until(ready)
        answer = stored.response()
        assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE


async def test_librdkafka_in_a_transaction_gets_the_leader_and_its_batch_is_stored() -> None:
    async with agent_bench() as bench:
        topic = await bench.topic()
        other = await bench.join("az-a", 2)
        leaving = RenewAgent(bench.identity.broker_id, bench.identity.lease_epoch, True)
        await bench.sequencer.renew_agent(leaving)
        ring = (await bench.services.catalog.refresh()).ring
        bench.identity.is_leaving = True
        request = request_of((0, batch(b"in a transaction")), (topic.partitions, b"of no partition"))
        request.transactional_id = "t"
        asker = structs.replace(context_of(10), client_software="librdkafka/2.16.0")
        stored = await handle(bench.services, asker, request)
        assert isinstance(stored, Deferred)
        ready = asyncio.get_running_loop().create_future()
        stored.then(ready.set_result)
        await bench.until(ready)
        answer = stored.response()
        row, refused = answer.responses[0].partition_responses
        assert row.error_code == ErrorCode.NONE and row.base_offset == 0
        assert refused.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert row.current_leader == LeaderIdAndEpoch(other.broker_id, ring.generation)
        assert [(each.node_id, each.host, each.port) for each in answer.node_endpoints] == [
            (member.broker_id, member.info.host, member.info.port) for member in ring.members
        ]
        older = await handle(bench.services, structs.replace(asker, api_version=9), request)
        assert isinstance(older, Deferred), "it can't be told, and is served"


async def test_an_answer_names_few_leaders_and_agents_however_large_request_and_ring_are() -> None:
    async with agent_bench() as bench:
        topic = await bench.topic(partitions=MAX_NAMED + 10)
        for number in range(2, 21):
            await bench.join("az-a", number)
        ring = (await bench.services.catalog.refresh()).ring
        rows = [PartitionProduceResponse(index) for index in range(topic.partitions)]
        response = ProduceResponse([TopicProduceResponse("t", NIL_TOPIC_ID, rows)])
        known = bench.services.catalog.snapshot.by_name["t"]
        name_leaders(bench.services, context_of(10), response, [known])
        leaders = {row.current_leader.leader_id for row in rows[:1]}
        assert all(row.current_leader.leader_epoch == ring.generation for row in rows[:MAX_NAMED])
        assert all(row.current_leader == LeaderIdAndEpoch() for row in rows[MAX_NAMED:])
        few = ProduceResponse([TopicProduceResponse("t", NIL_TOPIC_ID, rows[:1])])
        name_leaders(bench.services, context_of(10), few, [known])
        assert {each.node_id for each in few.node_endpoints} == leaders
