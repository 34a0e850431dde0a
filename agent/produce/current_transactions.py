"""Which transaction of its producer is open, for batches just received from clients of transaction version 0 or 1.

Such a client's batch does not say which transaction it belongs to (KIP-890), so the agent asks the sequencer
(`current_transactions`). One call is under way at a time, however many connections there are; requests that come
meanwhile share the next, or the next ones: none has more than QUERIES_IN_A_CALL batches. A request never joins a call
that has begun, as its batches must be received before the answer is made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from sequencer.api import CurrentTransaction, CurrentTransactionQuery, CurrentTransactionsRequest, Sequencer

QUERIES_IN_A_CALL = 5_000
"""Batches that one call asks for. Handlers ask for no more at a time."""


class _Call:
    """One call of the sequencer, which begins when the one before it has ended."""

    __slots__ = ("answers", "has_begun", "queries")

    def __init__(self, sequencer: Sequencer, before: asyncio.Task[list[CurrentTransaction]] | None) -> None:
        self.queries: list[CurrentTransactionQuery] = []
        self.has_begun = False
        self.answers = asyncio.ensure_future(self._answered(sequencer, before))
        self.answers.add_done_callback(_retrieve_error)

    def has_room(self, more: int) -> bool:
        """Whether so many batches may join."""
        return not self.has_begun and len(self.queries) + more <= QUERIES_IN_A_CALL

    async def _answered(
        self, sequencer: Sequencer, before: asyncio.Task[list[CurrentTransaction]] | None
    ) -> list[CurrentTransaction]:
        if before is not None:
            await asyncio.wait([before])
        self.has_begun = True
        queries, self.queries = self.queries, []
        answers = (await sequencer.current_transactions(CurrentTransactionsRequest(queries))).transactions
        assert len(answers) == len(queries), "one answer a batch"
        return answers


class CurrentTransactions:
    """Asks the sequencer on behalf of all connections of an agent."""

    def __init__(self, sequencer: Sequencer) -> None:
        self._sequencer = sequencer
        self._last: _Call | None = None

    async def of(self, queries: Sequence[CurrentTransactionQuery]) -> list[CurrentTransaction]:
        """The transaction of each batch, in order. Raises what the sequencer raises."""
        assert len(queries) <= QUERIES_IN_A_CALL, f"{len(queries)} batches for one call"
        call = self._last
        if call is None or not call.has_room(len(queries)):
            call = self._last = _Call(self._sequencer, None if call is None else call.answers)
        start = len(call.queries)
        call.queries.extend(queries)
        answers = await asyncio.shield(call.answers)
        return answers[start : start + len(queries)]


def _retrieve_error(task: asyncio.Task[list[CurrentTransaction]]) -> None:
    """Whoever waited for the error may be gone; asyncio would log one that nobody retrieves."""
    if not task.cancelled():
        task.exception()
