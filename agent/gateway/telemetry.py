"""The gateway's metrics, by route."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class GatewayTelemetry:
    """In the agent's registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = Counter(
            "tailrace_gateway_requests", "Requests of the gateway, by route, method and status.",
            ["route", "method", "status"], registry=registry,
        )  # fmt: skip
        self.seconds = Histogram(
            "tailrace_gateway_request_duration_seconds", "Time from a request to the end of its response.",
            ["route", "method"], buckets=_SECONDS, registry=registry,
        )  # fmt: skip
        self.connections = Gauge(
            "tailrace_gateway_connections", "Open connections of the gateway.", registry=registry
        )
        self.streams = Gauge("tailrace_gateway_streams", "Open event streams.", registry=registry)
        self.records = Counter(
            "tailrace_gateway_records", "Records produced and read over HTTP, and reports of failures.",
            ["kind"], registry=registry,
        )  # fmt: skip
        self.closed_connections = Counter(
            "tailrace_gateway_closed_connections", "Connections that the gateway closed, by reason.",
            ["reason"], registry=registry,
        )  # fmt: skip
        self.ended_streams = Counter(
            "tailrace_gateway_ended_streams", "Event streams that have ended, by reason.",
            ["reason"], registry=registry,
        )  # fmt: skip
