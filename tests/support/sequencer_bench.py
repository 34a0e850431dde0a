"""A sequencer for tests: one agent, one session, one topic, and shorthands to use them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from uuid import UUID

import pytest

from sequencer.api.agents import AgentInfo, AgentLease
from sequencer.api.commits import (
    BatchError,
    CommitAnswer,
    CommitRequest,
    ObjectDescription,
    ObjectKind,
    OpenSession,
    RunProposal,
    SessionGrant,
    uploaded_key,
)
from sequencer.api.compaction import CompactionRequest, ReplacementRun, SwapRequest, TakeLease
from sequencer.api.interface import Sequencer
from sequencer.api.reads import (
    FindPartition,
    FindRequest,
    FoundPartition,
    OffsetQuery,
    OffsetResult,
    OffsetsRequest,
)
from sequencer.api.topics import CreateTopic, Topic
from sequencer.settings import SequencerSettings
from tailrace.batches.mixed_object import BatchCoordinates
from tests.support.hooked_rows import HookedRowStore
from tests.support.sequencers import Factory, Opened

SETTINGS = SequencerSettings(
    sweep_interval_ms=1_000, max_topics=20, max_partitions_per_topic=100, max_groups=20
)
T0 = 1_700_000_000_000


STORED = BatchError.NONE


def info(name: str) -> AgentInfo:
    return AgentInfo(name, 9092, name, 0, 9644, "zone-a", "0", UUID(int=len(name)))


def batch(
    count: int = 1, at: int = T0, producer: int = -1, epoch: int = 0, sequence: int = -1
) -> BatchCoordinates:
    is_idempotent = producer >= 0
    return BatchCoordinates(100, count, at, at, producer, epoch if is_idempotent else -1, sequence, 0)


@dataclass
class Bench:
    """A sequencer with one agent, one session and one topic of two partitions, and shorthands to use them."""

    opened: Opened
    agent: AgentLease = field(init=False)
    session: SessionGrant = field(init=False)
    topic: Topic = field(init=False)
    numbers: dict[UUID, int] = field(default_factory=dict)
    objects: int = 0

    @property
    def sequencer(self) -> Sequencer:
        return self.opened.sequencer

    @property
    def store(self) -> HookedRowStore:
        """The rows, whose writes a test can hold or fail, and which a second committer can use. Skips the test if this
        kind of sequencer has others."""
        if self.opened.store is None:
            pytest.skip("the rows of this sequencer are not in memory")
        return self.opened.store

    async def prepare(self) -> None:
        self.agent = await self.sequencer.register_agent(info("a"))
        self.session = await self.open()
        self.topic = await self.sequencer.create_topic(CreateTopic("t", 2, {}))

    async def open(self, predecessor: UUID | None = None) -> SessionGrant:
        return await self.sequencer.open_session(
            OpenSession(self.agent.broker_id, self.agent.epoch, predecessor)
        )

    def stored(self, session: SessionGrant, number: int | None = None) -> ObjectDescription:
        """Describe an object under the session's prefix, of this number's commit if one is given."""
        self.objects += 1
        key = f"{session.prefix}{self.objects}" if number is None else uploaded_key(session.prefix, number)
        return ObjectDescription(UUID(int=self.objects), ObjectKind.MIXED, key, 20_000, 0, 10_000, T0)

    def request(
        self,
        *batches: BatchCoordinates,
        partition: int = 0,
        topic: Topic | None = None,
        session: SessionGrant | None = None,
        number: int | None = None,
        stored: ObjectDescription | None = None,
        transactions: list[int] | None = None,
    ) -> CommitRequest:
        session = session or self.session
        if number is None:
            number = self.numbers.get(session.session_id, 0)
            self.numbers[session.session_id] = number + 1
        length = sum(one.length for one in batches)
        topic_id = (topic or self.topic).topic_id
        run = RunProposal(topic_id, partition, 8, length, list(batches), transactions or [])
        return CommitRequest(session.session_id, number, 0, stored or self.stored(session, number), [run])

    async def commit(self, *batches: BatchCoordinates, **more: object) -> list[tuple[BatchError, int]]:
        answer = await self.sequencer.commit(self.request(*batches, **more))  # type: ignore[arg-type]
        return outcomes(answer)

    async def find(self, offset: int = 0, partition: int = 0, max_bytes: int = 1 << 30) -> FoundPartition:
        asked = FindPartition(self.topic.topic_id, partition, offset, max_bytes)
        return (await self.sequencer.find_batches(FindRequest([asked]))).partitions[0]

    async def find_number(self) -> int:
        return (await self.sequencer.find_batches(FindRequest([]))).commit_number

    async def look_up(self, timestamp: int, partition: int = 0) -> OffsetResult:
        query = OffsetQuery(self.topic.topic_id, partition, timestamp)
        return (await self.sequencer.list_offsets(OffsetsRequest([query]))).results[0]

    async def advance(self, ms: int) -> None:
        """Move the clock in steps. In each step renew the leases, and let woken tasks run."""
        self.opened.clock.advance(ms / 1000)
        for _ in range(20):
            await asyncio.sleep(0)


def outcomes(answer: CommitAnswer) -> list[tuple[BatchError, int]]:
    return [(one.error, one.base_offset) for run in answer.runs for one in run.outcomes]


@asynccontextmanager
async def opened_bench(factory: Factory, settings: SequencerSettings = SETTINGS) -> AsyncIterator[Bench]:
    """Open a prepared bench over the sequencer that the factory makes."""
    async with factory(settings) as opened:
        bench = Bench(opened)
        await bench.prepare()
        yield bench


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def prepare_swap(bench: Bench, runs: int = 3) -> SwapRequest:
    for _ in range(runs):
        await bench.commit(batch(2))
    lease = await bench.sequencer.take_lease(TakeLease("compactor", "me", 0, 60_000))
    session = await bench.sequencer.open_session(OpenSession(-1, lease.epoch))
    candidates = await bench.sequencer.compaction_candidates(CompactionRequest(1, 0, 100))
    old = candidates.candidates[0].runs
    stored = ObjectDescription(UUID(int=999), ObjectKind.PARQUET, f"{session.prefix}p", 500, 0, 400, T0)
    replaced = [(one.base_offset, one.object_id) for one in old]
    replacement = ReplacementRun(bench.topic.topic_id, 0, 0, old[-1].end_offset, T0, 500, replaced)
    return SwapRequest(UUID(int=77), lease.epoch, session.session_id, stored, [replacement])
