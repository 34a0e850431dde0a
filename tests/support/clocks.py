"""Time and randomness for tests: a clock that the test moves, and a seeded source of randomness."""

from __future__ import annotations

import asyncio
import random
import uuid


class SeededEntropy:
    """A deterministic source of randomness for simulations and tests."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def uuid(self) -> uuid.UUID:
        return uuid.UUID(int=self._random.getrandbits(128), version=4)

    def below(self, bound: int) -> int:
        return self._random.randrange(bound)

    def fraction(self) -> float:
        return self._random.random()


class ManualClock:
    """A clock that only `advance` moves; `sleep` waits for `advance`."""

    def __init__(self, wall_ms: int = 1_700_000_000_000) -> None:
        self._wall_ms = wall_ms
        self._monotonic = 1_000.0
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []

    def wall_ms(self) -> int:
        return self._wall_ms

    def monotonic(self) -> float:
        return self._monotonic

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers.append((self._monotonic + seconds, woken))
        await woken

    def advance(self, seconds: float) -> None:
        """Move both clocks and wake every sleeper that is due."""
        self._monotonic += seconds
        self._wall_ms += round(seconds * 1000)
        due = [sleeper for sleeper in self._sleepers if sleeper[0] <= self._monotonic]
        self._sleepers = [sleeper for sleeper in self._sleepers if sleeper[0] > self._monotonic]
        for _, woken in sorted(due, key=lambda sleeper: sleeper[0]):
            if not woken.done():
                woken.set_result(None)
