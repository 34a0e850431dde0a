"""An agent's own lease: kept, taken again when it lapsed, and given up to the agent that was started in its place."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from agent.server import Agent, AgentOptions
from agent.settings import AgentSettings
from sequencer.api import MetadataRequest
from sequencer.committer import LocalSequencer
from sequencer.memory import MemoryRowStore
from tailrace.clock import ManualClock, SeededEntropy
from tailrace.object_store.memory import MemoryStore
from tests.support.agents import settle


class Hosts:
    """One sequencer, and agents that all say they are at the same address."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.rows = MemoryRowStore(self.clock)
        self.sequencer = LocalSequencer(self.rows, self.clock, SeededEntropy(1))
        self.lost: list[str] = []
        self._agents: list[Agent] = []

    async def start(self, seed: int) -> Agent:
        agent = Agent(
            AgentOptions(listen_port=0, advertise_host="one-host", advertise_port=9092),
            AgentSettings.model_validate({"drain_ms": 0}),
            sequencer=self.sequencer,
            store=MemoryStore(self.clock),
            clock=self.clock,
            entropy=SeededEntropy(seed),
            on_lost=self.lost.append,
        )
        await agent.start()
        self._agents.append(agent)
        return agent

    async def advance(self, seconds: float) -> None:
        for _ in range(round(seconds / 0.1)):
            self.clock.advance(0.1)
            await settle()

    async def end(self) -> None:
        ending = asyncio.gather(*(agent.drain() for agent in self._agents))
        while not ending.done():
            self.clock.advance(0.1)
            await settle()
        await ending
        await self.sequencer.close()


def run(scenario: Callable[[Hosts], Awaitable[None]]) -> None:
    async def whole() -> None:
        hosts = Hosts()
        await hosts.sequencer.start()
        try:
            await scenario(hosts)
        finally:
            await hosts.end()

    asyncio.run(whole())


def test_an_agent_whose_address_another_one_took_ends_and_takes_nothing_back() -> None:
    async def scenario(hosts: Hosts) -> None:
        first = await hosts.start(2)
        await hosts.advance(5)
        second = await hosts.start(3)
        await hosts.advance(10)

        (reason,) = hosts.lost
        assert "one-host:9092" in reason and "--advertise" in reason
        assert not first.is_ready and second.is_ready
        await hosts.advance(30)
        assert len(hosts.lost) == 1 and second.is_ready, "nobody takes it back"

    run(scenario)


def test_a_lease_that_only_lapsed_is_taken_again() -> None:
    async def scenario(hosts: Hosts) -> None:
        agent = await hosts.start(2)
        hosts.clock.advance(30)  # a pause: nobody had a turn meanwhile
        assert not agent.is_ready
        await hosts.advance(10)
        assert agent.is_ready and not hosts.lost
        ring = (await hosts.sequencer.metadata(MetadataRequest())).ring
        assert ring is not None and [member.epoch for member in ring.members] == [2]

    run(scenario)
