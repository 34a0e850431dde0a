"""The gateway's metrics, by route."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

from tailrace.telemetry.declared_metrics import DeclaredMetrics, metric

_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class GatewayTelemetry(DeclaredMetrics, prefix="tailrace_gateway_"):
    """The gateway's metrics, in the agent's registry."""

    requests = metric(
        Counter, "HTTP requests to the gateway, by route, method and status.", ["route", "method", "status"]
    )
    seconds = metric(
        Histogram,
        "Duration from a request to the end of its response.",
        ["route", "method"],
        buckets=_SECONDS,
        name="request_duration_seconds",
    )
    connections = metric(Gauge, "Open connections of the gateway.")
    streams = metric(Gauge, "Open event streams.")
    records = metric(Counter, "Records produced, refused and read over HTTP.", ["kind"])
    closed_connections = metric(Counter, "Connections that the gateway closed, by reason.", ["reason"])
    ended_streams = metric(Counter, "Event streams that have ended, by reason.", ["reason"])
