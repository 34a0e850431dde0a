"""The log lines about silent agents."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from sequencer.api.agents import AgentInfo, AgentLease, AgentRef
from sequencer.api.topics import MetadataRequest
from sequencer.engine.committer import Committer
from sequencer.engine.silent_agents import NAMED_AT_ONCE
from sequencer.settings import SequencerSettings
from sequencer.store.memory import MemoryRowStore
from tests.support.clocks import ManualClock, SeededEntropy


@asynccontextmanager
async def agents(
    count: int,
    clock: ManualClock | None = None,
    store: MemoryRowStore | None = None,
    settings: SequencerSettings | None = None,
) -> AsyncIterator[tuple[Committer, ManualClock, list[AgentLease]]]:
    clock = clock or ManualClock()
    sequencer = Committer(store or MemoryRowStore(clock), clock, SeededEntropy(1), settings)
    await sequencer.start()
    infos = [AgentInfo(f"h{number}", 9092, "p", 0, 0, "z", "0", UUID(int=number)) for number in range(count)]
    yield sequencer, clock, [await sequencer.register_agent(info) for info in infos]
    await sequencer.close()


async def test_the_end_of_a_suspected_agents_lease_is_logged_with_its_id_and_address() -> None:
    async with agents(2) as (sequencer, clock, (first, _)):
        suspected = AgentRef(first.broker_id, first.epoch)
        with capture_logs() as logs:
            clock.advance(first.silence_ms / 1000 - 0.1)
            await sequencer.suspect_agent(suspected)
            assert not logs, "it was heard of not long ago"
            clock.advance(0.1)
            await sequencer.suspect_agent(suspected)
            await sequencer.suspect_agent(suspected)
        (line,) = logs
        assert line["event"] == f"agent {first.broker_id} is silent: its lease ends"
        assert (line["log_level"], line["address"]) == ("warning", "h0:9092")
        assert line["silent_s"] == first.silence_ms / 1000


async def test_some_of_very_many_agents_that_fall_silent_together_are_named() -> None:
    async with agents(100) as (sequencer, clock, leases):
        with capture_logs() as logs:
            assert await living_after(sequencer, clock, leases[0].lease_ms) == 0
        assert len(logs) == NAMED_AT_ONCE + 1
        assert logs[-1]["event"] == "more agents are silent: their leases end"
        assert logs[-1]["agents"] == 100 - NAMED_AT_ONCE


async def test_after_an_outage_agents_have_a_whole_lease_to_find_the_committer() -> None:
    clock = ManualClock()
    store = MemoryRowStore(clock)
    async with agents(1, clock, store) as (_, _, (agent,)):
        pass
    clock.advance(60)
    async with agents(0, clock, store) as (sequencer, _, _):
        assert await living_after(sequencer, clock, agent.lease_ms - 1) == 1
        assert await living_after(sequencer, clock, 1_000) == 0


async def test_a_committer_that_was_stopped_takes_nobody_for_silent() -> None:
    async with agents(1) as (sequencer, clock, (agent,)):
        clock.advance(60)
        assert await living_after(sequencer, clock, agent.lease_ms) == 1
        assert await living_after(sequencer, clock, 1_000) == 0


@pytest.mark.parametrize(
    "settings", [SequencerSettings(agent_lease_ms=1_000), SequencerSettings(committer_lease_ms=60_000)]
)
async def test_a_committer_that_seldom_looks_finds_who_is_silent(settings: SequencerSettings) -> None:
    async with agents(1, settings=settings) as (sequencer, clock, _):
        assert await living_after(sequencer, clock, 60_000) == 0


async def living_after(sequencer: Committer, clock: ManualClock, ms: int) -> int:
    """How many agents have leases, after a time in which the committer was not stopped."""
    while ms > 0:
        clock.advance(min(ms, 1_000) / 1000)
        ms -= 1_000
        for _ in range(20):
            await asyncio.sleep(0)
    ring = (await sequencer.metadata(MetadataRequest())).ring
    assert ring is not None
    return len(ring.members)
