"""Clients above their quotas: throttle times and muted connections. All time is simulated."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from agent.connection import KafkaConnection
from agent.dispatch import Dispatcher
from agent.memory_budget import MemoryBudget
from agent.quotas.quotas import MAX_HOLDERS
from sequencer.api.topics import AlterConfig, ConfigChange, ConfigOperation, ConfigScope
from tailrace.kafka import ApiKey, decode_response, encode_request
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.create_topics import CreatableTopic, CreateTopicsRequest
from tailrace.kafka.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tailrace.kafka.messages.metadata import MetadataRequest, MetadataRequestTopic
from tailrace.kafka.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tailrace.quotas import QuotaEntity
from tests.agent.test_connection import Transport
from tests.support.agents import AgentBench, agent_bench, batch, settle
from tests.support.frames import frames_of
from tests.support.wire import wired_agent

RATE = 10_000
ALL_CLIENTS = QuotaEntity(client_id="")


async def set_quota(bench: AgentBench, entity: QuotaEntity = ALL_CLIENTS, **limits: float) -> None:
    changes = [ConfigChange(key, ConfigOperation.SET, repr(value)) for key, value in limits.items()]
    await bench.sequencer.alter_config(AlterConfig(ConfigScope.QUOTA, entity.text, changes))
    await bench.services.catalog.refresh()


class Client:
    """One connection over a transport that only remembers. It sends whenever it is read."""

    def __init__(self, bench: AgentBench, client_id: str = "c", max_inflight: int = 5) -> None:
        self.client_id = client_id
        self.max_inflight = max_inflight
        self.transport = Transport()
        self.sent_bytes = 0
        self.requests = 0
        self.connection = KafkaConnection(
            Dispatcher(bench.services),
            MemoryBudget(8 << 20),
            max_frame_bytes=1 << 20,
            max_inflight=64,
            on_close=lambda connection: None,
            monotonic=bench.clock.monotonic,
        )
        self.transport.connection = self.connection
        self.connection.connection_made(self.transport)

    def send(self, api: ApiKey, version: int, request: Any) -> None:
        frame = b"".join(encode_request(7, api, version, request, self.client_id))
        self.requests += 1
        self.sent_bytes += len(frame)
        while frame:
            buffer = self.connection.get_buffer(-1)
            taken = min(len(buffer), len(frame))
            buffer[:taken] = frame[:taken]
            self.connection.buffer_updated(taken)
            frame = frame[taken:]

    def send_if_read(self, api: ApiKey, version: int, request: Any) -> None:
        """As a client with so many requests in flight: nothing while the agent does not read."""
        while not self.transport.is_paused and self.requests - len(self.answers) < self.max_inflight:
            self.send(api, version, request)

    @property
    def answers(self) -> list[bytes]:
        return list(frames_of(b"".join(self.transport.sent)))

    def answer(self, api: ApiKey, version: int, number: int = -1) -> Any:
        return decode_response(api, version, memoryview(self.answers[number])[4:])[1]


def produced(value: bytes) -> ProduceRequest:
    data = [PartitionProduceData(0, memoryview(batch(value)))]
    return ProduceRequest(acks=-1, topic_data=[TopicProduceData("t", partition_data=data)])


def fetched(offset: int = 0) -> FetchRequest:
    return FetchRequest(
        max_bytes=50 << 20,
        topics=[
            FetchTopic("t", partitions=[FetchPartition(0, fetch_offset=offset, partition_max_bytes=1 << 20)])
        ],
    )


async def test_a_producer_of_all_it_can_is_held_to_its_rate_by_counted_bytes() -> None:
    async with agent_bench() as bench:
        await bench.topic()
        await set_quota(bench, producer_byte_rate=RATE)
        client = Client(bench)
        value = bytes(3_000)
        for _ in range(60 * 4):
            client.send_if_read(ApiKey.PRODUCE, 9, produced(value))
            await bench.advance(0.25, step=0.25)
        # A burst of ten samples, and a request in flight, come on top.
        assert RATE * 55 <= client.sent_bytes <= RATE * 72
        throttled = [
            client.answer(ApiKey.PRODUCE, 9, at).throttle_time_ms for at in range(len(client.answers))
        ]
        assert throttled[0] == 0 and max(throttled) > 0
        assert bench.services.telemetry.registry.get_sample_value(
            "tailrace_throttle_seconds_total",
            {"quota": "producer_byte_rate", "user": "", "client_id": "c", "ip": ""},
        )


async def test_a_muted_connection_answers_what_it_took_and_reads_on_when_the_wait_is_over() -> None:
    async with agent_bench() as bench:
        await bench.topic()
        await set_quota(bench, producer_byte_rate=100)
        client = Client(bench)
        client.send(ApiKey.PRODUCE, 9, produced(bytes(1_900)))
        await bench.advance(1)
        told = client.answer(ApiKey.PRODUCE, 9).throttle_time_ms
        assert 0 < told < 20_000
        assert client.transport.is_paused
        client.send(ApiKey.METADATA, 9, MetadataRequest())
        await bench.advance(told / 1_000 - 2, step=0.5)
        assert len(client.transport.sent) == 1
        await bench.advance(2)
        assert len(client.transport.sent) == 2 and not client.transport.is_paused


async def test_a_drain_does_not_wait_for_a_muted_client() -> None:
    async with agent_bench() as bench:
        await bench.topic()
        await set_quota(bench, producer_byte_rate=1)
        client = Client(bench)
        client.send(ApiKey.PRODUCE, 9, produced(bytes(5_000)))
        client.send(ApiKey.METADATA, 9, MetadataRequest())
        await settle()
        client.connection.drain()
        await bench.advance(1)
        assert len(client.transport.sent) == 1 and client.transport.closed


async def test_a_consumer_above_its_rate_gets_no_records_until_it_has_waited() -> None:
    async with agent_bench() as bench:
        await bench.topic()
        writer = Client(bench, "writer")
        writer.send(ApiKey.PRODUCE, 9, produced(bytes(30_000)))
        await bench.advance(1)
        await set_quota(bench, QuotaEntity(client_id="reader"), consumer_byte_rate=1_000)
        first, second = Client(bench, "reader"), Client(bench, "reader")
        first.send(ApiKey.FETCH, 12, fetched())
        await bench.advance(1)
        answer = first.answer(ApiKey.FETCH, 12)
        assert len(answer.responses[0].partitions[0].records) > 30_000
        assert answer.throttle_time_ms == pytest.approx(20_000, rel=0.1)
        second.send(ApiKey.FETCH, 12, fetched())
        await settle()
        answer = second.answer(ApiKey.FETCH, 12)
        assert not answer.responses and answer.throttle_time_ms > 10_000
        other = Client(bench, "other")
        other.send(ApiKey.FETCH, 12, fetched())
        await bench.advance(1)
        assert other.answer(ApiKey.FETCH, 12).responses


async def test_time_on_the_loop_counts_for_request_percentage() -> None:
    async with agent_bench() as bench:
        await bench.topic()
        await set_quota(bench, request_percentage=1.0)
        client = Client(bench)
        refresh = bench.services.catalog.refresh

        async def slow() -> Any:
            bench.clock.advance(0.2)  # as a handler that computes for so long
            return await refresh()

        bench.services.catalog.refresh = slow  # type: ignore[method-assign]
        client.send(ApiKey.METADATA, 9, MetadataRequest())
        await settle()
        assert client.answer(ApiKey.METADATA, 9).throttle_time_ms == 1_000


async def test_an_agent_without_quotas_opens_no_account() -> None:
    async with agent_bench() as bench:
        await bench.services.catalog.refresh()
        assert not bench.services.quotas.is_on
        await set_quota(bench, QuotaEntity(ip=""), connection_creation_rate=3)
        assert not bench.services.quotas.is_on


async def test_connections_of_an_address_above_its_rate_are_not_counted() -> None:
    async with agent_bench() as bench:
        await set_quota(bench, QuotaEntity(ip=""), connection_creation_rate=1)
        quotas = bench.services.quotas
        waits = [quotas.opened("10.0.0.1") for _ in range(30)]
        assert waits == [0.0] * 10 + [1.0] * 20
        assert quotas.opened("10.0.0.1") == 1.0 and quotas.opened("10.0.0.2") == 0.0
        bench.clock.advance(11)
        assert quotas.opened("10.0.0.1") == 0.0


async def test_clients_that_are_remembered_are_bounded_in_number() -> None:
    async with agent_bench() as bench:
        await set_quota(bench, QuotaEntity(ip=""), connection_creation_rate=1)
        quotas = bench.services.quotas
        for number in range(MAX_HOLDERS * 2):
            quotas.opened(str(number))
        assert len(quotas._meters) <= MAX_HOLDERS


async def test_a_client_above_its_quota_is_remembered_however_many_others_come() -> None:
    async with agent_bench() as bench:
        await set_quota(bench, QuotaEntity(ip=""), connection_creation_rate=1)
        quotas = bench.services.quotas
        assert [quotas.opened("10.0.0.1") for _ in range(11)][-1]
        for number in range(MAX_HOLDERS * 2):
            quotas.opened(str(number))
        assert quotas.opened("10.0.0.1")


async def test_the_smallest_quota_makes_a_client_wait_for_as_long_as_can_be_said() -> None:
    async with agent_bench() as bench:
        await bench.topic("t")
        await set_quota(bench, controller_mutation_rate=5e-324)
        client = Client(bench)
        request = CreateTopicsRequest(topics=[CreatableTopic("u", 1, 1)], timeout_ms=1_000)
        for _ in range(2):
            client.send(ApiKey.CREATE_TOPICS, 5, request)
        await settle()
        assert client.answer(ApiKey.CREATE_TOPICS, 5, 0).throttle_time_ms == 2**31 - 1


async def test_a_connection_above_its_addresss_rate_is_not_read_and_is_closed(tmp_path: Path) -> None:
    async with wired_agent(tmp_path) as wired:
        change = ConfigChange("connection_creation_rate", ConfigOperation.SET, "1")
        entity = QuotaEntity(ip="127.0.0.1")
        await wired.sequencer.alter_config(AlterConfig(ConfigScope.QUOTA, entity.text, [change]))
        await wired.agent.catalog.refresh()
        clients = [await wired.client() for _ in range(12)]
        await clients[0].ask(ApiKey.METADATA, 9, MetadataRequest())
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await clients[-1].ask(ApiKey.METADATA, 9, MetadataRequest())
        assert wired.metric("closed_connections_total", reason="connection_creation_rate") >= 1
        for client in clients:
            client.close()


@pytest.mark.parametrize(("version", "refused"), [(7, 1), (5, 0)])
async def test_partitions_above_the_mutation_rate_are_refused_or_waited_for(
    version: int, refused: int
) -> None:
    async with agent_bench() as bench:
        await set_quota(bench, controller_mutation_rate=1)
        topics = [CreatableTopic("a", 12, 1), CreatableTopic("b", 1, 1)]
        client = Client(bench)
        client.send(ApiKey.CREATE_TOPICS, version, CreateTopicsRequest(topics))
        await bench.advance(1)
        answer = client.answer(ApiKey.CREATE_TOPICS, version)
        codes = sorted(row.error_code for row in answer.topics)
        assert codes == [0] * (2 - refused) + [ErrorCode.THROTTLING_QUOTA_EXCEEDED] * refused
        assert answer.throttle_time_ms > 0


async def test_topics_that_are_created_by_a_request_for_metadata_count_for_the_mutation_rate() -> None:
    async with agent_bench() as bench:
        await set_quota(bench, controller_mutation_rate=1)
        client = Client(bench)
        named = [MetadataRequestTopic(name=f"t{number}") for number in range(20)]
        client.send(ApiKey.METADATA, 9, MetadataRequest(named))
        await bench.advance(1)
        answer = client.answer(ApiKey.METADATA, 9)
        codes = Counter(row.error_code for row in answer.topics)
        created = len(bench.services.catalog.snapshot.by_name)
        assert codes == {ErrorCode.NONE: created, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: 20 - created}
        assert 0 < created <= 12, "the burst"
        assert answer.throttle_time_ms > 0
