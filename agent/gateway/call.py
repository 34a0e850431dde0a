"""One HTTP request in progress: its client, its path and query, its body, and the format of its answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import count
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
from tailrace.background_tasks import cancel_and_wait
from tailrace.clock import Clock
from tailrace.tenants import Tenant

T = TypeVar("T")
JSON = "application/json"
DECODES_AT_ONCE = 2
"""How many reads decompress their records at the same time. Their memory is counted only afterwards."""


@dataclass(slots=True)
class OpenStreams:
    """The number of open event streams."""

    count: int = 0


@dataclass(frozen=True, slots=True)
class GatewayParts:
    """What all requests of a gateway share. `draining` is done once the gateway is shutting down. `groups` numbers the
    groups of records that are stored together."""

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
    groups: Iterator[int] = field(default_factory=count)

    def seen_by(self, tenant: Tenant | None) -> GatewayParts:
        """Return the parts as a tenant's client sees them."""
        if tenant is None:
            return self
        return replace(self, cluster_id=lambda: tenant.cluster_id(self.cluster_id()))

    async def done(self, awaited: asyncio.Future[Any], seconds: float) -> bool:
        """Wait. Return True when `awaited` is done, False if the gateway shuts down or the time passes first."""
        timer = asyncio.ensure_future(self.clock.sleep(seconds))
        try:
            await asyncio.wait({awaited, self.draining, timer}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel_and_wait(timer)
        return awaited.done()


@dataclass(frozen=True, slots=True)
class HttpCall:
    """`root`: the path below which the API is served. `check_login` raises HttpRefusal if the client's login is no
    longer valid."""

    request: web.Request
    client: GatewayClient
    parts: GatewayParts
    root: str
    check_login: Callable[[], Awaitable[object]]

    async def ask(self, request: Any) -> Any:
        """Send a Kafka request to the agent's handlers and return the response. Raises HttpRefusal."""
        return await self.client.ask(request)

    async def shared(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of work that may be long: then it waits for its client's turns, as Kafka's clients do."""
        access, long_work = self.client.access, self.parts.long_work
        with closing(work):
            await long_work.passes.begun()
            return await long_work.shared((access.principal, access.host), work)

    # --- the request

    def name(self, part: str) -> str:
        """Return a part of the path."""
        return self.request.match_info[part]

    def number(self, part: str) -> int:
        """Return a part of the path that is a 32-bit number. Raises HttpRefusal."""
        return _number(self.name(part), part, 2**31 - 1)

    def query_number(self, name: str, default: int, most: int) -> int:
        """Return a query parameter from 0 to `most`. Raises HttpRefusal."""
        given = self.request.query.get(name)
        return default if given is None else _number(given, name, most)

    def query_choice(self, name: str, choices: Mapping[str, T], default: T) -> T:
        """Return the value for a query parameter that is one of `choices`. Raises HttpRefusal."""
        given = self.request.query.get(name)
        if given is None:
            return default
        if given.lower() not in choices:
            raise HttpRefusal(400, f"{name} must be {' or '.join(choices)}.")
        return choices[given.lower()]

    async def body(self, kind: type[T]) -> T:
        """Read the body, a JSON object of this type. Raises HttpRefusal."""
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
        """Return the next bytes of the body; nothing at its end. Raises HttpRefusal if none arrive for too long, or if
        they are not HTTP."""
        reading = asyncio.ensure_future(self.request.content.readany())
        try:
            if not await self.parts.done(reading, self.parts.settings.idle_ms / 1000):
                if self.parts.draining.done():
                    raise HttpRefusal(
                        503, "The agent is shutting down. Resend the records that got no report.", 50302
                    )
                raise HttpRefusal(
                    408, "The rest of the body did not arrive in time. Send it without long pauses."
                )
            return reading.result()
        except HttpProcessingError as error:
            raise HttpRefusal(400, f"The body is not valid HTTP: {error.message}.") from None
        finally:
            reading.cancel()

    # --- the answer

    def url(self, *path: object) -> str:
        """Return the address of a resource in this cluster."""
        parts = [self.parts.cluster_id(), *path]
        below = "/".join(quote(str(part), safe="") if part != "-" else "-" for part in parts)
        return f"{self.request.scheme}://{self.request.host}{self.root}/clusters/{below}"

    def related(self, *path: object) -> dict[str, str]:
        """Return a link to another resource."""
        return {"related": self.url(*path)}

    def resource(self, kind: str, path: Sequence[object], **fields: object) -> dict[str, object]:
        """Return a resource in the format of Kafka REST v3."""
        metadata = {"self": self.url(*path), "resource_name": None}
        return {"kind": kind, "metadata": metadata, "cluster_id": self.parts.cluster_id(), **fields}


def answered(body: object, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), status=status, content_type=JSON)


def _number(given: str, name: str, most: int) -> int:
    if given.isascii() and given.isdigit() and len(given) < 20 and int(given) <= most:
        return int(given)
    raise HttpRefusal(400, f"{name} must be a number from 0 to {most}.")
