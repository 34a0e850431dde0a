"""A link that loses, delays and repeats frames, driven by a seed; codecs and retries run on it unchanged.

A frame is handled in the receiving side's context, so that a simulation knows which process runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass
from functools import partial

from tailrace.buffers import Buffer
from tailrace.clock import Clock, Entropy
from tailrace.rpc.errors import NotConnected
from tailrace.rpc.frames import LENGTH
from tailrace.rpc.link import Receiver, RpcConnection
from tailrace.rpc.server import RpcServer


@dataclass(slots=True)
class Weather:
    """The faults of a link: probabilities per frame, and seconds of delay. A test may change them at any time.

    `looks_again`: check that a frame has not changed when it arrives, because a socket may read its parts late.
    """

    loss: float = 0.0
    repetition: float = 0.0
    min_delay_s: float = 0.0
    max_delay_s: float = 0.0
    is_down: bool = False
    looks_again: bool = False


Later = Callable[[float, Callable[..., None], Context, bytes], None]
"""Calls a function with bytes after a number of seconds, in a context."""


class SimulatedLink:
    """A link to an RpcServer in the same loop. `far`: the context in which the server runs (by default the caller's).

    `later`: how frames travel; by default each sleeps on the clock in its own task.
    """

    def __init__(
        self,
        server: RpcServer,
        *,
        clock: Clock,
        entropy: Entropy,
        weather: Weather | None = None,
        address: str = "simulated:1",
        far: Context | None = None,
        later: Later | None = None,
    ) -> None:
        self._far = far
        self.later = later or self._sleep_and_call
        self._travelling: set[asyncio.Task[None]] = set()
        self.weather = weather or Weather()
        self._server = server
        self._clock = clock
        self._entropy = entropy
        self._address = address
        self._pipes: list[_End] = []

    @property
    def address(self) -> str:
        return self._address

    async def connect(self, receiver: Receiver) -> RpcConnection:
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
        """Drop all connections now."""
        for near in self._pipes:
            near.abort()
        self._pipes.clear()

    def _sleep_and_call(
        self, delay: float, arrive: Callable[..., None], context: Context, frame: bytes
    ) -> None:
        async def travel() -> None:
            await self._clock.sleep(delay)
            arrive(frame)

        task = asyncio.create_task(travel(), context=context)
        self._travelling.add(task)
        task.add_done_callback(self._travelling.discard)


class _End:
    """One end of a connection. What it sends arrives at the other end's receiver."""

    is_encrypted = False
    peer_host = ""

    def __init__(self, link: SimulatedLink, context: Context) -> None:
        self.context = context
        self.other: _End
        self.receiver: Receiver
        self.is_over = False
        self.heard = 0
        self.queued = self.unsent = 0
        self._link = link
        self._travelling = 0
        self._is_closing = False

    def send(self, frame: Sequence[Buffer]) -> None:
        if self.is_over:
            return
        weather, entropy = self._link.weather, self._link._entropy
        whole = b"".join(frame)[LENGTH.size :]
        arrive = partial(self._arrive_as_sent, [*frame]) if weather.looks_again else self._arrive
        copies = 0 if entropy.fraction() < weather.loss else 1
        copies += copies and entropy.fraction() < weather.repetition
        for _ in range(copies):
            delay = weather.min_delay_s + entropy.fraction() * (weather.max_delay_s - weather.min_delay_s)
            self._travelling += 1
            self._link.later(delay, arrive, self.other.context.copy(), whole)

    def room(self) -> asyncio.Future[None] | None:
        return None

    def close(self) -> None:
        if not self.is_over:
            self.is_over = self._is_closing = True
            self._tell("closed by this side")
            self._end_when_empty()

    def abort(self) -> None:
        self._end("reset by the peer")

    def _arrive_as_sent(self, frame: Sequence[Buffer], whole: bytes) -> None:
        assert b"".join(frame)[LENGTH.size :] == whole, "a frame changed after it was sent"
        self._arrive(whole)

    def _arrive(self, whole: bytes) -> None:
        self._travelling -= 1
        other = self.other
        if not other.is_over:
            other.heard += len(whole)
            if len(whole) > other.receiver.frame_limit():
                other.abort()
            else:
                other.receiver.received(memoryview(whole))
        self._end_when_empty()

    def _end_when_empty(self) -> None:
        """Closing a side ends the connection once all its frames have arrived."""
        if self._is_closing and not self._travelling:
            self._end("closed by the peer")

    def _end(self, reason: str) -> None:
        for end in (self, self.other):
            if not end.is_over:
                end.is_over = True
                end._tell(reason)

    def _tell(self, reason: str) -> None:
        asyncio.get_running_loop().call_soon(self._lose, reason, context=self.context.copy())

    def _lose(self, reason: str) -> None:
        self.receiver.lost(reason)  # set by now, even if the server refuses while it accepts
