"""Long listings over HTTP: written bit by bit, within the gateway's memory."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import agent.gateway.client as gateway_client
from agent.answer_memory import AnswerReservation
from agent.connection import PRESSURE_SECONDS
from agent.gateway.listings import PART_BYTES, PacedStream
from agent.gateway.responses import ClientDisconnected, ResponseStream
from agent.gateway.settings import GatewaySettings
from agent.security.access import ANYBODY
from tailrace.kafka import decode_response_in_steps
from tests.agent.gateway.serving import Served, opened_gateway
from tests.support.agents import settle
from tests.support.clocks import ManualClock

pytestmark = pytest.mark.uvloop

PARTITIONS = 1_000


async def _with_topic(there: Served) -> None:
    body = {"topic_name": "large", "partitions_count": PARTITIONS}
    status, _ = await there.ask("POST", "/topics", body)
    assert status == 201


async def test_a_long_listing_is_whole_and_is_written_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts: list[int] = []
    inner = ResponseStream.write

    async def watched(self: ResponseStream, data: bytes) -> None:
        parts.append(len(data))
        await inner(self, data)

    async with opened_gateway(tmp_path) as there:
        await _with_topic(there)
        monkeypatch.setattr(ResponseStream, "write", watched)
        found = await there.get("/topics/large/partitions")
        assert [each["partition_id"] for each in found["data"]] == list(range(PARTITIONS))
        assert found["kind"] == "KafkaPartitionList" and found["metadata"]["self"]
        assert len(parts) > 3 and max(parts) < 2 * PART_BYTES
        parts.clear()
        assert len((await there.get("/topics"))["data"]) == 1
        assert not parts, "a short one is one response"


async def test_listings_that_are_asked_for_side_by_side_share_the_gateways_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_client, "RESPONSE_FACTOR", 1_000)  # each takes 26 MB of the 64 that there are

    async with opened_gateway(tmp_path) as there:
        await _with_topic(there)
        memory = there.gateway._context.memory
        most, waited = 0, False
        inner = decode_response_in_steps

        def watched(*args: object) -> object:
            nonlocal most, waited
            most, waited = max(most, memory.used), waited or memory.is_contended
            return inner(*args)  # type: ignore[arg-type]

        monkeypatch.setattr(gateway_client, "decode_response_in_steps", watched)
        answers = await asyncio.gather(*(there.get("/topics/large/partitions") for _ in range(20)))
        assert {len(answer["data"]) for answer in answers} == {PARTITIONS}
        assert 0 < most <= 64 << 20 and waited
        while memory.used:
            await asyncio.sleep(0)


async def _seconds_until_cut(monkeypatch: pytest.MonkeyPatch, *, others_wait: bool) -> tuple[int, str]:
    """How long a reader that takes nothing is waited for, and why no longer."""
    clock = ManualClock()
    settings = GatewaySettings(listen="127.0.0.1:0")
    call: Any = SimpleNamespace(
        request={},
        parts=SimpleNamespace(clock=clock, settings=settings),
        client=SimpleNamespace(others_wait=others_wait),
    )
    monkeypatch.setattr(ResponseStream, "_write", lambda stream, data: asyncio.Event().wait())
    writing = asyncio.ensure_future(PacedStream(call).write(b"x"))
    seconds = 0
    await settle()
    while not writing.done():
        clock.advance(1)
        seconds += 1
        await settle()
    with pytest.raises(ClientDisconnected) as gone:
        await writing
    return seconds, str(gone.value)


async def test_a_reader_that_stops_is_cut_off_soon_while_others_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await _seconds_until_cut(monkeypatch, others_wait=False) == (30, "stalled")
    found = await _seconds_until_cut(monkeypatch, others_wait=True)
    assert found == (PRESSURE_SECONDS + 1, "others wait for memory")


async def test_a_listing_that_waits_for_the_gateways_memory_holds_none_of_the_agents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_client, "RESPONSE_FACTOR", 1_000)

    async with opened_gateway(tmp_path) as there:
        await _with_topic(there)
        context = there.gateway._context
        agents = context.dispatch_for(ANYBODY)._services.answer_memory
        others = AnswerReservation(context.memory)
        await others.needs(context.memory.most)
        asked = asyncio.ensure_future(there.get("/topics/large/partitions"))
        while not context.memory.is_contended:
            await asyncio.sleep(0)
        assert agents.used == 0
        others.release()
        assert len((await asked)["data"]) == PARTITIONS
