"""What a sequencer and its callers do, as metrics of the process that it runs in."""

from __future__ import annotations

from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from sequencer.observer import DatabaseWork

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)
_REQUESTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class SequencerMetrics:
    """A `sequencer.observer.SequencerObserver`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._queued = Gauge(
            "tailrace_sequencer_queued_requests", "Requests that wait for the committer.", registry=registry
        )
        self._group = Histogram(
            "tailrace_sequencer_group_requests", "Requests that were written in one transaction.",
            buckets=_REQUESTS, registry=registry,
        )  # fmt: skip
        self._commit = Histogram(
            "tailrace_sequencer_commit_seconds", "Time of a group, from its first decision to its answers.",
            buckets=_SECONDS, registry=registry,
        )  # fmt: skip
        self._database = Histogram(
            "tailrace_sequencer_database_seconds", "Time of the sequencer's database, by kind of work.",
            ["work"], buckets=_SECONDS, registry=registry,
        )  # fmt: skip
        self._failed = Counter(
            "tailrace_sequencer_failed_requests", "Requests that failed alone, in a way nobody foresaw.",
            ["request"], registry=registry,
        )  # fmt: skip
        self._terms = Counter(
            "tailrace_sequencer_terms", "Times that this process became the committer.", registry=registry
        )
        self._calls = {
            side: Histogram(
                f"tailrace_rpc_{side}_seconds", f"Time of the sequencer's RPC calls, as the {side} sees them.",
                ["method"], buckets=_SECONDS, registry=registry,
            )
            for side in ("server", "client")
        }  # fmt: skip

    def queue_changed(self, requests: int) -> None:
        """Keep the length."""
        self._queued.set(requests)

    def group_performed(self, requests: int, seconds: float) -> None:
        """Count one group."""
        self._group.observe(requests)
        self._commit.observe(seconds)

    def database_answered(self, work: DatabaseWork, seconds: float) -> None:
        """Count one transaction."""
        self._database.labels(work).observe(seconds)

    def request_failed_alone(self, request: str) -> None:
        """Count one; what went wrong is the log's."""
        self._failed.labels(request).inc()

    def term_began(self) -> None:
        """Count one."""
        self._terms.inc()

    def call_answered(self, side: Literal["server", "client"], method: str, seconds: float) -> None:
        """Count one call."""
        self._calls[side].labels(method).observe(seconds)
