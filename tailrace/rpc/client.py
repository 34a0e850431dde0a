"""The RPC client: many concurrent calls over one connection, each with a deadline. It reopens a lost connection.

If the peer is silent for 2 s while calls wait, the client closes the connection (tailrace.rpc.liveness), and the calls
fail with LinkDown.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, TypeVar

import msgspec

from tailrace.background_tasks import cancel_and_wait, retrieve_error
from tailrace.clock import Clock, Entropy
from tailrace.rpc import hello as hello_messages
from tailrace.rpc.errors import (
    CallFailed,
    CallTimedOut,
    FrameTooLarge,
    HelloRefused,
    LinkDown,
    NotConnected,
    ProtocolViolation,
    RpcError,
)
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
)
from tailrace.rpc.hello import ClusterIdentity, KnownCluster
from tailrace.rpc.link import Link, RpcConnection
from tailrace.rpc.liveness import ALIVE, LOOK_SECONDS, PeerLiveness
from tailrace.rpc.security import MAC_BYTES, FrameSigner, FrameVerifier, RpcSecurity

T = TypeVar("T")
_HEADER_ROOM = 1024
CONNECT_TIMEOUT_S = 5.0


class RpcClient:
    """Calls to one peer.

    The first call opens the connection, as does the first call after the connection was lost. After a failed attempt,
    calls fail at once with LinkDown until the next attempt, so that their callers can use another peer. The pause
    between attempts grows to `max_backoff_s`, with jitter.

    `known`: the cluster that this process belongs to. All its clients share it, and the first hello fills it in.
    `security`: this process's secrets and TLS, read again for each connection.
    """

    def __init__(
        self,
        link: Link,
        *,
        clock: Clock,
        entropy: Entropy,
        known: KnownCluster | None = None,
        security: RpcSecurity | None = None,
        max_in_flight: int = 1024,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        min_backoff_s: float = 0.05,
        max_backoff_s: float = 2.0,
    ) -> None:
        self.known = known if known is not None else KnownCluster()
        self._link = link
        self._clock = clock
        self._entropy = entropy
        self._security = security if security is not None else RpcSecurity()
        self._max_frame_bytes = max_frame_bytes
        self._max_in_flight = max_in_flight
        self._min_backoff_s = min_backoff_s
        self._max_backoff_s = max_backoff_s

        self._closed = False
        self._connection: _Connection | None = None
        self._connecting: asyncio.Task[_Connection] | None = None
        self._failures = 0
        self._not_before = 0.0
        self._last_error = ""
        self._in_flight = 0
        self._slots: deque[asyncio.Future[None]] = deque()
        self._deadlines = _Deadlines(clock)
        self._listening: dict[asyncio.Task[None], None] = {}

    @property
    def address(self) -> str:
        """The peer's address."""
        return self._link.address

    async def call(
        self,
        method: str,
        request: Any,
        response_type: type[T],
        timeout_s: float,
        request_id: str = "",
    ) -> tuple[T, memoryview]:
        """Call once. Return the response and its raw tail, a view of the received frame.

        Raises LinkDown (NotConnected: nothing was sent), CallTimedOut, CallFailed (the peer refused), FrameTooLarge.
        The peer may have executed a call that got no response.
        """
        deadline = self._clock.monotonic() + timeout_s
        body = encode_body(request)
        size = len(body) + _HEADER_ROOM
        if size > self._max_frame_bytes:
            raise FrameTooLarge(f"{method}: {size} bytes, the largest frame has {self._max_frame_bytes}")
        await self._take_slot(method, deadline)
        try:
            connection = self._connection
            if connection is None:
                connection = await self._connected(method, deadline)
            while (room := connection.wire.room()) is not None:
                await self._until(following(room), method, deadline)
            frame = await self._until(connection.ask(method, body, request_id), method, deadline, connection)
        finally:
            self._give_slot()
        if frame.header.flags & ERROR:
            failure = connection.decode(frame, Failure)
            raise CallFailed(failure.code, failure.message)
        return connection.decode(frame, response_type), frame.tail

    async def close(self) -> None:
        """Close the connection; waiting calls fail with LinkDown."""
        self._closed = True
        await cancel_and_wait(self._connecting)
        if self._connection is not None:
            self._connection.wire.close()
            self._connection.end(LinkDown(f"{self.address}: closed by this side"))
        while self._slots:
            waiting = self._slots.popleft()
            if not waiting.done():
                waiting.set_exception(LinkDown(f"{self.address}: closed by this side"))
        await self._deadlines.close()
        await asyncio.gather(*self._listening, return_exceptions=True)

    # --- waiting

    async def _until(
        self,
        awaited: asyncio.Future[T],
        method: str,
        deadline: float,
        connection: _Connection | None = None,
    ) -> T:
        if not awaited.done():
            self._deadlines.add(awaited, deadline)
        try:
            return await awaited
        except _Expired:
            raise CallTimedOut(f"{method} at {self.address}: no answer in time") from None
        finally:
            self._deadlines.discard(awaited)
            if connection is not None:
                connection.forget(awaited)

    async def _take_slot(self, method: str, deadline: float) -> None:
        if self._closed:
            raise NotConnected(f"{self.address}: closed by this side")
        if self._in_flight < self._max_in_flight and not self._slots:
            self._in_flight += 1
            return
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._slots.append(waiting)
        try:
            await self._until(waiting, method, deadline)
        except BaseException:
            if waiting.done() and not waiting.cancelled() and waiting.exception() is None:
                self._give_slot()  # we got the slot at the moment of our cancellation
            raise

    def _give_slot(self) -> None:
        while self._slots:
            waiting = self._slots.popleft()
            if not waiting.done():
                waiting.set_result(None)
                return
        self._in_flight -= 1

    # --- connecting

    async def _connected(self, method: str, deadline: float) -> _Connection:
        if self._connecting is None:
            pause = self._not_before - self._clock.monotonic()
            if pause > 0:
                raise NotConnected(f"{self.address}: {self._last_error} (tried again in {pause:.2f} s)")
            self._connecting = asyncio.create_task(self._connect(), name=f"connect to {self.address}")
            self._connecting.add_done_callback(retrieve_error)
        connecting = self._connecting
        try:
            return await self._until(following(connecting), method, deadline)
        except asyncio.CancelledError:
            if connecting.cancelled():
                raise NotConnected(f"{self.address}: closed by this side") from None
            raise

    async def _connect(self) -> _Connection:
        connection = _Connection(self)
        try:
            dial = asyncio.ensure_future(self._link.connect(connection))
            self._deadlines.add_task(dial, self._clock.monotonic() + CONNECT_TIMEOUT_S)
            try:
                connection.wire = await dial
            except asyncio.CancelledError:
                if not self._deadlines.has_cancelled(dial):
                    dial.cancel()
                    raise
                raise NotConnected(f"{self.address}: no connection in {CONNECT_TIMEOUT_S} s") from None
            finally:
                self._deadlines.discard(dial)
            deadline = self._clock.monotonic() + CONNECT_TIMEOUT_S
            await self._shake_hands(connection, deadline)
        except BaseException as error:
            connection.abort()
            self._connecting = None
            if isinstance(error, asyncio.CancelledError):
                raise
            self._failures += 1
            most = min(self._max_backoff_s, self._min_backoff_s * 2 ** min(self._failures - 1, 16))
            self._not_before = self._clock.monotonic() + most * (0.5 + 0.5 * self._entropy.fraction())
            self._last_error = str(error)
            if isinstance(error, RpcError) and not isinstance(error, NotConnected):
                raise NotConnected(str(error)) from error
            raise
        self._connecting = None
        self._connection = connection
        self._failures = 0
        return connection

    async def _shake_hands(self, connection: _Connection, deadline: float) -> None:
        secrets = self._security.secrets
        versions = hello_messages.spoken_versions(
            has_secret=bool(secrets), is_private=is_private(connection.wire)
        )
        hello = hello_messages.make_hello(
            self.known.identity,
            self._entropy.uuid().bytes,
            secrets,
            versions,
            is_encrypted=connection.wire.is_encrypted,
        )
        frame = await self._until(
            connection.ask(hello_messages.HELLO, encode_body(hello)), "hello", deadline, connection
        )
        welcome = self._accepted(connection, frame, hello_messages.Welcome)
        proof, secret = hello_messages.check_welcome(hello, welcome, secrets, versions)
        self.known.check(ClusterIdentity(welcome.cluster_id, welcome.incarnation))
        accepted = connection.ask(hello_messages.PROOF, encode_body(proof))
        keys = hello_messages.frame_keys(hello, welcome, secret)
        if keys is not None:
            connection.signer = FrameSigner(keys.of_client)
            connection.verifier = FrameVerifier(keys.of_server)
        frame = await self._until(accepted, "hello", deadline, connection)
        self._accepted(connection, frame, hello_messages.Accepted)
        self.known.learn(ClusterIdentity(welcome.cluster_id, welcome.incarnation))
        connection.version = welcome.version
        connection.limit = self._max_frame_bytes

    def _accepted(self, connection: _Connection, frame: Frame, kind: type[T]) -> T:
        if frame.header.flags & ERROR:
            failure = connection.decode(frame, Failure)
            raise HelloRefused(failure.code, f"{self.address}: {failure.message}")
        return connection.decode(frame, kind)

    def _listen_to(self, connection: _Connection) -> asyncio.Task[None]:
        task = asyncio.create_task(connection.listen(self._clock), name="rpc liveness")
        self._listening[task] = None
        task.add_done_callback(self._listening.pop)
        return task

    def _disconnected(self, connection: _Connection) -> None:
        if self._connection is connection:
            self._connection = None


class _Connection:
    """One connection: a Receiver that passes responses to the waiting calls."""

    def __init__(self, client: RpcClient) -> None:
        self.wire: RpcConnection
        self.version = FIRST_VERSION
        self.limit = MAX_HELLO_BYTES
        self.signer: FrameSigner | None = None
        self.verifier: FrameVerifier | None = None
        self._client = client
        self._waiting: dict[int, asyncio.Future[Frame]] = {}
        self._numbers: dict[asyncio.Future[Any], int] = {}
        self._next = 0
        self._ended: LinkDown | None = None
        self._listening: asyncio.Task[None] | None = None

    def ask(self, method: str, body: bytes, request_id: str = "") -> asyncio.Future[Frame]:
        answer: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        if self._ended is not None:
            answer.set_exception(LinkDown(str(self._ended)))
            return answer
        number = self._next
        self._next = number + 1
        self._waiting[number] = answer
        self._numbers[answer] = number
        self._send(
            Header(version=self.version, correlation=number, method=method, flags=0, request_id=request_id),
            body,
        )
        if self._listening is None:
            self._listening = self._client._listen_to(self)
        return answer

    def _send(self, header: Header, body: bytes) -> None:
        if self.signer is None:
            self.wire.send(encode_frame(header, body))
        else:
            self.wire.send(self.signer.sign(encode_frame(header, body, mac_bytes=MAC_BYTES)))

    async def listen(self, clock: Clock) -> None:
        """End this connection when its peer falls silent while calls wait."""
        liveness = PeerLiveness(self.wire.heard)
        while self._waiting and self._ended is None:
            began = clock.monotonic()
            await clock.sleep(LOOK_SECONDS)
            slept = clock.monotonic() - began
            wire, unsent = self.wire, self.wire.unsent
            match liveness.look(wire.heard, wire.queued - unsent, slept, has_unsent=unsent > 0):
                case "ask" if self.limit > MAX_HELLO_BYTES:  # the hello comes first
                    self._send(Header(self.version, self._next, ALIVE, 0), b"")
                    self._next += 1
                case "dead":
                    self.abort()
                    self.end(LinkDown(f"{self._client.address}: the peer is silent"))
        self._listening = None

    def forget(self, answer: asyncio.Future[Any]) -> None:
        number = self._numbers.pop(answer, None)
        if number is not None:
            self._waiting.pop(number, None)

    def decode(self, frame: Frame, kind: type[T]) -> T:
        try:
            return decode_body(frame.body, kind)
        except msgspec.DecodeError as error:
            self.abort()
            raise LinkDown(f"{self._client.address}: not an answer: {error}") from error

    def abort(self) -> None:
        if hasattr(self, "wire"):
            self.wire.abort()

    def end(self, error: LinkDown) -> None:
        if self._ended is not None:
            return
        self._ended = error
        if self._listening is not None and self._listening is not asyncio.current_task():
            self._listening.cancel()
        waiting, self._waiting = self._waiting, {}
        self._numbers.clear()
        for answer in waiting.values():
            if not answer.done():
                answer.set_exception(LinkDown(str(error)))
        self._client._disconnected(self)

    # --- Receiver

    def frame_limit(self) -> int:
        return self.limit

    def makes_room(self, length: int) -> bool:
        return True  # we requested it

    def received(self, frame: memoryview) -> None:
        if self._ended is not None:
            return
        try:
            taken = decode_frame(frame if self.verifier is None else self.verifier.verify(frame))
            if not taken.header.flags & RESPONSE:
                raise ProtocolViolation("a request came to the calling side")
        except ProtocolViolation as error:
            self.abort()
            self.end(LinkDown(f"{self._client.address}: {error}"))
            return
        answer = self._waiting.get(taken.header.correlation)
        if answer is not None and not answer.done():  # otherwise the caller gave up, or this is a duplicate
            answer.set_result(taken)

    def lost(self, reason: str) -> None:
        self.end(LinkDown(f"{self._client.address}: connection lost: {reason}"))


def following(shared: asyncio.Future[T]) -> asyncio.Future[T]:
    """Return a future that ends as `shared` does, but that may also be ended earlier. `asyncio.shield` logs an error in
    that case."""
    own: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def follow(ended: asyncio.Future[T]) -> None:
        if own.done():
            return
        if ended.cancelled():
            own.cancel()
        elif (error := ended.exception()) is not None:
            own.set_exception(error)
        else:
            own.set_result(ended.result())

    shared.add_done_callback(follow)
    return own


class _Expired(Exception):
    """Set on a future whose deadline has passed."""


class _Deadlines:
    """One timer for all waits. It sleeps until the earliest deadline and fails the waits that are due."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._due: dict[asyncio.Future[Any], float] = {}
        self._cancelled: set[asyncio.Future[Any]] = set()
        self._tasks: set[asyncio.Future[Any]] = set()
        self._timer: asyncio.Task[None] | None = None
        self._timer_at = 0.0
        self._old_timers: set[asyncio.Task[None]] = set()

    def add(self, awaited: asyncio.Future[Any], deadline: float) -> None:
        """Set _Expired on this future at its deadline."""
        self._due[awaited] = deadline
        if self._timer is None or deadline < self._timer_at:
            self._hang(deadline)

    def add_task(self, task: asyncio.Future[Any], deadline: float) -> None:
        """Cancel this task at its deadline."""
        self._tasks.add(task)
        self.add(task, deadline)

    def has_cancelled(self, task: asyncio.Future[Any]) -> bool:
        return task in self._cancelled

    def discard(self, awaited: asyncio.Future[Any]) -> None:
        self._due.pop(awaited, None)
        self._tasks.discard(awaited)
        self._cancelled.discard(awaited)

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._old_timers.add(self._timer)
            self._timer = None
        await asyncio.gather(*self._old_timers, return_exceptions=True)

    def _hang(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._old_timers.add(self._timer)
            self._timer.add_done_callback(self._old_timers.discard)
        self._timer_at = at
        self._timer = asyncio.create_task(self._ring(at), name="rpc deadlines")

    async def _ring(self, at: float) -> None:
        while True:
            await self._clock.sleep(max(0.0, at - self._clock.monotonic()))
            now = self._clock.monotonic()
            for awaited in [awaited for awaited, due in self._due.items() if due <= now]:
                del self._due[awaited]
                if awaited in self._tasks:
                    self._cancelled.add(awaited)
                    awaited.cancel()
                elif not awaited.done():
                    awaited.set_exception(_Expired())
            if not self._due:
                self._timer = None
                return
            self._timer_at = at = min(self._due.values())
