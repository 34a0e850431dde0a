"""What a request of the gateway holds of the agent's memory."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agent.answer_memory import AnswerMemory
from agent.connection import Reply
from agent.gateway.client import ANSWER_SECONDS, GatewayClient
from agent.gateway.context import GatewayContext
from agent.gateway.errors import HttpRefusal
from agent.memory_budget import MemoryBudget
from agent.security.access import ANYBODY
from tailrace.kafka.messages.produce import ProduceRequest
from tests.support.agents import settle
from tests.support.clocks import ManualClock


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_request_whose_answer_is_late_holds_its_memory_until_it_is_made(is_cancelled: bool) -> None:
    async def scenario() -> None:
        clock, budget, reply = ManualClock(), MemoryBudget(1 << 20), Reply.deferred()

        async def dispatch(*_: object) -> Reply:
            return reply

        parts: Any = {"listener": "", "logins": None, "opened": None, "dispatch_for": lambda _: dispatch}
        context = GatewayContext(budget=budget, memory=AnswerMemory(1 << 20, clock), **parts)
        asking = asyncio.ensure_future(GatewayClient(context, ANYBODY, clock).ask(ProduceRequest()))
        await settle()
        if is_cancelled:
            asking.cancel()
        else:
            clock.advance(ANSWER_SECONDS + 1)
        with pytest.raises(asyncio.CancelledError if is_cancelled else HttpRefusal):
            await asking
        assert budget.used > 0, "a buffer still holds its bytes"
        reply.made(None)
        assert budget.used == 0

    asyncio.run(scenario())
