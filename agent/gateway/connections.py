"""The gateway's connections: counted, bounded, and closed when they are idle. What they say is aiohttp's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import structlog
from aiohttp.web_protocol import RequestHandler, _ErrInfo

from agent.gateway.door import GatewayDoor
from agent.gateway.settings import GatewaySettings
from agent.gateway.telemetry import GatewayTelemetry
from tailrace.addresses import counted_address, plain_address
from tailrace.clock import Clock
from tailrace.keepers import outlived

log = structlog.get_logger("agent.gateway")
SWEEPS = 4
"""How often connections are looked at while one becomes idle."""


@dataclass(eq=False)
class GatewayConnection(asyncio.Protocol):
    """Passes on to aiohttp's handler what comes from one socket, unless the connection is refused.

    `requests`: how many are being handled. `quiet_since`: when the last one ended, or the connection was opened:
    bytes of a head that does not end are no reason to stay. `head_since`: when this head, or the connection, began.
    """

    handler: RequestHandler
    all: GatewayConnections
    requests: int = 0
    quiet_since: float = 0.0
    head_since: float | None = None
    address: str = "?"
    transport: asyncio.Transport | None = None
    is_refused: bool = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none, and is as good
        peer = transport.get_extra_info("peername")
        self.address = plain_address(peer[0]) if isinstance(peer, tuple) else "local"
        reason = self.all.opened(self)
        if reason is None:
            self.handler.connection_made(transport)
        else:
            self.is_refused = True
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        if not self.is_refused:
            if not self.requests and self.head_since is None:
                self.head_since = self.all.clock.monotonic()
            self.handler.data_received(data)
            self.fail_body()

    def fail_body(self) -> None:
        """End the body of the request under way if bytes that are no HTTP have come in its middle: aiohttp keeps what
        is wrong with them for the next request, which never comes."""
        request, messages = self.handler._current_request, self.handler._messages
        if request is None or not messages or request.content.is_eof():
            return
        newest, _ = messages[-1]
        if isinstance(newest, _ErrInfo):
            request.content.set_exception(newest.exc)

    def eof_received(self) -> bool | None:
        return None if self.is_refused else self.handler.eof_received()  # type: ignore[func-returns-value]

    def connection_lost(self, exc: Exception | None) -> None:
        self.all.closed(self)
        if not self.is_refused:
            self.handler.connection_lost(exc)

    def pause_writing(self) -> None:
        self.handler.pause_writing()

    def resume_writing(self) -> None:
        self.handler.resume_writing()


@dataclass(slots=True)
class GatewayConnections:
    """All of them."""

    door: GatewayDoor
    settings: GatewaySettings
    telemetry: GatewayTelemetry
    clock: Clock
    open: dict[object, GatewayConnection] = field(default_factory=dict)
    of_address: dict[str, int] = field(default_factory=dict)

    def accepting(self, make: Callable[[], RequestHandler]) -> Callable[[], GatewayConnection]:
        """What makes the connections of a listening socket."""
        return lambda: GatewayConnection(make(), self)

    def opened(self, connection: GatewayConnection) -> str | None:
        """Count a connection. Returns the reason to close it, or None."""
        connection.quiet_since = connection.head_since = self.clock.monotonic()
        self.open[connection.handler] = connection
        counted = counted_address(connection.address)
        of_address = self.of_address[counted] = self.of_address.get(counted, 0) + 1
        reason = self.door.logins.limits.opened(connection.address)
        if len(self.open) > self.settings.max_connections:
            reason = "max_connections"
        elif of_address > self.settings.max_connections_per_address:
            reason = "max_connections_per_address"
        elif reason is None and self.door.opened(connection.address) > 0:
            reason = "connection_creation_rate"
        if reason is not None:
            self.telemetry.closed_connections.labels(reason).inc()
            log.warning("refused a connection", reason=reason, peer=connection.address)
        return reason

    def closed(self, connection: GatewayConnection) -> None:
        """Uncount a connection that has ended."""
        self.open.pop(connection.handler, None)
        counted = counted_address(connection.address)
        left = self.of_address.pop(counted, 1) - 1
        if left:
            self.of_address[counted] = left
        self.door.logins.limits.closed(connection.address, None)

    def began(self, handler: object) -> None:
        """A request has come."""
        if (connection := self.open.get(handler)) is not None:
            connection.requests += 1
            connection.head_since = None
            connection.fail_body()  # it may have come behind another request

    def ended(self, handler: object) -> None:
        """A request was answered."""
        if (connection := self.open.get(handler)) is not None:
            connection.requests -= 1
            connection.quiet_since = self.clock.monotonic()

    async def sweep(self) -> None:
        """Close what is idle, for ever."""
        seconds = min(self.settings.idle_ms, self.settings.head_ms) / 1000
        while True:
            await self.clock.sleep(seconds / SWEEPS)
            with outlived(log, "connections were not looked at"):
                self._close_slow()

    def _close_slow(self) -> None:
        now = self.clock.monotonic()
        for connection in list(self.open.values()):
            if connection.requests:
                continue
            reason = None
            if now - connection.quiet_since >= self.settings.idle_ms / 1000:
                reason = "idle"
            elif (
                connection.head_since is not None
                and now - connection.head_since >= self.settings.head_ms / 1000
            ):
                reason = "slow head"
            if reason is not None:
                self.telemetry.closed_connections.labels(reason).inc()
                if connection.transport is not None:
                    connection.transport.abort()
