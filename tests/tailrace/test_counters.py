"""Counters of one thread show what prometheus_client's own would."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Histogram, generate_latest

from tailrace.telemetry.counters import PlainHistogram

BUCKETS = (0.5, 1.0, 2.5)


def test_a_plain_histogram_is_scraped_as_the_librarys() -> None:
    plain, library = CollectorRegistry(), CollectorRegistry()
    ours = PlainHistogram("seconds", "How long.", "api", buckets=BUCKETS, registry=plain)
    theirs = Histogram("seconds", "How long.", ["api"], buckets=BUCKETS, registry=library)
    for api, value in [("FETCH", 0.1), ("FETCH", 0.5), ("PRODUCE", 0.51), ("FETCH", 2.5), ("FETCH", 9.0)]:
        ours.series(api).observe(value)
        theirs.labels(api).observe(value)

    def scraped(registry: CollectorRegistry) -> list[str]:
        return [line for line in generate_latest(registry).decode().splitlines() if "_created" not in line]

    assert scraped(plain) == scraped(library)


def test_a_plain_histogram_without_values_shows_none() -> None:
    registry = CollectorRegistry()
    PlainHistogram("seconds", "How long.", "api", buckets=BUCKETS, registry=registry)
    assert [metric.samples for metric in registry.collect()] == [[]]
