"""The memory budget of all bytes that were read from clients' sockets and are not answered yet, and of their objects.
(What produce requests of many batches need beyond that has its own budget: `agent.produce.request_memory`.)

A frame is charged before it gets its own buffer. A frame whose first bytes have not arrived is not charged: a declared
size costs its sender, not the agent. Bytes that are already in memory when they are counted (the first bytes of a
frame, answers that clients have not read) are counted without a check. A sixteenth of the limit is kept free for them;
if they need more, less is left for frames.

Small and large charges wait in separate queues, each served in order of arrival. An eighth of the limit is reserved for
small charges, so that large requests that wait or are being handled don't stop heartbeats. While a large charge waits,
small charges get only that eighth, so that released memory adds up for the large one.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable

from tailrace.clock import Clock, wait_for

SMALL_BYTES = 72 * 1024
"""The largest small charge: a produce request of 64 KiB with its objects."""
SMALL_PART = 8
"""This fraction (1 / SMALL_PART) of the limit is reserved for small charges."""
COUNTED_PART = 16
"""This fraction (1 / COUNTED_PART) of the limit is kept free for bytes that are counted without a check."""


class Claim:
    """A charge that waits for its turn, until `granted` is called or it is withdrawn."""

    __slots__ = ("granted", "is_granted", "size")

    def __init__(self, size: int, granted: Callable[[], None]) -> None:
        self.size = size
        self.granted = granted
        self.is_granted = False


class MemoryBudget:
    """A budget of bytes. Owned by one event loop, and used only there.

    `used`: bytes charged and counted now. `is_contended`: whether a charge waits.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.is_contended = False
        self._for_charges = limit - limit // COUNTED_PART
        self._for_small = limit // SMALL_PART
        self._small_used = 0
        self._small: OrderedDict[Claim, None] = OrderedDict()
        self._large: OrderedDict[Claim, None] = OrderedDict()

    @property
    def largest(self) -> int:
        """The largest possible charge: less than large charges may use together, to leave room for counted bytes."""
        return self.limit - 2 * self._for_small

    @property
    def is_over(self) -> bool:
        """Whether more than the limit is used, because of bytes that were counted without a check."""
        return self.used > self.limit

    def try_take(self, size: int) -> bool:
        """Charge `size` bytes if they are free and no charge waits for them. Return whether they were charged."""
        if size <= SMALL_BYTES:
            if self._small or not self._fits_small(size):
                return False
            self._small_used += size
        elif self._large or not self._fits_large(size):
            return False
        self.used += size
        return True

    def claim(self, size: int, granted: Callable[[], None]) -> Claim:
        """Wait for `size` bytes. The loop calls `granted` once they are charged."""
        assert size <= self.largest, f"a charge of {size} bytes; at most {self.largest} can be had"
        claim = Claim(size, granted)
        (self._small if size <= SMALL_BYTES else self._large)[claim] = None
        self.is_contended = True
        return claim

    async def take(self, size: int, clock: Clock, seconds: float) -> bool:
        """Charge `size` bytes; wait for them. Return False, with nothing charged, if that takes too long."""
        if self.try_take(size):
            return True
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        claim = self.claim(size, lambda: waiting.set_result(None))
        try:
            is_granted = await wait_for(clock, waiting, seconds)
        except asyncio.CancelledError:
            if waiting.done():
                self.give(size)
            else:
                self.withdraw(claim)
            raise
        if not is_granted:
            self.withdraw(claim)
        return is_granted

    def withdraw(self, claim: Claim) -> None:
        """Stop waiting. Give back a charge that was granted but not reported by `granted` yet."""
        if claim.is_granted:
            claim.is_granted = False
            self.give(claim.size)
            return
        del (self._small if claim.size <= SMALL_BYTES else self._large)[claim]
        self._hand_over()

    def give(self, size: int) -> None:
        """Give back a whole charge, and grant the waiting charges that now fit."""
        self.used -= size
        if size <= SMALL_BYTES:
            self._small_used -= size
        assert self.used >= 0 and self._small_used >= 0, "more given back than taken"
        if self.is_contended:
            self._hand_over()

    def keep(self, size: int) -> None:
        """Charge bytes that are already in memory, whether they fit or not; until now they were part of a larger
        charge. They count as small or large by their own size, as in `give`, so that a large request that waits gets
        its turn."""
        self.used += size
        if size <= SMALL_BYTES:
            self._small_used += size

    def count(self, more: int) -> None:
        """Count bytes that are held whether they fit or not; `more` is negative when they are freed."""
        self.used += more
        assert self.used >= 0, "more given back than counted"
        if more < 0 and self.is_contended:
            self._hand_over()

    def _fits_small(self, size: int) -> bool:
        if self._large and self._small_used + size > self._for_small:
            return False
        return self.used + size <= self._for_charges

    def _fits_large(self, size: int) -> bool:
        large = self.used - self._small_used
        return large + size <= self._for_charges - self._for_small and self.used + size <= self._for_charges

    def _hand_over(self) -> None:
        """Grant waiting charges in order of arrival. They are charged at once, so no other can come in between."""
        while self._large and self._fits_large((claim := next(iter(self._large))).size):
            del self._large[claim]
            self._grant(claim)
        while self._small and self._fits_small((claim := next(iter(self._small))).size):
            del self._small[claim]
            self._small_used += claim.size
            self._grant(claim)
        self.is_contended = bool(self._small or self._large)

    def _grant(self, claim: Claim) -> None:
        self.used += claim.size
        claim.is_granted = True
        asyncio.get_running_loop().call_soon(self._notify, claim)

    def _notify(self, claim: Claim) -> None:
        if claim.is_granted:
            claim.is_granted = False
            claim.granted()


class Grant:
    """Bytes of the budget, held until `release`."""

    __slots__ = ("_budget", "_is_counted", "bytes")

    def __init__(self, budget: MemoryBudget, size: int) -> None:
        self._budget = budget
        self._is_counted = False
        self.bytes = size

    def resize(self, size: int) -> None:
        """Hold `size` bytes instead: those that were really read. That may be more if a first batch had to be whole."""
        self._budget.count(size)
        if self._is_counted:
            self._budget.count(-self.bytes)
        else:
            self._budget.give(self.bytes)
        self._is_counted = True
        self.bytes = size

    def release(self) -> None:
        """Give back all of it; a second call does nothing."""
        self.resize(0)


def release(grant: Grant | None) -> None:
    """Release the grant, if there is one."""
    if grant is not None:
        grant.release()
