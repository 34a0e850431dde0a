"""The budget of records on their way to consumers: read, perhaps waiting for a slow client to take them.

A fetch is granted at most a quarter of what is free, so that many slow consumers leave room for the others. Where there
is not even LEAST_BYTES (or all that it wants, or its first batch, which must be sent whole) it waits its turn; what the
tail wants is little, and has a share of its own (`agent.memory_budget`). Used bytes pass the limit only by a first
batch that is larger than three quarters of it.
"""

from __future__ import annotations

import asyncio

from agent.memory_budget import MemoryBudget
from tailrace.clock import Clock, wait_for

LEAST_BYTES = 1024 * 1024


class FetchMemory:
    """Bytes granted to fetches. Owned by one event loop."""

    def __init__(self, limit: int, clock: Clock) -> None:
        self.limit = limit
        self._budget = MemoryBudget(limit)
        self._clock = clock

    @property
    def used(self) -> int:
        return self._budget.used

    @property
    def is_contended(self) -> bool:
        """Whether somebody waits."""
        return self._budget.is_contended

    def try_grant(self, wanted: int, first_batch: int = 0) -> Grant | None:
        """Room for up to `wanted` bytes (see `Grant.bytes`), and for the first batch; None where that must wait."""
        least = self._least(wanted, first_batch)
        share = min(max(least, min(wanted, (self.limit - self.used) // 4)), self._budget.largest)
        for size in (share, least):
            if self._budget.try_take(size):
                return Grant(self._budget, size)
        return None

    async def grant(self, wanted: int, seconds: float, first_batch: int = 0) -> Grant | None:
        """The same, waiting for the least of it; None if it is not there after `seconds`."""
        granted = self.try_grant(wanted, first_batch)
        if granted is not None:
            return granted
        size = self._least(wanted, first_batch)
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        claim = self._budget.claim(size, lambda: waiting.set_result(None))
        try:
            is_granted = await wait_for(self._clock, waiting, seconds)
        except asyncio.CancelledError:
            if waiting.done():
                self._budget.give(size)
            else:
                self._budget.withdraw(claim)
            raise
        if not is_granted:
            self._budget.withdraw(claim)
            return None
        return Grant(self._budget, size)

    def _least(self, wanted: int, first_batch: int) -> int:
        return min(max(first_batch, min(wanted, LEAST_BYTES)), self._budget.largest)


class Grant:
    """Bytes of the budget, until `release`."""

    __slots__ = ("_budget", "_is_counted", "bytes")

    def __init__(self, budget: MemoryBudget, size: int) -> None:
        self._budget = budget
        self._is_counted = False
        self.bytes = size

    def resize(self, size: int) -> None:
        """What was really read: less, or more where a first batch must be whole."""
        self._budget.count(size)
        if self._is_counted:
            self._budget.count(-self.bytes)
        else:
            self._budget.give(self.bytes)
        self._is_counted = True
        self.bytes = size

    def release(self) -> None:
        """Give all of it back; again does nothing."""
        self.resize(0)
