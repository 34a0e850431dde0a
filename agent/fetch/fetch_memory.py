"""The budget of records on their way to consumers: read, perhaps waiting for a slow client to take them.

A fetch is granted at most a quarter of what is free, so that many slow consumers leave room for the others. Where there
is not even LEAST_BYTES (or all that it wants, or its first batch, which must be sent whole) it waits its turn; what the
tail wants is little, and has a share of its own (`agent.memory_budget`). Used bytes pass the limit only by a first
batch that is larger than three quarters of it. What the answers keep beside their bytes has the same limit again
(`agent.fetch.kept_buffers`).
"""

from __future__ import annotations

from collections.abc import Sequence

from agent.fetch.kept_buffers import KeptBuffers
from agent.memory_budget import Grant, MemoryBudget
from tailrace.buffers import Buffer
from tailrace.clock import Clock

LEAST_BYTES = 1024 * 1024


class FetchGrant(Grant):
    """Bytes of the budget, and the buffers that an answer keeps, until `release`."""

    __slots__ = ("_buffers", "_kept")

    def __init__(self, budget: MemoryBudget, size: int, buffers: KeptBuffers) -> None:
        super().__init__(budget, size)
        self._buffers = buffers
        self._kept: dict[int, memoryview] = {}

    def keep(self, parts: Sequence[Buffer]) -> list[int]:
        """The numbers of those parts of the answer that must be copied: it may not keep what they are views of."""
        return self._buffers.keep(parts, self._kept)

    def release(self) -> None:
        super().release()
        self._buffers.release(self._kept)


class FetchMemory:
    """Bytes granted to fetches. Owned by one event loop."""

    def __init__(self, limit: int, clock: Clock) -> None:
        self.limit = limit
        self._budget = MemoryBudget(limit)
        self._buffers = KeptBuffers(limit)
        self._clock = clock

    @property
    def used(self) -> int:
        return self._budget.used

    @property
    def is_contended(self) -> bool:
        """Whether somebody waits."""
        return self._budget.is_contended

    @property
    def kept(self) -> int:
        """Bytes of the buffers that answers keep."""
        return self._buffers.size

    def try_grant(self, wanted: int, first_batch: int = 0) -> FetchGrant | None:
        """Room for up to `wanted` bytes (see `Grant.bytes`), and for the first batch; None where that must wait."""
        least = self._least(wanted, first_batch)
        share = min(max(least, min(wanted, (self.limit - self.used) // 4)), self._budget.largest)
        for size in (share, least):
            if self._budget.try_take(size):
                return FetchGrant(self._budget, size, self._buffers)
        return None

    async def grant(self, wanted: int, seconds: float, first_batch: int = 0) -> FetchGrant | None:
        """The same, waiting for the least of it; None if it is not there after `seconds`."""
        granted = self.try_grant(wanted, first_batch)
        if granted is not None:
            return granted
        size = self._least(wanted, first_batch)
        is_granted = await self._budget.take(size, self._clock, seconds)
        return FetchGrant(self._budget, size, self._buffers) if is_granted else None

    def _least(self, wanted: int, first_batch: int) -> int:
        return min(max(first_batch, min(wanted, LEAST_BYTES)), self._budget.largest)
