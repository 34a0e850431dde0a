"""Metrics of a sequencer and of its callers, in the registry of their process."""

from __future__ import annotations

from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from sequencer.api.objects import Statistics
from sequencer.observer import DatabaseWork, SequencerObserver
from tailrace.telemetry.declared_metrics import DeclaredMetrics, metric

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)
_ROW_KINDS = (
    "runs",
    "objects",
    "retired_objects",
    "open_sessions",
    "dead_sessions",
    "producers",
    "groups",
    "small_objects",
    "open_transactions",
    "share_spans",
)
_REQUESTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class StatisticsGauges(DeclaredMetrics, prefix="tailrace_sequencer_"):
    """The sequencer's statistics as gauges, on the committer and on every agent, which requests them."""

    _rows = metric(Gauge, "Rows at the sequencer, by kind.", ["kind"])
    _object_bytes = metric(Gauge, "Bytes of objects, by state.", ["state"])
    _group_bytes = metric(Gauge, "Bytes of members' metadata and assignments in all groups.")
    _oldest_transaction_age_seconds = metric(Gauge, "Age of the oldest open transaction; 0 if none is open.")

    def show(self, statistics: Statistics) -> None:
        for kind in _ROW_KINDS:
            self._rows.labels(kind).set(getattr(statistics, kind))
        self._group_bytes.set(statistics.group_bytes)
        self._oldest_transaction_age_seconds.set(statistics.oldest_transaction_ms / 1_000)
        self._object_bytes.labels("live").set(statistics.live_bytes)
        self._object_bytes.labels("retired").set(statistics.retired_bytes)


class SequencerMetrics(DeclaredMetrics, SequencerObserver, prefix="tailrace_sequencer_"):
    """Metrics of the committer, its database and RPC calls."""

    _queued_requests = metric(Gauge, "Requests waiting for the committer.")
    _group_commit_requests = metric(
        Histogram, "Requests written in one database transaction.", buckets=_REQUESTS
    )
    _group_commit_duration_seconds = metric(
        Histogram, "Duration of a group commit, from its first decision to its answers.", buckets=_SECONDS
    )
    _database_duration_seconds = metric(
        Histogram, "Duration of the sequencer's database calls, by kind of work.", ["work"], buckets=_SECONDS
    )
    _request_failures = metric(
        Counter, "Requests that failed alone with an unexpected exception.", ["request"]
    )
    _terms = metric(Counter, "Times that this process became the committer.")

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__(registry)
        self._calls = {
            side: Histogram(
                f"tailrace_rpc_{side}_duration_seconds",
                f"Duration of RPC calls to the sequencer, measured at the {side}.",
                ["method"], buckets=_SECONDS, registry=registry,
            )
            for side in ("server", "client")
        }  # fmt: skip

    def queue_changed(self, requests: int) -> None:
        self._queued_requests.set(requests)

    def group_performed(self, requests: int, seconds: float) -> None:
        self._group_commit_requests.observe(requests)
        self._group_commit_duration_seconds.observe(seconds)

    def database_answered(self, work: DatabaseWork, seconds: float) -> None:
        self._database_duration_seconds.labels(work).observe(seconds)

    def request_failed_alone(self, request: str) -> None:
        self._request_failures.labels(request).inc()

    def term_began(self) -> None:
        self._terms.inc()

    def call_answered(self, side: Literal["server", "client"], method: str, seconds: float) -> None:
        self._calls[side].labels(method).observe(seconds)
