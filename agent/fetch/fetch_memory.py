"""The memory budget of records on their way to consumers, from the read until the client has received them.

A fetch is granted at most a quarter of the free bytes, so that many slow consumers leave room for others. It waits for
its turn if not even its minimum is free: LEAST_BYTES, or all it wants if that is less, or its first batch, which must
be sent whole. Tail fetches want little, and small requests have their own share (`agent.memory_budget`). Used bytes
exceed the limit only by a first batch that is larger than three quarters of it. The buffers that answers keep in
addition to their bytes have the same limit again (`agent.fetch.pinned_buffers`).
"""

from __future__ import annotations

from collections.abc import Sequence

from agent.fetch.pinned_buffers import PinnedBuffers
from agent.memory_budget import Grant, MemoryBudget
from tailrace.buffers import Buffer
from tailrace.clock import Clock

LEAST_BYTES = 1024 * 1024


class FetchGrant(Grant):
    """Bytes of the budget, and the buffers that an answer pins. Both are held until `release`."""

    __slots__ = ("_buffers", "_pinned")

    def __init__(self, budget: MemoryBudget, size: int, buffers: PinnedBuffers) -> None:
        super().__init__(budget, size)
        self._buffers = buffers
        self._pinned: dict[int, memoryview] = {}

    def pin(self, parts: Sequence[Buffer]) -> list[int]:
        """Return the indexes of the parts that must be copied, because the answer may not pin their buffers."""
        return self._buffers.pin(parts, self._pinned)

    def release(self) -> None:
        super().release()
        self._buffers.release(self._pinned)


class FetchMemory:
    """The bytes granted to fetches. Owned by one event loop."""

    def __init__(self, limit: int, clock: Clock) -> None:
        self.limit = limit
        self._budget = MemoryBudget(limit)
        self._buffers = PinnedBuffers(limit)
        self._clock = clock

    @property
    def used(self) -> int:
        return self._budget.used

    @property
    def is_contended(self) -> bool:
        return self._budget.is_contended

    @property
    def pinned(self) -> int:
        """Bytes of the buffers that answers pin."""
        return self._buffers.size

    def try_grant(self, wanted: int, first_batch: int = 0) -> FetchGrant | None:
        """Grant up to `wanted` bytes (see `Grant.bytes`), at least the first batch; None if that must wait."""
        least = self._least(wanted, first_batch)
        share = min(max(least, min(wanted, (self.limit - self.used) // 4)), self._budget.largest)
        for size in (share, least):
            if self._budget.try_take(size):
                return FetchGrant(self._budget, size, self._buffers)
        return None

    async def grant(self, wanted: int, seconds: float, first_batch: int = 0) -> FetchGrant | None:
        """As `try_grant`, but wait for the minimum. Return None if it is not free after `seconds`."""
        granted = self.try_grant(wanted, first_batch)
        if granted is not None:
            return granted
        size = self._least(wanted, first_batch)
        is_granted = await self._budget.take(size, self._clock, seconds)
        return FetchGrant(self._budget, size, self._buffers) if is_granted else None

    def _least(self, wanted: int, first_batch: int) -> int:
        return min(max(first_batch, min(wanted, LEAST_BYTES)), self._budget.largest)
