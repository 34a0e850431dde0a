"""Finds the open transaction of a batch's producer, for batches just received from clients of transaction version 0 or
1.

Such a client's batch does not name its transaction (KIP-890), so the agent asks the sequencer (`current_transactions`).
One call runs at a time for all connections. Requests that arrive meanwhile share the next calls, each with at most
QUERIES_IN_A_CALL batches. A request never joins a call that has begun, because its batches must be received before the
sequencer answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from sequencer.api.interface import Sequencer
from sequencer.api.transactions import CurrentTransaction, CurrentTransactionQuery, CurrentTransactionsRequest
from tailrace.background_tasks import retrieve_error

QUERIES_IN_A_CALL = 5_000
"""The most batches in one call, and in one request of a handler."""


class _Call:
    """One call of the sequencer. It begins when the call before it has ended."""

    __slots__ = ("answers", "has_begun", "queries")

    def __init__(self, sequencer: Sequencer, before: asyncio.Task[list[CurrentTransaction]] | None) -> None:
        self.queries: list[CurrentTransactionQuery] = []
        self.has_begun = False
        self.answers = asyncio.ensure_future(self._answered(sequencer, before))
        self.answers.add_done_callback(retrieve_error)

    def has_room(self, more: int) -> bool:
        """Whether `more` batches may join."""
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
        """Return the transaction of each batch, in order. Raises the sequencer's errors."""
        assert len(queries) <= QUERIES_IN_A_CALL, f"{len(queries)} batches for one call"
        call = self._last
        if call is None or not call.has_room(len(queries)):
            call = self._last = _Call(self._sequencer, None if call is None else call.answers)
        start = len(call.queries)
        call.queries.extend(queries)
        answers = await asyncio.shield(call.answers)
        return answers[start : start + len(queries)]
