"""An agent's metrics, with Prometheus' conventions: base units last, counters end in `_total`."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

from agent.client_metrics.pushed import PushedMetrics
from agent.quotas.precedence import Holder
from agent.topic_counters import TopicCounters, TopicDollars
from sequencer.metrics import StatisticsGauges
from tailrace.kafka import ApiKey
from tailrace.telemetry.counters import PlainCounter, PlainCounters, PlainHistogram
from tailrace.telemetry.declared_metrics import DeclaredMetrics, metric

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
API_NAMES = {api: api.name for api in ApiKey}
MAX_THROTTLED = 100
"""The most throttled clients with their own metrics. Later ones share OTHERS."""
MAX_TENANTS = 1_000
"""The most tenants with their own metrics."""
OTHERS = Holder("(others)", "(others)", "(others)")
_BYTES = tuple(4.0**power for power in range(5, 15))


class AgentTelemetry(DeclaredMetrics):
    """All metrics of one agent, in their own registry (so that one test process can hold many agents)."""

    # -- connections and requests
    connections = metric(Gauge, "Open client connections.")
    closed_connections = metric(Counter, "Connections closed by the agent, by reason.", ["reason"])
    bad_requests = metric(Counter, "Frames that could not be read, by kind.", ["kind"])
    request_seconds = metric(
        PlainHistogram,
        "Time from reading a request to its answer.",
        "api",
        buckets=_SECONDS,
        name="request_duration_seconds",
    )
    request_failures = metric(Counter, "Requests that failed with an unexpected exception, by API.", ["api"])
    answer_bytes = metric(Gauge, "Bytes of large answers that are being built or sent.")

    # -- produce
    produced_bytes = metric(PlainCounter, "Bytes of record batches accepted from producers.")
    produced_records = metric(PlainCounter, "Records accepted from producers.")
    refused_batches = metric(Counter, "Batches refused, by Kafka error.", ["error"])
    request_object_bytes = metric(
        Gauge,
        "Bytes of the decoded objects of unanswered produce requests with many partitions, without their frames.",
    )
    buffered_bytes = metric(Gauge, "Bytes received from producers and not flushed yet.")
    flushes = metric(Counter, "Buffers sealed, by reason.", ["reason"])
    flush_bytes = metric(Histogram, "Size of uploaded objects.", buckets=_BYTES)
    flush_failures = metric(Counter, "Sealed buffers whose producers must retry, by reason.", ["reason"])
    lost_batches = metric(
        Counter, "Batches acknowledged on receipt (tailrace.flush=async) and then lost, by cause.", ["cause"]
    )
    lost_records = metric(Counter, "Records acknowledged on receipt and then lost, by cause.", ["cause"])
    upload_seconds = metric(
        Histogram,
        "Duration of the upload of a sealed buffer.",
        buckets=_SECONDS,
        name="upload_duration_seconds",
    )
    commit_seconds = metric(
        Histogram, "Duration of a commit at the sequencer.", buckets=_SECONDS, name="commit_duration_seconds"
    )
    unanswered_commits = metric(Gauge, "Commits that the sequencer has not answered yet.")

    # -- fetch
    fetched_bytes = metric(PlainCounter, "Bytes of record batches sent to consumers.")
    fetched_records = metric(PlainCounter, "Records sent to consumers, whole batches counted.")
    fetch_failures = metric(Counter, "Partitions that a fetch could not read, by Kafka error.", ["error"])
    deferred_fetches = metric(
        Counter, "Fetches answered without records because fetch_memory_bytes is used up."
    )
    unsent_bytes = metric(Gauge, "Bytes of records that are being sent to consumers.")
    kept_bytes = metric(
        Gauge, "Further bytes of the chunks that records being sent to consumers keep in memory."
    )
    windows = metric(Gauge, "Partitions whose newest runs this agent holds for fetches.")
    window_hits = metric(
        PlainCounter, "Partitions of fetches answered from a window, without a call to the sequencer."
    )
    window_misses = metric(PlainCounter, "Partitions of fetches for which the agent called the sequencer.")
    window_resets = metric(
        PlainCounter, "Times that all windows were dropped, such as for a new committer or a lost connection."
    )

    # -- groups
    group_bytes = metric(
        Gauge, "Bytes of members' metadata and assignments in the groups that this agent coordinates."
    )
    consumer_lag_records = metric(
        Gauge,
        "Records between a group's committed offset and the end of the partition.",
        ["group", "topic", "partition"],
    )
    share_acquired = metric(
        PlainCounter,
        "Records delivered to members of share groups, including redeliveries.",
        name="share_acquired_records",
    )
    share_redelivered = metric(
        PlainCounter,
        "Records delivered to members of share groups that had been delivered before.",
        name="share_redelivered_records",
    )
    share_acknowledged = metric(
        Counter,
        "Records that members of share groups acknowledged, by type.",
        ["type"],
        name="share_acknowledged_records",
    )
    share_failures = metric(
        Counter, "Partitions of share groups' requests that failed, by Kafka error.", ["error"]
    )
    dead_letters = metric(
        Counter,
        "Records that share groups gave up, by outcome: written, dropped or failed (retried).",
        ["outcome"],
    )
    internal_topic_copies = metric(
        Counter,
        "Copies in internal topics, by outcome: written (records), failed (groups and ids, retried), dropped.",
        ["outcome"],
    )

    # -- logins, permissions and quotas
    logins = metric(
        Counter,
        "Logins of clients, by listener, mechanism and result.",
        ["listener", "mechanism", "result"],
    )
    authorization_refusals = metric(
        Counter,
        "Operations refused by ACLs, by API, resource type and operation.",
        ["api", "resource_type", "operation"],
    )
    throttled_requests = metric(
        Counter, "Requests and connections above a client quota, by quota.", ["quota"]
    )
    throttle_seconds = metric(
        Counter,
        f"Throttle times returned to clients, by quota and client; only the first {MAX_THROTTLED} clients are named.",
        ["quota", "user", "client_id", "ip"],
    )
    cluster_share = metric(Gauge, "This agent's share of a cluster-wide budget, per second.", ["of"])
    tenant_requests = metric(
        PlainCounters,
        "Requests of tenants' clients.",
        "tenant",
        limit=MAX_TENANTS,
        others="(other tenants)",
    )

    def __init__(self) -> None:
        super().__init__()
        self._throttled_names: dict[Holder, None] = {}
        self.sequencer_statistics = StatisticsGauges(self.registry)
        self.client_metrics = PushedMetrics(self.registry)
        self.topics = TopicCounters(self.registry)
        self.topic_dollars = TopicDollars(self.registry)

    def throttled(self, quota: str, holder: Holder, ms: float) -> None:
        """Count a client that is above its quota and waits `ms`."""
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
