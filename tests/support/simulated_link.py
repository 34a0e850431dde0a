"""A link whose frames are lost, late and repeated as a seed says; codecs and retries run unchanged on it.

What arrives is handled in the context of the side that it arrives at, so that a simulation can tell whose turn it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass

from tailrace.clock import Clock, Entropy
from tailrace.rpc.errors import NotConnected
from tailrace.rpc.frames import LENGTH, Buffer
from tailrace.rpc.link import Receiver, Wire
from tailrace.rpc.server import RpcServer


@dataclass(slots=True)
class Weather:
    """How bad a link is; may be changed while it is used. Probabilities per frame, seconds of delay."""

    loss: float = 0.0
    repetition: float = 0.0
    min_delay_s: float = 0.0
    max_delay_s: float = 0.0
    is_down: bool = False


class SimulatedLink:
    """A way to an RpcServer in the same loop. `far`: the context that the server runs in (the caller's own if None)."""

    def __init__(
        self,
        server: RpcServer,
        *,
        clock: Clock,
        entropy: Entropy,
        weather: Weather | None = None,
        address: str = "simulated:1",
        far: Context | None = None,
    ) -> None:
        self._far = far
        self.weather = weather or Weather()
        self._server = server
        self._clock = clock
        self._entropy = entropy
        self._address = address
        self._pipes: list[_End] = []

    @property
    def address(self) -> str:
        return self._address

    async def connect(self, receiver: Receiver) -> Wire:
        await self._clock.sleep(0)
        if self.weather.is_down:
            raise NotConnected(f"{self._address}: connection refused")
        here = copy_context()
        near, far = _End(self, here), _End(self, self._far or here)
        near.other, far.other = far, near
        near.receiver = receiver
        far.receiver = far.context.copy().run(self._server.accept, far)
        self._pipes.append(near)
        return near

    def cut(self) -> None:
        """Lose all connections now."""
        for near in self._pipes:
            near.abort()
        self._pipes.clear()


class _End:
    """One end of a connection. What it sends arrives at the other end's receiver."""

    def __init__(self, link: SimulatedLink, context: Context) -> None:
        self.context = context
        self.other: _End
        self.receiver: Receiver
        self.is_over = False
        self._link = link
        self._travelling: set[asyncio.Task[None]] = set()
        self._closing: asyncio.Task[None] | None = None

    def send(self, frame: Sequence[Buffer]) -> None:
        if self.is_over:
            return
        weather, entropy = self._link.weather, self._link._entropy
        whole = b"".join(frame)[LENGTH.size :]
        copies = 0 if entropy.fraction() < weather.loss else 1
        copies += copies and entropy.fraction() < weather.repetition
        for _ in range(copies):
            delay = weather.min_delay_s + entropy.fraction() * (weather.max_delay_s - weather.min_delay_s)
            task = asyncio.create_task(self._travel(whole, delay), context=self.other.context.copy())
            self._travelling.add(task)
            task.add_done_callback(self._travelling.discard)

    def room(self) -> asyncio.Future[None] | None:
        return None

    def close(self) -> None:
        if not self.is_over:
            self.is_over = True
            task = asyncio.create_task(self._end_after(set(self._travelling)))
            self._closing = task
            self._tell("closed by this side")

    def abort(self) -> None:
        self._end("reset by the peer")

    async def _travel(self, whole: bytes, delay: float) -> None:
        await self._link._clock.sleep(delay)
        other = self.other
        if other.is_over:
            return
        if len(whole) > other.receiver.frame_limit():
            other.abort()
            return
        other.receiver.received(memoryview(whole))

    async def _end_after(self, travelling: set[asyncio.Task[None]]) -> None:
        await asyncio.gather(*travelling, return_exceptions=True)
        self._end("closed by the peer")

    def _end(self, reason: str) -> None:
        for end in (self, self.other):
            if not end.is_over:
                end.is_over = True
                end._tell(reason)

    def _tell(self, reason: str) -> None:
        asyncio.get_running_loop().call_soon(self._lose, reason, context=self.context.copy())

    def _lose(self, reason: str) -> None:
        self.receiver.lost(reason)  # known by now, even if a server refuses while it accepts
