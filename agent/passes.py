"""What one pass of the event loop does for short requests together is bounded, however many come in the same moment.

A pass runs everything that is ready. A thousand connections that each send a short request are ready together, and so
are a thousand requests whose answers come from the sequencer together. Once their steps have used `PASS_SECONDS` of a
pass, the rest wait for the next passes, in order: first the requests that have begun, then those that have not.

Passes are told apart only when there is need: what is used is counted on until it is half of PASS_SECONDS, and anew
from the next pass on. So requests that come one by one cost no callbacks. Where no time passes, as in a simulation,
nothing ever waits.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator

PASS_SECONDS = 0.01
"""What the steps of short requests use of a pass before others wait. Counting begins anew within a pass, so a pass has
twice as much at most, and one step."""
BESIDE_SECONDS = 0.00002
"""What a step takes beside what is measured: its task, and the way of the answer to the socket."""


class Passes:
    """Has requests wait for a pass of one event loop in which there is time for them.

    Each pass lets as many through as should fit, by what a step took lately: waiting costs one wake-up, or a few where
    steps take longer than those before them, however many wait.

    `is_full`: whether the next step of a request has to wait, behind those who do.
    """

    __slots__ = (
        "_begins", "_promised", "_refused", "_renews", "_resumed", "_step", "_steps", "_used", "is_full",
    )  # fmt: skip

    def __init__(self) -> None:
        self.is_full = False
        self._used = 0.0
        """Seconds of the steps since counting began."""
        self._steps = 0
        self._step = 0.0
        """Seconds of one step, when they were last counted."""
        self._promised = 0.0
        """What those need who were let through since then, by `_step`."""
        self._resumed: deque[asyncio.Future[None]] = deque()
        """Requests that have begun, and wait for their next step."""
        self._refused: list[asyncio.Future[None]] = []
        """Those that were woken in vain: they come before the others."""
        self._begins: deque[Callable[[], object]] = deque()
        self._renews = False

    @property
    def is_waited_for(self) -> bool:
        """Whether anybody waits. A connection whose request has ended then goes behind those who do."""
        return bool(self._begins or self._resumed)

    def begin(self, start: Callable[[], object]) -> None:
        """Call `start`, by which a request begins: now, or once all have begun that came before."""
        if self.is_full or self._begins or self._promised >= PASS_SECONDS:
            self._begins.append(start)
            self._renew_soon()
        else:
            self._promised += self._step
            start()

    async def begun(self) -> None:
        """The same, for a request that has a task."""
        turn = asyncio.get_running_loop().create_future()

        def let_through() -> None:
            if not turn.done():
                turn.set_result(None)

        self.begin(let_through)
        await turn

    def until_next(self) -> Generator[asyncio.Future[None], None, None]:
        """Wait until a request that has begun may do its next step."""
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
        """Begin to count anew, and let through as many as should fit into a pass."""
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
