"""The gateway's connections. They count as client connections of its listener; aiohttp implements the protocol."""

from __future__ import annotations

from aiohttp.web_protocol import _ErrInfo

from agent.gateway.context import GatewayContext
from agent.gateway.settings import GatewaySettings
from agent.gateway.telemetry import GatewayTelemetry
from tailrace.clock import Clock
from tailrace.http.http_connections import HttpBounds, HttpConnection, HttpConnections


class GatewayConnection(HttpConnection):
    """A connection of the gateway. While a request is handled, its handler decides how slow the client may be."""

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self.is_refused:
            self.fail_body()

    def began(self) -> None:
        super().began()
        self.fail_body()  # the request may have followed another one

    def slow(self, now: float) -> str | None:
        return None if self.requests else super().slow(now)

    def fail_body(self) -> None:
        """Fail the body of the current request if bytes that are not HTTP arrived within it: aiohttp keeps the error
        for the next request, which never comes."""
        request, messages = self.handler._current_request, self.handler._messages
        if request is None or not messages or request.content.is_eof():
            return
        newest, _ = messages[-1]
        if isinstance(newest, _ErrInfo):
            request.content.set_exception(newest.exc)


class GatewayConnections(HttpConnections):
    """All connections of the gateway. They count towards the listener's limits, and have their own limits, too."""

    def __init__(
        self, context: GatewayContext, settings: GatewaySettings, telemetry: GatewayTelemetry, clock: Clock
    ) -> None:
        bounds = HttpBounds(
            max_connections=settings.max_connections,
            max_connections_per_address=settings.max_connections_per_address,
            head_seconds=settings.head_ms / 1000,
            idle_seconds=settings.idle_ms / 1000,
            head_bytes=None,
        )
        super().__init__(bounds, telemetry, clock, GatewayConnection)
        self._context = context

    def opened(self, connection: HttpConnection) -> str | None:
        of_listener = self._context.logins.limits.opened(connection.address)
        reason = super().opened(connection) or of_listener
        if reason is None and self._context.quotas.opened(connection.address) > 0:
            return "connection_creation_rate"
        return reason

    def ended(self, connection: HttpConnection) -> None:
        super().ended(connection)
        self._context.logins.limits.closed(connection.address, None)
