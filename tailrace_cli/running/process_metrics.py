"""What every process says of itself at `/metrics`, whatever its part: its build, its memory, CPU and open files."""

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
    """The library's, which also names its metrics: so that a part of the registry can be asked for them."""

    def describe(self) -> Iterable[Metric]:
        """What there is to collect."""
        return self.collect()


def add_process_metrics(registry: CollectorRegistry, *, version: str, kind: str) -> None:
    """Add them; and leave out the `_created` time of each counter: nobody reads it, and it is a line in eight."""
    disable_created_metrics()  # type: ignore[no-untyped-call]
    _DescribedProcess(registry=registry)
    PlatformCollector(registry=registry)
    build = Gauge(
        "tailrace_build_info",
        "1; the labels say which version runs as what.",
        ["version", "kind"],
        registry=registry,
    )
    build.labels(version, kind).set(1)
