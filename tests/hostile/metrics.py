"""Reads from a broker's own metrics which requests failed unforeseen, and for how long its loop was held.

Pure. A missing metric is a fault, never a good sign.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

FAILURES = "tailrace_request_failures"
LOOP_HELD = "tailrace_event_loop_held_seconds"


class MetricMissing(AssertionError):
    """A page of metrics lacks one that the judge needs."""


def unforeseen_failures(page: str) -> list[str]:
    """Return the APIs whose requests failed in a way that no handler foresaw. Raises MetricMissing."""
    return [
        f"{int(sample.value)} {sample.labels['api']} requests failed"
        for sample in _family(page, FAILURES).samples
        if sample.name == f"{FAILURES}_total" and sample.value > 0
    ]


def loop_turns(page: str) -> dict[float, float]:
    """Return how often the loop was held for at most so many seconds, by bucket. Raises MetricMissing."""
    counts = {
        float(sample.labels["le"]): sample.value
        for sample in _family(page, LOOP_HELD).samples
        if sample.name == f"{LOOP_HELD}_bucket"
    }
    if counts.get(math.inf, 0) <= 0:
        raise MetricMissing(f"{LOOP_HELD} counts nothing: nobody watches the loop")
    return counts


def held_s(before: Mapping[float, float], after: Mapping[float, float]) -> float:
    """Return for how many seconds at least the loop was held between two readings: the lower end of the last bucket
    whose count rose; infinite if the loop has not run meanwhile."""
    if after[math.inf] <= before[math.inf]:
        return math.inf
    ends = sorted(after)
    held = 0.0
    for end, following in pairwise(ends):
        if after[following] - before[following] > after[end] - before[end]:
            held = end
    return held


def _family(page: str, name: str) -> Metric:
    for family in text_string_to_metric_families(page):
        if family.name == name:
            return family
    raise MetricMissing(f"/metrics has no {name}")
