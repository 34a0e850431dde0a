"""An agent on a real socket over stores that a test can make fail, and a minimal Kafka client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

from structlog.testing import capture_logs

import sequencer.store.sql.sqlite as sqlite_module
from agent.options import AgentOptions
from agent.security.listener_contexts import ClientSecurity
from agent.server import Agent
from agent.settings import AgentSettings
from agent.telemetry import AgentTelemetry
from agent.telemetry_observers import StoreMetrics
from sequencer.api.errors import SequencerUnavailable
from sequencer.api.topics import CreateTopic, Topic
from sequencer.engine.committer import Committer
from sequencer.settings import SequencerSettings
from sequencer.store.row_store import RowStore
from sequencer.store.sql.store import SqlRowStore
from tailrace.batches.record_batch import split
from tailrace.clock import Clock, Entropy, SystemClock, SystemEntropy
from tailrace.kafka import ApiKey, decode_response, encode_request
from tailrace.kafka.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from tailrace.kafka.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from tailrace.object_store.api import ObjectStore
from tailrace.object_store.memory import MemoryStore
from tailrace.object_store.metered import MeteredStore
from tests.support.faulty_store import FaultyStore
from tests.support.patience import PATIENCE_SECONDS

SEALS_EARLY: dict[str, Any] = {
    "quiet_ms": 0,
    "max_puts_per_second": 10_000,
    "upload_deadline_ms": 120_000,
    "commit_deadline_ms": 120_000,
}
"""An agent's settings for a test. Deadlines are long: a slow disk must not look like a lost answer."""
GIVES_UP_EARLY: dict[str, Any] = {
    "upload_deadline_ms": 1_000,
    "commit_deadline_ms": 1_000,
    "drain_ms": 2_000,
}
"""For a scenario in which the store or the database is unavailable."""
WITHOUT_FSYNC = (*sqlite_module._PRAGMAS, "synchronous = off")
"""A step of a drain has two seconds, and with fsync a slow disk may need these for one write."""
LONG_LEASES = SequencerSettings(session_lease_ms=600_000, agent_lease_ms=600_000)
"""Longer than a test machine may stop, and than an upload's deadline."""


class KafkaSocket:
    """One connection to an agent; one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, port: int) -> KafkaSocket:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def ask(self, api: ApiKey, version: int, request: Any) -> Any:
        self.send(api, version, request)
        return await self.receive(api, version)

    def send(self, api: ApiKey, version: int, request: Any) -> None:
        self._writer.write(b"".join(encode_request(1, api, version, request, "test")))

    async def receive(self, api: ApiKey, version: int) -> Any:
        """Return the next answer. Raises asyncio.IncompleteReadError if the agent closed the connection."""
        size = int.from_bytes(await self._reader.readexactly(4), "big")
        return decode_response(api, version, await self._reader.readexactly(size))[1]

    async def produce(self, batch: bytes, topic: str = "t", partition: int = 0) -> PartitionProduceResponse:
        data = [PartitionProduceData(partition, memoryview(batch))]
        request = ProduceRequest(
            acks=-1, timeout_ms=30_000, topic_data=[TopicProduceData(topic, partition_data=data)]
        )
        answer = await self.ask(ApiKey.PRODUCE, 9, request)
        return cast(PartitionProduceResponse, answer.responses[0].partition_responses[0])

    async def fetch(self, offset: int = 0, topic: str = "t", partition: int = 0) -> PartitionData:
        wish = FetchPartition(partition, fetch_offset=offset, partition_max_bytes=1 << 20)
        answer = await self.ask(ApiKey.FETCH, 12, FetchRequest(topics=[FetchTopic(topic, partitions=[wish])]))
        return cast(PartitionData, answer.responses[0].partitions[0])

    def close(self) -> None:
        self._writer.close()


def batches_of(row: PartitionData) -> list[tuple[int, int]]:
    """Return (base offset, record count) of each batch in a fetch's answer."""
    records = memoryview(bytes(cast(Any, row.records) or b""))
    return [(header.base_offset, header.record_count) for header, _ in split(records)]


class RowStoreThatGoesAway:
    """A row store whose database is unreachable."""

    def __init__(self, inner: RowStore) -> None:
        self._inner = inner
        self.is_away = False

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)

        async def asked(*args: Any, **more: Any) -> Any:
            if self.is_away:
                raise SequencerUnavailable("the database can't be reached (by the test)")
            return await method(*args, **more)

        return asked


@dataclass
class WiredAgent:
    """A running agent and the parts that it runs on."""

    agent: Agent
    sequencer: Committer
    rows: RowStoreThatGoesAway
    store: FaultyStore
    objects: ObjectStore
    clock: Clock
    logs: list[Any]

    def metric(self, name: str, **labels: str) -> float:
        """Return a counter's value; 0 if it was never counted."""
        return self.agent.telemetry.registry.get_sample_value(f"tailrace_{name}", labels) or 0.0

    def told(self, event: str) -> list[Any]:
        """Return the log lines of that event."""
        return [line for line in self.logs if line["event"] == event]

    async def topic(self, name: str = "t", partitions: int = 1) -> Topic:
        created = await self.sequencer.create_topic(CreateTopic(name, partitions, {}))
        assert isinstance(created, Topic)
        return created

    async def client(self) -> KafkaSocket:
        return await KafkaSocket.open(self.agent.kafka_port)

    async def keys(self) -> list[str]:
        """Return the keys of all objects."""
        return [info.key async for info in self.objects.list("")]


@asynccontextmanager
async def wired_agent(
    folder: Path,
    *,
    objects: ObjectStore | None = None,
    clock: Clock | None = None,
    entropy: Entropy | None = None,
    sequencer_settings: SequencerSettings = LONG_LEASES,
    clients: ClientSecurity | None = None,
    **settings: Any,
) -> AsyncIterator[WiredAgent]:
    """Run an agent on a free port over SQLite in `folder`, without fsync, and a faulty store; it drains at the end."""
    clock, entropy = clock or SystemClock(), entropy or SystemEntropy()
    inner = objects or MemoryStore(clock)
    store = FaultyStore(inner, clock, entropy)
    telemetry = AgentTelemetry()
    sql = SqlRowStore(f"sqlite:///{folder}/rows.db", clock=clock, entropy=entropy)
    rows = RowStoreThatGoesAway(sql)
    sequencer = Committer(cast(RowStore, rows), clock, entropy, sequencer_settings)
    with patch.object(sqlite_module, "_PRAGMAS", WITHOUT_FSYNC):
        await sequencer.start()
    agent = Agent(
        AgentOptions(listen_port=0, clients=clients or ClientSecurity()),
        AgentSettings.model_validate({**SEALS_EARLY, **settings}),
        sequencer=sequencer,
        store=MeteredStore(store, clock, StoreMetrics(telemetry.registry)),
        clock=clock,
        entropy=entropy,
        telemetry=telemetry,
    )
    with capture_logs() as logs:
        await agent.start()
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                yield WiredAgent(agent, sequencer, rows, store, inner, clock, logs)
        finally:
            rows.is_away = False
            store.outage.end()
            await agent.drain()
            await sequencer.close()
            await sql.close()
            await store.close()
