"""Concurrent callers with the same key share one call."""

from __future__ import annotations

import asyncio

import pytest

from cache.gate import Gate
from cache.single_flight import SingleFlight


async def test_all_who_ask_at_once_share_one_call_and_its_outcome() -> None:
    flights: SingleFlight[str, int] = SingleFlight()
    calls = 0

    async def call() -> int:
        nonlocal calls
        calls += 1
        await asyncio.sleep(0)
        return 7

    assert await asyncio.gather(*(flights.do("k", call) for _ in range(10))) == [7] * 10
    assert calls == 1
    assert len(flights) == 0
    assert await flights.do("k", call) == 7
    assert calls == 2


async def test_an_error_goes_to_all_and_is_not_kept() -> None:
    flights: SingleFlight[str, int] = SingleFlight()

    async def fail() -> int:
        await asyncio.sleep(0)
        raise OSError("away")

    async def work() -> int:
        return 1

    outcomes = await asyncio.gather(*(flights.do("k", fail) for _ in range(3)), return_exceptions=True)
    assert [str(outcome) for outcome in outcomes] == ["away"] * 3
    assert await flights.do("k", work) == 1


async def test_one_who_leaves_does_not_take_the_flight_from_the_others() -> None:
    flights: SingleFlight[str, int] = SingleFlight()
    arrived = asyncio.Event()

    async def call() -> int:
        await arrived.wait()
        return 3

    first = asyncio.create_task(flights.do("k", call))
    second = asyncio.create_task(flights.do("k", call))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    arrived.set()

    assert await second == 3
    assert first.cancelled()


async def test_closing_cancels_what_still_flies() -> None:
    flights: SingleFlight[str, None] = SingleFlight()
    waiter = asyncio.create_task(flights.do("k", asyncio.Event().wait))  # type: ignore[arg-type]
    await asyncio.sleep(0)

    await flights.close()

    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert len(flights) == 0


async def test_a_gate_lets_through_its_limit_in_order_and_the_promoted_before() -> None:
    gate = Gate(1)
    order: list[str] = []
    leave = {name: asyncio.Event() for name in "abcd"}

    async def pass_through(name: str) -> None:
        async with gate.passing(name):
            order.append(name)
            await leave[name].wait()

    tasks = {name: asyncio.create_task(pass_through(name)) for name in "abcd"}
    await asyncio.sleep(0)
    gate.promote("c")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert order == ["a", "c"]

    tasks["b"].cancel()
    leave["a"].set()
    leave["c"].set()
    leave["d"].set()
    await asyncio.gather(*tasks.values(), return_exceptions=True)
    assert order == ["a", "c", "d"]
    assert gate.inside == 0
