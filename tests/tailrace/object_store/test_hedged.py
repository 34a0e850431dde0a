"""When a store is asked again."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tailrace.object_store.api import ObjectMissing, StoreUnavailable
from tailrace.object_store.hedged import GET_POLICY, HedgedStore, _Schedule
from tailrace.object_store.memory import MemoryStore
from tests.support.clocks import ManualClock, SeededEntropy
from tests.support.faulty_store import FaultPlan, Faults, FaultyStore, Operation


def make() -> tuple[HedgedStore, FaultyStore, ManualClock]:
    clock = ManualClock()
    faulty = FaultyStore(MemoryStore(clock), clock, SeededEntropy(1))
    return HedgedStore(faulty, clock, SeededEntropy(2)), faulty, clock


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


HANGS = Faults(hangs_before=1, hang_seconds=60)


async def test_a_silent_get_is_retried() -> None:
    store, faulty, clock = make()
    await store.put("k", [b"x"])
    faulty.plan = FaultPlan(get=HANGS)
    get = asyncio.create_task(store.get("k"))
    await settle()
    faulty.plan = FaultPlan()
    clock.advance(0.2)
    assert await get == b"x"
    assert (store.hedges, store.retries) == (1, 0)


def test_gets_are_hedged_for_one_in_twenty_at_most_and_never_where_that_is_switched_off() -> None:
    async def hedged(share: float) -> tuple[int, list[tuple[str, str]]]:
        _, faulty, clock = make()
        told: list[tuple[str, str]] = []

        class Observer:
            def repeated(self, operation: str, reason: str) -> None:
                told.append((operation, reason))

        policy = replace(GET_POLICY, hedged_share=share, lost_seconds=100.0)
        store = HedgedStore(faulty, clock, SeededEntropy(2), get=policy, observer=Observer())
        await store.put("k", [b"x"])
        for _ in range(400):
            faulty.plan = FaultPlan(get=HANGS)
            get = asyncio.create_task(store.get("k"))
            await settle()
            faulty.plan = FaultPlan()
            clock.advance(0.2)
            await settle()
            if not get.done():
                clock.advance(11)
            await asyncio.gather(get, return_exceptions=True)
        return store.hedges, told

    hedges, told = asyncio.run(hedged(GET_POLICY.hedged_share))
    assert 20 <= hedges <= 30
    assert told.count(("get", "hedge")) == hedges
    assert asyncio.run(hedged(0.0)) == (0, [])


async def test_a_failed_put_is_repeated_within_its_deadline() -> None:
    store, faulty, clock = make()
    faulty.outage.begin(Operation.PUT)
    put = asyncio.create_task(store.put("k", [b"x"]))
    await settle()
    faulty.outage.end()
    clock.advance(0.1)
    await put
    assert (store.hedges, store.retries) == (0, 1)


async def test_at_the_deadline_the_caller_is_reported() -> None:
    store, faulty, clock = make()
    faulty.plan = FaultPlan(put=HANGS)
    put = asyncio.create_task(store.put("k", [b"x"]))
    for _ in range(21):
        await settle()
        clock.advance(0.1)
    with pytest.raises(StoreUnavailable, match=r"no answer within 2\.0 s"):
        await put


async def test_a_conditional_put_is_asked_once_and_a_missing_object_is_an_answer() -> None:
    store, faulty, _ = make()
    faulty.outage.begin(Operation.PUT)
    with pytest.raises(StoreUnavailable):
        await store.put("k", [b"x"], if_absent=True)
    with pytest.raises(ObjectMissing):
        await store.get("k")
    assert store.retries == 0


async def test_calls_in_an_outage_are_answered_soon_after_it_although_the_hedges_are_used_up() -> None:
    store, faulty, clock = make()
    for number in range(40):
        await store.put(f"k{number}", [b"x"])
    faulty.plan = FaultPlan(put=HANGS)
    used_up = [asyncio.create_task(store.put(f"h{number}", [b"x"])) for number in range(20)]
    for _ in range(25):
        await settle()
        clock.advance(0.1)
    await asyncio.gather(*used_up, return_exceptions=True)
    put = asyncio.create_task(store.put("k", [b"x"]))
    await settle()
    faulty.plan = FaultPlan()
    for _ in range(6):
        clock.advance(0.1)
        await settle()
    assert put.done() and put.exception() is None
    assert store.lost > 0


async def test_a_store_that_answers_nothing_gets_ever_fewer_attempts() -> None:
    store, faulty, clock = make()
    await store.put("k", [b"x"])
    faulty.plan = FaultPlan(get=HANGS)
    get = asyncio.create_task(store.get("k"))
    for _ in range(101):
        await settle()
        clock.advance(0.1)
    with pytest.raises(StoreUnavailable):
        await get
    assert store.hedges + store.lost <= 8


def test_when_one_attempt_hangs_and_others_fail_at_once_attempts_get_rarer() -> None:
    deadline = GET_POLICY.deadline_seconds
    schedule = _Schedule(0.0, deadline=deadline, attempts=2, lost_seconds=GET_POLICY.lost_seconds)
    hangs, started, now = False, [], 0.0
    while now < deadline:
        if schedule.due(now, is_running=hangs) is not None:
            schedule.started(now, deadline, is_running=hangs)
            started.append(now)
            if hangs:
                schedule.failed(now, 0.05)
            hangs = True
        now = schedule.wakes_at(is_running=True)
    assert started == [0.0, 0.5, 1.0, 2.0, 4.0, 8.0]
