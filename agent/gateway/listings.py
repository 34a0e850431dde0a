"""Listings: a short one is a response of its own; a long one is written bit by bit, as its client takes it. So one
takes the memory of what it shows, not that of its JSON, and holds the loop for one part at a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from aiohttp import web

from agent.connection import PRESSED_BYTES_PER_SECOND, PRESSED_SECONDS
from agent.gateway.call import JSON, HttpCall
from agent.gateway.responses import ReaderGone, ResponseStream

PART_BYTES = 32 * 1024


async def listing(
    call: HttpCall, kind: str, path: Sequence[object], things: Iterable[object]
) -> web.StreamResponse:
    """The response with several things. Raises ReaderGone if its client takes it too slowly."""
    head = msgspec.json.encode({"kind": kind, "metadata": {"self": call.url(*path), "next": None}})
    part = bytearray(head[:-1] + b',"data":[')
    stream: ResponseStream | None = None
    comma, written, began = b"", 0, call.parts.clock.monotonic()
    for thing in things:
        part += comma + msgspec.json.encode(thing)
        comma = b","
        if len(part) >= PART_BYTES:
            if stream is None:
                await call.client.pause()
                stream = ResponseStream(call, JSON)
            await stream.write(bytes(part))
            written += len(part)
            part.clear()
            _check_pace(call, call.parts.clock.monotonic() - began, written)
    part += b"]}"
    if stream is None:
        return web.Response(body=bytes(part), content_type=JSON)
    await stream.write(bytes(part))
    return await stream.end()


def _check_pace(call: HttpCall, seconds: float, written: int) -> None:
    """Whoever takes a listing slowly is in the way while others wait for its memory."""
    if call.client.others_wait and seconds > PRESSED_SECONDS + written / PRESSED_BYTES_PER_SECOND:
        raise ReaderGone("others wait for memory")
