"""Long requests share the event loop, client by client, with each other and with all short requests.

A request that has used the loop for longer than `FREE_SECONDS`, or that came in a long frame, continues only in its
client's turns (`LongWork.shared`). `tailrace.turns` cuts its work into steps: a step ends when the request waits for
something, even if only for its next turn.

Time is measured to decide when a request is long, and how long others have the loop after its step. If no time passes,
as in a simulation, short frames are never long, and others have one pass of the loop.
"""

from __future__ import annotations

import asyncio
import types
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Hashable
from typing import Any, TypeVar

from agent.loop_passes import LoopPasses

T = TypeVar("T")

FREE_SECONDS = 0.001
"""How long each request may use the loop before it waits for its client's turns."""
LONG_FRAME_BYTES = 8 * 1024
"""A request of this size may have thousands of elements, so it waits for its client's turns from the start. A Produce
request that consists mostly of records has few elements, and counts as short."""
IDLE_SECONDS = 0.00005
"""A pass of the loop that takes less had nothing to do."""
REST = 1
"""How many times as long as a step others may use the loop after it. Reads of several partitions are long requests,
too: with 3, a hundred reads per second waited for seconds next to producers that used a whole core."""


class LongWork:
    """Gives turns to the long requests of one event loop.

    In one pass of the loop at most one long request runs a step. Clients take turns, however many requests each has.
    After a step the other requests have the loop until they no longer need it, or have used it for REST times the
    step's time. So long requests together take up to half of the loop's time while others need it. On an idle loop they
    run without a wait, unless batches are being stored or committed (`is_expected`): a step would delay their results,
    once in each thread that the results pass through.

    Args:
        monotonic: seconds.
        is_expected: whether batches are being stored or committed.

    `passes`: limits the work of short requests in a pass of the loop.
    """

    def __init__(
        self, monotonic: Callable[[], float], is_expected: Callable[[], bool] = lambda: False
    ) -> None:
        self._monotonic = monotonic
        self._is_expected = is_expected
        self.passes = LoopPasses()
        self._waiting: dict[Hashable, deque[asyncio.Future[None]]] = {}
        self._sharing: set[asyncio.Task[Any] | None] = set()
        """The tasks whose work is in `shared` now."""
        self._looks = False
        self._has_given = False
        self._looked_at = self._rests_until = 0.0

    async def shared(self, client: Hashable, work: Coroutine[Any, Any, T], *, is_long: bool = False) -> T:
        """Return the result of `work`. Once it is long, each of its steps waits for a turn of the client. Work shared
        within shared work waits for one turn only."""
        task = asyncio.current_task()
        if task in self._sharing:
            return await work
        self._sharing.add(task)
        try:
            return await self._in_turns(client, work, is_long)
        finally:
            self._sharing.discard(task)

    @types.coroutine
    def _in_turns(
        self, client: Hashable, work: Coroutine[Any, Any, T], is_long: bool
    ) -> Generator[Any, None, T]:
        used = FREE_SECONDS if is_long else 0.0
        error: BaseException | None = None
        passes = self.passes
        while True:
            if error is None and (used >= FREE_SECONDS or passes.is_full):
                try:
                    yield from (self._turn(client) if used >= FREE_SECONDS else passes.until_next())
                except BaseException as thrown:  # noqa: BLE001 - it is for the work to handle
                    error = thrown
            began = self._monotonic()
            try:
                awaited = work.send(None) if error is None else work.throw(error)
            except StopIteration as done:
                result: T = done.value
                return result
            finally:
                seconds = self._monotonic() - began
                if used < FREE_SECONDS:
                    passes.did(seconds)
                used += seconds
            error = None
            try:
                yield awaited
            except BaseException as thrown:  # noqa: BLE001 - as above
                error = thrown

    def _turn(self, client: Hashable) -> Generator[Any, None, None]:
        """Wait until the client may run its next step."""
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        self._waiting.setdefault(client, deque()).append(turn)
        if not self._looks:
            self._looks = True
            loop.call_soon(self._look)
        yield from turn
        self._looked_at = self._monotonic()

    def _look(self) -> None:
        """Decide whether the next step may run. Called once per pass of the loop while requests wait."""
        now = self._monotonic()
        passed = now - self._looked_at
        if self._has_given:  # the step ran in this pass, just before
            self._has_given = False
            self._rests_until = now + REST * passed
        elif now >= self._rests_until:
            self._has_given = self._give_next()
        elif passed < IDLE_SECONDS:
            if self._is_expected():
                asyncio.get_running_loop().call_later(self._rests_until - now, self._look)
                return
            self._has_given = self._give_next()
        self._looked_at = now
        self._looks = self._has_given or bool(self._waiting)
        if self._looks:
            asyncio.get_running_loop().call_soon(self._look)

    def _give_next(self) -> bool:
        """Give a turn to the client that waited longest since its last one. Return False if no request waits."""
        while self._waiting:
            client = next(iter(self._waiting))
            turns = self._waiting.pop(client)
            turn = turns.popleft()
            if turns:
                self._waiting[client] = turns
            if not turn.done():
                turn.set_result(None)
                return True
        return False
