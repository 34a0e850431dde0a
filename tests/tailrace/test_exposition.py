"""The metrics as text."""

from __future__ import annotations

import asyncio

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, generate_latest

from tailrace.telemetry.exposition import SAMPLES_IN_A_TURN, exposition
from tests.support.turns import passes_of


def registry_of(samples: int) -> CollectorRegistry:
    registry = CollectorRegistry()
    Gauge("quiet", "Has none.", ["label"], registry=registry)
    Info("build", "The build.", registry=registry).info({"version": "1"})
    Counter("calls", "Counts.", ["method"], registry=registry).labels("find").inc()
    Histogram("seconds", "Observes.", registry=registry).observe(1.5)
    lag = Gauge("lag", "Has many.", ["partition"], registry=registry)
    for partition in range(samples):
        lag.labels(str(partition)).set(partition)
    return registry


def test_the_text_is_that_of_the_library() -> None:
    for samples in (0, 1, SAMPLES_IN_A_TURN, SAMPLES_IN_A_TURN + 1, 3 * SAMPLES_IN_A_TURN):
        registry = registry_of(samples)
        assert asyncio.run(exposition(registry)) == generate_latest(registry)


def test_very_many_samples_leave_the_loop_to_others() -> None:
    registry = registry_of(10 * SAMPLES_IN_A_TURN)
    assert asyncio.run(passes_of(exposition(registry))) > 10
