"""The collector: deletes what is certainly garbage, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from sequencer.api.agents import AgentInfo
from sequencer.api.commits import (
    CommitRequest,
    ObjectDescription,
    ObjectKind,
    OpenSession,
    RunProposal,
    SessionGrant,
    SessionRef,
)
from sequencer.api.topics import CreateTopic, DeleteTopic
from sequencer.api.values import Empty
from sequencer.collector import Collection, collect
from sequencer.engine.committer import Committer
from sequencer.settings import SequencerSettings
from sequencer.store.memory import MemoryRowStore
from tailrace.batches.mixed_object import BatchCoordinates
from tailrace.clock import SystemClock
from tailrace.object_store.memory import MemoryStore
from tests.support.clocks import ManualClock, SeededEntropy
from tests.support.patience import PATIENCE_SECONDS

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

    async def put(self, name: str) -> str:
        await self.objects.put(self.session.prefix + name, [b"x" * 10])
        return self.session.prefix + name

    async def keys(self) -> list[str]:
        return [info.key async for info in self.objects.list("")]

    async def collect(self) -> Collection:
        return await collect(self.sequencer, self.objects, SystemClock(), batch=2, pause_s=0)


def run(use: Callable[[World], Awaitable[None]]) -> None:
    async def whole() -> None:
        world = World()
        await world.sequencer.start()
        agent = await world.sequencer.register_agent(AGENT)
        world.session = await world.sequencer.open_session(OpenSession(agent.broker_id, agent.epoch))
        await use(world)
        await world.sequencer.close()

    asyncio.run(asyncio.wait_for(whole(), PATIENCE_SECONDS))


def test_an_open_sessions_uploads_are_left_alone_and_an_ended_ones_orphans_go() -> None:
    async def use(world: World) -> None:
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

    run(use)


def test_an_object_goes_with_its_last_run_after_the_grace_and_not_before() -> None:
    async def use(world: World) -> None:
        topic = await world.sequencer.create_topic(CreateTopic("t", 1, {}))
        key = await world.put("0")
        coordinates: list[BatchCoordinates] = [BatchCoordinates(100, 2, T0, T0, -1, -1, -1, 0)]
        length = sum(one.length for one in coordinates)
        described = ObjectDescription(
            world.entropy.uuid(), ObjectKind.MIXED, key, length + 10, 0, length, world.clock.wall_ms()
        )
        proposal = RunProposal(topic.topic_id, 0, 0, length, coordinates)
        await world.sequencer.commit(CommitRequest(world.session.session_id, 0, 0, described, [proposal]))
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

    run(use)
