"""Group coordinators over the reference sequencer, on a clock that does not move."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from uuid import UUID

from agent.catalog import EMPTY, Catalog
from agent.groups.coordinator import GroupCoordinator
from agent.identity import AgentIdentity
from agent.settings import AgentSettings
from cache.ring import Replicas
from sequencer.api.agents import AgentInfo, Member, RenewAgent, Ring
from sequencer.engine.committer import Committer
from sequencer.settings import SequencerSettings
from sequencer.store.memory import MemoryRowStore
from tests.support.clocks import ManualClock, SeededEntropy

LEASE_SECONDS = 10.0


class Coordinators:
    """Two agents, 1 (the groups' first candidate) and 2, over one sequencer and one clock."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        settings = SequencerSettings(agent_lease_ms=int(LEASE_SECONDS * 1000))
        self.sequencer = Committer(MemoryRowStore(self.clock), self.clock, SeededEntropy(1), settings)
        self.identities: list[AgentIdentity] = []
        self.agents: list[GroupCoordinator] = []

    async def open(self) -> None:
        await self.sequencer.start()
        for name in ("a", "bb"):
            info = AgentInfo(name, 9092, name, 0, 0, "z", "0", UUID(int=len(name)))
            lease = await self.sequencer.register_agent(info)
            identity = AgentIdentity.of(lease, info, self.clock.monotonic())
            self.identities.append(identity)
        first = self.identities[0]
        ring = Ring(1, [Member(first.broker_id, first.lease_epoch, first.info, False)])
        self.catalog = catalog = Catalog(self.sequencer)
        catalog.snapshot = replace(EMPTY, replicas=Replicas(ring))
        for number, identity in enumerate(self.identities):
            agent = GroupCoordinator(
                self.sequencer,
                self.clock,
                SeededEntropy(number),
                AgentSettings.model_validate({"group_initial_rebalance_delay_ms": 0}),
                self.identity_of(identity),
                catalog,
            )
            self.agents.append(agent)
            await agent.start()

    @staticmethod
    def identity_of(identity: AgentIdentity) -> Callable[[], AgentIdentity]:
        return lambda: identity

    async def close(self) -> None:
        for agent in self.agents:
            await agent.close()
        await self.sequencer.close()

    async def advance(self, seconds: float, *renewing: int) -> None:
        """Move time; only the agents named here renew their leases."""
        for _ in range(round(seconds)):
            self.clock.advance(1.0)
            for number in renewing:
                identity = self.identities[number]
                asked_at = self.clock.monotonic()
                lease = await self.sequencer.renew_agent(RenewAgent(identity.broker_id, identity.lease_epoch))
                identity.renew(lease, asked_at)
            for _ in range(20):
                await asyncio.sleep(0)

    async def learn_topics(self) -> None:
        """Refresh the known topics; the ring stays as it was."""
        replicas = self.catalog.snapshot.replicas
        self.catalog.snapshot = replace(await self.catalog.refresh(), replicas=replicas)
