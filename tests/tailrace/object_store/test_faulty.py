"""Injected faults: each kind, and that a seed repeats."""

from __future__ import annotations

import asyncio

import pytest

from tailrace.background_tasks import cancel_and_wait
from tailrace.object_store.api import ObjectMissing, StoreFull, StoreUnavailable
from tailrace.object_store.memory import MemoryStore
from tests.support.clocks import ManualClock, SeededEntropy
from tests.support.faulty_store import FaultPlan, Faults, FaultyStore, Latency, Operation


def make(plan: FaultPlan, seed: int = 1) -> tuple[FaultyStore, MemoryStore, ManualClock]:
    clock = ManualClock()
    inner = MemoryStore(clock)
    return FaultyStore(inner, clock, SeededEntropy(seed), plan), inner, clock


async def test_a_put_that_fails_before_has_no_effect_and_one_that_fails_after_has() -> None:
    store, inner, _ = make(FaultPlan(put=Faults(fails_before=1)))
    with pytest.raises(StoreUnavailable):
        await store.put("k", [b"x"])
    with pytest.raises(ObjectMissing):
        await inner.get("k")

    store.plan = FaultPlan(put=Faults(fails_after=1))
    with pytest.raises(StoreUnavailable):
        await store.put("k", [b"x"])
    assert await inner.get("k") == b"x"


async def test_a_hanging_put_lands_late_though_its_caller_gave_up() -> None:
    store, inner, clock = make(FaultPlan(put=Faults(hangs_after=1, hang_seconds=30)))
    put = asyncio.create_task(store.put("k", [b"late"]))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await cancel_and_wait(put)
    with pytest.raises(ObjectMissing):
        await inner.get("k")

    clock.advance(30)
    for _ in range(5):
        await asyncio.sleep(0)
    assert await inner.get("k") == b"late"
    await store.close()


async def test_an_outage_may_be_partial() -> None:
    store, _, _ = make(FaultPlan())
    await store.put("a/k", [b"x"])
    store.outage.begin(Operation.PUT, prefix="a/")
    with pytest.raises(StoreUnavailable):
        await store.put("a/k", [b"y"])
    await store.put("b/k", [b"y"])
    assert await store.get("a/k") == b"x"
    store.outage.end()
    await store.put("a/k", [b"y"])
    store.outage.is_full = True
    with pytest.raises(StoreFull):
        await store.put("a/k", [b"z"])


def test_a_seed_repeats() -> None:
    async def outcomes(seed: int) -> str:
        store, _, _ = make(FaultPlan(put=Faults(fails_before=0.3, fails_after=0.3)), seed)
        told = ""
        for i in range(50):
            try:
                await store.put(f"k{i}", [b"x"])
                told += "."
            except StoreUnavailable as failure:
                told += "b" if "before" in str(failure) else "a"
        return told

    first = asyncio.run(outcomes(7))
    assert first == asyncio.run(outcomes(7)) != asyncio.run(outcomes(8))
    assert set(first) == set(".ab")


def test_latencies_have_the_percentiles_asked_for() -> None:
    entropy = SeededEntropy(3)
    seconds = sorted(Latency(150, 400).draw_seconds(entropy) for _ in range(20_000))
    assert seconds[10_000] == pytest.approx(0.150, rel=0.03)
    assert seconds[19_800] == pytest.approx(0.400, rel=0.06)
