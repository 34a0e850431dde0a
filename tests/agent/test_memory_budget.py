"""The memory budget: which claims are granted, in which order, with how many checks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.memory_budget import SMALL_BYTES, Claim, MemoryBudget
from tests.support.agents import settle
from tests.support.patience import PATIENCE_SECONDS

LIMIT = 80 * SMALL_BYTES
SMALL, LARGE = SMALL_BYTES, 10 * SMALL_BYTES


@asynccontextmanager
async def limited_budget() -> AsyncIterator[MemoryBudget]:
    async with asyncio.timeout(PATIENCE_SECONDS):
        yield MemoryBudget(LIMIT)


def fill(budget: MemoryBudget, size: int) -> int:
    """How many of this size are there."""
    taken = 0
    while budget.try_take(size):
        taken += 1
    return taken


async def test_small_ones_may_have_all_but_what_is_counted_and_large_ones_leave_an_eighth() -> None:
    async with limited_budget() as budget:
        assert fill(budget, LARGE) == 6
        assert fill(budget, SMALL) == 15
        assert budget.used == LIMIT * 15 // 16
        assert fill(MemoryBudget(LIMIT), SMALL) == 75


async def test_waiters_are_granted_in_order_of_arrival_each_once_and_nobody_spins() -> None:
    async with limited_budget() as budget:
        granted: list[int] = []
        fill(budget, SMALL)
        for number in range(3):
            budget.claim(SMALL, lambda number=number: granted.append(number))  # type: ignore[misc]
        assert not budget.try_take(1), "nobody comes before those who wait"
        for expected in ([0], [0, 1], [0, 1, 2]):
            budget.give(SMALL)
            await settle(3)
            assert granted == expected, "room for one is one turn of one waiter"
        assert budget.used == LIMIT * 15 // 16 and not budget.is_contended


async def test_a_large_one_that_waits_gets_what_small_ones_give_back() -> None:
    async with limited_budget() as budget:
        granted: list[str] = []
        assert fill(budget, SMALL) == 75
        budget.claim(LARGE, lambda: granted.append("large"))
        for _ in range(20):  # a steady flow: each that ends comes again
            budget.give(SMALL)
            if not budget.try_take(SMALL):
                budget.claim(SMALL, lambda: granted.append("small"))
            await settle(2)
        assert granted[0] == "large", "what is given back adds up for it"
        assert "small" in granted, "and then the small ones go on"


async def test_small_ones_continue_while_large_ones_hold_and_want_everything() -> None:
    async with limited_budget() as budget:
        assert fill(budget, LARGE) == 6
        budget.claim(LARGE, lambda: None)
        for _ in range(100):
            assert budget.try_take(SMALL)
            budget.give(SMALL)


async def test_a_caller_that_withdraws_blocks_no_other_and_keeps_nothing() -> None:
    async with limited_budget() as budget:
        granted: list[str] = []
        fill(budget, LARGE)
        gone = budget.claim(2 * LARGE, lambda: granted.append("gone"))
        budget.claim(LARGE, lambda: granted.append("next"))
        late = budget.claim(LARGE, lambda: granted.append("late"))
        budget.give(LARGE)
        assert not granted
        budget.withdraw(gone)
        budget.give(LARGE)
        budget.withdraw(late)  # granted, and not told yet
        await settle(3)
        assert granted == ["next"]
        assert budget.used == 5 * LARGE and not budget.is_contended


async def test_bytes_counted_without_a_claim_leave_less_for_others() -> None:
    async with limited_budget() as budget:
        budget.count(LIMIT)
        assert not budget.try_take(1) and not budget.is_over
        budget.count(1)
        assert budget.is_over
        told: list[int] = []
        budget.claim(SMALL, lambda: told.append(1))
        budget.count(-SMALL - LIMIT // 16 - 1)
        await settle(3)
        assert told == [1]


async def test_the_largest_charge_fits_beside_what_is_counted() -> None:
    async with limited_budget() as budget:
        budget.count(LIMIT // 16)
        assert budget.try_take(budget.largest)
        with pytest.raises(AssertionError):
            budget.claim(budget.largest + 1, lambda: None)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, LARGE)), max_size=200))
def test_the_limit_holds_and_everybody_is_granted_in_the_end(steps: list[tuple[int, int]]) -> None:
    async def scenario() -> None:
        budget = MemoryBudget(LIMIT)
        held: list[int] = []
        waiting: dict[int, Claim] = {}

        def granted(number: int) -> None:
            held.append(waiting.pop(number).size)

        for number, (kind, size) in enumerate(steps):
            if kind == 0 and held:
                budget.give(held.pop(0))
            elif kind == 1 and waiting:
                budget.withdraw(waiting.pop(min(waiting)))
            elif budget.try_take(size):
                held.append(size)
            else:
                waiting[number] = budget.claim(size, partial(granted, number))
            if number % 3:
                await settle(1)
            assert budget.used <= budget.limit
        while held:
            budget.give(held.pop())
            await settle(2)
        assert budget.used == 0 and not waiting and not budget.is_contended

    asyncio.run(scenario())
