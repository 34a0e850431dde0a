"""The simulated agents of `bench.scale`: each has a connection, a lease, an upload session and windows of its own.

They send an agent's requests, without clients or objects. Their subscriptions are the product's (agent.fetch.tail).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import cast

from agent.fetch.tail import Tail
from agent.telemetry import AgentTelemetry
from sequencer.api import (
    AgentInfo,
    AgentLease,
    CommitOffsets,
    CommitRequest,
    DeadSession,
    FindPartition,
    FindRequest,
    LeaseLost,
    ObjectDescription,
    ObjectKind,
    OffsetPosition,
    OpenSession,
    RenewAgent,
    RunProposal,
    Sequencer,
    SequencerError,
    SequencerUnavailable,
    SessionGrant,
    SessionRef,
    Topic,
    WatchAnswer,
    WatchRequest,
)
from sequencer.client import SequencerClient
from tailrace.clock import SystemClock, SystemEntropy
from tailrace.ids import TopicPartition
from tailrace.mixed_object import BatchCoordinates
from tailrace.rpc import encode_body

RUNS_PER_OBJECT = 4
RECORDS = 10
HEARTBEAT_SECONDS = 1.0
FOUND_AT_ONCE = 500
"""Partitions that one call finds."""
IDLE_FETCH_SECONDS = 5.0
"""How long a fetch of an idle consumer waits."""


@dataclass(slots=True)
class SimulatedAgent:
    """See the module. `start` begins its heartbeats and its subscription."""

    number: int
    sequencer: SequencerClient
    lease: AgentLease
    session: SessionGrant
    next_commit: int = 0
    offset: int = 0
    position: int = 0
    fetch_calls: int = 0
    watched_bytes: int = 0
    watch_answers: int = 0
    beats: int = 0
    """Heartbeats of its own, besides those that are measured."""
    idle: list[TopicPartition] = field(default_factory=list)
    """What its idle consumers read: each waits at the end of a partition."""
    tail: Tail = field(init=False)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    @classmethod
    async def join(cls, number: int, addresses: list[str]) -> SimulatedAgent:
        clock, entropy = SystemClock(), SystemEntropy()
        sequencer = SequencerClient(addresses, clock=clock, entropy=entropy, patience_s=60.0, timeout_s=30.0)
        return cls(number, sequencer, *await _registered(sequencer, number))

    def start(self) -> None:
        called = cast(Sequencer, self)
        self.tail = Tail(called, SystemClock(), SystemEntropy(), AgentTelemetry())
        self.tail.start()
        self.tasks = [asyncio.create_task(self._beat()), asyncio.create_task(self._keep_reading())]

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        if self.tasks:
            await asyncio.gather(*self.tasks, return_exceptions=True)
            await self.tail.close()
        await self.sequencer.close()

    async def watch(self, request: WatchRequest) -> WatchAnswer:
        """A call of the subscription, as the agent's tail makes it."""
        answer = await self.sequencer.watch(request)
        self.watched_bytes += len(encode_body(answer))
        self.watch_answers += 1
        return answer

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            with suppress(SequencerUnavailable):
                await self.renew()
                self.beats += 1

    async def renew(self) -> None:
        """Renew lease and session; register again where they ran out, as an agent does on a busy machine."""
        try:
            await self.sequencer.renew_agent(RenewAgent(self.lease.broker_id, self.lease.epoch, False))
            await self.sequencer.renew_session(SessionRef(self.session.session_id))
        except (LeaseLost, DeadSession):
            self.lease, self.session = await _registered(self.sequencer, self.number)
            self.next_commit = 0

    # --- idle consumers

    @property
    def is_served(self) -> bool:
        """Whether its idle consumers have windows, and these are fresh."""
        return not self.idle or (
            self.tail.find(self.idle[0], 0, 1) is not None and not self._without_window()
        )

    def _without_window(self) -> list[TopicPartition]:
        _, windows = self.tail.live()
        return [place for place in self.idle if place not in windows]

    async def _keep_reading(self) -> None:
        """Have a fetch wait on each idle partition, as consumers at the ends of their partitions do."""
        while True:
            with suppress(SequencerError):
                lacking = self._without_window()
                for first in range(0, len(lacking), FOUND_AT_ONCE):
                    await self._find(lacking[first : first + FOUND_AT_ONCE])
            if self.idle:
                await self.tail.wait(dict.fromkeys(self.idle, 1 << 62), IDLE_FETCH_SECONDS)
            else:
                await asyncio.sleep(0.2)

    async def _find(self, places: Sequence[TopicPartition]) -> None:
        asked = [FindPartition(*place, 0, 1) for place in places]
        answer = await self.sequencer.find_batches(FindRequest(asked, 1 << 20))
        for place in places:
            self.tail.note_found(place, answer.commit_number, is_at_end=True)

    # --- loads

    async def commit_object(self, topic: Topic) -> None:
        """Commit an object with a run of one batch on each of four partitions."""
        batch = BatchCoordinates(1_000, RECORDS, 1, 1, -1, -1, -1, 0)
        first = self.number * RUNS_PER_OBJECT
        partitions = sorted((first + place) % topic.partitions for place in range(RUNS_PER_OBJECT))
        await self._commit(topic, {partition: [batch] for partition in partitions})

    async def introduce(self, topic: Topic, producer_ids: range) -> None:
        """Have so many producers write their first batch, and nothing more."""
        batches = [BatchCoordinates(1_000, 1, 1, 1, producer_id, 0, 0, 0) for producer_id in producer_ids]
        await self._commit(topic, {0: batches})

    async def _commit(self, topic: Topic, batches: dict[int, list[BatchCoordinates]]) -> None:
        number = self.next_commit
        self.next_commit += 1
        runs: list[RunProposal] = []
        end = 0
        for partition, of_one in batches.items():
            length = sum(batch.length for batch in of_one)
            runs.append(RunProposal(topic.topic_id, partition, end, length, of_one))
            end += length
        key = f"{self.session.prefix}{number:012d}"
        described = ObjectDescription(SystemEntropy().uuid(), ObjectKind.MIXED, key, end + 100, 0, end, 0)
        await self.sequencer.commit(CommitRequest(self.session.session_id, number, number, described, runs))

    async def fetch(self, topic: Topic) -> None:
        """A fetch at a partition's end, without the wait for more: from its window, or from the sequencer."""
        place = TopicPartition(topic.topic_id, self.number * RUNS_PER_OBJECT % topic.partitions)
        known = self.tail.find(place, self.position, 1 << 20)
        if known is None:
            self.fetch_calls += 1
            asked = FindPartition(*place, self.position, 1 << 20)
            answer = await self.sequencer.find_batches(FindRequest([asked], 1 << 20))
            found, number = answer.partitions[0], answer.commit_number
            end = found.runs[-1].end_offset if found.runs else self.position
            self.tail.note_found(place, number, is_at_end=end >= found.high_watermark)
        else:
            found, number = known
            await asyncio.sleep(0)
        self.position = found.high_watermark

    async def commit_offset(self, topic: Topic, group_id: str) -> None:
        self.offset += 1
        position = OffsetPosition(topic.topic_id, self.number % topic.partitions, self.offset, 0, "")
        await self.sequencer.commit_offsets(CommitOffsets(group_id, -1, -1, -1, "", [position]))


async def _registered(sequencer: SequencerClient, number: int) -> tuple[AgentLease, SessionGrant]:
    host = f"agent-{number}"
    info = AgentInfo(host, 9092, host, 0, 9644, f"zone-{number % 3}", "0", SystemEntropy().uuid())
    lease = await sequencer.register_agent(info)
    return lease, await sequencer.open_session(OpenSession(lease.broker_id, lease.epoch))
