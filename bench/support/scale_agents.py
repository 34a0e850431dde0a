"""The simulated agents of `bench.scale`. Each has its own connection, lease, upload session and windows.

They send an agent's requests, without clients or objects: a heartbeat per second, which renews the lease and every
third time the upload session, and requests topics and ring if they have changed. Their subscriptions are the product's
(agent.fetch.tail).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import cast

from agent.fetch.tail import Tail
from agent.produce.lane import SESSION_PACE_SECONDS
from agent.telemetry import AgentTelemetry
from sequencer.api.agents import AgentInfo, AgentLease, NewestVersions, RenewAgent
from sequencer.api.commits import (
    CommitRequest,
    ObjectDescription,
    ObjectKind,
    OpenSession,
    RunProposal,
    SessionGrant,
    SessionRef,
)
from sequencer.api.errors import LeaseLost, SequencerError, SequencerUnavailable, SessionClosed
from sequencer.api.groups import CommitOffsets, OffsetPosition
from sequencer.api.interface import Sequencer
from sequencer.api.reads import FindPartition, FindRequest, WatchAnswer, WatchRequest
from sequencer.api.topics import MetadataRequest, Topic
from sequencer.client import SequencerClient
from tailrace.batches.mixed_object import BatchCoordinates
from tailrace.clock import SystemClock, SystemEntropy
from tailrace.ids import TopicPartition
from tailrace.rpc import TcpLink, encode_body
from tailrace.rpc.link import Receiver, RpcConnection

RUNS_PER_OBJECT = 4
RECORDS = 10
HEARTBEAT_SECONDS = 1.0
FOUND_AT_ONCE = 500
"""The partitions in one call to find runs."""
PATIENCE_S = 120.0
"""All agents must have their leases, and all idle consumers their windows, within this time. Otherwise the run
fails."""
LOOK_SECONDS = 0.1
IDLE_FETCH_SECONDS = 5.0
"""How long a fetch of an idle consumer waits."""


@dataclass(slots=True)
class SimulatedAgent:
    """A simulated agent (see the module). `start` starts its heartbeats and its subscription."""

    number: int
    sequencer: SequencerClient
    info: AgentInfo
    lease: AgentLease
    session: SessionGrant
    version: int = -1
    ring_generation: int = -1
    next_commit: int = 0
    offset: int = 0
    position: int = 0
    fetch_calls: int = 0
    watched_bytes: int = 0
    watch_answers: int = 0
    beats: int = 0
    """Its own heartbeats, without those that are measured."""
    renewed_at: float = 0.0
    """When its last heartbeat was answered, by time.monotonic."""
    _session_due: float = 0.0
    lost_leases: int = 0
    lost_sessions: int = 0
    told_members: int = 0
    """The ring members that it was sent: new ones, and those that have left."""
    idle: list[TopicPartition] = field(default_factory=list)
    """The partitions of its idle consumers. Each waits at the end of one."""
    tail: Tail = field(init=False)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    @classmethod
    async def join(
        cls, number: int, addresses: list[str], connects: list[float] | None = None
    ) -> SimulatedAgent:
        """Register. `connects` gets the time of each attempt to connect to a server."""
        clock, entropy = SystemClock(), SystemEntropy()
        attempts: list[float] = [] if connects is None else connects
        sequencer = SequencerClient(
            addresses,
            clock=clock,
            entropy=entropy,
            patience_s=60.0,
            timeout_s=30.0,
            link=lambda address: _CountedLink(address, attempts),
        )
        host = f"agent-{number}"
        info = AgentInfo(host, 9092, host, 0, 9644, f"zone-{number % 3}", "0", entropy.uuid())
        lease = await sequencer.register_agent(info)
        session = await sequencer.open_session(OpenSession(lease.broker_id, lease.epoch))
        joined = cls(number, sequencer, info, lease, session)
        await joined._refresh()
        return joined

    def start(self) -> None:
        called = cast(Sequencer, self)
        self.tail = Tail(called, SystemClock(), SystemEntropy(), AgentTelemetry())
        self.tail.start()
        self.tasks = [asyncio.create_task(self._beat()), asyncio.create_task(self._keep_reading())]

    def check(self) -> None:
        """Raise the error that ended one of its tasks, if any."""
        for task in self.tasks:
            if task.done():
                task.result()

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        if self.tasks:
            await asyncio.gather(*self.tasks, return_exceptions=True)
            await self.tail.close()
        await self.sequencer.close()

    async def watch(self, request: WatchRequest) -> WatchAnswer:
        """Make a call of the subscription, as the agent's tail does."""
        answer = await self.sequencer.watch(request)
        self.watched_bytes += len(encode_body(answer))
        self.watch_answers += 1
        return answer

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            with suppress(SequencerUnavailable, LeaseLost):
                await self.beat()
                self.beats += 1

    async def beat(self) -> None:
        """Send a heartbeat: renew the lease, and the session if it is due, and request what has changed."""
        newest = await self._renew_lease()
        if time.monotonic() >= self._session_due:
            await self._renew_session()
        if newest is None or newest.metadata > self.version or newest.ring_generation > self.ring_generation:
            await self._refresh()
        self.renewed_at = time.monotonic()

    async def renew(self) -> None:
        """Send a heartbeat that also renews the session."""
        self._session_due = 0.0
        await self.beat()

    async def _renew_lease(self) -> NewestVersions | None:
        lease = self.lease
        try:
            return (await self.sequencer.renew_agent(RenewAgent(lease.broker_id, lease.epoch, False))).newest
        except LeaseLost:
            self.lost_leases += 1
            self.lease = await self.sequencer.register_agent(self.info)
            self._session_due = 0.0
            return None

    async def _renew_session(self) -> None:
        try:
            await self.sequencer.renew_session(SessionRef(self.session.session_id))
        except SessionClosed:
            self.lost_sessions += 1
            opened = OpenSession(self.lease.broker_id, self.lease.epoch)
            self.session, self.next_commit = await self.sequencer.open_session(opened), 0
        self._session_due = time.monotonic() + SESSION_PACE_SECONDS

    async def _refresh(self) -> None:
        asked = MetadataRequest(self.version, self.ring_generation, True, True)
        answer = await self.sequencer.metadata(asked)
        self.version = answer.version
        if answer.ring is not None:
            self.ring_generation = answer.ring.generation
            self.told_members += len(answer.ring.members)
        elif answer.ring_change is not None:
            self.ring_generation = answer.ring_change.generation
            self.told_members += len(answer.ring_change.members) + len(answer.ring_change.left)

    # --- idle consumers

    @property
    def is_served(self) -> bool:
        """Whether its idle consumers have current windows."""
        return not self.idle or (
            self.tail.find(self.idle[0], 0, 1) is not None and not self._without_window()
        )

    def _without_window(self) -> list[TopicPartition]:
        _, windows = self.tail.live()
        return [place for place in self.idle if place not in windows]

    async def _keep_reading(self) -> None:
        """Keep a fetch waiting on each idle partition, like consumers at the ends of their partitions."""
        while True:
            with suppress(SequencerError):
                lacking = [place for place in self._without_window() if self.tail.find(place, 0, 1) is None]
                for first in range(0, len(lacking), FOUND_AT_ONCE):
                    await self._find(lacking[first : first + FOUND_AT_ONCE])
            if self.idle:
                await self.tail.wait(dict.fromkeys(self.idle, 1 << 62), IDLE_FETCH_SECONDS)
            else:
                await asyncio.sleep(0.2)

    async def _find(self, places: Sequence[TopicPartition]) -> None:
        asked, asked_at = [FindPartition(*place, 0, 1) for place in places], time.monotonic()
        answer = await self.sequencer.find_batches(FindRequest(asked, 1 << 20))
        for place, found in zip(places, answer.partitions, strict=True):
            self.tail.note_found(
                place, 0, found, number=answer.commit_number, asked_at=asked_at, is_at_end=True
            )

    # --- loads

    async def commit_object(self, topic: Topic) -> None:
        """Commit an object with a run of one batch for each of four partitions."""
        batch = BatchCoordinates(1_000, RECORDS, 1, 1, -1, -1, -1, 0)
        first = self.number * RUNS_PER_OBJECT
        partitions = sorted((first + place) % topic.partitions for place in range(RUNS_PER_OBJECT))
        await self._commit(topic, {partition: [batch] for partition in partitions})

    async def introduce(self, topic: Topic, producer_ids: range) -> None:
        """Let each of these producers write its first batch."""
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
        """Fetch at a partition's end without waiting, from its window or from the sequencer."""
        place = TopicPartition(topic.topic_id, self.number * RUNS_PER_OBJECT % topic.partitions)
        known = self.tail.find(place, self.position, 1 << 20)
        if known is None:
            self.fetch_calls += 1
            asked, asked_at = FindPartition(*place, self.position, 1 << 20), time.monotonic()
            answer = await self.sequencer.find_batches(FindRequest([asked], 1 << 20))
            found, number = answer.partitions[0], answer.commit_number
            end = found.runs[-1].end_offset if found.runs else self.position
            self.tail.note_found(
                place, self.position, found,
                number=number, asked_at=asked_at, is_at_end=end >= found.high_watermark,
            )  # fmt: skip
        else:
            found, number = known
            await asyncio.sleep(0)
        self.position = found.high_watermark

    async def commit_offset(self, topic: Topic, group_id: str) -> None:
        self.offset += 1
        position = OffsetPosition(topic.topic_id, self.number % topic.partitions, self.offset, 0, "")
        await self.sequencer.commit_offsets(CommitOffsets(group_id, -1, -1, -1, "", [position]))


async def until_all(
    agents: Sequence[SimulatedAgent], is_done: Callable[[SimulatedAgent], bool], what: str
) -> list[float]:
    """Wait until this is true for each agent. Return after how many seconds it was, in ascending order.

    Raises TimeoutError after PATIENCE_S.
    """
    began, left, times = time.monotonic(), list(agents), list[float]()
    while left := [agent for agent in left if not is_done(agent)]:
        for agent in left:
            agent.check()
        passed = time.monotonic() - began
        if passed > PATIENCE_S:
            raise TimeoutError(f"{len(left)} of {len(agents)} agents {what} after {passed:.0f} s")
        times += [passed] * (len(agents) - len(left) - len(times))
        await asyncio.sleep(LOOK_SECONDS)
    return times + [time.monotonic() - began] * (len(agents) - len(times))


class _CountedLink(TcpLink):
    """Records the time of each attempt to connect."""

    def __init__(self, address: str, attempts: list[float]) -> None:
        super().__init__(address)
        self._attempts = attempts

    async def connect(self, receiver: Receiver) -> RpcConnection:
        self._attempts.append(time.monotonic())
        return await super().connect(receiver)
