"""Whatever clients, store and sequencer do, all memory is given back in the end."""

from __future__ import annotations

import random
from typing import Any

import pytest

from agent.fetch.fetch_memory import FetchMemory
from cache.chunk import ChunkId
from tailrace.kafka import ApiKey, encode_request
from tailrace.kafka.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tailrace.kafka.messages.metadata import MetadataRequest
from tests.agent.test_connection import Transport
from tests.agent.test_produce_fast_path import Client, produce
from tests.support.agents import AgentBench, agent_bench, batch, settle
from tests.support.faulty_store import FaultPlan, Faults

MANY = range(1, 40)
BAD_STORE = FaultPlan(
    put=Faults(fails_before=0.3, fails_after=0.2, hangs_after=0.2, hang_seconds=5),
    get=Faults(fails_before=0.3, hangs_before=0.2, hang_seconds=3),
)
SHORT_DEADLINES: dict[str, Any] = {
    "upload_deadline_ms": 1_000,
    "commit_deadline_ms": 2_000,
    "gap_deadline_ms": 500,
}


def fetch(topic: str, wait_ms: int, max_bytes: int) -> bytes:
    wanted = [FetchPartition(number, fetch_offset=0, partition_max_bytes=max_bytes) for number in range(42)]
    request = FetchRequest(
        max_wait_ms=wait_ms, min_bytes=1, max_bytes=max_bytes, session_epoch=-1,
        topics=[FetchTopic(topic, partitions=wanted)],
    )  # fmt: skip
    return b"".join(encode_request(1, ApiKey.FETCH, 11, request, "c"))


def metadata() -> bytes:
    return b"".join(encode_request(1, ApiKey.METADATA, 8, MetadataRequest(None), "c"))


EVENTS = {
    "send": 10, "send half": 1, "stop reading": 2, "read on": 1, "leave": 2, "drain": 1, "wait": 6, "bad store": 1,
    "good store": 1, "no sequencer": 1, "sequencer": 1, "cold": 1,
}  # fmt: skip
"""What happens, and how often."""


def request(luck: random.Random) -> bytes:
    topic = luck.choice(["t", "t", "async", "none"])
    return luck.choice(
        [
            lambda: produce(topic=topic, acks=luck.choice([-1, 1, 0])),
            lambda: produce(batch(b"x" * 100_000), topic=topic),
            lambda: produce(partitions=MANY, acks=luck.choice([-1, 0])),
            lambda: produce(b"junk"),
            lambda: fetch(topic, 0, luck.choice([1, 1 << 20])),
            lambda: fetch(topic, 5_000, 1 << 20),
            metadata,
        ]
    )()


class SlowTransport(Transport):
    """A transport whose client may stop reading."""

    is_stuck = False

    def writelines(self, list_of_data: Any) -> None:
        super().writelines(list_of_data)
        if self.is_stuck:
            assert self.connection is not None
            self.unsent += len(self.sent[-1])
            self.connection.pause_writing()

    def read_on(self) -> None:
        assert self.connection is not None
        self.is_stuck = False
        if self.unsent and not self.closed:
            self.unsent = 0
            self.connection.resume_writing()


class Sender(Client):
    """A client that sends only what its connection reads."""

    transport: SlowTransport

    def __init__(self, bench: AgentBench) -> None:
        super().__init__(bench, budget=bench.memory)
        self.transport = SlowTransport()
        self.transport.connection = self.connection
        self.connection.connection_made(self.transport)
        self.unsent = b""

    def send(self, data: bytes = b"") -> None:
        self.unsent += data
        while self.unsent and not self.transport.is_paused and not self.transport.closed:
            buffer = self.connection.get_buffer(-1)
            taken = min(len(buffer), len(self.unsent))
            buffer[:taken], self.unsent = self.unsent[:taken], self.unsent[taken:]
            self.connection.buffer_updated(taken)


def happen(bench: AgentBench, clients: list[Sender], luck: random.Random) -> str:
    (what,) = luck.choices(list(EVENTS), list(EVENTS.values()))
    client = luck.choice(clients)
    match what:
        case "send":
            client.send(request(luck))
        case "send half":
            client.send(request(luck)[:-10])
        case "stop reading":
            client.transport.is_stuck = True
        case "read on":
            client.transport.read_on()
        case "leave":
            client.transport.close()
        case "drain":
            client.connection.drain()
        case "wait":
            bench.clock.advance(luck.choice([0.0, 0.05, 1.0, 6.0]))
        case "bad store" | "good store":
            bench.store.plan = BAD_STORE if what == "bad store" else FaultPlan()
        case "no sequencer" | "sequencer":
            bench.sequencer.is_away = what == "no sequencer"
        case "cold":
            for commit in bench.sequencer.commits:
                if commit.object is not None:
                    bench.cache.forget(ChunkId(commit.object.key, 0))
    return what


@pytest.mark.parametrize("seed", range(8))
async def test_all_memory_is_given_back(seed: int) -> None:
    luck = random.Random(seed)

    async with agent_bench(memory_budget_bytes=16 << 20, max_rows_per_second=1e6, **SHORT_DEADLINES) as bench:
        await bench.topic("t", 45)
        await bench.topic("async", 45, tailrace_flush="async")
        services = bench.services
        services.fetch_memory = FetchMemory(1 << 20, bench.clock)
        clients = [Sender(bench) for _ in range(4)]
        for _ in range(200):
            if happen(bench, clients, luck) == "wait":
                await settle(luck.choice([1, 5, 30]))
            clients = [Sender(bench) if client.transport.closed else client for client in clients]
            for client in clients:
                client.send()
        bench.store.plan, bench.sequencer.is_away = FaultPlan(), False
        for client in clients:
            client.transport.read_on()
        await bench.advance(40, step=0.5)
        for client in clients:
            client.transport.close()
        await bench.advance(1)
        held = {
            "requests": bench.memory.used,
            "objects of requests": services.request_memory.used,
            "large answers": services.answer_memory.used,
            "records": services.fetch_memory.used,
            "kept buffers": services.fetch_memory.pinned,
            "buffered batches": bench.lane.buffered_bytes,
            "commits": bench.lane.unanswered_commits,
        }
        assert not any(held.values()), held
        assert not bench.memory.is_contended and not services.fetch_memory.is_contended
