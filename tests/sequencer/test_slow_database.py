"""A database that answers slowly makes the sequencer slow: never two committers, and never none for long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import pytest

from agent.settings import AgentSettings
from sequencer.api.agents import AgentInfo, AgentLease, RenewAgent
from sequencer.api.commits import OpenSession, SessionGrant, SessionRef
from sequencer.api.errors import LeaseLost, SequencerError, SessionClosed
from sequencer.api.topics import CreateTopic, MetadataRequest
from sequencer.client import SequencerClient
from sequencer.engine.term import MAX_LEASE_MS, lease_for
from sequencer.server import SequencerServer
from sequencer.settings import ServerSettings
from sequencer.store.memory import MemoryRowStore
from tailrace.background_tasks import cancel_and_wait
from tests.support.clocks import ManualClock, SeededEntropy
from tests.support.patience import PATIENCE_SECONDS
from tests.support.simulated_link import SimulatedLink


class SlowRows:
    """One node's way to the store: half of the time passes before a call takes effect, half before its answer is there.
    What was sent takes effect, also when its caller has given up."""

    def __init__(self, store: MemoryRowStore, clock: ManualClock, seconds: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock
        self._seconds = seconds
        self._sent: dict[asyncio.Task[Any], None] = {}

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)

        async def take_effect(seconds: float, arguments: Any, named: Any) -> Any:
            await self._clock.sleep(seconds / 2)
            value = await method(*arguments, **named)
            await self._clock.sleep(seconds / 2)
            return value

        async def call(*arguments: Any, **named: Any) -> Any:
            task = asyncio.create_task(take_effect(self._seconds(), arguments, named))
            self._sent[task] = None
            task.add_done_callback(self._sent.pop)
            return await asyncio.shield(task)

        return call


class World:
    """Nodes before one database. `seconds` is how long it takes to answer, now."""

    def __init__(self, seed: int = 9, names: tuple[str, ...] = ("a:1", "b:1")) -> None:
        self.clock, self.entropy = ManualClock(), SeededEntropy(seed)
        self.store = MemoryRowStore(self.clock)
        self.seconds: Callable[[], float] = lambda: 0.001
        self.nodes = {
            name: SequencerServer(
                SlowRows(self.store, self.clock, lambda: self.seconds()),
                self.clock,
                self.entropy,
                settings=ServerSettings(advertise=name),
                link=self.link,
            )
            for name in names
        }

    def link(self, address: str) -> SimulatedLink:
        return SimulatedLink(
            self.nodes[address].server, clock=self.clock, entropy=self.entropy, address=address
        )

    async def pass_time(self, seconds: float) -> None:
        for _ in range(round(seconds / 0.1)):
            self.clock.advance(0.1)
            for _ in range(15):
                await asyncio.sleep(0)
            assert sum(node.is_committer for node in self.nodes.values()) <= 1

    async def serve(self, within_s: float) -> None:
        """A change is carried out, asked as agents ask."""
        remote = SequencerClient(
            list(self.nodes), clock=self.clock, entropy=self.entropy, link=self.link, patience_s=within_s
        )
        asked = asyncio.ensure_future(
            remote.create_topic(CreateTopic(f"t{self.entropy.below(1 << 30)}", 1, {}))
        )
        for _ in range(round(within_s)):
            if not asked.done():
                await self.pass_time(1.0)
        assert asked.done()
        await asked
        await remote.close()


class KeptAgent:
    """An agent's lease and upload session, kept as agents keep them: renewed each second, or as soon as answered."""

    def __init__(self, world: World) -> None:
        self.clock = world.clock
        self.remote = SequencerClient(
            list(world.nodes), clock=world.clock, entropy=world.entropy, link=world.link, patience_s=20
        )
        self.lost: list[str] = []
        self.lease_until = self.put_until = 0.0
        """Until when groups are coordinated, and until when uploads may start: see agent.identity and agent.produce."""

    async def live(self) -> None:
        asked_at = self.clock.monotonic()
        lease = await self.remote.register_agent(AgentInfo("h", 1, "h", 0, 0, "z", "1", UUID(int=1)))
        self.lease_until = asked_at + lease.lease_ms / 1000
        session = await self.remote.open_session(OpenSession(lease.broker_id, lease.epoch))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep_lease(lease))
            tasks.create_task(self._keep_session(session))

    async def _keep_lease(self, lease: AgentLease) -> None:
        pause = min(lease.lease_ms, lease.silence_ms) / 3000
        began = self.clock.monotonic()
        while True:
            await self.clock.sleep(max(0.0, began + pause - self.clock.monotonic()))
            began = self.clock.monotonic()
            try:
                renewed = await self.remote.renew_agent(RenewAgent(lease.broker_id, lease.epoch, False))
                self.lease_until = began + renewed.lease_ms / 1000
            except LeaseLost as error:
                self.lost.append(str(error))
                return
            except SequencerError:
                continue

    async def _keep_session(self, session: SessionGrant) -> None:
        upload_deadline_ms = AgentSettings().upload_deadline_ms
        while True:
            await self.clock.sleep(1.0)
            asked_at = self.clock.monotonic()
            try:
                grant = await self.remote.renew_session(SessionRef(session.session_id))
                self.put_until = asked_at + (grant.lease_ms - upload_deadline_ms) / 1000
            except SessionClosed as error:
                self.lost.append(str(error))
                return
            except SequencerError:
                continue


@asynccontextmanager
async def started_world(world: World | None = None) -> AsyncIterator[World]:
    world = world or World()
    async with asyncio.timeout(PATIENCE_SECONDS):
        starting = [asyncio.ensure_future(node.start(listen=False)) for node in world.nodes.values()]
        await world.pass_time(1.0)
        try:
            yield world
        finally:
            world.seconds = lambda: 0.001
            closing = [asyncio.ensure_future(node.close()) for node in world.nodes.values()]
            while not all(task.done() for task in closing):
                await world.pass_time(0.5)
        await asyncio.gather(*starting, *closing)


@pytest.mark.parametrize("seconds", [1.0, 2.0, 5.0])
async def test_a_committer_before_a_slow_database_stays_and_serves(seconds: float) -> None:
    world = World()
    world.seconds = lambda: seconds
    async with started_world(world):
        await world.pass_time(80)  # both start, one loads
        epoch = world.store._epoch
        for _ in range(4):
            await world.pass_time(15)
            assert sum(node.is_committer for node in world.nodes.values()) == 1
            await world.serve(12 * seconds)
        assert world.store._epoch == epoch


@pytest.mark.parametrize("seconds", [1.0, 2.0, 5.0])
async def test_a_database_that_becomes_slow_changes_the_committer_once_at_most(seconds: float) -> None:
    async with started_world() as world:
        await world.serve(3)
        epoch = world.store._epoch
        world.seconds = lambda: seconds
        await world.pass_time(80)
        assert world.store._epoch <= epoch + 1
        epoch = world.store._epoch
        await world.serve(12 * seconds)
        await world.pass_time(60)
        assert world.store._epoch == epoch


@pytest.mark.parametrize("seconds", [1.0, 2.0, 5.0])
async def test_an_agent_before_a_slow_database_keeps_its_lease_and_its_session(seconds: float) -> None:
    world = World(names=("a:1",))
    world.seconds = lambda: seconds
    async with started_world(world):
        await world.pass_time(80)
        agent = KeptAgent(world)
        living = asyncio.create_task(agent.live())
        await world.pass_time(60)  # registered, with a session
        for _ in range(90):
            await world.pass_time(1.0)
            assert agent.lost == []
            now = world.clock.monotonic()
            assert agent.lease_until > now and agent.put_until > now
        await cancel_and_wait(living)
        world.seconds = lambda: 0.001
        await world.pass_time(30)
        await agent.remote.close()


@pytest.mark.parametrize("seconds", [1.0, 2.0, 5.0])
async def test_an_agent_outlives_the_moment_in_which_the_database_becomes_slow(seconds: float) -> None:
    async with started_world(World(names=("a:1",))) as world:
        agent = KeptAgent(world)
        living = asyncio.create_task(agent.live())
        await world.pass_time(20)
        world.seconds = lambda: seconds
        await world.pass_time(90)
        assert agent.lost == []
        world.seconds = lambda: 0.001
        await world.pass_time(60)
        assert agent.lost == []
        now = world.clock.monotonic()
        assert now + 5 < agent.lease_until <= now + 10  # short again
        await cancel_and_wait(living)
        await agent.remote.close()


async def test_an_agent_that_is_silent_before_a_slow_database_leaves_the_ring() -> None:
    async with started_world(World(names=("a:1",))) as world:
        world.seconds = lambda: 1.0
        await world.pass_time(30)
        agent = KeptAgent(world)
        living = asyncio.create_task(agent.live())
        await world.pass_time(60)
        await cancel_and_wait(living)
        await world.pass_time(40)
        found = asyncio.create_task(agent.remote.metadata(MetadataRequest()))
        await world.pass_time(5)
        ring = (await found).ring
        assert ring is not None and ring.members == []
        await agent.remote.close()


@pytest.mark.parametrize("seconds", [1.0, 2.0, 3.5, 5.0])
async def test_a_committer_whose_lease_nobody_takes_outlives_the_moment_in_which_the_database_becomes_slow(
    seconds: float,
) -> None:
    async with started_world(World(names=("a:1",))) as world:
        await world.serve(3)
        epoch = world.store._epoch
        world.seconds = lambda: seconds
        await world.pass_time(80)
        assert world.store._epoch == epoch


async def test_a_database_that_is_fast_again_has_short_leases_again() -> None:
    async with started_world() as world:
        world.seconds = lambda: 5.0
        await world.pass_time(80)
        world.seconds = lambda: 0.001
        await world.pass_time(60)
        (leader,) = (node for node in world.nodes.values() if node.is_committer)
        assert leader._local is not None
        assert leader._local.lease_left_s <= 2.0
        assert world.store._expires_ms <= world.clock.wall_ms() + 2_000


@pytest.mark.parametrize("seed", range(10))
async def test_whatever_the_database_takes_there_are_never_two_committers_and_at_the_end_there_is_one(
    seed: int,
) -> None:
    async with started_world(World(seed)) as world:
        luck = SeededEntropy(seed)
        for _ in range(12):
            most = (0.01, 1.0, 4.0, 12.0)[luck.below(4)]
            world.seconds = lambda most=most: most * luck.fraction()
            await world.pass_time(3 + luck.below(12))
        world.seconds = lambda: 0.5
        await world.serve(60)


async def test_a_time_in_which_the_process_was_stopped_makes_no_lease_longer() -> None:
    async with started_world() as world:
        for _ in range(8):
            world.seconds = lambda: 0.05
            world.clock.advance(15.0)  # in the middle of whatever is asked
            await world.pass_time(1.0)
        (leader,) = (node for node in world.nodes.values() if node.is_committer)
        assert leader._local is not None and leader._local.round_trip_s <= 1.0


def test_a_lease_is_four_round_trips_within_its_bounds() -> None:
    assert [lease_for(2_000, seconds) for seconds in (0.0, 0.5, 1.0, 5.0, 60.0)] == [
        2_000,
        2_000,
        4_000,
        20_000,
        MAX_LEASE_MS,
    ]
