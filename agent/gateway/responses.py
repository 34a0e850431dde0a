"""Responses that are written in parts, to a client that may read slowly or not at all."""

from __future__ import annotations

import asyncio

from aiohttp import web

from agent.gateway.call import HttpCall
from tailrace.clock import wait_for

WRITTEN_TOGETHER_BYTES = 64 * 1024
CHECK_SECONDS = 1.0
"""How often a write that waits for its reader checks whether it may keep waiting."""
STREAM = web.RequestKey("stream", web.StreamResponse)
"""The key under which a request keeps its streamed response."""


class ClientDisconnected(Exception):
    """The client reads no more of its response, or has left."""


class ResponseStream:
    """One streamed response. Its head is sent with the first bytes. `write` waits until most bytes are sent, so only
    the socket's buffer holds unread bytes."""

    def __init__(self, call: HttpCall, content_type: str, **headers: str) -> None:
        self._call = call
        self._response = call.request[STREAM] = web.StreamResponse(
            headers={"Content-Type": content_type, **headers}
        )

    @property
    def has_begun(self) -> bool:
        return self._response.prepared

    async def write(self, data: bytes) -> None:
        """Send these bytes. Raises ClientDisconnected."""
        writing = asyncio.ensure_future(self._write(data))
        try:
            await self._until_taken(writing)
            writing.result()
        except ConnectionError as error:
            raise ClientDisconnected("left") from error
        finally:
            writing.cancel()

    def check(self) -> None:
        """Check whether the reader may be this slow. Called while a write waits for it. Raises ClientDisconnected."""

    async def _until_taken(self, writing: asyncio.Future[None]) -> None:
        seconds = self._call.parts.settings.stalled_ms / 1000
        while not await wait_for(self._call.parts.clock, writing, min(seconds, CHECK_SECONDS)):
            seconds -= CHECK_SECONDS
            if seconds <= 0:
                raise ClientDisconnected("stalled")
            self.check()

    async def _write(self, data: bytes) -> None:
        if not self._response.prepared:
            await self._response.prepare(self._call.request)
        await self._response.write(data)

    def close_after(self) -> None:
        """Close the connection after this response: the rest of the request is not read."""
        self._response.force_close()

    def push(self, data: bytes) -> None:
        """Pass this to the socket without waiting, and close. The client may still read it."""
        transport = self._call.request.transport
        if transport is not None:
            transport.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(data), data))
            transport.close()

    async def end(self) -> web.StreamResponse:
        if not self._response.prepared:
            await self._response.prepare(self._call.request)
        return self._response
