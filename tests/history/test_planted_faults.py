"""Every kind of fault is found when it is planted in a good history."""

from __future__ import annotations

from random import Random

import pytest

from tests.history.good_histories import good_history
from tests.history.planted import FAULTS, History, NoPlace, Planted
from tests.support.history.checker import check
from tests.support.history.events import AnyEvent
from tests.support.history.violations import Kind

SEEDS = 100
WANTED = 3

_HISTORIES: dict[int, list[AnyEvent]] = {}


@pytest.mark.parametrize("planted", FAULTS, ids=lambda planted: planted.name)
def test_a_planted_fault_is_found(planted: Planted) -> None:
    tried = 0
    for seed in range(SEEDS):
        if seed not in _HISTORIES:
            _HISTORIES[seed] = good_history(seed, steps=150)
        history = History(_HISTORIES[seed], Random(seed))
        try:
            planted.plant(history)
        except NoPlace:
            continue
        report = check(history.events)
        assert set(planted.found_as) & set(report.kinds), (seed, report.text())
        tried += 1
        if tried == WANTED:
            break
    assert tried == WANTED, f"only {tried} of {SEEDS} histories had a place for it"


def test_every_kind_of_fault_is_planted() -> None:
    planted = {kind for fault in FAULTS for kind in fault.found_as}

    assert planted == set(Kind) - {Kind.BAD_HISTORY}
