"""Which transaction of its producer is open, for batches just received from clients of transaction version 0 or 1.

Such a client's batch does not say which transaction it belongs to (KIP-890), so the agent asks the sequencer
(`stamp_batches`). One call is under way at a time, however many connections there are; requests that come meanwhile
share the next. A request never joins a call that has begun, as its batches must be received before the answer is made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from sequencer.api import Sequencer, Stamp, StampQuery, StampRequest


class CurrentTransactions:
    """Asks the sequencer on behalf of all connections of an agent."""

    def __init__(self, sequencer: Sequencer) -> None:
        self._sequencer = sequencer
        self._queries: list[StampQuery] = []
        self._running: asyncio.Task[list[Stamp]] | None = None
        self._next: asyncio.Task[list[Stamp]] | None = None

    async def of(self, queries: Sequence[StampQuery]) -> list[Stamp]:
        """The transaction of each batch, in order. Raises what the sequencer raises."""
        if self._next is None:
            self._next = asyncio.ensure_future(self._after(self._running))
            self._next.add_done_callback(_retrieve_error)
        start = len(self._queries)
        self._queries.extend(queries)
        answers = await asyncio.shield(self._next)
        return answers[start : start + len(queries)]

    async def _after(self, running: asyncio.Task[list[Stamp]] | None) -> list[Stamp]:
        if running is not None:
            await asyncio.wait([running])
        self._running, self._next = self._next, None
        queries, self._queries = self._queries, []
        answers = (await self._sequencer.stamp_batches(StampRequest(queries))).stamps
        assert len(answers) == len(queries), "one answer a batch"
        return answers


def _retrieve_error(task: asyncio.Task[list[Stamp]]) -> None:
    """Whoever waited for the error may be gone; asyncio would log one that nobody retrieves."""
    if not task.cancelled():
        task.exception()
