"""The checker finds nothing where nothing is wrong, and says how much it looked at."""

from __future__ import annotations

from pathlib import Path
from random import Random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.history.good_histories import ModelKafka, good_history
from tests.support.history.checker import check
from tests.support.history.files import read_history, write_history


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32), steps=st.integers(1, 250))
def test_a_good_history_has_no_faults(seed: int, steps: int) -> None:
    events = ModelKafka(Random(seed), steps=steps).run()

    report = check(events)

    assert report.is_clean, report.text()


def test_a_good_history_is_looked_at_in_full() -> None:
    report = check(good_history(7, steps=400))

    assert report.records_sent > 200 and report.reads > 500 and report.positions_fetched > 20
    assert report.transactions_committed > 5 and report.transactions_unknown > 0


def test_the_order_of_lines_means_nothing_but_at_one_moment() -> None:
    events = good_history(3)
    shuffled = sorted(events, key=lambda event: (event.at // 0.5 % 2, event.at))

    assert check(shuffled).is_clean


def test_a_history_is_the_same_after_its_file(tmp_path: Path) -> None:
    events = good_history(11)

    write_history(tmp_path / "history.jsonl", events)

    assert list(read_history(tmp_path / "history.jsonl")) == events
