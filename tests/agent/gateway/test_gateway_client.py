"""A gateway's request holds a bounded part of the agent's memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from agent.answer_memory import AnswerMemory
from agent.gateway.client import ANSWER_SECONDS, GatewayClient
from agent.gateway.context import GatewayContext
from agent.gateway.errors import HttpRefusal
from agent.memory_budget import MemoryBudget
from agent.replies import Reply
from agent.security.access import ANYBODY
from tailrace.kafka import ApiKey, encode_response
from tailrace.kafka.apis import APIS
from tailrace.kafka.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from tailrace.kafka.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from tailrace.kafka.messages.produce import ProduceRequest
from tailrace.kafka.source_writer import STEP
from tests.support.agents import settle
from tests.support.clocks import ManualClock
from tests.support.turns import passes_of


def client_of(
    dispatch: Callable[..., Awaitable[Reply]], clock: ManualClock, budget: MemoryBudget
) -> GatewayClient:
    """A client whose requests get the replies of `dispatch`. For answers there is as much memory as in the budget."""
    parts: Any = {
        "listener": "",
        "logins": None,
        "quotas": None,
        "dispatch_for": lambda _: dispatch,
        "partitions_of": None,
    }
    context = GatewayContext(budget=budget, memory=AnswerMemory(budget.limit, clock), **parts)
    return GatewayClient(context, ANYBODY, clock)


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_a_request_whose_answer_is_late_holds_its_memory_until_it_is_made(is_cancelled: bool) -> None:
    clock, budget, reply = ManualClock(), MemoryBudget(1 << 20), Reply.deferred()

    async def dispatch(*_: object) -> Reply:
        return reply

    asking = asyncio.ensure_future(client_of(dispatch, clock, budget).ask(ProduceRequest()))
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


async def test_long_requests_and_responses_leave_the_loop_to_others() -> None:
    names = [f"t{number}" for number in range(10 * STEP)]
    response = MetadataResponse(topics=[MetadataResponseTopic(name=name) for name in names])
    request = MetadataRequest([MetadataRequestTopic(name=name) for name in names])

    async def dispatch(*_: object) -> Reply:
        return Reply(encode_response(0, ApiKey.METADATA, APIS[ApiKey.METADATA].served.last, response))

    asking = client_of(dispatch, ManualClock(), MemoryBudget(64 << 20)).ask(request)
    assert await passes_of(asking) >= 20


async def test_a_reader_that_leaves_while_its_records_are_decoded_gives_their_memory_back() -> None:
    given_back: list[bool] = []
    partitions = [PartitionData(partition_index=number) for number in range(10 * STEP)]
    response = FetchResponse(responses=[FetchableTopicResponse("t", partitions=partitions)])

    async def dispatch(*_: object) -> Reply:
        parts = encode_response(0, ApiKey.FETCH, 12, response)
        return Reply(parts, on_sent=lambda: given_back.append(True))

    client = client_of(dispatch, ManualClock(), MemoryBudget(64 << 20))
    holding = asyncio.ensure_future(client.hold(FetchRequest()))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not holding.done()
    holding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await holding
    assert given_back == [True]
