"""An agent's metrics, by Prometheus' conventions: units last, counters end in `_total`."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from tailrace.kafka import ApiKey

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_BYTES = tuple(4.0**power for power in range(5, 15))


class PlainCounter(Collector):
    """A counter without labels for what is counted with every request: one addition, on the loop's thread alone."""

    def __init__(self, name: str, documentation: str) -> None:
        self._name = name
        self._documentation = documentation
        self._value = 0

    def inc(self, amount: int) -> None:
        """Count so many."""
        self._value += amount

    def collect(self) -> Iterable[Metric]:
        """What a scrape sees."""
        yield CounterMetricFamily(self._name, self._documentation, self._value)


class AgentTelemetry:
    """All metrics of one agent, in a registry of its own (so that many agents fit one test process)."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self.produced_bytes = self._plain("produced_bytes", "Bytes of record batches taken from producers.")
        self.produced_records = self._plain("produced_records", "Records taken from producers.")
        self.fetched_bytes = self._plain("fetched_bytes", "Bytes of record batches sent to consumers.")
        self.fetched_records = self._plain(
            "fetched_records", "Records sent to consumers, whole batches counted."
        )
        self.refused_batches = self._counter("refused_batches", "Batches refused, by Kafka error.", "error")
        self.fetch_failures = self._counter(
            "fetch_failures", "Partitions that could not be read for a fetch, by Kafka error.", "error"
        )
        self.deferred_fetches = self._counter(
            "deferred_fetches",
            "Fetches answered without records as others' answers take all memory for them.",
        )
        self.bad_requests = self._counter("bad_requests", "Frames that could not be read, by kind.", "kind")
        self.connections_closed = self._counter(
            "connections_closed", "Connections closed by the agent, by reason.", "reason"
        )
        self.request_failures = self._counter(
            "request_failures", "Requests no handler foresaw, by API.", "api"
        )
        self.request_seconds = self._histogram(
            "request_seconds", "Time from a request read to its answer.", "api"
        )
        self._observe_seconds: dict[ApiKey, Callable[[float], None]] = {}
        self.flushes = self._counter("flushes", "Buffers sealed, by reason.", "reason")
        self.flush_bytes = Histogram(
            "tailrace_flush_bytes", "Size of uploaded objects.", buckets=_BYTES, registry=self.registry
        )
        self.flush_failures = self._counter(
            "flush_failures", "Sealed buffers that failed, by cause.", "cause"
        )
        self.unanswered_commits = Gauge(
            "tailrace_unanswered_commits",
            "Commits that the sequencer has not answered yet.",
            registry=self.registry,
        )
        self.upload_seconds = self._histogram("upload_seconds", "Time of a sealed buffer's upload.")
        self.commit_seconds = self._histogram("commit_seconds", "Time of a commit at the sequencer.")
        self.connections = Gauge("tailrace_connections", "Open client connections.", registry=self.registry)
        self.refused_peers = Gauge(
            "tailrace_rpc_refused_connections",
            "RPC connections refused since the start, above max_rpc_connections.",
            registry=self.registry,
        )
        self.buffered_bytes = Gauge(
            "tailrace_buffered_bytes", "Bytes received and not flushed.", registry=self.registry
        )
        self.unsent_bytes = Gauge(
            "tailrace_unsent_bytes", "Bytes of records on their way to consumers.", registry=self.registry
        )
        self.consumer_lag_records = Gauge(
            "tailrace_consumer_lag_records", "Records between a group's committed offset and the end.",
            ["group", "topic", "partition"], registry=self.registry,
        )  # fmt: skip
        self.rows = Gauge(
            "tailrace_sequencer_rows", "Rows at the sequencer, by kind.", ["kind"], registry=self.registry
        )
        self.garbage_objects = Gauge(
            "tailrace_garbage_objects", "Objects retired and not collected.", registry=self.registry
        )
        self.garbage_bytes = Gauge(
            "tailrace_garbage_bytes", "Bytes of objects retired and not collected.", registry=self.registry
        )

    def request_served(self, api: ApiKey, seconds: float) -> None:
        """Count one answered request."""
        observe = self._observe_seconds.get(api)
        if observe is None:
            observe = self._observe_seconds[api] = self.request_seconds.labels(api.name).observe
        observe(seconds)

    def _plain(self, name: str, doc: str) -> PlainCounter:
        counter = PlainCounter(f"tailrace_{name}", doc)
        self.registry.register(counter)
        return counter

    def _counter(self, name: str, doc: str, *labels: str) -> Counter:
        return Counter(f"tailrace_{name}", doc, labels, registry=self.registry)

    def _histogram(self, name: str, doc: str, *labels: str) -> Histogram:
        return Histogram(f"tailrace_{name}", doc, labels, buckets=_SECONDS, registry=self.registry)
