"""Links carry frames between two processes. This module has the TCP link; simulations have their own.

A `Link` opens connections to one peer. A connection is an `RpcConnection` for sending, and a `Receiver` that is called
for every received frame and once at the end.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol, cast

import structlog

from tailrace.buffers import TLS_PIECE_BYTES, Buffer, in_pieces
from tailrace.rpc.errors import NotConnected
from tailrace.rpc.frames import LENGTH, SMALLEST_FRAME, frame_bytes
from tailrace.security.tls import PeerNameMismatch, Tls

_log = structlog.get_logger(__name__)

HTTP_AS_SIZE = int.from_bytes(b"HTTP", "big")
"""What the beginning of an HTTP message says as the size of a frame, RPC's or Kafka's."""
STAGING_BYTES = 16 << 10
"""The size of a read while the length of the next frame is not known. Longer frames get a separate buffer."""
WRITE_HIGH_BYTES = 4 << 20
"""Senders wait while more bytes than this are unsent."""


class RpcConnection(Protocol):
    """The sending side of a connection."""

    @property
    def is_encrypted(self) -> bool:
        """Whether the connection uses TLS."""

    @property
    def peer_host(self) -> str:
        """The peer's IP address; '' if it has none."""

    @property
    def heard(self) -> int:
        """A number that grows whenever bytes arrive, also those of an incomplete frame."""

    @property
    def queued(self) -> int:
        """The bytes of all frames that were sent so far."""

    @property
    def unsent(self) -> int:
        """How many of them the system has not taken yet; with TLS, an estimate."""

    def send(self, frame: Sequence[Buffer]) -> None:
        """Queue one frame, a gather list that starts with its length. It is dropped if the connection has ended."""

    def room(self) -> asyncio.Future[None] | None:
        """Return None if there is room to send; else a future that is done once there is room or the connection has
        ended."""

    def close(self) -> None:
        """Close the connection once everything queued has been sent; then the receiver's `lost` is called."""

    def abort(self) -> None:
        """End the connection now."""


class Receiver(Protocol):
    """The receiving side of a connection."""

    def frame_limit(self) -> int:
        """The longest frame that is accepted at the moment, in bytes."""

    def makes_room(self, length: int) -> bool:
        """Whether a buffer of this size may be allocated for a frame that arrives in parts. It lives until `received`
        or `lost`."""

    def received(self, frame: memoryview) -> None:
        """Handle a whole frame, without its length. The receiver may keep the view."""

    def lost(self, reason: str) -> None:
        """Handle the end of the connection. Called once."""


class Link(Protocol):
    """Opens connections to one peer."""

    @property
    def address(self) -> str:
        """The peer's address, for messages."""

    async def connect(self, receiver: Receiver) -> RpcConnection:
        """Open a new connection. Raises NotConnected. A cancelled call leaves nothing open."""


def split_address(address: str) -> tuple[str, int]:
    """Return the host and port of 'host:port' or '[v6]:port'. Raises ValueError."""
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdigit() or not 0 <= int(port) < 65536:
        raise ValueError(f"{address!r} is not an address: expected host:port")
    return host, int(port)


def join_address(host: str, port: int) -> str:
    """Return 'host:port' or '[v6]:port', the inverse of `split_address`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class TcpLink:
    """Carries frames over TCP, or over TLS if an identity is given. Each connection uses its newest certificate."""

    def __init__(self, address: str, tls: Tls | None = None) -> None:
        self._address = address
        self._host, self._port = split_address(address)
        self._tls = tls

    @property
    def address(self) -> str:
        return self._address

    async def connect(self, receiver: Receiver) -> RpcConnection:
        loop = asyncio.get_running_loop()
        tls = self._tls
        try:
            _, wire = await loop.create_connection(
                lambda: FrameProtocol(lambda wire: receiver),
                self._host,
                self._port,
                ssl=None if tls is None else tls.client_context,
                server_hostname=None if tls is None else tls.peer_name or self._host,
            )
        except OSError as error:  # ssl.SSLError is one
            raise NotConnected(f"{self._address}: {error}") from error
        return wire


class FrameProtocol(asyncio.BufferedProtocol):
    """An `RpcConnection` over an asyncio transport.

    Short frames are cut out of a staging buffer, many per read. A frame that is longer than the staged bytes gets a
    buffer of its size, once its length is checked, and the rest is received directly into it.
    """

    def __init__(
        self,
        accept: Callable[[FrameProtocol], Receiver],
        *,
        reads_wait_for_writes: bool = False,
        write_high_bytes: int = WRITE_HIGH_BYTES,
        tls: Tls | None = None,
    ) -> None:
        self._accept = accept
        self._tls = tls
        self._reads_wait_for_writes = reads_wait_for_writes
        self._write_high_bytes = write_high_bytes
        self._receiver: Receiver | None = None
        self._transport: asyncio.Transport | None = None
        self._room: asyncio.Future[None] | None = None
        self._is_full = False
        self._pieces: deque[list[Buffer]] = deque()
        """With TLS, the bytes that the transport has not been given yet."""
        self._staging = memoryview(bytearray(STAGING_BYTES))
        self._staged = 0
        self._own: memoryview | None = None
        self._own_filled = 0
        self._heard = 0
        self._queued = 0
        self._reason = "closed by the peer"

    # --- RpcConnection

    @property
    def is_encrypted(self) -> bool:
        return self._transport is not None and self._transport.get_extra_info("ssl_object") is not None

    @property
    def peer_host(self) -> str:
        peer = None if self._transport is None else self._transport.get_extra_info("peername")
        return str(peer[0]) if isinstance(peer, tuple) else ""

    @property
    def heard(self) -> int:
        return self._heard

    @property
    def queued(self) -> int:
        return self._queued

    @property
    def unsent(self) -> int:
        if self._transport is None:
            return 0
        return self._transport.get_write_buffer_size() + TLS_PIECE_BYTES * len(self._pieces)

    def send(self, frame: Sequence[Buffer]) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        self._queued += frame_bytes(frame)
        if self.is_encrypted:
            self._pieces += in_pieces(frame, TLS_PIECE_BYTES)
            self._write_pieces()
        else:
            self._transport.writelines(frame)

    def room(self) -> asyncio.Future[None] | None:
        return self._room

    def close(self) -> None:
        if self._transport is not None:
            self._reason = "closed by this side"
            self._write_pieces(at_once=True)
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._reason = "closed by this side"
            self._transport.abort()

    # --- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is a different class
        self._transport.set_write_buffer_limits(high=self._write_high_bytes)
        if self._tls is not None:
            try:
                self._tls.check_peer(self._transport.get_extra_info("peercert"))
            except PeerNameMismatch as error:
                peer = self._transport.get_extra_info("peername")
                _log.warning("an RPC peer is refused", peer=str(peer), reason=str(error))
                self._transport.abort()
                return
        self._receiver = self._accept(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._pieces.clear()
        self.resume_writing()
        if self._receiver is not None:
            receiver, self._receiver = self._receiver, None
            receiver.lost(self._reason if error is None else str(error) or type(error).__name__)

    def pause_writing(self) -> None:
        self._is_full = True
        if self._room is None:
            self._room = asyncio.get_running_loop().create_future()
        if self._reads_wait_for_writes and self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._is_full = False
        self._write_pieces()
        if self._is_full:
            return
        room, self._room = self._room, None
        if room is not None and not room.done():
            room.set_result(None)
        if self._reads_wait_for_writes and self._transport is not None:
            self._transport.resume_reading()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._own is not None:
            return self._own[self._own_filled :]
        return self._staging[self._staged :]

    def buffer_updated(self, nbytes: int) -> None:
        self._heard += nbytes
        if self._own is not None:
            self._own_filled += nbytes
            if self._own_filled == len(self._own):
                frame, self._own = self._own, None
                self._deliver(frame)
            return
        self._staged += nbytes
        self._cut_frames()

    def eof_received(self) -> bool:
        return False

    # --- details

    def _cut_frames(self) -> None:
        at = 0
        while self._receiver is not None and self._staged - at >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._staging, at)
            limit = self._receiver.frame_limit()
            if not SMALLEST_FRAME <= length <= limit:
                self._violate(
                    "the peer speaks HTTP: give the address of its --rpc, not of its --http"
                    if length == HTTP_AS_SIZE
                    else f"a frame of {length} bytes was announced; {SMALLEST_FRAME} to {limit} are allowed"
                )
                return
            start = at + LENGTH.size
            staged = self._staged - start
            if staged < length:
                if LENGTH.size + length > STAGING_BYTES:
                    if not self._receiver.makes_room(length):
                        self._violate(f"there is no memory for a frame of {length} bytes now")
                        return
                    self._own = memoryview(bytearray(length))
                    self._own[:staged] = self._staging[start : self._staged]
                    self._own_filled = staged
                    self._staged = 0
                    return
                break
            at = start + length
            self._deliver(memoryview(bytes(self._staging[start:at])))
        if at:
            rest = self._staged - at
            self._staging[:rest] = bytes(self._staging[at : self._staged])
            self._staged = rest

    def _write_pieces(self, *, at_once: bool = False) -> None:
        while self._pieces and self._transport is not None and (at_once or not self._is_full):
            self._transport.writelines(self._pieces.popleft())

    def _deliver(self, frame: memoryview) -> None:
        if self._receiver is not None:
            self._receiver.received(frame)

    def _violate(self, reason: str) -> None:
        self._staged = 0
        if self._transport is not None:
            self._reason = reason
            self._transport.abort()
