"""However many short requests come together, a pass of the event loop does a bounded part of them, in order."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial

import pytest

from agent.long_work import FREE_SECONDS, LongWork
from agent.loop_passes import PASS_SECONDS, LoopPasses

STEP_SECONDS = 0.0001
IN_A_PASS = round(PASS_SECONDS / STEP_SECONDS)
MANY = 10_000


class Burst:
    """Short requests of one loop, on which time passes only in their steps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.long_work = LongWork(lambda: self.now)
        self.passes = self.long_work.passes
        self.began: list[int] = []
        self.answered: list[int] = []
        self.connections: list[asyncio.Task[None]] = []
        """Those whose request has begun."""
        self.wake_ups = 0
        loop = asyncio.get_running_loop()
        create = loop.create_future

        def counted() -> asyncio.Future[object]:
            self.wake_ups += 1
            return create()

        loop.create_future = counted  # type: ignore[method-assign]

    async def request(self, number: int, step_seconds: float = STEP_SECONDS) -> None:
        """Two steps: what is done until the sequencer is asked, and what follows its answer."""
        await self.long_work.shared("a", self._work(number, step_seconds))

    def connection(self, number: int) -> None:
        """A request that came in a frame."""
        self.passes.begin(lambda: self.connections.append(asyncio.create_task(self.request(number))))

    async def _work(self, number: int, step_seconds: float) -> None:
        self.began.append(number)
        self.now += step_seconds
        await asyncio.sleep(0)
        self.now += step_seconds
        self.answered.append(number)

    async def longest_pass(self, requests: list[asyncio.Task[None]]) -> float:
        """Seconds of the longest pass until all are answered."""
        longest, all_answered = 0.0, asyncio.gather(*requests)
        while not all_answered.done():
            before = self.now
            await asyncio.sleep(0)
            longest = max(longest, self.now - before)
        return longest


async def test_a_pass_does_a_part_of_many_short_requests_each_in_its_order() -> None:
    burst = Burst()
    requests = [asyncio.create_task(burst.request(number)) for number in range(MANY)]
    assert await burst.longest_pass(requests) <= 2 * PASS_SECONDS + STEP_SECONDS
    assert burst.began == burst.answered == list(range(MANY))
    assert burst.wake_ups <= 3 * MANY, "nobody is woken in each pass"


async def test_connections_whose_requests_come_together_begin_in_their_order_as_many_in_a_pass_as_should_fit() -> (
    None
):
    burst = Burst()
    await asyncio.gather(*(burst.request(number) for number in range(IN_A_PASS)))
    burst.began.clear()
    for number in range(MANY):
        burst.connection(number)
    begun = [len(burst.connections)]
    while len(burst.connections) < MANY:
        await asyncio.sleep(0)
        begun.append(len(burst.connections) - sum(begun))
    await asyncio.gather(*burst.connections)
    assert max(begun) <= IN_A_PASS
    assert len(begun) < 6 * MANY / IN_A_PASS
    assert burst.began == list(range(MANY))


async def test_steps_that_take_longer_than_those_before_them_are_held_back_too() -> None:
    burst = Burst()
    short = [burst.request(number, STEP_SECONDS / 20) for number in range(MANY)]
    longer = [burst.request(MANY + number, FREE_SECONDS / 3) for number in range(500)]
    requests = [asyncio.create_task(each) for each in short + longer]
    assert await burst.longest_pass(requests) <= 2 * PASS_SECONDS + FREE_SECONDS
    assert burst.began == list(range(MANY + 500))


async def test_on_a_loop_that_is_always_busy_each_is_served_in_its_order() -> None:
    burst = Burst()
    for number in range(MANY):
        burst.connection(number)
        if number % (2 * IN_A_PASS) == 0:  # more than can be served
            await asyncio.sleep(0)
    served = len(burst.answered)
    assert served >= 20 * IN_A_PASS, "what has begun goes before what has not"
    assert len(burst.began) <= served + 4 * IN_A_PASS
    while len(burst.answered) < MANY:
        await asyncio.sleep(0)
    assert burst.began == list(range(MANY))


@pytest.mark.parametrize("passes", [1, 2, 3, 4, 30])
async def test_requests_that_are_given_up_while_they_wait_end_and_block_nobody(passes: int) -> None:
    burst = Burst()
    requests = [asyncio.create_task(burst.request(number)) for number in range(MANY)]
    for _ in range(passes):
        await asyncio.sleep(0)
    for request in requests[:-1]:
        request.cancel()
    await requests[-1]
    assert burst.answered[-1] == MANY - 1
    for request in requests:
        with suppress(asyncio.CancelledError):
            await request
    assert len(burst.answered) <= (passes + 3) * IN_A_PASS
    assert not burst.passes.is_waited_for


async def test_a_request_with_a_task_of_its_own_begins_behind_those_who_wait() -> None:
    burst = Burst()
    await asyncio.gather(*(burst.request(number) for number in range(IN_A_PASS)))
    order: list[str] = []
    while not burst.passes.is_waited_for:
        burst.passes.begin(partial(order.append, "connection"))
    given_up = asyncio.create_task(burst.passes.begun())
    waiting = asyncio.create_task(burst.passes.begun())
    waiting.add_done_callback(lambda _: order.append("gateway"))
    await asyncio.sleep(0)
    given_up.cancel()
    await waiting
    await asyncio.sleep(0)
    assert order[-2:] == ["connection", "gateway"]


async def test_if_no_time_passes_nobody_waits() -> None:
    passes = LoopPasses()
    order: list[int] = []
    for number in range(MANY):
        passes.begin(partial(order.append, number))
        passes.did(0.0)
    assert order == list(range(MANY))
    assert not passes.is_full
