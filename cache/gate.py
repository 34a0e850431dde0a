"""A gate limits how many callers run at a time. Callers wait by name, so that one of them can be let through early."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager


class Gate:
    """Lets `limit` callers through at a time, first come, first served. `promote` lets one more through.

    At most one caller may wait under a name at a time; callers come through `SingleFlight`, which ensures it.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._inside = 0
        self._waiting: OrderedDict[Hashable, asyncio.Future[None]] = OrderedDict()

    @property
    def inside(self) -> int:
        """Number of callers inside; promoted callers may take it above the limit."""
        return self._inside

    @asynccontextmanager
    async def passing(self, name: Hashable) -> AsyncIterator[None]:
        """Wait for a place and hold it for the `async with` block."""
        if self._inside < self._limit and not self._waiting:
            self._inside += 1
        else:
            await self._wait(name)
        try:
            yield
        finally:
            self._inside -= 1
            self._admit()

    def promote(self, name: Hashable) -> None:
        """Let the caller that waits under this name through now; do nothing if there is none."""
        waiter = self._waiting.pop(name, None)
        if waiter is not None and not waiter.done():
            self._inside += 1
            waiter.set_result(None)

    async def _wait(self, name: Hashable) -> None:
        assert name not in self._waiting, f"two callers wait as {name}"
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[name] = waiter
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._inside -= 1  # let through and cancelled in the same turn of the loop
                self._admit()
            else:
                self._waiting.pop(name, None)
            raise

    def _admit(self) -> None:
        while self._waiting and self._inside < self._limit:
            _, waiter = self._waiting.popitem(last=False)
            if not waiter.done():
                self._inside += 1
                waiter.set_result(None)
