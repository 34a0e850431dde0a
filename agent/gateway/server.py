"""The gateway: topics over HTTP with the API of Kafka REST v3, on its own listener (decision 47).

A request's client logs in as a Kafka client does, and all its requests go through the handlers of Kafka's APIs.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from functools import partial
from http import HTTPStatus

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler

from agent.gateway.body_memory import BodyMemory
from agent.gateway.call import JSON, GatewayParts, HttpCall, answered
from agent.gateway.client import GatewayClient
from agent.gateway.connections import GatewayConnections
from agent.gateway.errors import HttpRefusal
from agent.gateway.hosts import AllowedHosts
from agent.gateway.responses import STREAM, ClientDisconnected
from agent.gateway.routes import EVENTS, ROOTS, ROUTES, Route
from agent.gateway.server_log import ServerLog
from agent.gateway.settings import GatewaySettings
from agent.gateway.telemetry import GatewayTelemetry
from agent.security.access import Access
from agent.security.http_login import CHALLENGE
from agent.security.sasl import LoginFailed
from agent.server import Agent
from tailrace.addresses import plain_address
from tailrace.background_tasks import cancel_and_wait
from tailrace.rpc.link import split_address

log = structlog.get_logger("agent.gateway")

READ_BUFFER_BYTES = 64 * 1024
"""Bytes of a body that are read ahead, per connection; at least half of it."""
MAX_HEADERS = 64
"""The most headers of a request, with at most 8 KiB each."""
NO_ROUTE = "(none)"
CLIENT_GONE = 499
"""The status, only in metrics, of requests whose client has gone. It is nginx's."""


class Gateway:
    """The gateway of an agent that has started. `start`, then `close` before the agent drains."""

    def __init__(self, agent: Agent, settings: GatewaySettings, telemetry: GatewayTelemetry) -> None:
        services = agent.services
        self.port = 0
        self._context = agent.gateway_context(settings.listener)
        self._hosts = AllowedHosts(settings, has_logins=agent.http_login is not None)
        self._clock = services.clock
        self._settings = settings
        self._telemetry = telemetry
        self._parts = GatewayParts(
            settings=settings,
            clock=services.clock,
            decoding=services.decoding,
            telemetry=telemetry,
            cluster_id=lambda: agent.catalog.snapshot.cluster_id,
            draining=asyncio.get_running_loop().create_future(),
            bodies=BodyMemory(self._context.budget),
            long_work=services.long_work,
        )
        self._connections = GatewayConnections(self._context, settings, telemetry, services.clock)
        telemetry.streams.set_function(lambda: self._parts.streams.count)
        self._runner = web.AppRunner(
            self._application(),
            access_log=None,
            logger=ServerLog(telemetry),
            handler_cancellation=True,  # cancel the handler when its client is gone
            auto_decompress=False,
            read_bufsize=READ_BUFFER_BYTES,
            max_headers=MAX_HEADERS,
            keepalive_timeout=settings.idle_ms / 1000,
            shutdown_timeout=settings.drain_ms / 1000,
        )
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None

    def _application(self) -> web.Application:
        app = web.Application(middlewares=[self._in_middle])
        for root in ROOTS:
            for route in ROUTES:
                app.router.add_route(route.method, root + route.path, self._serving(route, root))
        return app

    async def start(self, tls: ssl.SSLContext | None = None) -> None:
        """Listen; port 0 takes a free port. Raises OSError."""
        await self._runner.setup()
        assert self._runner.server is not None, "it was set up"
        host, port = split_address(self._settings.listen)
        self._server = await self._connections.listen(self._runner.server, host, port, tls)
        self.port = self._server.sockets[0].getsockname()[1]
        self._sweeper = asyncio.create_task(self._connections.sweep(), name="gateway: connections")
        log.info("serving topics over HTTP", listen=f"{host}:{self.port}", tls=tls is not None)

    async def close(self) -> None:
        """Accept no more requests, end the streams, answer the rest."""
        if self._server is not None:
            self._server.close()
        await self._connections.close()
        if not self._parts.draining.done():
            self._parts.draining.set_result(None)
        await cancel_and_wait(self._sweeper)
        await self._runner.cleanup()

    # --- one request

    def _serving(self, route: Route, root: str) -> Handler:
        async def serve(request: web.Request) -> web.StreamResponse:
            self._hosts.check(request.headers.getall("Host", []))
            _refuse_simple_posts(request)
            access = await self._access(request)
            parts = self._parts.seen_by(access.tenant)
            if request.match_info.get("cluster_id", parts.cluster_id()) != parts.cluster_id():
                raise HttpRefusal(404, f"There is no cluster {request.match_info['cluster_id']} here.")
            if self._parts.draining.done():
                raise HttpRefusal(503, "The agent is shutting down. Use another one.", 50302)
            client = GatewayClient(self._context, access, self._clock)
            call = HttpCall(
                request=request,
                client=client,
                parts=parts,
                root=root,
                check_login=partial(self._access, request),
            )
            try:
                handling = route.handle(call)
                response = await (handling if route.is_endless else call.shared(handling))
            finally:
                client.release()
            if STREAM not in request:
                await client.pause()
            return response

        return serve

    async def _access(self, request: web.Request) -> Access:
        """Return who the client is. Raises HttpRefusal."""
        given = request.headers.get("Authorization", "")
        try:
            return await self._context.logins.access(
                given, plain_address(request.remote or "?"), self._context.listener
            )
        except LoginFailed:
            raise HttpRefusal(401, "The login failed." if given else "A login is needed.", 40101) from None

    @web.middleware
    async def _in_middle(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Wrap every request: turn errors into JSON, count connections and metrics."""
        started = self._clock.monotonic()
        self._connections.began(request.protocol)
        status = HTTPStatus.INTERNAL_SERVER_ERROR.value
        try:
            response = await self._answered(request, handler)
            status = response.status
            return response
        except asyncio.CancelledError:
            begun = _begun(request)
            status = CLIENT_GONE if begun is None else begun.status
            raise
        finally:
            self._connections.answered(request.protocol)
            resource = request.match_info.route.resource
            route = NO_ROUTE if resource is None else resource.canonical
            method = request.method if resource is not None else NO_ROUTE
            self._telemetry.requests.labels(route, method, str(status)).inc()
            if not route.endswith(EVENTS):
                self._telemetry.seconds.labels(route, method).observe(self._clock.monotonic() - started)

    async def _answered(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        try:
            return await handler(request)
        except HttpRefusal as refusal:
            return self._refused(request, refusal)
        except web.HTTPException as error:
            return self._refused(request, HttpRefusal(error.status, f"{error.reason}."))
        except ClientDisconnected:
            return self._cut(request, request[STREAM])
        except Exception as error:
            log.error("a request failed unexpectedly", path=request.path, exc_info=error)
            if (begun := _begun(request)) is not None:
                return self._cut(request, begun)
            return self._refused(request, HttpRefusal(500, "The request failed. The agent's log says why."))

    def _cut(self, request: web.Request, begun: web.StreamResponse) -> web.StreamResponse:
        """Abort a response that has begun, so that its client sees that it is incomplete."""
        if request.transport is not None:
            request.transport.abort()
        return begun

    def _refused(self, request: web.Request, refusal: HttpRefusal) -> web.Response:
        response = answered(refusal.body, refusal.status)
        if refusal.status == HTTPStatus.UNAUTHORIZED:
            response.headers.update(CHALLENGE)
        if request.can_read_body:
            response.force_close()  # the rest of the body is not read
        return response


def _begun(request: web.Request) -> web.StreamResponse | None:
    """Return the streamed response if its head was sent, else None."""
    stream: web.StreamResponse | None = request.get(STREAM)
    return stream if stream is not None and stream.prepared else None


def _refuse_simple_posts(request: web.Request) -> None:
    """Refuse a POST that a form on a web page could send: a browser that knows a password sends it without asking.
    Before it sends what a form can't send (JSON, all methods but GET and POST), the browser asks for permission, and
    does not get it."""
    if request.method == "POST" and "Origin" in request.headers and request.content_type != JSON:
        raise HttpRefusal(415, f"A browser must send the body as {JSON}.")
