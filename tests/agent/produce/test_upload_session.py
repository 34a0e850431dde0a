"""Upload sessions: their numbers, and which number waits for which."""

from __future__ import annotations

import asyncio
from uuid import UUID

from agent.produce.upload_session import UploadSession
from tests.support.agents import settle


def session(number: int, predecessor: UploadSession | None = None) -> UploadSession:
    return UploadSession(
        UUID(int=number), f"s{number}/", opened_at=0.0, no_put_after=1.0, predecessor=predecessor
    )


def test_answered_below_stops_at_the_first_unanswered_number() -> None:
    opened = session(1)
    assert opened.answered_below == 0
    numbers = [opened.take_number() for _ in range(3)]
    assert numbers == [0, 1, 2] and opened.answered_below == 0
    opened.answered(1)
    assert opened.answered_below == 0
    opened.answered(0)
    assert opened.answered_below == 2
    opened.answered(2)
    assert opened.answered_below == 3


async def test_a_session_waits_for_every_number_of_the_sessions_before_it_also_past_one_without_any() -> None:
    first = session(1)
    number = first.take_number()
    third = session(3, session(2, first))
    waiting = asyncio.ensure_future(third.predecessors_answered())
    retiring = asyncio.ensure_future(first.all_answered())
    await settle()
    assert not waiting.done() and not retiring.done()
    first.answered(number)
    await settle()
    assert waiting.done() and retiring.done()


async def test_a_session_with_nothing_before_it_waits_for_nobody() -> None:
    alone = session(1)
    alone.take_number()
    await alone.predecessors_answered()
    await session(2, session(1)).all_answered()
