"""Counters without a lock, for values that one thread counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily
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
