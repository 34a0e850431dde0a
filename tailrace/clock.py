"""Time and randomness, which callers pass in. Only this module may use the real ones."""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from typing import Any, Protocol

from tailrace.background_tasks import cancel_and_wait


class Clock(Protocol):
    """The source of time for all product code."""

    def wall_ms(self) -> int:
        """Return the milliseconds since the Unix epoch. May jump forwards or back."""

    def monotonic(self) -> float:
        """Return seconds on a clock that never goes back. Only differences are meaningful."""

    async def sleep(self, seconds: float) -> None:
        """Pause the calling task."""


class Entropy(Protocol):
    """The source of randomness for all product code."""

    def uuid(self) -> uuid.UUID:
        """Return a random (version 4) UUID."""

    def below(self, bound: int) -> int:
        """Return a uniform integer in [0, bound)."""

    def fraction(self) -> float:
        """Return a uniform float in [0, 1)."""


class SystemClock:
    """The machine's clocks."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class SystemEntropy:
    """The operating system's random source."""

    def __init__(self) -> None:
        self._random = random.SystemRandom()

    def uuid(self) -> uuid.UUID:
        return uuid.UUID(int=self._random.getrandbits(128), version=4)

    def below(self, bound: int) -> int:
        return self._random.randrange(bound)

    def fraction(self) -> float:
        return self._random.random()


async def wait_for(clock: Clock, awaited: asyncio.Future[Any], seconds: float) -> bool:
    """Wait until `awaited` is done (True) or `seconds` have passed (False). Neither reads nor cancels `awaited`."""
    if awaited.done():
        return True
    timer = asyncio.ensure_future(clock.sleep(seconds))
    try:
        await asyncio.wait({awaited, timer}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancel_and_wait(timer)
    return awaited.done()


async def wait_until_set(clock: Clock, event: asyncio.Event, seconds: float) -> bool:
    """Wait until `event` is set (True) or `seconds` have passed (False)."""
    if event.is_set():
        return True
    waiting = asyncio.ensure_future(event.wait())
    try:
        return await wait_for(clock, waiting, seconds)
    finally:
        await cancel_and_wait(waiting)
