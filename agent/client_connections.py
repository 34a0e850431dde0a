"""The connections of an agent's clients: accepted within their limits, closed when they are idle, stuck or refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial

import structlog

from agent.connection import NO_PRESSURE, STAGING_BYTES, Dispatch, KafkaConnection, MemoryPressure
from agent.loop_passes import LoopPasses
from agent.memory_budget import MemoryBudget
from agent.quotas.quotas import Quotas
from agent.security.login_sessions import ListenerContext
from agent.settings import AgentSettings
from agent.telemetry import AgentTelemetry
from tailrace.background_tasks import log_and_continue
from tailrace.clock import Clock
from tailrace.security.handshakes import NoHandshake

log = structlog.get_logger("agent.client_connections")

NO_HANDSHAKE = {
    NoHandshake.TOO_MANY: "max_connections_without_login",
    NoHandshake.TOO_MANY_OF_ADDRESS: "max_connections_without_login_per_address",
    NoHandshake.FAILED: "no TLS handshake",
}
"""In metrics: why a connection ended before its handshake was finished."""
PRESSURE_SWEEP_SECONDS = 1.0


class ClientConnections:
    """The open connections of all listeners of one agent, on one event loop.

    `pressure` tells which of the agent's memory others wait for. `on_closed` is called with each connection that ends.
    """

    def __init__(
        self,
        settings: AgentSettings,
        *,
        clock: Clock,
        telemetry: AgentTelemetry,
        quotas: Quotas,
        budget: MemoryBudget,
        pressure: Callable[[], MemoryPressure],
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._telemetry = telemetry
        self._quotas = quotas
        self._budget = budget
        self._pressure = pressure
        self._staging = bytearray(STAGING_BYTES)
        self._open: dict[KafkaConnection, None] = {}
        self._refused: dict[KafkaConnection, float] = {}
        """Connections above `connection_creation_rate`, with the monotonic time at which each is closed."""
        self._dispatch: Dispatch
        self._contexts: Mapping[str, ListenerContext]
        self._passes: LoopPasses
        self.on_closed: Callable[[KafkaConnection], None] | None = None

    def serve_with(
        self, dispatch: Dispatch, contexts: Mapping[str, ListenerContext], passes: LoopPasses
    ) -> None:
        """Set what serves the connections: the contexts of listeners that have a name, the dispatcher for a listener
        without one. Call it before a listener accepts connections."""
        self._dispatch, self._contexts, self._passes = dispatch, contexts, passes

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[KafkaConnection]:
        return iter(list(self._open))

    def accepting(self, listener: str) -> Callable[[], KafkaConnection]:
        """Return the factory of a listener's connections. The connections share what is the same for all."""
        monotonic = self._clock.monotonic

        @cache
        def shared() -> tuple[ListenerContext | None, Callable[..., None], Callable[..., None]]:
            # None: the only listener has no name and no logins.
            context = self._contexts.get(listener)
            return context, partial(self._opened, context), partial(self._closed, context)

        def accept() -> KafkaConnection:
            context, on_open, on_close = shared()
            return KafkaConnection(
                self._dispatch if context is None else context.session(),
                self._budget,
                max_frame_bytes=self._settings.max_request_bytes,
                max_inflight=self._settings.max_inflight_requests,
                on_open=on_open,
                on_close=on_close,
                monotonic=monotonic,
                staging=self._staging,
                passes=self._passes,
            )

        return accept

    def handshake_ended(self, listener: str, why: NoHandshake, host: str, error: str) -> None:
        """Report that a connection ended before its handshake was finished."""
        reason = NO_HANDSHAKE[why]
        self._telemetry.closed_connections.labels(reason).inc()
        if why is NoHandshake.FAILED:
            log.info("a TLS handshake failed", listener=listener, peer=host, error=error)
        else:
            log.warning("refused a connection", reason=reason, peer=host)

    def _opened(self, context: ListenerContext | None, connection: KafkaConnection) -> None:
        """Register a connection that was made, with TLS after the handshake. A connection that fails the handshake
        never gets here."""
        self._open[connection] = None
        reason = None if context is None else context.opened(connection)
        if len(self._open) > self._settings.max_connections:
            reason = "max_connections"
        if reason is not None:
            self._telemetry.closed_connections.labels(reason).inc()
            log.warning("refused a connection", reason=reason, peer=connection.peer_host)
            connection.abort()
        elif (wait := self._quotas.opened(connection.peer_host)) > 0:
            connection.hold()
            self._refused[connection] = self._clock.monotonic() + wait

    def _closed(self, context: ListenerContext | None, connection: KafkaConnection) -> None:
        del self._open[connection]
        self._refused.pop(connection, None)
        if self.on_closed is not None:
            self.on_closed(connection)
        if context is not None:
            context.closed(connection)

    def _close_late_logins(self) -> None:
        for name, context in self._contexts.items():
            late = context.close_late()
            if late:
                self._telemetry.closed_connections.labels("no login").inc(len(late))
                log.info("closed connections that did not log in", listener=name, count=len(late))

    def close_removed(self, users: frozenset[str]) -> None:
        """Close the connections of users who can no longer log in."""
        removed = [connection for connection in self._open if connection.access.password_user in users]
        for connection in removed:
            connection.abort()
        if removed:
            self._telemetry.closed_connections.labels("removed user").inc(len(removed))
            log.info("closed connections of removed users", users=sorted(users)[:10], count=len(removed))

    def _close_refused(self) -> None:
        now = self._clock.monotonic()
        for connection in [connection for connection, until in self._refused.items() if now >= until]:
            del self._refused[connection]
            self._telemetry.closed_connections.labels("connection_creation_rate").inc()
            connection.abort()

    async def sweep(self) -> None:
        """Close connections that are idle or stuck: rarely, but every second while someone waits for memory."""
        interval = min(self._settings.idle_connection_ms, self._settings.stalled_connection_ms) / 4000
        due = self._clock.monotonic() + interval
        while True:
            await self._clock.sleep(min(interval, PRESSURE_SWEEP_SECONDS))
            now = self._clock.monotonic()
            looks: list[Callable[[], object]] = [
                self._close_late_logins,
                self._close_refused,
                partial(self._telemetry.client_metrics.forget_silent, now),
            ]
            pressure = self._pressure()
            if now >= due or pressure != NO_PRESSURE:
                due = now + interval
                looks.append(partial(self._close_stale, pressure))
            for look in looks:
                with log_and_continue(log, "connections could not be checked"):
                    look()

    def _close_stale(self, pressure: MemoryPressure) -> None:
        idle, stalled = self._settings.idle_connection_ms / 1000, self._settings.stalled_connection_ms / 1000
        closed: dict[str, list[KafkaConnection]] = {}
        for connection in list(self._open):
            reason = connection.staleness(idle, stalled, pressure)
            if reason is not None:
                closed.setdefault(reason, []).append(connection)
                connection.abort()
        for reason, connections in closed.items():
            self._telemetry.closed_connections.labels(reason).inc(len(connections))
            log.info(
                "closed connections", reason=reason, count=len(connections), peer=connections[0].peer_host
            )
