"""The HTTP server of a process: metrics, liveness, readiness and the process's own pages.

| path | answer |
|---|---|
| /metrics | the process's metrics, as Prometheus reads them |
| /healthz | 200 while the process runs |
| /readyz | 200 when it can serve; else 503 with the reasons |
| others | the pages that the process's `Pages` add |

It starts before the rest of the process. So a process that waits for another one is alive and says why it is not ready.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry

from tailrace.background_tasks import cancel_and_wait, log_and_continue
from tailrace.clock import Clock
from tailrace.http.http_connections import HttpBounds, HttpConnections, HttpTelemetry
from tailrace.security.tls import Tls
from tailrace.telemetry.exposition import exposition

log = structlog.get_logger(__name__)

GAUGES_EVERY_SECONDS = 5.0
_SHUTDOWN_SECONDS = 1.0

Page = Callable[[web.Request], Awaitable[web.Response]]
Login = Callable[[web.Request], Awaitable[web.Response | None]]
"""Returns the response that refuses a request, or None to let it in."""


@dataclass(frozen=True, slots=True)
class Readiness:
    """The reasons why the process can't serve; none means that it can. `details` are further keys of the response."""

    reasons: list[str]
    details: Mapping[str, str] = field(default_factory=dict)


class Pages(Protocol):
    """The pages of one kind of process."""

    @property
    def registry(self) -> CollectorRegistry:
        """The process's metrics."""

    @property
    def routes(self) -> Mapping[str, Page]:
        """The process's own pages, by path."""

    async def readiness(self) -> Readiness:
        """Return whether the process can serve now."""

    async def update_gauges(self) -> None:
        """Set the gauges whose values must be fetched. Called every `GAUGES_EVERY_SECONDS`; an error is logged."""


class HttpServer:
    """Serves `pages` to the clients that `login` lets in. Call `start`, then `close`."""

    def __init__(
        self,
        pages: Pages,
        clock: Clock,
        login: Login | None = None,
        bounds: HttpBounds = HttpBounds(),  # noqa: B008
    ) -> None:
        self.port = 0
        self._pages = pages
        self._clock = clock
        self._connections = HttpConnections(bounds, HttpTelemetry(pages.registry), clock)
        self._server: asyncio.Server | None = None
        self._tasks: list[asyncio.Task[None]] = []
        counting = _counted(self._connections)
        app = web.Application(middlewares=[counting] if login is None else [counting, _behind(login)])
        fixed = {"/metrics": self._metrics, "/healthz": self._healthz, "/readyz": self._readyz}
        app.add_routes(web.get(path, page) for path, page in {**pages.routes, **fixed}.items())
        self._runner = web.AppRunner(
            app,
            access_log=None,
            shutdown_timeout=_SHUTDOWN_SECONDS,
            handler_cancellation=True,  # a slow handler stops when its client is gone
        )

    async def start(self, host: str, port: int, tls: Tls | None = None) -> None:
        """Listen, with `tls` for HTTPS. Port 0 takes a free port. Raises OSError."""
        await self._runner.setup()
        assert self._runner.server is not None, "it was set up"
        self._server = await self._connections.listen(
            self._runner.server, host, port, None if tls is None else tls.server_context
        )
        self.port = self._server.sockets[0].getsockname()[1]
        self._tasks = [
            asyncio.create_task(self._keep_gauges(), name="http: gauges"),
            asyncio.create_task(self._connections.sweep(), name="http: connections"),
        ]

    async def close(self) -> None:
        """Stop listening and updating gauges."""
        if self._server is not None:
            self._server.close()
        await self._connections.close()
        await cancel_and_wait(*self._tasks)
        await self._runner.cleanup()

    async def _keep_gauges(self) -> None:
        while True:
            with log_and_continue(log, "gauges were not updated"):
                await self._pages.update_gauges()
            await self._clock.sleep(GAUGES_EVERY_SECONDS)

    async def _metrics(self, request: web.Request) -> web.Response:
        text = await exposition(self._pages.registry)
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _healthz(self, request: web.Request) -> web.Response:
        return web.json_response({"alive": True})

    async def _readyz(self, request: web.Request) -> web.Response:
        readiness = await self._pages.readiness()
        answer = {"ready": not readiness.reasons, "reasons": readiness.reasons, **readiness.details}
        return web.json_response(answer, status=503 if readiness.reasons else 200)


def _counted(connections: HttpConnections) -> Middleware:
    @web.middleware
    async def count(request: web.Request, handler: Handler) -> web.StreamResponse:
        connections.began(request.protocol)
        try:
            return await handler(request)
        finally:
            connections.answered(request.protocol)

    return count


def _behind(login: Login) -> Middleware:
    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        refusal = await login(request)
        return await handler(request) if refusal is None else refusal

    return check
