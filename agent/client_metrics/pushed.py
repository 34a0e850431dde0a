"""The last metrics that clients have pushed, shown among the agent's metrics; bounded by clients, series and time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from agent.client_metrics.otlp import DataPoint

MAX_CLIENTS = 1_000
MAX_SERIES_OF_CLIENT = 200
MAX_SERIES = 20_000
KEPT_INTERVALS = 3
"""A client that has not pushed for this many intervals is dropped."""
EARLY = 0.5
"""The part of its interval after which a client may push again: clients begin at a random moment of the first one."""


@dataclass(slots=True)
class _Client:
    client_id: str
    software: str
    pushed_at: float
    until: float
    points: Sequence[DataPoint]


class PushedMetrics(Collector):
    """`tailrace_client_metric`: one sample for each metric of each client."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._clients: dict[UUID, _Client] = {}
        self._series = 0
        registry.register(self)

    def may_push(self, client: UUID, now: float, interval_seconds: float) -> bool:
        """Whether a push is not too early, and there is room for the client."""
        known = self._clients.get(client)
        if known is None:
            return len(self._clients) < MAX_CLIENTS
        return now - known.pushed_at >= EARLY * interval_seconds

    def take(
        self,
        client: UUID,
        points: Sequence[DataPoint],
        *,
        client_id: str,
        software: str,
        now: float,
        seconds: float,
    ) -> None:
        """Replace the client's metrics by those that it has pushed now. Without room for the client, drop them: a last
        push before a client ends is always allowed."""
        if client not in self._clients and len(self._clients) >= MAX_CLIENTS:
            return
        self._forget(client)
        room = min(MAX_SERIES_OF_CLIENT, MAX_SERIES - self._series)
        kept = list({(point.name, point.attributes): point for point in points}.values())[:room]
        self._clients[client] = _Client(
            client_id, software, pushed_at=now, until=now + KEPT_INTERVALS * seconds, points=kept
        )
        self._series += len(kept)

    def forget_silent(self, now: float) -> None:
        """Drop the clients that push no more."""
        for client in [client for client, known in self._clients.items() if known.until <= now]:
            self._forget(client)

    def _forget(self, client: UUID) -> None:
        known = self._clients.pop(client, None)
        if known is not None:
            self._series -= len(known.points)

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Return the metrics for Prometheus."""
        labels = ["metric", "client_id", "client_instance_id", "software", "attributes"]
        family = GaugeMetricFamily(
            "tailrace_client_metric", "Metrics that clients have pushed (KIP-714).", labels=labels
        )
        for client, known in self._clients.items():
            for point in known.points:
                family.add_metric(
                    [point.name, known.client_id, str(client), known.software, point.attributes], point.value
                )
        yield family
