"""The send buffer of a client that is near, and of one that is not."""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
from typing import Any, ClassVar

import pytest

from agent.near_clients import NEAR_MICROSECONDS, SEND_BUFFER_BYTES, bound_send_buffer, is_near
from tests.agent.test_connection import Line, Transport

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux says how long a round trip takes")


def info(microseconds: int) -> bytes:
    """A `struct tcp_info` up to the shortest round trip."""
    return struct.pack("=148xI", microseconds)


class Far:
    """A socket whose client is a millisecond away."""

    def getsockopt(self, level: int, option: int, size: int, /) -> bytes:
        return info(1_000)

    def setsockopt(self, level: int, option: int, value: int, /) -> None:
        raise AssertionError("its buffer is the kernel's")


class Gone(Far):
    """A socket whose client has gone."""

    def getsockopt(self, level: int, option: int, size: int, /) -> bytes:
        raise OSError(107, "Transport endpoint is not connected")


def test_a_client_on_this_machine_gets_a_bounded_send_buffer() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()),
        server.accept()[0] as connected,
        open("/proc/sys/net/core/wmem_max") as most,
    ):
        bound_send_buffer(connected)
        allowed = min(SEND_BUFFER_BYTES, int(most.read()))
        # Linux doubles it: what it counts is more than the bytes that are sent.
        assert connected.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 2 * allowed


def test_a_client_farther_away_keeps_the_buffer_that_the_kernel_makes() -> None:
    bound_send_buffer(Far())


def test_a_client_that_has_gone_is_none_of_its_business() -> None:
    bound_send_buffer(Gone())


def test_a_client_is_near_by_its_shortest_round_trip() -> None:
    assert is_near(info(NEAR_MICROSECONDS))
    assert not is_near(info(NEAR_MICROSECONDS + 1))
    assert not is_near(info(2**32 - 1)), "nothing was measured"
    assert not is_near(info(1)[:104]), "an old kernel does not say"


def test_each_connection_is_looked_at() -> None:
    class Near(Far):
        """A socket whose client is on this machine."""

        bounds: ClassVar[list[int]] = []

        def getsockopt(self, level: int, option: int, size: int, /) -> bytes:
            return info(20)

        def setsockopt(self, level: int, option: int, value: int, /) -> None:
            self.bounds.append(value)

    class OverNear(Transport):
        """Written to a near client."""

        def get_extra_info(self, name: str, default: Any = None) -> Any:
            return Near() if name == "socket" else super().get_extra_info(name, default)

    async def made() -> None:
        Line().connection.connection_made(OverNear())

    asyncio.run(made())
    assert Near.bounds == [SEND_BUFFER_BYTES]
