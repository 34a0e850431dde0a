"""Groups' deadlines: which groups are due, in which order, and what a moved deadline costs."""

from __future__ import annotations

import asyncio

from agent.groups.deadlines import GroupDeadlines
from tests.support.clocks import ManualClock


def test_groups_are_due_in_the_order_of_their_deadlines() -> None:
    deadlines = GroupDeadlines()
    for group_id, deadline in (("late", 9.0), ("second", 2.0), ("first", 1.0)):
        deadlines.arm(group_id, deadline)

    assert list(deadlines.take_due(2.0)) == ["first", "second"]
    assert list(deadlines.take_due(2.0)) == [], "they are disarmed"


def test_the_earliest_deadline_of_a_group_counts() -> None:
    deadlines = GroupDeadlines()
    for deadline in (5.0, 8.0, 3.0):
        deadlines.arm("a", deadline)

    assert list(deadlines.take_due(3.0)) == ["a"]
    assert list(deadlines.take_due(9.0)) == [], "the entries of its other deadlines are outdated"


def test_a_group_that_was_forgotten_is_not_due_until_it_is_armed_again() -> None:
    deadlines = GroupDeadlines()
    deadlines.arm("a", 1.0)
    deadlines.forget("a")
    deadlines.arm("a", 4.0)

    assert list(deadlines.take_due(1.0)) == []
    assert list(deadlines.take_due(4.0)) == ["a"]


async def test_a_wait_ends_when_an_earlier_deadline_is_armed() -> None:
    deadlines, clock = GroupDeadlines(), ManualClock()
    deadlines.arm("late", clock.monotonic() + 50)
    waiting = asyncio.ensure_future(deadlines.wait(clock, 100.0))
    await asyncio.sleep(0)
    assert not waiting.done()

    deadlines.arm("first", clock.monotonic() + 10)
    await waiting
