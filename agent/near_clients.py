"""Clients near by, on this machine or in its rack, get a small send buffer: their answers leave piece by piece.

Linux grows a socket's send buffer to some MiB, and takes an answer of 8 MiB in one go when the client is near. By then
the client has read little of it, so every byte was copied into memory that is in no cache of the CPU, and has pushed
out what the agent needs next. Out of a small buffer the client reads what was just copied.

A buffer that is too small for the way costs throughput: what it holds is sent once in a round trip. So clients farther
away keep the buffer that the kernel makes for them.
"""

from __future__ import annotations

import socket
import struct
import sys
from contextlib import suppress
from typing import Protocol

SEND_BUFFER_BYTES = 208 * 1024
"""Linux allows so much by default (`net.core.wmem_max`), and Kafka's brokers have 100 KiB for every client."""
NEAR_MICROSECONDS = 200
"""A round trip within which the buffer is sent once is enough for a GiB in a second."""

_LEAST_ROUND_TRIP = struct.Struct("=148xI")
"""`tcpi_min_rtt` of Linux's `struct tcp_info`: microseconds, all bits set while nothing was measured."""


class TcpSocket(Protocol):
    """A connected socket, as far as its options go: asyncio's or uvloop's."""

    def getsockopt(self, level: int, option: int, size: int, /) -> bytes: ...

    def setsockopt(self, level: int, option: int, value: int, /) -> None: ...


def bound_send_buffer(connected: TcpSocket) -> None:
    """Bound the send buffer of a new connection if its client is near. Nothing is done on systems other than Linux."""
    if sys.platform != "linux":
        return
    with suppress(OSError):  # the client has gone already: the connection ends by itself
        if is_near(connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LEAST_ROUND_TRIP.size)):
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)


def is_near(info: bytes) -> bool:
    """Whether the shortest round trip in a `struct tcp_info` is within NEAR_MICROSECONDS. Before 4.6, Linux does not
    say."""
    if len(info) < _LEAST_ROUND_TRIP.size:
        return False
    (microseconds,) = _LEAST_ROUND_TRIP.unpack(info)
    return bool(microseconds <= NEAR_MICROSECONDS)
