"""Metrics that a class declares are made for each of its instances."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, generate_latest

from tailrace.telemetry.declared_metrics import DeclaredMetrics, metric


class Parent(DeclaredMetrics, prefix="x_"):
    flushes = metric(Counter, "Flushes.")
    depth = metric(Gauge, "Depth.")


class Child(Parent):
    depth = metric(Gauge, "Depth, by queue.", ["queue"])
    width = metric(Gauge, "Width.")


def test_a_subclass_has_its_parents_metrics_and_prefix() -> None:
    made = Child()
    made.flushes.inc()
    made.depth.labels("a").set(2)
    made.width.set(3)
    scraped = generate_latest(made.registry).decode().splitlines()
    assert {"x_flushes_total 1.0", 'x_depth{queue="a"} 2.0', "x_width 3.0"} <= set(scraped)
