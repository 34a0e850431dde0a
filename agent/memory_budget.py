"""The bound of all bytes that were received and are not flushed yet.

Small frames are let through unasked (they are bounded by the connections' staging buffers); a large one waits for
its share before a byte of it is allocated, so a declared size costs its sender, not us.
"""

from __future__ import annotations

import asyncio
from collections import deque


class MemoryBudget:
    """Bytes to share. Waiters are served in order of arrival.

    Owned by one event loop; `take` and `give` are never called from elsewhere.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def is_tight(self) -> bool:
        """Whether somebody waits, or less than an eighth is left."""
        return bool(self._waiting) or self.used > self.limit - self.limit // 8

    def try_take(self, size: int) -> bool:
        """Take `size` bytes if nobody waits and they are there. A size above the limit is granted alone."""
        if self._waiting or (self.used and self.used + size > self.limit):
            return False
        self.used += size
        return True

    async def take(self, size: int) -> None:
        """Wait for `size` bytes."""
        if self.try_take(size):
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, granted))
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self.give(size)
            raise

    def give(self, size: int) -> None:
        """Give bytes back and wake whoever fits now."""
        self.used -= size
        assert self.used >= 0, "more given back than taken"
        while self._waiting:
            wanted, granted = self._waiting[0]
            if granted.done():
                self._waiting.popleft()
                continue
            if self.used and self.used + wanted > self.limit:
                return
            self._waiting.popleft()
            self.used += wanted
            granted.set_result(None)
