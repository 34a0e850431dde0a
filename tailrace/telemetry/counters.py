"""Metrics without a lock, for values that only one thread counts."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector


class CallbackCounter(Collector):
    """A counter that calls `read` for its value at each scrape."""

    def __init__(
        self, name: str, documentation: str, read: Callable[[], float], *, registry: CollectorRegistry
    ) -> None:
        self._name = name
        self._documentation = documentation
        self._read = read
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        """Yield the current value."""
        yield CounterMetricFamily(self._name, self._documentation, self._read())


class PlainCounter(CallbackCounter):
    """A counter without labels, cheap enough for every request. Use `inc` only on the loop's thread."""

    def __init__(self, name: str, documentation: str, *, registry: CollectorRegistry) -> None:
        self._value = 0
        super().__init__(name, documentation, lambda: self._value, registry=registry)

    def inc(self, amount: int) -> None:
        """Add `amount`."""
        self._value += amount


class PlainSeries:
    """A histogram's values for one label value."""

    __slots__ = ("_bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self._bounds, value)] += 1
        self.sum += value


class PlainCounters(Collector):
    """A counter with one label. The first `limit` label values are counted separately, all later ones as `others`.

    Use it only on the loop's thread.
    """

    def __init__(
        self,
        name: str,
        documentation: str,
        label: str,
        *,
        limit: int,
        others: str,
        registry: CollectorRegistry,
    ) -> None:
        self._name = name
        self._documentation = documentation
        self._label = label
        self._limit = limit
        self._others = others
        self._counts: dict[str, int] = {}
        registry.register(self)

    def inc(self, value: str) -> None:
        """Add 1 to the count of this value of the label."""
        if value not in self._counts and len(self._counts) >= self._limit:
            value = self._others
        self._counts[value] = self._counts.get(value, 0) + 1

    def collect(self) -> Iterable[Metric]:
        """Yield the current counts."""
        family = CounterMetricFamily(self._name, self._documentation, labels=[self._label])
        for value, count in list(self._counts.items()):
            family.add_metric([value], count)
        yield family


class PlainHistogram(Collector):
    """A histogram with one label, cheap enough for every request. Use it only on the loop's thread."""

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
        self._series: dict[str, PlainSeries] = {}
        registry.register(self)

    def series(self, label: str) -> PlainSeries:
        """Return the series of this label value. Callers add to it."""
        series = self._series.get(label)
        if series is None:
            series = self._series[label] = PlainSeries(self._buckets)
        return series

    def collect(self) -> Iterable[Metric]:
        """Yield the current counts."""
        family = HistogramMetricFamily(self._name, self._documentation, labels=[self._label])
        bounds = [*map(str, self._buckets), "+Inf"]
        for label, series in self._series.items():
            buckets = list(zip(bounds, accumulate(series.counts), strict=True))
            family.add_metric([label], buckets=buckets, sum_value=series.sum)
        yield family
