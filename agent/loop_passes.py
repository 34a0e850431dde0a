"""Limits the work of short requests in one pass of the event loop, however many arrive at the same time.

A pass runs everything that is ready. A thousand connections that each send a short request are ready together, and so
are a thousand requests whose answers arrive from the sequencer together. Once their steps have used `PASS_SECONDS` of a
pass, the rest wait for later passes, in order: first the requests that have begun, then those that have not.

Passes are told apart only when needed: use is added up until it reaches half of PASS_SECONDS, and counting restarts
with the next pass. So requests that come one by one cost no callbacks. If no time passes, as in a simulation, nothing
ever waits.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator

PASS_SECONDS = 0.01
"""How long the steps of short requests may use a pass before others wait. Counting may restart within a pass, so a pass
takes at most twice as long, plus one step."""
BESIDE_SECONDS = 0.00002
"""The unmeasured cost of a step: its task, and sending the answer."""


class LoopPasses:
    """Makes requests wait for a pass of one event loop that has time for them.

    Each pass lets through as many requests as should fit, estimated from the recent time of a step. So however many
    requests wait, waiting costs each one wake-up, or a few if steps take longer than before.

    `is_full`: whether the next step of a request has to wait behind those that already wait.
    """

    __slots__ = (
        "_begins", "_promised", "_refused", "_renews", "_resumed", "_step", "_steps", "_used", "is_full",
    )  # fmt: skip

    def __init__(self) -> None:
        self.is_full = False
        self._used = 0.0
        """Seconds of the steps since counting restarted."""
        self._steps = 0
        self._step = 0.0
        """Seconds of one step, from the last count."""
        self._promised = 0.0
        """Seconds that the requests let through since then need, estimated by `_step`."""
        self._resumed: deque[asyncio.Future[None]] = deque()
        """Requests that have begun, and wait for their next step."""
        self._refused: list[asyncio.Future[None]] = []
        """Requests that were woken but had no time left. They go before the others."""
        self._begins: deque[Callable[[], object]] = deque()
        self._renews = False

    @property
    def is_waited_for(self) -> bool:
        """Whether a request waits. A connection whose request has ended then goes behind those that wait."""
        return bool(self._begins or self._resumed)

    def begin(self, start: Callable[[], object]) -> None:
        """Call `start`, which begins a request: now, or after all that came before have begun."""
        if self.is_full or self._begins or self._promised >= PASS_SECONDS:
            self._begins.append(start)
            self._renew_soon()
        else:
            self._promised += self._step
            start()

    async def begun(self) -> None:
        """As `begin`, for a request that has a task."""
        turn = asyncio.get_running_loop().create_future()

        def let_through() -> None:
            if not turn.done():
                turn.set_result(None)

        self.begin(let_through)
        await turn

    def until_next(self) -> Generator[asyncio.Future[None], None, None]:
        """Wait until a request that has begun may run its next step."""
        waiting: deque[asyncio.Future[None]] | list[asyncio.Future[None]] = self._resumed
        while True:
            turn = asyncio.get_running_loop().create_future()
            waiting.append(turn)
            self._renew_soon()
            yield from turn
            if self._used < PASS_SECONDS:
                return
            waiting = self._refused

    def did(self, seconds: float) -> None:
        """Count a step."""
        self._used += seconds
        self._steps += 1
        if self._used >= PASS_SECONDS / 2:
            self.is_full = self.is_full or self._used >= PASS_SECONDS
            self._renew_soon()

    def _renew_soon(self) -> None:
        if not self._renews:
            self._renews = True
            asyncio.get_running_loop().call_soon(self._renew)

    def _renew(self) -> None:
        """Restart counting, and let through as many requests as should fit into a pass."""
        self._renews = False
        if self._steps:
            self._step = BESIDE_SECONDS + self._used / self._steps
        self._used = self._promised = 0.0
        self._steps = 0
        self._resumed.extendleft(reversed(self._refused))
        self._refused.clear()
        while self._resumed and self._promised < PASS_SECONDS:
            turn = self._resumed.popleft()
            if not turn.done():
                self._promised += self._step
                turn.set_result(None)
        while self._begins and self._promised < PASS_SECONDS:
            self._promised += self._step
            self._begins.popleft()()
        self.is_full = bool(self._resumed)
        if self.is_waited_for:
            self._renew_soon()
