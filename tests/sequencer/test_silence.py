"""What the log says of agents that nothing was heard of."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

from structlog.testing import capture_logs

from sequencer.api import AgentInfo, AgentLease, AgentRef, Empty
from sequencer.engine.committer import Committer
from sequencer.engine.silence import NAMED_AT_ONCE
from sequencer.store.memory import MemoryRowStore
from tests.support.clocks import ManualClock, SeededEntropy


@asynccontextmanager
async def agents(count: int) -> AsyncIterator[tuple[Committer, ManualClock, list[AgentLease]]]:
    clock = ManualClock()
    sequencer = Committer(MemoryRowStore(clock), clock, SeededEntropy(1))
    await sequencer.start()
    infos = [AgentInfo(f"h{number}", 9092, "p", 0, 0, "z", "0", UUID(int=number)) for number in range(count)]
    yield sequencer, clock, [await sequencer.register_agent(info) for info in infos]
    await sequencer.close()


def test_the_end_of_a_suspected_agents_lease_is_logged_with_its_id_and_address() -> None:
    async def scenario() -> None:
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
            assert line["event"] == f"agent {first.broker_id} has not been heard of: its lease ends"
            assert (line["log_level"], line["address"]) == ("warning", "h0:9092")
            assert line["silent_s"] == first.silence_ms / 1000

    asyncio.run(scenario())


def test_of_very_many_agents_that_fall_silent_together_some_are_named() -> None:
    async def scenario() -> None:
        async with agents(100) as (sequencer, clock, leases):
            with capture_logs() as logs:
                clock.advance(leases[0].lease_ms / 1000)
                assert (await sequencer.apply_retention(Empty())).agents_expired == 100
            assert len(logs) == NAMED_AT_ONCE + 1
            assert logs[-1]["event"] == "more agents have not been heard of: their leases end"
            assert logs[-1]["agents"] == 100 - NAMED_AT_ONCE

    asyncio.run(scenario())
