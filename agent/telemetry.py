"""An agent's metrics, by Prometheus' conventions: base units last, counters end in `_total`."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from agent.client_metrics.pushed import PushedMetrics
from agent.quotas.precedence import Holder
from agent.topic_counters import TopicCounters, TopicDollars
from sequencer.metrics import StatisticsGauges
from tailrace.counters import PlainCounter, PlainCounters, PlainHistogram
from tailrace.kafka import ApiKey

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
API_NAMES = {api: api.name for api in ApiKey}
MAX_THROTTLED = 100
"""Throttled clients with metrics of their own; those after them share OTHERS."""
MAX_TENANTS = 1_000
"""Tenants with metrics of their own."""
OTHERS = Holder("(others)", "(others)", "(others)")
_BYTES = tuple(4.0**power for power in range(5, 15))


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
            "Fetches answered without records because fetch_memory_bytes is used up.",
        )
        self.share_acquired = self._plain(
            "share_acquired_records", "Records handed to members of share groups, redeliveries included."
        )
        self.share_redelivered = self._plain(
            "share_redelivered_records",
            "Records handed to members of share groups that were handed out before.",
        )
        self.share_acknowledged = self._counter(
            "share_acknowledged_records", "What members of share groups said of records, by type.", "type"
        )
        self.dead_letters = self._counter(
            "dead_letters",
            "Records that share groups gave up, by what became of them: written, dropped or failed (tried again).",
            "outcome",
        )
        self.share_failures = self._counter(
            "share_failures", "Partitions of share groups' requests that failed, by Kafka error.", "error"
        )
        self.window_hits = self._plain(
            "window_hits", "Partitions of fetches that a window answered: without a call to the sequencer."
        )
        self.window_misses = self._plain(
            "window_misses", "Partitions of fetches for which the sequencer was asked."
        )
        self.window_resets = self._plain(
            "window_resets", "How often all windows were dropped: a committer's end, or a lost connection."
        )
        self.windows = Gauge(
            "tailrace_windows", "Partitions whose newest runs are held for fetches.", registry=self.registry
        )
        self.bad_requests = self._counter("bad_requests", "Frames that could not be read, by kind.", "kind")
        self.closed_connections = self._counter(
            "closed_connections", "Connections closed by the agent, by reason.", "reason"
        )
        self.logins = self._counter(
            "logins",
            "Logins of clients, by listener, mechanism and result.",
            "listener",
            "mechanism",
            "result",
        )
        self.authorization_refusals = self._counter(
            "authorization_refusals",
            "What clients asked for and may not do, by API, resource type and operation.",
            "api",
            "resource_type",
            "operation",
        )
        self.throttled_requests = self._counter(
            "throttled_requests", "Requests and connections above a client quota, by quota.", "quota"
        )
        self.throttle_seconds = self._counter(
            "throttle_seconds",
            f"How long clients were told to wait, by quota and by whom it holds: the first {MAX_THROTTLED} by name.",
            "quota",
            "user",
            "client_id",
            "ip",
        )
        self._throttled_names: dict[Holder, None] = {}
        self.request_failures = self._counter(
            "request_failures", "Requests that failed with an unexpected exception, by API.", "api"
        )
        self.request_seconds = PlainHistogram(
            "tailrace_request_duration_seconds", "Time from a request read to its answer.", "api",
            buckets=_SECONDS, registry=self.registry,
        )  # fmt: skip
        self.flushes = self._counter("flushes", "Buffers sealed, by reason.", "reason")
        self.flush_bytes = Histogram(
            "tailrace_flush_bytes", "Size of uploaded objects.", buckets=_BYTES, registry=self.registry
        )
        self.flush_failures = self._counter(
            "flush_failures", "Sealed buffers that failed, by reason.", "reason"
        )
        self.unanswered_commits = Gauge(
            "tailrace_unanswered_commits",
            "Commits that the sequencer has not answered yet.",
            registry=self.registry,
        )
        self.upload_seconds = self._histogram("upload_duration_seconds", "Time of a sealed buffer's upload.")
        self.commit_seconds = self._histogram("commit_duration_seconds", "Time of a commit at the sequencer.")
        self.connections = Gauge("tailrace_connections", "Open client connections.", registry=self.registry)
        self.buffered_bytes = Gauge(
            "tailrace_buffered_bytes", "Bytes received and not flushed.", registry=self.registry
        )
        self.unsent_bytes = Gauge(
            "tailrace_unsent_bytes", "Bytes of records on their way to consumers.", registry=self.registry
        )
        self.answer_bytes = Gauge(
            "tailrace_answer_bytes",
            "Bytes of large answers that are made or on their way to clients.",
            registry=self.registry,
        )
        self.request_object_bytes = Gauge(
            "tailrace_request_object_bytes",
            "Bytes of objects that produce requests of many partitions are until they are answered.",
            registry=self.registry,
        )
        self.group_bytes = Gauge(
            "tailrace_group_bytes",
            "Bytes that members of the groups of this agent say of themselves.",
            registry=self.registry,
        )
        self.consumer_lag_records = Gauge(
            "tailrace_consumer_lag_records", "Records between a group's committed offset and the end.",
            ["group", "topic", "partition"], registry=self.registry,
        )  # fmt: skip
        self.sequencer_statistics = StatisticsGauges(self.registry)
        self.cluster_share = Gauge(
            "tailrace_cluster_share", "This agent's share of a budget of the cluster, per second.",
            ["of"], registry=self.registry,
        )  # fmt: skip
        self.tenant_requests = PlainCounters(
            "tailrace_tenant_requests_total", "Requests of tenants' clients.", "tenant",
            limit=MAX_TENANTS, others="(other tenants)", registry=self.registry,
        )  # fmt: skip
        self.client_metrics = PushedMetrics(self.registry)
        self.topics = TopicCounters(self.registry)
        self.topic_dollars = TopicDollars(self.registry)

    def throttled(self, quota: str, holder: Holder, ms: float) -> None:
        """A client is above its quota, and waits for so long."""
        self.throttled_requests.labels(quota).inc()
        if holder not in self._throttled_names:
            if len(self._throttled_names) >= MAX_THROTTLED:
                holder = OTHERS
            else:
                self._throttled_names[holder] = None
        self.throttle_seconds.labels(quota, *(name or "" for name in holder)).inc(ms / 1_000)

    def request_served(self, api: ApiKey, seconds: float) -> None:
        """Count one answered request."""
        self.request_seconds.series(API_NAMES[api]).observe(seconds)

    def _plain(self, name: str, doc: str) -> PlainCounter:
        return PlainCounter(f"tailrace_{name}_total", doc, registry=self.registry)

    def _counter(self, name: str, doc: str, *labels: str) -> Counter:
        return Counter(f"tailrace_{name}", doc, labels, registry=self.registry)

    def _histogram(self, name: str, doc: str, *labels: str) -> Histogram:
        return Histogram(f"tailrace_{name}", doc, labels, buckets=_SECONDS, registry=self.registry)
