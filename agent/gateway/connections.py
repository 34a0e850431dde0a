"""The gateway's connections: they count as the clients' of its listener. What they say is aiohttp's."""

from __future__ import annotations

from aiohttp.web_protocol import _ErrInfo

from agent.gateway.door import GatewayDoor
from agent.gateway.settings import GatewaySettings
from agent.gateway.telemetry import GatewayTelemetry
from tailrace.clock import Clock
from tailrace.http_connections import HttpBounds, HttpConnection, HttpConnections


class GatewayConnection(HttpConnection):
    """While a request is handled, its handler says how slow the client may be."""

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self.is_refused:
            self.fail_body()

    def began(self) -> None:
        super().began()
        self.fail_body()  # it may have come behind another request

    def slow(self, now: float) -> str | None:
        return None if self.requests else super().slow(now)

    def fail_body(self) -> None:
        """End the body of the request under way if bytes that are no HTTP have come in its middle: aiohttp keeps what
        is wrong with them for the next request, which never comes."""
        request, messages = self.handler._current_request, self.handler._messages
        if request is None or not messages or request.content.is_eof():
            return
        newest, _ = messages[-1]
        if isinstance(newest, _ErrInfo):
            request.content.set_exception(newest.exc)


class GatewayConnections(HttpConnections):
    """All of them. They have their part of what the listener bounds, beside bounds of their own."""

    def __init__(
        self, door: GatewayDoor, settings: GatewaySettings, telemetry: GatewayTelemetry, clock: Clock
    ) -> None:
        bounds = HttpBounds(
            max_connections=settings.max_connections,
            max_connections_per_address=settings.max_connections_per_address,
            head_seconds=settings.head_ms / 1000,
            idle_seconds=settings.idle_ms / 1000,
            head_bytes=None,
        )
        super().__init__(bounds, telemetry, clock, GatewayConnection)
        self._door = door

    def opened(self, connection: HttpConnection) -> str | None:
        of_listener = self._door.logins.limits.opened(connection.address)
        reason = super().opened(connection) or of_listener
        if reason is None and self._door.opened(connection.address) > 0:
            return "connection_creation_rate"
        return reason

    def ended(self, connection: HttpConnection) -> None:
        super().ended(connection)
        self._door.logins.limits.closed(connection.address, None)
