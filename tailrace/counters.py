"""Counters without a lock, for values that one thread counts."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector


class CallbackCounter(Collector):
    """A counter whose value `read` returns at each scrape. `name` ends in `_total`."""

    def __init__(
        self, name: str, documentation: str, read: Callable[[], float], *, registry: CollectorRegistry
    ) -> None:
        self._name = name
        self._documentation = documentation
        self._read = read
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        """The value now."""
        yield CounterMetricFamily(self._name, self._documentation, self._read())


class PlainCounter(CallbackCounter):
    """A counter without labels for what every request counts: `inc` is one addition, on the loop's thread alone."""

    def __init__(self, name: str, documentation: str, *, registry: CollectorRegistry) -> None:
        self._value = 0
        super().__init__(name, documentation, lambda: self._value, registry=registry)

    def inc(self, amount: int) -> None:
        """Add `amount`."""
        self._value += amount


class PlainHistogram(Collector):
    """A histogram with one label, for what every request observes, on the loop's thread alone."""

    def __init__(
        self,
        name: str,
        documentation: str,
        label: str,
        *,
        buckets: Sequence[float],
        registry: CollectorRegistry,
    ) -> None:
        self._name = name
        self._documentation = documentation
        self._label = label
        self._buckets = tuple(buckets)
        self._counts: dict[str, list[int]] = {}
        self._sums: dict[str, float] = {}
        registry.register(self)

    def observe(self, label: str, value: float) -> None:
        """Count a value."""
        counts = self._counts.get(label)
        if counts is None:
            counts = self._counts[label] = [0] * (len(self._buckets) + 1)
            self._sums[label] = 0.0
        counts[bisect_left(self._buckets, value)] += 1
        self._sums[label] += value

    def collect(self) -> Iterable[Metric]:
        """The counts now."""
        family = HistogramMetricFamily(self._name, self._documentation, labels=[self._label])
        bounds = [*map(str, self._buckets), "+Inf"]
        for label, counts in self._counts.items():
            buckets = list(zip(bounds, accumulate(counts), strict=True))
            family.add_metric([label], buckets=buckets, sum_value=self._sums[label])
        yield family
