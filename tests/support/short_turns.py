"""How long a turn of the loop may be, and requests whose answers are made in short turns."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from agent.dispatch import Dispatcher
from agent.replies import Reply
from tailrace.buffers import Buffer
from tailrace.kafka import ApiKey, decode_response, encode_request
from tests.support.agents import AgentBench, connection, made
from tests.support.turns import measured_turns

HELD_SECONDS = 0.05
"""CPU time of one turn of the loop. Other threads, such as the database's, are not in it."""


async def asked_together(
    bench: AgentBench, key: ApiKey, version: int, requests: Sequence[Any], seconds: float = 60.0
) -> list[Any]:
    """The answers to requests that came on as many connections in one moment. Raises HeldTooLong if a turn was long
    until all were made; what the clients do is not measured."""
    sent = [memoryview(b"".join(encode_request(7, key, version, each)))[4:] for each in requests]
    dispatch = Dispatcher(bench.services)

    async def answered(frame: memoryview) -> tuple[Reply, Sequence[Buffer] | None]:
        reply = await dispatch(frame, connection())
        return reply, await made(reply)

    with measured_turns() as turns:
        tasks = [asyncio.create_task(answered(frame), name=key.name) for frame in sent]
        replies = await bench.until(asyncio.gather(*tasks), seconds)
    turns.check(HELD_SECONDS)
    for reply, _ in replies:
        if reply.on_sent is not None:
            reply.on_sent()
    return [decode_response(key, version, memoryview(b"".join(parts or ()))[4:])[1] for _, parts in replies]
