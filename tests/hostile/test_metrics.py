"""The reader of a broker's metrics can fail a run: a missing metric is not a good sign."""

from __future__ import annotations

import math

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from tests.hostile.metrics import FAILURES, LOOP_HELD, MetricMissing, held_s, loop_turns, unforeseen_failures


def page(*turns: float, failed: int = 0) -> str:
    registry = CollectorRegistry()
    failures = Counter(FAILURES, "Requests that failed.", ["api"], registry=registry)
    failures.labels("FETCH").inc(0)
    if failed:
        failures.labels("METADATA").inc(failed)
    histogram = Histogram(LOOP_HELD, "Held.", buckets=(0.05, 0.1, 0.5, 5.0), registry=registry)
    for turn in turns:
        histogram.observe(turn)
    return generate_latest(registry).decode()


def test_requests_that_failed_are_named_by_their_api() -> None:
    assert unforeseen_failures(page()) == []
    assert unforeseen_failures(page(failed=3)) == ["3 METADATA requests failed"]


def test_a_page_without_the_metric_is_not_one_without_failures() -> None:
    with pytest.raises(MetricMissing, match=FAILURES):
        unforeseen_failures("")
    with pytest.raises(MetricMissing, match=LOOP_HELD):
        loop_turns("")


def test_a_loop_that_nobody_watches_is_not_one_that_is_never_held() -> None:
    with pytest.raises(MetricMissing, match="nobody watches"):
        loop_turns(page())


def test_the_loop_was_held_for_as_long_as_the_last_bucket_that_grew_says() -> None:
    before = loop_turns(page(0.01, 0.3))

    assert held_s(before, loop_turns(page(0.01, 0.3, 0.01))) == 0.0
    assert held_s(before, loop_turns(page(0.01, 0.3, 0.07, 0.01))) == 0.05
    assert held_s(before, loop_turns(page(0.01, 0.3, 0.4, 0.01))) == 0.1
    assert held_s(before, loop_turns(page(0.01, 0.3, 60.0, 0.01))) == 5.0


def test_a_loop_that_has_not_run_since_is_held() -> None:
    before = loop_turns(page(0.01))

    assert held_s(before, before) == math.inf
