"""The tables of decisions and queries cover the interface."""

from __future__ import annotations

from collections import Counter
from uuid import UUID

from sequencer.api.producers import InitProducer
from sequencer.engine.committer import Committer
from sequencer.engine.requests import DECISIONS, QUERIES
from sequencer.methods import METHODS
from sequencer.store.memory import MemoryRowStore
from tests.support.clocks import ManualClock, SeededEntropy


def test_every_method_is_a_decision_or_a_query_but_commit_and_retention() -> None:
    entries = Counter([*DECISIONS, *QUERIES, "commit", "apply_retention"])
    assert entries == Counter([*METHODS])


def test_a_committer_can_carry_out_every_method_of_the_interface() -> None:
    committer = Committer(MemoryRowStore(ManualClock()), ManualClock(), SeededEntropy(1))
    assert committer._calls.keys() == METHODS.keys()


def test_an_idempotent_producers_request_is_decided_each_time_and_a_transactional_ones_once() -> None:
    request_id = DECISIONS["init_producer"].request_id
    asked = UUID(int=1)
    assert request_id(InitProducer(request_id=asked)) is None
    assert request_id(InitProducer(transactional_id="id", request_id=asked)) == asked


def test_every_request_with_an_id_is_a_decision() -> None:
    with_ids = {name for name, method in METHODS.items() if "request_id" in method.request.__struct_fields__}
    assert with_ids and with_ids <= DECISIONS.keys()
