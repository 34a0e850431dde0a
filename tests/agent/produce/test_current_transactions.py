"""Current transactions: concurrent queries share a call, and each gets its own answer."""

from __future__ import annotations

import asyncio
from typing import Any, cast
from uuid import UUID

import pytest

from agent.produce.current_transactions import QUERIES_IN_A_CALL, CurrentTransactions
from sequencer.api.commits import BatchError
from sequencer.api.errors import SequencerUnavailable
from sequencer.api.interface import Sequencer
from sequencer.api.transactions import (
    CurrentTransaction,
    CurrentTransactionQuery,
    CurrentTransactionsAnswer,
    CurrentTransactionsRequest,
)


class SlowSequencer:
    """CurrentTransactions a batch with ten times its producer's id, once it may."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []
        self.may_answer = asyncio.Event()
        self.fails = False

    async def current_transactions(self, request: CurrentTransactionsRequest) -> CurrentTransactionsAnswer:
        self.calls.append([each.producer_id for each in request.batches])
        await self.may_answer.wait()
        if self.fails:
            raise SequencerUnavailable("by the test")
        return CurrentTransactionsAnswer(
            [CurrentTransaction(BatchError.NONE, 10 * each.producer_id) for each in request.batches]
        )


def queries(*producers: int) -> list[CurrentTransactionQuery]:
    return [CurrentTransactionQuery(UUID(int=1), 0, each, 0) for each in producers]


async def test_queries_made_during_a_call_go_together_into_the_next() -> None:
    sequencer = SlowSequencer()
    transactions = CurrentTransactions(cast(Sequencer, sequencer))

    async def numbers(*producers: int) -> list[int]:
        return [each.number for each in await transactions.of(queries(*producers))]

    first = asyncio.ensure_future(numbers(1))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    later = [asyncio.ensure_future(numbers(*each)) for each in ((2, 3), (4,), (5, 6))]
    for _ in range(5):
        await asyncio.sleep(0)
    assert sequencer.calls == [[1]]
    later.pop(1).cancel()  # a connection that has gone
    sequencer.may_answer.set()
    assert await asyncio.gather(first, *later) == [[10], [20, 30], [50, 60]]
    assert sequencer.calls == [[1], [2, 3, 4, 5, 6]]
    assert await numbers(7) == [70]


async def test_concurrent_queries_are_divided_into_calls_of_bounded_size() -> None:
    sequencer = SlowSequencer()
    transactions = CurrentTransactions(cast(Sequencer, sequencer))
    sequencer.may_answer.set()
    sizes = [1, QUERIES_IN_A_CALL - 1, 1, QUERIES_IN_A_CALL // 2, QUERIES_IN_A_CALL, 2]
    asked = [queries(*range(first, first + size)) for first, size in enumerate(sizes)]
    answers = await asyncio.gather(*map(transactions.of, asked))
    for of_one, given in zip(asked, answers, strict=True):
        assert [10 * each.producer_id for each in of_one] == [each.number for each in given]
    sent = [len(call) for call in sequencer.calls]
    assert sent == [QUERIES_IN_A_CALL, 1 + QUERIES_IN_A_CALL // 2, QUERIES_IN_A_CALL, 2]


async def test_an_error_goes_to_all_waiting_callers_and_to_no_later_one() -> None:
    sequencer = SlowSequencer()
    transactions = CurrentTransactions(cast(Sequencer, sequencer))
    sequencer.fails = True
    sequencer.may_answer.set()
    both: list[Any] = await asyncio.gather(
        transactions.of(queries(1)), transactions.of(queries(2)), return_exceptions=True
    )
    assert all(isinstance(each, SequencerUnavailable) for each in both)
    assert sequencer.calls == [[1, 2]]
    with pytest.raises(SequencerUnavailable):
        await transactions.of(queries(3))
    sequencer.fails = False
    assert [each.number for each in await transactions.of(queries(4))] == [40]
