"""Metrics that every process has at `/metrics`: its build, memory, CPU and open files."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import (
    CollectorRegistry,
    Gauge,
    Metric,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
)


class _DescribedProcess(ProcessCollector):
    """The library's collector, plus `describe`, so that a request can select these metrics by name."""

    def describe(self) -> Iterable[Metric]:
        """Return the metrics that `collect` yields."""
        return self.collect()


def add_process_metrics(registry: CollectorRegistry, *, version: str, kind: str) -> None:
    """Add the metrics of the process. Leave out the `_created` time of each counter: it is unused, and one line in
    eight."""
    disable_created_metrics()  # type: ignore[no-untyped-call]
    _DescribedProcess(registry=registry)
    PlatformCollector(registry=registry)
    build = Gauge(
        "tailrace_build_info",
        "1; the labels name the version and the kind of the process.",
        ["version", "kind"],
        registry=registry,
    )
    build.labels(version, kind).set(1)
