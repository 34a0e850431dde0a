"""Listings: a short one is a single response; a long one is written in parts, as its client reads it. So a listing
takes the memory of the listed resources, not of their JSON, and each turn of the loop makes one part."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from aiohttp import web

from agent.connection import PRESSURE_BYTES_PER_SECOND, PRESSURE_SECONDS
from agent.gateway.call import JSON, HttpCall
from agent.gateway.responses import ClientDisconnected, ResponseStream

PART_BYTES = 32 * 1024


async def listing(
    call: HttpCall, kind: str, path: Sequence[object], items: Iterable[object]
) -> web.StreamResponse:
    """Return the response with several resources. Raises ClientDisconnected if its client reads too slowly."""
    head = msgspec.json.encode({"kind": kind, "metadata": {"self": call.url(*path), "next": None}})
    part = bytearray(head[:-1] + b',"data":[')
    stream: PacedStream | None = None
    comma = b""
    for item in items:
        part += comma + msgspec.json.encode(item)
        comma = b","
        if len(part) >= PART_BYTES:
            if stream is None:
                await call.client.pause()
                stream = PacedStream(call)
            await stream.write(bytes(part))
            part.clear()
    part += b"]}"
    if stream is None:
        return web.Response(body=bytes(part), content_type=JSON)
    await stream.write(bytes(part))
    return await stream.end()


class PacedStream(ResponseStream):
    """A stream that ends if its client reads too slowly while others wait for the gateway's memory."""

    def __init__(self, call: HttpCall) -> None:
        super().__init__(call, JSON)
        self._began = call.parts.clock.monotonic()
        self._taken_bytes = 0

    async def write(self, data: bytes) -> None:
        self.check()
        await super().write(data)
        self._taken_bytes += len(data)

    def check(self) -> None:
        seconds = self._call.parts.clock.monotonic() - self._began
        patience = PRESSURE_SECONDS + self._taken_bytes / PRESSURE_BYTES_PER_SECOND
        if self._call.client.others_wait and seconds > patience:
            raise ClientDisconnected("others wait for memory")
