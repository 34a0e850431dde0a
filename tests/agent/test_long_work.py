"""Long requests share the event loop between clients, and with all that is short."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress

import pytest

from agent.long_work import FREE_SECONDS, REST, LongWork
from tests.support.patience import PATIENCE_SECONDS

STEP_SECONDS = 0.002
PASS_SECONDS = 0.001


class SharedLoop:
    """A loop on which time passes only as its steps and the others' passes say."""

    def __init__(self) -> None:
        self.now = 0.0
        self.is_expected = False
        self.long_work = LongWork(lambda: self.now, lambda: self.is_expected)
        self.done: Counter[str] = Counter()
        """Steps by client."""
        self.ended: Counter[str] = Counter()
        """Requests by client, whether they came to their end or not."""

    async def _work(self, client: str, steps: int, step_seconds: float) -> str:
        try:
            for _ in range(steps):
                self.now += step_seconds
                self.done[client] += 1
                await asyncio.sleep(0)
        finally:
            self.ended[client] += 1
        return client

    async def request(
        self, client: str, steps: int, *, step_seconds: float = STEP_SECONDS, is_long: bool = True
    ) -> str:
        """As many steps for a client."""
        work = self._work(client, steps, step_seconds)
        return await self.long_work.shared(client, work, is_long=is_long)

    def requests(self, client: str, number: int, steps: int) -> list[asyncio.Task[str]]:
        return [asyncio.create_task(self.request(client, steps)) for _ in range(number)]

    async def passes(self, number: int, seconds: float = 0.0) -> list[int]:
        """Let others use so many passes of the loop, each for as long; how many steps were done before each."""
        before = []
        for _ in range(number):
            done = self.done.total()
            await asyncio.sleep(0)
            before.append(self.done.total() - done)
            self.now += seconds
        return before


async def test_however_many_long_requests_there_are_one_step_is_done_in_a_pass() -> None:
    loop = SharedLoop()
    requests = loop.requests("a", 10, 20) + loop.requests("b", 10, 20)
    steps = await loop.passes(300)
    assert max(steps) == 1
    assert sum(steps) >= 90, "they go on, one after the other"
    assert await asyncio.gather(*requests) == ["a"] * 10 + ["b"] * 10
    assert loop.done == {"a": 200, "b": 200}


async def test_clients_have_their_turns_alternately_however_many_requests_each_has() -> None:
    loop = SharedLoop()
    many = loop.requests("a", 10, 20)
    await loop.passes(5)
    (one,) = loop.requests("b", 1, 20)
    before = loop.done["a"]
    await one
    assert loop.done["a"] - before <= 25, "of 200"
    await asyncio.gather(*many)


async def test_beside_others_who_use_the_loop_long_requests_have_their_share_of_it() -> None:
    loop = SharedLoop()
    requests = loop.requests("a", 10, 20)
    others = 300
    steps = sum(await loop.passes(others, PASS_SECONDS))
    share = steps * STEP_SECONDS / (steps * STEP_SECONDS + others * PASS_SECONDS)
    assert 0.6 / (1 + REST) < share <= 1 / (1 + REST)
    await asyncio.gather(*requests)


async def test_on_an_idle_loop_a_long_request_waits_for_nobody() -> None:
    loop = SharedLoop()
    await asyncio.gather(*loop.requests("a", 1, 50))
    assert loop.now < 51 * STEP_SECONDS


async def test_while_batches_are_being_stored_an_idle_loop_is_left_to_them_as_a_busy_one_is() -> None:
    loop = SharedLoop()
    loop.is_expected = True
    (request,) = loop.requests("a", 1, 3)
    for done in (1, 2):
        assert sum(await loop.passes(50)) <= 1
        assert loop.done["a"] == done, "it rests, though nobody uses the loop"
        loop.now += REST * STEP_SECONDS
        await asyncio.sleep(REST * STEP_SECONDS + 0.01)
    loop.is_expected = False
    assert await asyncio.wait_for(request, PATIENCE_SECONDS) == "a", (
        "nobody is waited for: it goes on at once"
    )


async def test_a_short_request_waits_for_no_turn_beside_long_ones() -> None:
    loop = SharedLoop()
    many = loop.requests("a", 10, 20)
    await loop.passes(3)
    before = loop.done["a"]
    short = loop.request("b", 5, step_seconds=FREE_SECONDS / 10, is_long=False)
    await short
    assert loop.done["a"] - before <= 5
    await asyncio.gather(*many)


async def test_a_request_becomes_long_by_the_time_that_it_uses() -> None:
    loop = SharedLoop()
    small = [asyncio.create_task(loop.request("a", 10, is_long=False)) for _ in range(10)]
    steps = await loop.passes(50)
    assert steps[0] > 1, "nobody knows yet"
    assert max(steps[3:]) == 1
    await asyncio.gather(*small)


@pytest.mark.parametrize("passes", [1, 2, 3, 4])
async def test_a_request_that_is_given_up_ends_and_passes_its_turn_on(passes: int) -> None:
    loop = SharedLoop()
    first, second = loop.requests("a", 2, 20)
    await loop.passes(2 + passes)
    first.cancel()
    assert await second == "a"
    with suppress(asyncio.CancelledError):
        await first
    assert first.cancelled()
    assert loop.done["a"] < 40
    assert loop.ended["a"] == 2


async def test_work_that_is_shared_within_shared_work_takes_one_turn_a_step() -> None:
    loop = SharedLoop()
    nested = loop.long_work.shared("a", loop.request("a", 20), is_long=True)
    gateway = asyncio.create_task(nested)
    (kafka,) = loop.requests("b", 1, 20)
    await asyncio.wait({gateway, kafka}, return_when=asyncio.FIRST_COMPLETED)
    assert min(loop.done["a"], loop.done["b"]) >= 19, "of 20"
    assert await asyncio.gather(gateway, kafka) == ["a", "b"]


async def test_a_task_takes_turns_again_once_its_shared_work_has_ended() -> None:
    loop = SharedLoop()

    async def two_requests() -> None:
        with suppress(LookupError):
            await loop.long_work.shared("a", _fails())
        await loop.request("a", 20)

    both = [asyncio.create_task(two_requests()) for _ in range(2)]
    steps = await loop.passes(100)
    assert max(steps) == 1
    await asyncio.gather(*both)


async def _fails() -> None:
    await asyncio.sleep(0)
    raise LookupError("gone")


async def test_an_error_of_the_work_is_the_request_s() -> None:
    with pytest.raises(LookupError, match="gone"):
        await LongWork(lambda: 0.0).shared("a", _fails(), is_long=True)
