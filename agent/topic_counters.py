"""What each topic uses of an agent: the counters from which its part of the bill is computed (`agent.topic_usage`).

At most MAX_TOPICS topics have their own counters; all others share one set. Counters of deleted topics are kept until
another topic needs the room, and are then added up. Used by the loop's thread alone.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from tailrace.cost import Bill

MAX_TOPICS = 1_000
OTHER_TOPICS = "(other topics)"
DELETED_TOPICS = "(deleted topics)"
"""No topic can have these names."""


@dataclass(slots=True)
class TopicCounts:
    """`objects`: the topic's parts of stored objects, by bytes. `missed_bytes`: bytes fetched from objects that other
    agents uploaded, or this agent longer ago, and that were not kept ready to be sent. `cross_zone_bytes`: bytes from
    and to clients that name another zone than the agent's."""

    stored_bytes: float = 0
    objects: float = 0.0
    rows: float = 0
    fetched_bytes: float = 0
    missed_bytes: float = 0
    cross_zone_bytes: float = 0

    def add(self, other: TopicCounts, times: int = 1) -> None:
        """Add another topic's counts, or subtract them (`times` = -1)."""
        for count in fields(TopicCounts):
            setattr(self, count.name, getattr(self, count.name) + times * getattr(other, count.name))


_DOCS = {
    "stored_bytes": "Bytes of record batches in stored objects, by topic.",
    "objects": "Stored objects; an object with runs of several topics is divided among them by bytes.",
    "rows": "Runs of stored objects; each is a row at the sequencer.",
    "fetched_bytes": "Bytes of record batches sent to consumers, by topic.",
    "missed_bytes": "Fetched bytes of objects that this agent had not just uploaded, which may have cost GETs.",
    "cross_zone_bytes": "Bytes from and to clients that name another zone than the agent's.",
}


class TopicCounters(Collector):
    """The counters of all topics that this agent has stored or sent records of."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.topics: dict[str, TopicCounts] = {}
        self._existing: Callable[[], Container[str]] | None = None
        self._looked_at: Container[str] | None = None
        registry.register(self)

    def forget_deleted_of(self, existing: Callable[[], Container[str]]) -> None:
        """Add up the counters of deleted topics when there is no room. `existing` returns the names of the topics that
        exist, as a new object after each change."""
        self._existing = existing

    def of(self, topic: str) -> TopicCounts:
        """Return the topic's counters, to be added to."""
        counts = self.topics.get(topic)
        if counts is None:
            if len(self.topics) >= MAX_TOPICS:
                self._add_up_deleted()
            if len(self.topics) >= MAX_TOPICS:
                topic = OTHER_TOPICS
            counts = self.topics.setdefault(topic, TopicCounts())
        return counts

    def _add_up_deleted(self) -> None:
        if self._existing is None or (existing := self._existing()) is self._looked_at:
            return
        self._looked_at = existing
        deleted = [
            name
            for name in self.topics
            if name not in existing and name not in (OTHER_TOPICS, DELETED_TOPICS)
        ]
        for name in deleted:
            self.topics.setdefault(DELETED_TOPICS, TopicCounts()).add(self.topics.pop(name))

    def describe(self) -> Iterable[Metric]:
        """Return the counters' names, so that the registry can be restricted to them."""
        return self.collect()

    def stored(self, runs: Sequence[tuple[str, int]]) -> None:
        """Count a stored object. `runs`: the topic and the bytes of each run."""
        size = sum(length for _, length in runs)
        for topic, length in runs:
            counts = self.of(topic)
            counts.stored_bytes += length
            counts.objects += length / size
            counts.rows += 1

    def collect(self) -> Iterable[Metric]:
        """Return the current counts."""
        for field in fields(TopicCounts):
            family = CounterMetricFamily(
                f"tailrace_topic_{field.name}_total", _DOCS[field.name], labels=["topic"]
            )
            for topic, counts in self.topics.items():
                family.add_metric([topic], getattr(counts, field.name))
            yield family


class TopicDollars(Collector):
    """What each topic cost since this process's start, computed from the current counters."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._bills: Callable[[], Mapping[str, Bill]] = dict
        self._prices = self._database = ""
        registry.register(self)

    def show(self, bills: Callable[[], Mapping[str, Bill]], prices: str, database: str) -> None:
        """Set the sources. `bills` returns the current bills by topic; `prices` is the name of their price table,
        `database` the kind of the process's own database."""
        self._bills, self._prices, self._database = bills, prices, database

    def describe(self) -> Iterable[Metric]:
        """Return the names without computing a bill: the other counters are not registered yet."""
        yield CounterMetricFamily("tailrace_topic_cost_dollars_total", "", labels=["topic", "item"])
        yield GaugeMetricFamily("tailrace_prices_info", "", labels=["name", "database"])

    def collect(self) -> Iterable[Metric]:
        """Return the current dollars, except for storage: a process does not know for how long bytes were stored."""
        table = GaugeMetricFamily(
            "tailrace_prices_info",
            "1; the labels name the price table and the kind of database.",
            labels=["name", "database"],
        )
        if self._prices:
            table.add_metric([self._prices, self._database], 1.0)
        yield table
        family = CounterMetricFamily(
            "tailrace_topic_cost_dollars_total",
            "Dollars that this process spent, by the price table.",
            labels=["topic", "item"],
        )
        for topic, bill in self._bills().items():
            for item, dollars in bill.items.items():
                if item != "storage":
                    family.add_metric([topic, item], dollars)
        yield family
