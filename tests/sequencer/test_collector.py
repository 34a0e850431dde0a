"""The collector: deletes what is certainly garbage, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from uuid import UUID

import pytest

from sequencer.api.agents import AgentInfo, AgentLease
from sequencer.api.commits import (
    CommitRequest,
    ObjectDescription,
    ObjectKind,
    OpenSession,
    RunProposal,
    SessionGrant,
    SessionRef,
)
from sequencer.api.retention import Garbage
from sequencer.api.topics import CreateTopic, DeleteTopic
from sequencer.api.values import Empty
from sequencer.collector import Collection, collect
from sequencer.engine.committer import Committer
from sequencer.rules import garbage
from sequencer.settings import SequencerSettings
from sequencer.store.memory import MemoryRowStore
from sequencer.store.rows import SessionRow
from sequencer.store.state import HotState
from tailrace.batches.mixed_object import BatchCoordinates
from tailrace.clock import SystemClock
from tailrace.object_store.api import NotDeleted, StoreRefused
from tailrace.object_store.memory import MemoryStore
from tests.support.clocks import ManualClock, SeededEntropy
from tests.support.patience import PATIENCE_SECONDS
from tests.support.turns import passes_of

SETTINGS = SequencerSettings(sweep_interval_ms=1_000, deletion_grace_ms=60_000, session_lease_ms=10_000_000)
T0 = 1_700_000_000_000
AGENT = AgentInfo("h", 1, "h", 0, 0, "z", "1", SeededEntropy(1).uuid())


class World:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.entropy = SeededEntropy(5)
        self.sequencer = Committer(MemoryRowStore(self.clock), self.clock, self.entropy, SETTINGS)
        self.objects = MemoryStore(self.clock)
        self.session: SessionGrant
        self.agent: AgentLease

    async def open_session(self) -> None:
        self.session = await self.sequencer.open_session(OpenSession(self.agent.broker_id, self.agent.epoch))

    async def commit(self, topic_id: UUID, number: int) -> str:
        """Upload and commit an object with one batch of two records."""
        key = await self.put(str(number))
        coordinates = [BatchCoordinates(100, 2, T0, T0, -1, -1, -1, 0)]
        described = ObjectDescription(
            self.entropy.uuid(), ObjectKind.MIXED, key, 110, 0, 100, self.clock.wall_ms()
        )
        proposal = RunProposal(topic_id, 0, 0, 100, coordinates)
        await self.sequencer.commit(
            CommitRequest(self.session.session_id, number, number, described, [proposal])
        )
        return key

    async def put(self, name: str) -> str:
        await self.objects.put(self.session.prefix + name, [b"x" * 10])
        return self.session.prefix + name

    async def keys(self) -> list[str]:
        return [info.key async for info in self.objects.list("")]

    async def collect(self) -> Collection:
        return await collect(self.sequencer, self.objects, SystemClock(), batch=2, pause_s=0)


@asynccontextmanager
async def started_world() -> AsyncIterator[World]:
    async with asyncio.timeout(PATIENCE_SECONDS):
        world = World()
        await world.sequencer.start()
        world.agent = await world.sequencer.register_agent(AGENT)
        await world.open_session()
        yield world
        await world.sequencer.close()


async def test_an_open_sessions_uploads_are_left_alone_and_an_ended_ones_orphans_go() -> None:
    async with started_world() as world:
        for number in range(5):
            await world.put(f"{number}")
        assert await world.collect() == Collection(0, 0)
        await world.sequencer.close_session(SessionRef(world.session.session_id))
        assert await world.collect() == Collection(0, 5)
        assert await world.keys() == []
        late = await world.put("late")
        world.clock.advance(2)
        assert (await world.collect()).orphans_deleted == 1
        assert late not in await world.keys()


async def test_an_object_goes_with_its_last_run_after_the_grace_and_not_before() -> None:
    async with started_world() as world:
        topic = await world.sequencer.create_topic(CreateTopic("t", 1, {}))
        key = await world.commit(topic.topic_id, 0)
        await world.sequencer.close_session(SessionRef(world.session.session_id))
        orphan = await world.put("orphan")
        assert (await world.collect()).orphans_deleted == 1
        assert await world.keys() == [key] and orphan != key
        await world.sequencer.delete_topic(DeleteTopic(topic.topic_id))
        await world.sequencer.apply_retention(Empty())
        assert (await world.collect()).objects_deleted == 0
        world.clock.advance(61)
        assert (await world.collect()).objects_deleted == 1
        assert await world.keys() == []
        assert (await world.collect()).objects_deleted == 0


class Locked(MemoryStore):
    """A store with objects that can't be deleted."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.locked: set[str] = set()
        self.is_all_refused = False

    async def delete(self, keys: Sequence[str]) -> None:
        if self.is_all_refused:
            raise StoreRefused("no permission")
        await super().delete([key for key in keys if key not in self.locked])
        if left := [key for key in keys if key in self.locked]:
            raise NotDeleted(dict.fromkeys(left, "locked"), len(keys))


async def test_an_object_that_cannot_be_deleted_keeps_nothing_else_from_going() -> None:
    async with started_world() as world:
        world.objects = store = Locked(world.clock)
        topic = await world.sequencer.create_topic(CreateTopic("t", 1, {}))
        stored = [await world.commit(topic.topic_id, number) for number in range(5)]
        await world.sequencer.close_session(SessionRef(world.session.session_id))
        await world.open_session()
        orphans = [await world.put(f"orphan-{number}") for number in range(3)]
        await world.sequencer.close_session(SessionRef(world.session.session_id))
        await world.sequencer.delete_topic(DeleteTopic(topic.topic_id))
        await world.sequencer.apply_retention(Empty())
        world.clock.advance(61)
        store.locked = {stored[0], orphans[0]}
        with pytest.raises(NotDeleted):
            await world.collect()
        assert await world.keys() == sorted(store.locked)
        store.is_all_refused = True
        with pytest.raises(StoreRefused):
            await world.collect()
        store.is_all_refused, store.locked = False, set()
        assert await world.collect() == Collection(1, 1)
        assert await world.keys() == []


def test_sessions_are_looked_through_in_turns_and_the_first_closed_come_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(garbage, "SESSIONS_IN_A_TURN", 10)
    closed = {UUID(int=number): number * 37 % 101 for number in range(101)}
    rows = [
        SessionRow(session_id, 1, "p/", None, 0, 0, closed_ms) for session_id, closed_ms in closed.items()
    ]
    state = HotState({SessionRow: rows})
    found: list[Garbage] = []

    async def find() -> None:
        found.append(await garbage.find_garbage(state, MemoryRowStore(ManualClock()), 7, SETTINGS))

    assert asyncio.run(passes_of(find())) >= 10
    assert [session.closed_ms for session in found[0].sessions] == list(range(7))
