"""Time and randomness, passed in: the only module that may touch the real ones."""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from typing import Any, Protocol


class Clock(Protocol):
    """Where product code gets its time from."""

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch; may jump."""
        ...

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back; only differences mean anything."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Pause the calling task."""
        ...


class Entropy(Protocol):
    """Where product code gets its randomness from."""

    def uuid(self) -> uuid.UUID:
        """A random (version 4) UUID."""
        ...

    def below(self, bound: int) -> int:
        """A uniform integer in [0, bound)."""
        ...

    def fraction(self) -> float:
        """A uniform float in [0, 1)."""
        ...


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
    """Wait until `awaited` is done (True) or `seconds` have passed (False). It is neither read nor cancelled."""
    if awaited.done():
        return True
    bell = asyncio.ensure_future(clock.sleep(seconds))
    try:
        await asyncio.wait({awaited, bell}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        bell.cancel()
        await asyncio.gather(bell, return_exceptions=True)
    return awaited.done()


async def wait_until_set(clock: Clock, event: asyncio.Event, seconds: float) -> bool:
    """Wait until `event` is set (True) or `seconds` have passed (False)."""
    if event.is_set():
        return True
    waiting = asyncio.ensure_future(event.wait())
    try:
        return await wait_for(clock, waiting, seconds)
    finally:
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
