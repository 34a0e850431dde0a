"""The producer of a transactional id: looked up once, and again when it may have changed."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from agent.produce import transactional_producers
from agent.produce.transactional_producers import TransactionalProducers
from sequencer.api.interface import Sequencer
from sequencer.api.transactions import (
    TransactionDescription,
    TransactionDescriptions,
    TransactionsRequest,
    TransactionState,
)


class KnownIds:
    """A sequencer that knows the producers of some transactional ids, and notes for which it is asked."""

    def __init__(self, producers: dict[str, int]) -> None:
        self.producers = producers
        self.asked: list[str] = []

    async def transactions(self, request: TransactionsRequest) -> TransactionDescriptions:
        (name,) = request.transactional_ids or ()
        self.asked.append(name)
        if name not in self.producers:
            return TransactionDescriptions([])
        described = TransactionDescription(
            transactional_id=name,
            producer_id=self.producers[name],
            producer_epoch=0,
            number=1,
            state=TransactionState.EMPTY,
            timeout_ms=1_000,
            started_ms=-1,
            partitions=[],
            groups=[],
        )
        return TransactionDescriptions([described])


def has(known: TransactionalProducers, name: str, producer_id: int) -> bool:
    return asyncio.run(known.has(name, producer_id))


def test_a_producer_is_asked_for_once_and_another_one_each_time() -> None:
    sequencer = KnownIds({"tx": 7})
    known = TransactionalProducers(cast(Sequencer, sequencer))
    assert [has(known, "tx", 7) for _ in range(3)] == [True] * 3
    assert sequencer.asked == ["tx"]
    assert [has(known, "tx", 8), has(known, "nobody", 7), has(known, "nobody", 7)] == [False] * 3
    assert sequencer.asked == ["tx", "tx", "nobody", "nobody"]


def test_an_id_that_has_got_another_producer_is_its_alone() -> None:
    sequencer = KnownIds({"tx": 7})
    known = TransactionalProducers(cast(Sequencer, sequencer))
    assert has(known, "tx", 7)
    sequencer.producers["tx"] = 9
    assert has(known, "tx", 9)
    assert not has(known, "tx", 7)


def test_the_ids_that_were_used_last_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactional_producers, "MAX_KNOWN", 2)
    sequencer = KnownIds({"a": 1, "b": 2, "c": 3})
    known = TransactionalProducers(cast(Sequencer, sequencer))
    for name, producer_id in (("a", 1), ("b", 2), ("a", 1), ("c", 3)):
        assert has(known, name, producer_id)
    sequencer.asked.clear()
    assert has(known, "a", 1) and has(known, "c", 3)
    assert sequencer.asked == []
    assert has(known, "b", 2)
    assert sequencer.asked == ["b"]
