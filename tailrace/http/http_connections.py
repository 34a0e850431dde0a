"""The connections of an HTTP server: limited in total and per address, and closed when they are slow or idle.

aiohttp parses requests, but limits neither the number of connections nor the time for the head of a request. The pages
of a process (`tailrace.http.http_server`) and the gateway (`agent.gateway.connections`) have separate limits.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter as Counts
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, cast

import structlog
from aiohttp.web_protocol import RequestHandler
from prometheus_client import Counter, Gauge

from tailrace.addresses import counted_address, plain_address
from tailrace.background_tasks import log_and_continue
from tailrace.clock import Clock
from tailrace.security.handshakes import HandshakeBounds, Handshakes, NoHandshake
from tailrace.telemetry.declared_metrics import DeclaredMetrics, metric

log = structlog.get_logger(__name__)
NO_HANDSHAKE = {
    NoHandshake.TOO_MANY: "max_connections",
    NoHandshake.TOO_MANY_OF_ADDRESS: "max_connections_per_address",
    NoHandshake.FAILED: "no TLS handshake",
}
"""In metrics: why a connection ended before its handshake was finished."""
SWEEPS = 4
"""How often connections are checked within the shorter time limit."""


@dataclass(frozen=True, slots=True)
class HttpBounds:
    """The limits: connections in total and per address, seconds for a request's head, and seconds for all else.

    The limits on connections and on a head's time also apply to unfinished TLS handshakes, which are counted apart.
    """

    max_connections: int = 256
    max_connections_per_address: int = 64
    head_seconds: float = 10.0
    idle_seconds: float = 60.0
    head_bytes: int | None = 64 * 1024
    """None means that aiohttp's limits on a head are enough. Bytes of a body that arrive with the head count too."""


class ConnectionCounts(Protocol):
    connections: Gauge
    closed_connections: Counter


class HttpTelemetry(DeclaredMetrics, prefix="tailrace_http_"):
    """HTTP metrics in the process's registry."""

    connections = metric(Gauge, "Open connections for metrics, health and pages.")
    closed_connections = metric(Counter, "Connections that the process closed, by reason.", ["reason"])


@dataclass(eq=False)
class HttpConnection(asyncio.Protocol):
    """Passes the bytes of one socket to aiohttp's handler, until this module closes it.

    `since`: when the connection was opened, its last request was answered, or its current request began. `head_since`:
    when the unfinished head began; None if no head has begun.
    """

    handler: RequestHandler
    all: HttpConnections
    address: str = "?"
    requests: int = 0
    since: float = 0.0
    head_since: float | None = None
    head_bytes: int = 0
    transport: asyncio.Transport | None = None
    is_refused: bool = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass, but equivalent
        peer = transport.get_extra_info("peername")
        self.address = plain_address(peer[0]) if isinstance(peer, tuple) else "local"
        reason = self.all.opened(self)
        if reason is None:
            self.handler.connection_made(transport)
        else:
            self.is_refused = True
            self.all.abort(self, reason)

    def data_received(self, data: bytes) -> None:
        if self.is_refused:
            return
        if not self.requests:
            if self.head_since is None:
                self.head_since = self.all.clock.monotonic()
            self.head_bytes += len(data)
            most = self.all.bounds.head_bytes
            if most is not None and self.head_bytes > most:
                self.all.abort(self, "large head")
                return
        self.handler.data_received(data)

    def eof_received(self) -> bool | None:
        return None if self.is_refused else self.handler.eof_received()  # type: ignore[func-returns-value]

    def connection_lost(self, exc: Exception | None) -> None:
        self.all.ended(self)
        if not self.is_refused:
            self.handler.connection_lost(exc)

    def pause_writing(self) -> None:
        self.handler.pause_writing()

    def resume_writing(self) -> None:
        self.handler.resume_writing()

    def began(self) -> None:
        """Note that the head of a request is complete."""
        self.requests += 1
        self.since, self.head_since, self.head_bytes = self.all.clock.monotonic(), None, 0

    def answered(self) -> None:
        """Note that a request was answered."""
        self.requests -= 1
        self.since = self.all.clock.monotonic()

    def slow(self, now: float) -> str | None:
        """Return the reason to close the connection now, or None."""
        bounds = self.all.bounds
        if not self.requests and self.head_since is not None and now - self.head_since >= bounds.head_seconds:
            return "slow head"
        if now - self.since >= bounds.idle_seconds:
            return "slow answer" if self.requests else "idle"
        return None


class HttpConnections:
    """All connections of one HTTP server."""

    def __init__(
        self,
        bounds: HttpBounds,
        telemetry: ConnectionCounts,
        clock: Clock,
        kind: type[HttpConnection] = HttpConnection,
    ) -> None:
        self.bounds = bounds
        self.telemetry = telemetry
        self.clock = clock
        self._kind = kind
        self.open: dict[object, HttpConnection] = {}
        self._of_address: Counts[str] = Counts()
        self._handshakes: Handshakes | None = None
        telemetry.connections.set_function(lambda: len(self.open))

    async def listen(
        self, make: Callable[[], RequestHandler], host: str, port: int, tls: ssl.SSLContext | None
    ) -> asyncio.Server:
        """Listen, with `tls` for HTTPS. Call `close` after the server's. Raises OSError."""

        def accept() -> asyncio.BaseProtocol:
            return self._kind(make(), self)

        arrival = accept
        if tls is not None:
            bounds = HandshakeBounds(
                self.bounds.max_connections, self.bounds.max_connections_per_address, self.bounds.head_seconds
            )
            self._handshakes = Handshakes(accept, tls, bounds, self._handshake_ended)
            arrival = self._handshakes.arrival
        return await asyncio.get_running_loop().create_server(arrival, host, port)

    async def close(self) -> None:
        """End the connections whose TLS handshake is not finished."""
        if self._handshakes is not None:
            await self._handshakes.close()

    def opened(self, connection: HttpConnection) -> str | None:
        """Count a connection. Return the reason to close it, or None."""
        connection.since = connection.head_since = self.clock.monotonic()
        self.open[connection.handler] = connection
        counted = counted_address(connection.address)
        self._of_address[counted] += 1
        if len(self.open) > self.bounds.max_connections:
            return "max_connections"
        if self._of_address[counted] > self.bounds.max_connections_per_address:
            return "max_connections_per_address"
        return None

    def ended(self, connection: HttpConnection) -> None:
        """Stop counting a connection."""
        if self.open.pop(connection.handler, None) is not None:
            counted = counted_address(connection.address)
            self._of_address[counted] -= 1
            if not self._of_address[counted]:
                del self._of_address[counted]

    def _handshake_ended(self, why: NoHandshake, host: str, error: str) -> None:
        self.telemetry.closed_connections.labels(NO_HANDSHAKE[why]).inc()
        if why is NoHandshake.FAILED:
            log.info("a TLS handshake failed", peer=host, error=error)
        else:
            log.warning("closed an HTTP connection", reason=NO_HANDSHAKE[why], peer=host)

    def abort(self, connection: HttpConnection, reason: str) -> None:
        """Close a connection at once."""
        say = log.warning if connection.is_refused else log.info
        say("closed an HTTP connection", reason=reason, peer=connection.address)
        self.telemetry.closed_connections.labels(reason).inc()
        if connection.transport is not None:
            connection.transport.abort()

    def began(self, handler: object) -> None:
        """Note that the head of a request is complete on this handler's connection."""
        if (connection := self.open.get(handler)) is not None:
            connection.began()

    def answered(self, handler: object) -> None:
        """Note that this handler's request was answered."""
        if (connection := self.open.get(handler)) is not None:
            connection.answered()

    async def sweep(self) -> None:
        """Close slow and idle connections, in a loop that never ends."""
        while True:
            await self.clock.sleep(min(self.bounds.head_seconds, self.bounds.idle_seconds) / SWEEPS)
            with log_and_continue(log, "slow HTTP connections could not be checked"):
                self.close_slow()

    def close_slow(self) -> None:
        """Close the connections that are slow or idle now."""
        now = self.clock.monotonic()
        for connection in list(self.open.values()):
            if (reason := connection.slow(now)) is not None:
                self.abort(connection, reason)
