"""Long work is done in turns of the event loop."""

from __future__ import annotations

import asyncio

import pytest

from tailrace.turns import PAUSE_SECONDS, PacedStarts, ThreadTurns


def test_tasks_side_by_side_begin_once_the_work_before_them_has_had_its_turns() -> None:
    async def scenario() -> list[int]:
        starts, began, passes = PacedStarts(100), dict[int, int](), 0

        async def task(number: int, work: int) -> None:
            await starts.begin(work)
            began[number] = passes

        works = [30, 30, 30, 30, 500, 10, 10]
        tasks = [asyncio.create_task(task(number, work)) for number, work in enumerate(works)]
        while not all(each.done() for each in tasks):
            await asyncio.sleep(0)
            passes += 1
        return [began[number] for number in range(len(works))]

    first, *small, large, after, last = asyncio.run(scenario())
    assert small == [first] * 3, "together they fill one turn"
    assert large > first and after >= large + 5
    assert after <= last <= after + 1


def test_work_in_another_thread_pauses_after_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("time.sleep", pauses.append)
    turns = ThreadTurns(3)
    for _ in range(8):
        turns.did()
    assert pauses == [PAUSE_SECONDS] * 2
