"""Metrics of a process's RPC server."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry

from tailrace.rpc.server import RpcServer
from tailrace.telemetry.counters import CallbackCounter


def count_refused(server: Callable[[], RpcServer | None], registry: CollectorRegistry) -> None:
    """Export how many connections the server has refused since its start; 0 while there is no server."""

    def read(of: Callable[[RpcServer], int]) -> Callable[[], float]:
        return lambda: 0 if (found := server()) is None else of(found)

    CallbackCounter(
        "tailrace_rpc_refused_connections_total",
        "RPC connections refused because max_rpc_connections were open.",
        read(lambda found: found.refused_connections),
        registry=registry,
    )
    CallbackCounter(
        "tailrace_rpc_refused_strangers_total",
        "RPC connections closed because too many had not finished their hello.",
        read(lambda found: found.refused_hellos),
        registry=registry,
    )
