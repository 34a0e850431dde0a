"""An agent whose cluster's database was lost and recovered ends, since what it remembers is of the lost one."""

from __future__ import annotations

import asyncio

from agent.options import AgentOptions
from agent.server import Agent
from agent.settings import AgentSettings
from sequencer.engine.committer import Committer
from sequencer.settings import SequencerSettings
from tailrace.clock import SystemClock
from tailrace.object_store.memory import MemoryStore
from tests.support.clocks import SeededEntropy
from tests.support.hooked_rows import HookedRowStore
from tests.support.patience import PATIENCE_SECONDS


async def test_an_agent_ends_when_its_sequencers_database_is_another_incarnation() -> None:
    clock, entropy = SystemClock(), SeededEntropy(1)
    rows = HookedRowStore(clock, cluster_id="c")
    settings = SequencerSettings(agent_lease_ms=600)
    sequencer = Committer(rows, clock, entropy, settings)
    await sequencer.start()
    lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    agent = Agent(
        AgentOptions(listen_port=0),
        AgentSettings.model_validate({"drain_ms": 1_000}),
        sequencer=sequencer,
        store=MemoryStore(clock),
        clock=clock,
        entropy=entropy,
        on_lost=lost.set_result,
    )
    await agent.start()
    assert agent.is_ready
    await rows.adopt("c", 2, 1)
    rows.fail_next_write("before")  # as a database does that went away: the state is loaded anew

    reason = await asyncio.wait_for(lost, PATIENCE_SECONDS)

    assert "incarnation" in reason and not agent.is_ready
    await agent.drain()
    await sequencer.close()
