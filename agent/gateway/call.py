"""One HTTP request under way: its client, its path and query, its body, and the shape of its answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from agent.gateway.body_memory import BodyMemory
from agent.gateway.client import GatewayClient
from agent.gateway.errors import HttpRefusal
from agent.gateway.settings import GatewaySettings
from agent.gateway.telemetry import GatewayTelemetry
from agent.long_work import LongWork
from tailrace.clock import Clock
from tailrace.tenants import Tenant

T = TypeVar("T")
JSON = "application/json"
DECODES_AT_ONCE = 2
"""Reads whose records are unpacked at once, and are counted only then."""


@dataclass(slots=True)
class OpenStreams:
    """How many event streams there are."""

    count: int = 0


@dataclass(frozen=True, slots=True)
class GatewayParts:
    """What all requests of a gateway share. `draining` is done once the gateway is to end."""

    settings: GatewaySettings
    clock: Clock
    decoding: Executor
    telemetry: GatewayTelemetry
    cluster_id: Callable[[], str]
    draining: asyncio.Future[None]
    bodies: BodyMemory
    long_work: LongWork
    decodes: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(DECODES_AT_ONCE))
    streams: OpenStreams = field(default_factory=OpenStreams)

    def seen_by(self, tenant: Tenant | None) -> GatewayParts:
        """As a tenant's client sees them."""
        if tenant is None:
            return self
        return replace(self, cluster_id=lambda: tenant.cluster_id(self.cluster_id()))

    async def done(self, awaited: asyncio.Future[Any], seconds: float) -> bool:
        """Wait until this is done (True), or the gateway is to end or the time has passed (False)."""
        bell = asyncio.ensure_future(self.clock.sleep(seconds))
        try:
            await asyncio.wait({awaited, self.draining, bell}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            bell.cancel()
            await asyncio.gather(bell, return_exceptions=True)
        return awaited.done()


@dataclass(frozen=True, slots=True)
class HttpCall:
    """`root`: the path below which the API is served. `check_login`: raises HttpRefusal once the client may not be
    logged in any more."""

    request: web.Request
    client: GatewayClient
    parts: GatewayParts
    root: str
    check_login: Callable[[], Awaitable[object]]

    async def ask(self, request: Any) -> Any:
        """The response of the agent's handlers to a Kafka request. Raises HttpRefusal."""
        return await self.client.ask(request)

    async def shared(self, work: Coroutine[Any, Any, T]) -> T:
        """What work gives that may be long: then it waits for its client's turns, as that of Kafka's clients does."""
        access, long_work = self.client.access, self.parts.long_work
        with closing(work):
            await long_work.passes.begun()
            return await long_work.shared((access.principal, access.host), work)

    # --- what was sent

    def name(self, part: str) -> str:
        """A part of the path."""
        return self.request.match_info[part]

    def number(self, part: str) -> int:
        """A part of the path that is a number of 32 bits. Raises HttpRefusal."""
        return _number(self.name(part), part, 2**31 - 1)

    def query_number(self, name: str, default: int, most: int) -> int:
        """A parameter from 0 to `most`. Raises HttpRefusal."""
        given = self.request.query.get(name)
        return default if given is None else _number(given, name, most)

    def query_choice(self, name: str, choices: Mapping[str, T], default: T) -> T:
        """A parameter that is one of some words. Raises HttpRefusal."""
        given = self.request.query.get(name)
        if given is None:
            return default
        if given.lower() not in choices:
            raise HttpRefusal(400, f"{name} must be {' or '.join(choices)}.")
        return choices[given.lower()]

    async def body(self, kind: type[T]) -> T:
        """The body, a JSON object of this shape. Raises HttpRefusal."""
        data, most = bytearray(), self.parts.settings.max_record_bytes
        with self.parts.bodies.body() as kept:
            while chunk := await self.read():
                data += chunk
                if len(data) > most:
                    raise HttpRefusal(413, f"The body is larger than {most} bytes.")
                kept.keep(len(data))
        try:
            return msgspec.json.decode(data, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise HttpRefusal(400, f"The body can't be read: {error}.") from None

    async def read(self) -> bytes:
        """What has come of the body; nothing at its end. Raises HttpRefusal if nothing comes for too long, or if
        what comes is no HTTP."""
        reading = asyncio.ensure_future(self.request.content.readany())
        try:
            if not await self.parts.done(reading, self.parts.settings.idle_ms / 1000):
                if self.parts.draining.done():
                    raise HttpRefusal(503, "The agent is about to end. Send again what has no report.", 50302)
                raise HttpRefusal(408, "The body does not go on. Send it without such pauses.")
            return reading.result()
        except HttpProcessingError as error:
            raise HttpRefusal(400, f"The body is no HTTP: {error.message}.") from None
        finally:
            reading.cancel()

    # --- what is answered

    def url(self, *path: object) -> str:
        """The address of something in this cluster."""
        parts = [self.parts.cluster_id(), *path]
        below = "/".join(quote(str(part), safe="") if part != "-" else "-" for part in parts)
        return f"{self.request.scheme}://{self.request.host}{self.root}/clusters/{below}"

    def related(self, *path: object) -> dict[str, str]:
        """A link to something else."""
        return {"related": self.url(*path)}

    def resource(self, kind: str, path: Sequence[object], **fields: object) -> dict[str, object]:
        """A thing as Kafka REST v3 shows it."""
        metadata = {"self": self.url(*path), "resource_name": None}
        return {"kind": kind, "metadata": metadata, "cluster_id": self.parts.cluster_id(), **fields}


def answered(body: object, status: int = 200) -> web.Response:
    """A response with a JSON body."""
    return web.Response(body=msgspec.json.encode(body), status=status, content_type=JSON)


def _number(given: str, name: str, most: int) -> int:
    if given.isascii() and given.isdigit() and len(given) < 20 and int(given) <= most:
        return int(given)
    raise HttpRefusal(400, f"{name} must be a number from 0 to {most}.")
