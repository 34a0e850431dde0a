"""When a store is asked again."""

from __future__ import annotations

import asyncio

import pytest

from tailrace.clock import ManualClock, SeededEntropy
from tailrace.object_store.api import ObjectMissing, StoreUnavailable
from tailrace.object_store.faulty import FaultPlan, Faults, FaultyStore, Operation
from tailrace.object_store.hedged import HedgedStore
from tailrace.object_store.memory import MemoryStore


def make() -> tuple[HedgedStore, FaultyStore, ManualClock]:
    clock = ManualClock()
    faulty = FaultyStore(MemoryStore(clock), clock, SeededEntropy(1))
    return HedgedStore(faulty, clock, SeededEntropy(2)), faulty, clock


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


HANGS = Faults(hangs_before=1, hang_seconds=60)


def test_a_silent_get_is_asked_again() -> None:
    async def scenario() -> None:
        store, faulty, clock = make()
        await store.put("k", [b"x"])
        faulty.plan = FaultPlan(get=HANGS)
        get = asyncio.create_task(store.get("k"))
        await settle()
        faulty.plan = FaultPlan()
        clock.advance(0.2)
        assert await get == b"x"
        assert (store.hedges, store.retries) == (1, 0)

    asyncio.run(scenario())


def test_a_failed_put_is_repeated_within_its_deadline() -> None:
    async def scenario() -> None:
        store, faulty, clock = make()
        faulty.outage.begin(Operation.PUT)
        put = asyncio.create_task(store.put("k", [b"x"]))
        await settle()
        faulty.outage.end()
        clock.advance(0.1)
        await put
        assert (store.hedges, store.retries) == (0, 1)

    asyncio.run(scenario())


def test_at_the_deadline_the_caller_is_told() -> None:
    async def scenario() -> None:
        store, faulty, clock = make()
        faulty.plan = FaultPlan(put=HANGS)
        put = asyncio.create_task(store.put("k", [b"x"]))
        for _ in range(21):
            await settle()
            clock.advance(0.1)
        with pytest.raises(StoreUnavailable, match=r"no answer within 2\.0 s"):
            await put

    asyncio.run(scenario())


def test_a_conditional_put_is_asked_once_and_a_missing_object_is_an_answer() -> None:
    async def scenario() -> None:
        store, faulty, _ = make()
        faulty.outage.begin(Operation.PUT)
        with pytest.raises(StoreUnavailable):
            await store.put("k", [b"x"], if_absent=True)
        with pytest.raises(ObjectMissing):
            await store.get("k")
        assert store.retries == 0

    asyncio.run(scenario())
