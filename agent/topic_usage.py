"""Computes what each topic used from the counters of a process, as `tailrace.cost` bills it. Pure.

The input is metrics: from a registry, or from a scraped page. Requests and CPU are counted per process, then divided:
PUTs by the objects that a topic is part of, GETs by the bytes read from objects that the agent had not just uploaded,
CPU by bytes stored and sent. Rows are counted per topic. What no topic caused, such as a sequencer's checkpoints, is
billed to NO_TOPIC.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace

from prometheus_client import Metric

from agent.topic_counters import DELETED_TOPICS, TopicCounts
from tailrace.cost import Usage

NO_TOPIC = "(no topic)"
_OPERATIONS = {"put": "puts", "list": "puts", "get": "gets", "head": "gets"}
"""How S3 bills a request. DELETE is free."""
_REQUESTS = "tailrace_object_store_requests_total"
_TOTALS = {
    "tailrace_object_store_sent_bytes_total": "put_bytes",
    "tailrace_object_store_received_bytes_total": "got_bytes",
    "process_cpu_seconds_total": "cpu_seconds",
}
_OF_TOPICS = {f"tailrace_topic_{count.name}_total": count.name for count in fields(TopicCounts)}
_STARTED_AT, _OBJECT_BYTES = "process_start_time_seconds", "tailrace_sequencer_object_bytes"
_PRICES = "tailrace_prices_info"
COUNTED = (_REQUESTS, *_TOTALS, *_OF_TOPICS, _STARTED_AT, _OBJECT_BYTES)
"""The names of the samples that `read_counts` reads."""


@dataclass(slots=True)
class ProcessCounts:
    """What a process has counted since its start. `started_at`: Unix time in seconds, 0 if unknown. `object_bytes`:
    bytes of the whole cluster's objects, if the process knows them. `prices`: the name of its price table. `database`:
    `sqlite`, `postgresql`, or empty if other processes have the database."""

    process: Usage = field(default_factory=Usage)
    topics: dict[str, TopicCounts] = field(default_factory=dict)
    started_at: float = 0.0
    object_bytes: float = 0.0
    prices: str = ""
    database: str = ""

    def since(self, before: ProcessCounts) -> ProcessCounts:
        """Return what was counted after `before`, or everything if the process restarted in between. If a topic's
        counters were added to those of deleted topics meanwhile, its earlier counts are subtracted there."""
        if self.started_at != before.started_at:
            return self
        topics = {name: replace(counts) for name, counts in self.topics.items()}
        for name, counts in before.topics.items():
            if (counted := topics.get(name, topics.get(DELETED_TOPICS))) is not None:
                counted.add(counts, times=-1)
        return replace(self, process=self.process + before.process * -1, topics=topics)


def read_counts(families: Iterable[Metric]) -> ProcessCounts:
    """Read the relevant counters out of all metrics."""
    found, totals = ProcessCounts(), dict[str, float]()
    for sample in (sample for family in families for sample in family.samples):
        name, value = sample.name, sample.value
        if name in _OF_TOPICS:
            counts = found.topics.setdefault(sample.labels["topic"], TopicCounts())
            setattr(counts, _OF_TOPICS[name], value)
        elif name == _REQUESTS:
            total = _OPERATIONS.get(sample.labels["operation"])
            if total is not None:
                totals[total] = totals.get(total, 0.0) + value
        elif name in _TOTALS:
            totals[_TOTALS[name]] = value
        elif name == _STARTED_AT:
            found.started_at = value
        elif name == _PRICES:
            found.prices = sample.labels["name"]
            found.database = sample.labels.get("database", "")
        elif name == _OBJECT_BYTES:
            found.object_bytes += value
    found.process = Usage(**totals)
    return found


def usage_by_topic(counts: ProcessCounts) -> dict[str, Usage]:
    """Return what each topic used. All topics together used everything that was counted."""
    whole, topics = counts.process, counts.topics
    by_objects = _shares(topics, lambda topic: topic.objects)
    by_misses = _shares(topics, lambda topic: topic.missed_bytes)
    by_bytes = _shares(topics, lambda topic: topic.stored_bytes + topic.fetched_bytes)
    used: dict[str, Usage] = {}
    for name in {**topics, NO_TOPIC: None}:
        objects, misses, sent = (shares.get(name, 0.0) for shares in (by_objects, by_misses, by_bytes))
        topic = topics.get(name, TopicCounts())
        used[name] = Usage(
            puts=whole.puts * objects,
            put_bytes=whole.put_bytes * objects,
            gets=whole.gets * misses,
            got_bytes=whole.got_bytes * misses,
            cpu_seconds=whole.cpu_seconds * sent,
            cross_zone_bytes=topic.cross_zone_bytes,
            sql_rows=topic.rows,
        )
    if used[NO_TOPIC] == Usage():
        del used[NO_TOPIC]
    return used


def _shares(topics: Mapping[str, TopicCounts], weight: Callable[[TopicCounts], float]) -> dict[str, float]:
    """Return each topic's part of the sum of all weights. If the sum is 0, NO_TOPIC gets everything."""
    whole = sum(map(weight, topics.values()))
    return {name: weight(topic) / whole for name, topic in topics.items()} if whole else {NO_TOPIC: 1.0}
