"""TLS handshakes of a listener: limited in number, in total and per address, and in time.

asyncio's servers hand over a TLS connection after its handshake. Until then no other limit counts the connection, and
it takes some 100 KiB. So a server with TLS accepts plain connections with `Handshakes.arrival`, which counts each
before it starts TLS on its socket.
"""

from __future__ import annotations

import asyncio
import enum
import os
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from tailrace.addresses import counted_address, plain_address
from tailrace.background_tasks import cancel_and_wait


class NoHandshake(enum.Enum):
    """Why a connection ends before it is handed over."""

    TOO_MANY = enum.auto()
    TOO_MANY_OF_ADDRESS = enum.auto()
    FAILED = enum.auto()


@dataclass(frozen=True, slots=True)
class HandshakeBounds:
    """The limits: unfinished handshakes in total and of one address, and seconds for each."""

    most: int
    most_of_address: int
    seconds: float


class Handshakes:
    """The unfinished handshakes of one listener.

    Args:
        make: makes the protocol of a connection whose handshake is finished.
        context: the listener's.
        ended: called with the reason, the peer's address and the error for each connection that is not handed over.
    """

    def __init__(
        self,
        make: Callable[[], asyncio.BaseProtocol],
        context: ssl.SSLContext,
        bounds: HandshakeBounds,
        ended: Callable[[NoHandshake, str, str], None],
    ) -> None:
        self._make = make
        self._context = context
        self._bounds = bounds
        self._ended = ended
        self._tasks: set[asyncio.Task[None]] = set()
        self._of_address: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._tasks)

    def arrival(self) -> asyncio.Protocol:
        """Return the protocol of a new plain connection; the factory for `create_server` without `ssl`."""
        return _Arrival(self)

    async def close(self) -> None:
        """End the connections whose handshake is not finished."""
        await cancel_and_wait(*self._tasks)

    def begin(self, host: str, fd: int) -> None:
        """Start TLS on a duplicate of this socket, which the caller closes, if there is room for another handshake."""
        counted = counted_address(host)
        if self._of_address[counted] >= self._bounds.most_of_address:
            self._ended(NoHandshake.TOO_MANY_OF_ADDRESS, host, "")
        elif len(self._tasks) >= self._bounds.most:
            self._ended(NoHandshake.TOO_MANY, host, "")
        else:
            try:
                own = socket.socket(fileno=os.dup(fd))
            except OSError as error:
                self._ended(NoHandshake.FAILED, host, str(error))
                return
            task = asyncio.create_task(self._shake_hands(own, host), name="tls handshake")
            self._tasks.add(task)
            self._of_address[counted] += 1
            task.add_done_callback(lambda task: self._leave(task, counted))

    def _leave(self, task: asyncio.Task[None], counted: str) -> None:
        self._tasks.discard(task)
        self._of_address[counted] -= 1
        if not self._of_address[counted]:
            del self._of_address[counted]

    async def _shake_hands(self, own: socket.socket, host: str) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._make, own, ssl=self._context, ssl_handshake_timeout=self._bounds.seconds
            )
        except OSError as error:  # this includes ssl.SSLError
            self._ended(NoHandshake.FAILED, host, str(error) or type(error).__name__)


class _Arrival(asyncio.Protocol):
    """A plain connection, whose transport ends at once: its socket lives on in a handshake, or is refused."""

    def __init__(self, handshakes: Handshakes) -> None:
        self._handshakes = handshakes

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        peer = transport.get_extra_info("peername")
        host = plain_address(peer[0]) if isinstance(peer, tuple) else "?"
        self._handshakes.begin(host, transport.get_extra_info("socket").fileno())
        cast(asyncio.Transport, transport).abort()
