"""Clients on this machine or in its rack get a small send buffer, so their answers leave in small pieces.

Linux grows a socket's send buffer to some MiB. If the client is near, it accepts an answer of 8 MiB at once. By then
the client has read little of it, so every byte was copied into memory that is in no CPU cache, and has evicted data
that the agent needs next. With a small buffer the client reads bytes that were just copied.

A buffer that is too small for the round trip costs throughput: its contents are sent once per round trip. So clients
farther away keep the kernel's buffer.
"""

from __future__ import annotations

import socket
import struct
import sys
from contextlib import suppress
from typing import Protocol

SEND_BUFFER_BYTES = 208 * 1024
"""Linux allows this much by default (`net.core.wmem_max`). Kafka's brokers use 100 KiB for every client."""
NEAR_MICROSECONDS = 200
"""With round trips up to this, sending the buffer once per round trip reaches one GiB per second."""

_LEAST_ROUND_TRIP = struct.Struct("=148xI")
"""`tcpi_min_rtt` of Linux's `struct tcp_info`, in microseconds; all bits are set before the first measurement."""


class TcpSocket(Protocol):
    """The socket options of a connected socket: asyncio's or uvloop's."""

    def getsockopt(self, level: int, option: int, size: int, /) -> bytes: ...

    def setsockopt(self, level: int, option: int, value: int, /) -> None: ...


def bound_send_buffer(connected: TcpSocket) -> None:
    """Limit the send buffer of a new connection if its client is near. Does nothing on systems other than Linux."""
    if sys.platform != "linux":
        return
    with suppress(OSError):  # the client is gone, and the connection ends by itself
        if is_near(connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LEAST_ROUND_TRIP.size)):
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)


def is_near(info: bytes) -> bool:
    """Whether the shortest round trip in a `struct tcp_info` is near. Linux before 4.6 does not report it."""
    if len(info) < _LEAST_ROUND_TRIP.size:
        return False
    (microseconds,) = _LEAST_ROUND_TRIP.unpack(info)
    return bool(microseconds <= NEAR_MICROSECONDS)
