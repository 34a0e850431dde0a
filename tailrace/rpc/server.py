"""The RPC server: accepts connections, checks their hello, and passes many concurrent requests to a handler."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import msgspec
import structlog

from tailrace.background_tasks import cancel_and_wait, log_and_continue
from tailrace.buffers import Buffer
from tailrace.clock import Clock, Entropy
from tailrace.rpc import hello as hello_messages
from tailrace.rpc.errors import CallFailed, HelloRefused, ProtocolViolation
from tailrace.rpc.exposure import is_private
from tailrace.rpc.frames import (
    ERROR,
    FIRST_VERSION,
    MAX_FRAME_BYTES,
    MAX_HELLO_BYTES,
    RESPONSE,
    Failure,
    Frame,
    Header,
    decode_body,
    decode_frame,
    encode_body,
    encode_frame,
    frame_bytes,
)
from tailrace.rpc.hello import KnownCluster
from tailrace.rpc.link import FrameProtocol, Receiver, RpcConnection
from tailrace.rpc.liveness import ALIVE
from tailrace.rpc.pending_hellos import PendingHellos
from tailrace.rpc.security import MAC_BYTES, FrameSigner, FrameVerifier, RpcSecurity
from tailrace.security.handshakes import HandshakeBounds, Handshakes, NoHandshake

Handler = Callable[[str, memoryview], Awaitable[tuple[bytes, Sequence[Buffer]]]]
"""Takes (method, body) and returns the response's (body, tail). Raises CallFailed for an error with a code."""

_log = structlog.get_logger(__name__)
_HEADER_ROOM = 1024
MAX_HELD_BYTES = 512 << 20
MAX_PENDING_HELLOS = 1024
MAX_HANDSHAKES_OF_ADDRESS = 256
LISTEN_BACKLOG = 1024
"""Peers that may wait for `accept`, such as all agents when a server restarts. The system drops further peers, which
try again after a second or more."""
UNSENT_BYTES = 64 << 10
"""Unsent bytes of a connection that do not count as held. Above this, its next responses wait."""


class RpcServer:
    """Serves one handler to any number of connections.

    Limits:
    - `max_connections`: connections that have finished their hello. More are refused and counted in
      `refused_connections`.
    - `max_pending_hellos`: connections that have not. For each further one, a pending one is closed and counted in
      `refused_hellos`. As many again may be in a TLS handshake, MAX_HANDSHAKES_OF_ADDRESS of them from one address;
      further ones are closed and counted there, too.
    - `max_concurrent`: requests per connection.
    - `max_held_bytes`: bytes of all connections together, in requests that run or are partly received, and in responses
      until their peers have read them. Requests and responses beyond it fail as 'overloaded'. A frame whose declared
      length is beyond it ends its connection (decision 58).
    - `max_frame_bytes`: the size of a frame.

    The server stops reading from a peer that does not read its responses. It disconnects a peer that has not finished
    its hello within `hello_timeout_s`. It also disconnects a peer if one long frame or response takes longer than
    `stall_timeout_s` (at most twice that).
    """

    def __init__(
        self,
        handler: Handler,
        *,
        clock: Clock,
        entropy: Entropy,
        known: KnownCluster | None = None,
        security: RpcSecurity | None = None,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        max_concurrent: int = 1024,
        max_connections: int = 4096,
        max_pending_hellos: int = MAX_PENDING_HELLOS,
        max_held_bytes: int = MAX_HELD_BYTES,
        hello_timeout_s: float = 5.0,
        stall_timeout_s: float = 30.0,
    ) -> None:
        self.known = known if known is not None else KnownCluster()
        self._handler = handler
        self._clock = clock
        self._entropy = entropy
        self._security = security if security is not None else RpcSecurity()
        self._max_frame_bytes = max_frame_bytes
        self._max_concurrent = max_concurrent
        self._max_connections = max_connections
        self._max_held_bytes = max_held_bytes
        self.held_bytes = 0
        self.refused_connections = 0
        self.refused_hellos = 0
        self._hello_timeout_s = hello_timeout_s
        self._stall_timeout_s = stall_timeout_s
        self._sweeper: asyncio.Task[None] | None = None
        self._listener: asyncio.Server | None = None
        self._connections: dict[_Served, None] = {}
        """The connections that have finished their hello. The others are pending."""
        self._max_pending_hellos = max_pending_hellos
        self._pending_hellos: PendingHellos[_Served] = PendingHellos(max_pending_hellos)
        self._handshakes: Handshakes | None = None
        self._running: set[asyncio.Task[None]] = set()
        self._hello_timers: set[asyncio.Task[None]] = set()
        self._closing = False

    @property
    def port(self) -> int:
        """The port that the server listens on. For port 0, the port that the system chose."""
        assert self._listener is not None, "listen first"
        port: int = self._listener.sockets[0].getsockname()[1]
        return port

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._connections) + len(self._pending_hellos)

    async def listen(self, host: str, port: int) -> None:
        """Accept connections at this address, over TLS if `security` has an identity. Raises OSError."""
        loop = asyncio.get_running_loop()
        tls = self._security.tls

        def accept() -> asyncio.BaseProtocol:
            return FrameProtocol(
                self.accept, reads_wait_for_writes=True, write_high_bytes=UNSENT_BYTES, tls=tls
            )

        arrival = accept
        if tls is not None:
            bounds = HandshakeBounds(
                self._max_pending_hellos, MAX_HANDSHAKES_OF_ADDRESS, self._hello_timeout_s
            )
            self._handshakes = Handshakes(accept, tls.server_context, bounds, self._handshake_ended)
            arrival = self._handshakes.arrival
        self._listener = await loop.create_server(arrival, host, port, backlog=LISTEN_BACKLOG)
        self._sweeper = asyncio.create_task(self._end_stalled(), name="rpc stalls")

    def _handshake_ended(self, why: NoHandshake, host: str, error: str) -> None:
        if why is NoHandshake.FAILED:
            _log.info("a TLS handshake failed", peer=host, error=error)
        else:
            self.refused_hellos += 1

    def accept(self, wire: RpcConnection) -> Receiver:
        """Serve a connection of any link."""
        served = _Served(self, wire)
        if self._closing:
            served.is_over = True
            wire.close()
            return served
        if (leaving := self._pending_hellos.add(served, wire.peer_host)) is not None:
            self.refused_hellos += 1
            leaving.is_over = True
            leaving.wire.abort()
        served.hello_timer = asyncio.create_task(self._await_hello(served), name="rpc hello")
        self._hello_timers.add(served.hello_timer)
        served.hello_timer.add_done_callback(self._hello_timers.discard)
        return served

    async def close(self, grace_s: float = 5.0) -> None:
        """Stop accepting, wait up to `grace_s` for running requests, then close the connections."""
        self._closing = True
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
        if self._handshakes is not None:
            await self._handshakes.close()
        await cancel_and_wait(self._sweeper)
        running = {task for task in self._running if task is not asyncio.current_task()}
        if running and grace_s > 0:
            timer = asyncio.ensure_future(self._clock.sleep(grace_s))
            drained = asyncio.ensure_future(asyncio.wait(running))
            await asyncio.wait({timer, drained}, return_when=asyncio.FIRST_COMPLETED)
            await cancel_and_wait(timer, drained)
        await cancel_and_wait(*running, *self._hello_timers)
        for served in [*self._connections, *self._pending_hellos]:
            served.wire.close()
        if listener is not None:
            for _ in range(3):  # closing a transport takes a turn of the loop
                await self._clock.sleep(0)

    # --- details

    def _admit(self, served: _Served) -> bool:
        """Admit a connection that has finished its hello. Return False if there are too many."""
        if served.is_established:
            return True
        if len(self._connections) >= self._max_connections:
            self.refused_connections += 1
            _log.warning("refused an RPC connection", max_connections=self._max_connections)
            return False
        self._pending_hellos.discard(served)
        self._connections[served] = None
        return True

    async def _await_hello(self, served: _Served) -> None:
        await self._clock.sleep(self._hello_timeout_s)
        if not served.is_established:
            served.wire.abort()

    async def _end_stalled(self) -> None:
        while True:
            await self._clock.sleep(self._stall_timeout_s)
            with log_and_continue(_log, "stalled RPC connections could not be closed"):
                for served in [connection for connection in self._connections if connection.is_stalled()]:
                    _log.warning("an RPC connection is closed", reason="a frame was under way for too long",
                                 peer=served.wire.peer_host)  # fmt: skip
                    served.wire.abort()

    def _has_room(self, more: int, own: int = 0) -> bool:
        """Whether a connection that holds `own` bytes may hold `more`. If no other connection holds any, it may."""
        return self.held_bytes <= own or self.held_bytes + more <= self._max_held_bytes

    def _serve(self, served: _Served, frame: Frame) -> None:
        if self._closing:
            served.fail(frame.header, "closing", "this server is shutting down")
        elif served.running >= self._max_concurrent:
            served.fail(frame.header, "overloaded", f"{self._max_concurrent} requests are running already")
        elif not self._has_room(len(frame.body) + len(frame.tail)):
            served.fail(frame.header, "overloaded", f"{self.held_bytes} bytes are held already")
        else:
            served.running += 1
            self.held_bytes += len(frame.body) + len(frame.tail)
            task = asyncio.create_task(self._answer(served, frame))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _answer(self, served: _Served, frame: Frame) -> None:
        header = frame.header
        held = len(frame.body) + len(frame.tail)
        if header.request_id:
            structlog.contextvars.bind_contextvars(request_id=header.request_id)
        try:
            body, tail = await self._handle(header.method, frame)
            size = len(body) + frame_bytes(tail) + _HEADER_ROOM
            if size > self._max_frame_bytes:
                raise CallFailed(
                    "too_large", f"the answer has {size} bytes, allowed are {self._max_frame_bytes}"
                )
            if not self._has_room(size, held):
                raise CallFailed("overloaded", f"{self.held_bytes} bytes of requests and answers are held")
            self.held_bytes += size
            held += size
            while (room := served.wire.room()) is not None:
                await asyncio.shield(room)
            served.reply(header, RESPONSE, body, tail)
            if (room := served.wire.room()) is not None:
                held -= size
                room.add_done_callback(lambda _: self._give_back(size))
        except CallFailed as failure:
            served.fail(header, failure.code, failure.message)
        except asyncio.CancelledError:
            served.fail(header, "closing", "this server is shutting down")
            raise
        except Exception as error:  # noqa: BLE001 - the outermost edge of a request
            _log.exception("an RPC handler failed", method=header.method)
            served.fail(header, "internal", f"{header.method} failed: {type(error).__name__}")
        finally:
            served.running -= 1
            self._give_back(held)

    def _give_back(self, size: int) -> None:
        self.held_bytes -= size
        assert self.held_bytes >= 0, "more given back than held"

    async def _handle(self, method: str, frame: Frame) -> tuple[bytes, Sequence[Buffer]]:
        if len(frame.tail):
            raise CallFailed("bad_request", f"{method}: requests to this server carry no tail")
        return await self._handler(method, frame.body)


class _Served:
    """One connection: a Receiver that first handles the hello and then passes requests to the handler."""

    def __init__(self, server: RpcServer, wire: RpcConnection) -> None:
        self.wire = wire
        self.running = 0
        self.is_established = False
        self.is_over = False
        self.hello_timer: asyncio.Task[None] | None = None
        self._server = server
        self._version = FIRST_VERSION
        self._hello: hello_messages.Hello | None = None
        self._welcome: hello_messages.Welcome | None = None
        self._secret = b""
        self._signer: FrameSigner | None = None
        self._verifier: FrameVerifier | None = None
        self._arriving = 0
        self._long_frames = 0
        self._under_way: tuple[int, asyncio.Future[None] | None] = 0, None

    def is_stalled(self) -> bool:
        """Whether the same long frame or response was already in progress at the last call."""
        frame, room = self._long_frames if self._arriving else 0, self.wire.room()
        last_frame, last_room = self._under_way
        self._under_way = frame, room
        return (frame > 0 and frame == last_frame) or (room is not None and room is last_room)

    def reply(self, asked: Header, flags: int, body: bytes, tail: Sequence[Buffer] = ()) -> None:
        if self.is_over:
            return
        header = Header(self._version, asked.correlation, "", flags)
        if self._signer is None:
            self.wire.send(encode_frame(header, body, tail))
        else:
            self.wire.send(self._signer.sign(encode_frame(header, body, tail, mac_bytes=MAC_BYTES)))

    def fail(self, asked: Header, code: str, message: str) -> None:
        self.reply(asked, RESPONSE | ERROR, encode_body(Failure(code, message)))

    # --- Receiver

    def frame_limit(self) -> int:
        return self._server._max_frame_bytes if self.is_established else MAX_HELLO_BYTES

    def makes_room(self, length: int) -> bool:
        if not self._server._has_room(length):
            _log.warning("an RPC connection is closed", reason="no memory for its frame", bytes=length)
            return False
        self._server.held_bytes += length
        self._arriving = length
        self._long_frames += 1
        return True

    def received(self, frame: memoryview) -> None:
        self._arrived()
        if self.is_over:
            return
        try:
            taken = decode_frame(frame if self._verifier is None else self._verifier.verify(frame))
            if taken.header.flags:
                raise ProtocolViolation("an answer came to the answering side")
            if self.is_established and taken.header.method == ALIVE:
                self.reply(taken.header, RESPONSE, b"")
            elif self.is_established and taken.header.method not in (
                hello_messages.HELLO,
                hello_messages.PROOF,
            ):
                self._server._serve(self, taken)
            else:
                self._shake_hands(taken)
        except (ProtocolViolation, msgspec.DecodeError) as error:
            _log.warning("an RPC connection is closed", reason=str(error))
            self.is_over = True
            self.wire.abort()

    def lost(self, reason: str) -> None:
        self.is_over = True
        self._arrived()
        self._server._connections.pop(self, None)
        self._server._pending_hellos.discard(self)
        if self.hello_timer is not None:
            self.hello_timer.cancel()

    def _arrived(self) -> None:
        """Stop counting the bytes of a long frame. From here on they count as a request, or not at all."""
        self._server._give_back(self._arriving)
        self._arriving = 0

    def _agree(self, hello: hello_messages.Hello, welcome: hello_messages.Welcome) -> None:
        """Apply what the hello agreed on, from the next frame on. The client has proved that it belongs here."""
        self.is_established = True
        self._version = welcome.version
        keys = hello_messages.frame_keys(hello, welcome, self._secret)
        if keys is not None:
            self._signer, self._verifier = FrameSigner(keys.of_server), FrameVerifier(keys.of_client)
        elif self._secret and not self.wire.is_encrypted:
            _log.warning("an RPC peer speaks an older version, without a MAC on each frame; upgrade it",
                         version=welcome.version)  # fmt: skip

    def _shake_hands(self, frame: Frame) -> None:
        server = self._server
        try:
            if self._hello is None or self._welcome is None:
                if frame.header.method != hello_messages.HELLO:
                    raise ProtocolViolation(f"{frame.header.method!r} came before the hello")
                hello = decode_body(frame.body, hello_messages.Hello)
                secrets = server._security.secrets
                self._welcome, self._secret = hello_messages.answer_hello(
                    hello,
                    server.known,
                    secrets,
                    server._entropy.uuid().bytes,
                    versions=hello_messages.spoken_versions(
                        has_secret=bool(secrets), is_private=is_private(self.wire)
                    ),
                    is_encrypted=self.wire.is_encrypted,
                )
                self._hello = hello
                self.reply(frame.header, RESPONSE, encode_body(self._welcome))
            elif frame.header.method == hello_messages.HELLO:  # repeated by the link
                self.reply(frame.header, RESPONSE, encode_body(self._welcome))
            else:
                if frame.header.method != hello_messages.PROOF:
                    raise ProtocolViolation(f"{frame.header.method!r} came before the proof")
                proof = decode_body(frame.body, hello_messages.Proof)
                hello_messages.check_proof(self._hello, self._welcome, proof, self._secret)
                if not server._admit(self):
                    self.is_over = True
                    self.wire.close()
                    return
                self._agree(self._hello, self._welcome)
                self.reply(frame.header, RESPONSE, encode_body(hello_messages.Accepted()))
                if self.hello_timer is not None:
                    self.hello_timer.cancel()
        except HelloRefused as refusal:
            peer = self.wire.peer_host
            _log.warning("an RPC hello is refused", peer=peer, code=refusal.code, reason=str(refusal))
            self.fail(frame.header, refusal.code, str(refusal))
            self.is_over = True
            self.wire.close()
