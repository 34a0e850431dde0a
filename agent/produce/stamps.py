"""Stamps: which transaction is a batch of, that a client of transaction version 0 or 1 has just sent.

Requests that come while one call is on its way share the next: one call at a time, however many connections there are.
A request never joins a call that has begun: the answer is of a moment after its batches were received.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from sequencer.api import Sequencer, Stamp, StampQuery, StampRequest


class Stamps:
    """Asks the sequencer for an agent's stamps."""

    def __init__(self, sequencer: Sequencer) -> None:
        self._sequencer = sequencer
        self._asked: list[StampQuery] = []
        self._running: asyncio.Task[list[Stamp]] | None = None
        self._next: asyncio.Task[list[Stamp]] | None = None

    async def of(self, queries: Sequence[StampQuery]) -> list[Stamp]:
        """One stamp per batch, in order. Raises what the sequencer raises."""
        if self._next is None:
            self._next = asyncio.ensure_future(self._after(self._running))
            self._next.add_done_callback(_seen)
        start = len(self._asked)
        self._asked.extend(queries)
        stamps = await asyncio.shield(self._next)
        return stamps[start : start + len(queries)]

    async def _after(self, running: asyncio.Task[list[Stamp]] | None) -> list[Stamp]:
        if running is not None:
            await asyncio.wait([running])
        self._running, self._next = self._next, None
        asked, self._asked = self._asked, []
        stamps = (await self._sequencer.stamp_batches(StampRequest(asked))).stamps
        assert len(stamps) == len(asked), "one stamp a batch"
        return stamps


def _seen(task: asyncio.Task[list[Stamp]]) -> None:
    """Its error is for those who wait; nobody may be left."""
    if not task.cancelled():
        task.exception()
