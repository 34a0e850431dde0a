"""One client connection: reads bytes into frames, passes frames to the dispatcher, sends responses in request order.

    socket --> staging buffer --> frame --> queue --> dispatcher --> replies, in order --> socket
               (heads only)       |                                  ^
                                  charged to the memory budget       released when the answer is made

The loop reads a frame straight into a buffer of the frame's size; records are views into it and are not copied before
the upload. Frame heads go through a small staging buffer that all connections of a loop share: the loop asks for the
buffer, fills it and reports it in one step. As in Kafka, a connection handles its requests one after another. A request
that needs no wait is handled in the read that completes it, if this pass of the loop has time left; otherwise the
connection's task handles it. A produce request is *admitted* in order and answered later, so several can be in flight.

A frame is charged to the memory budget when its first bytes have arrived, before it gets its buffer. While the budget
has no room, the connection is not read. A connection that then holds up the others is closed (`staleness`): its request
does not arrive, its client does not read the answers, or its request has waited too long for memory.

A client that does not read its answers costs little: its next request waits until most of them are sent.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol

import structlog

from agent.framing import REQUEST_BYTES, SIZE_BYTES, FrameHead, FrameLimits, FrameRefused, read_head
from agent.leadership import KnownLeadership
from agent.loop_passes import LoopPasses
from agent.memory_budget import Claim, MemoryBudget
from agent.near_clients import bound_send_buffer
from agent.replies import FastPath, Reply
from agent.security.access import ANYBODY, Access
from tailrace.addresses import plain_address
from tailrace.buffers import TLS_PIECE_BYTES, Buffer, in_pieces, uninitialized
from tailrace.kafka.produce_shape import ProduceShapes
from tailrace.turns import Turns

STAGING_BYTES = 96 * 1024
"""Bytes per read: five requests of 16 KiB, the number that a client has in flight by default."""
CONTENDED_READ_BYTES = 1024
"""Bytes per read while someone waits for memory: they may have to be kept."""
MAX_QUEUED_FRAMES = 16
REQUESTS_IN_A_TURN = 16
"""Requests of one connection handled in one turn of the loop before other connections get theirs."""
MAX_UNSENT_BYTES = 4 * 1024 * 1024
"""Unsent bytes above which the connection handles no further request; 0 while the memory budget is exceeded."""
PRESSURE_SECONDS = 5.0
PRESSURE_BYTES_PER_SECOND = 1024 * 1024
"""While others wait for memory, a request must arrive, and answers must be read, at this rate after these seconds."""
ADMISSION_SECONDS = 30.0
"""A request that has waited this long for memory is dropped: its client has given up, too."""

log = structlog.get_logger("agent.connection")


class Dispatch(Protocol):
    """Decodes and handles one frame. Must not raise for anything a client can send."""

    async def __call__(self, frame: memoryview, connection: KafkaConnection) -> Reply: ...

    def at_once(self, frame: memoryview, connection: KafkaConnection) -> Reply | None:
        """As `__call__`, if the request needs no wait; otherwise return None, without side effects."""

    def fast_path(self, connection: KafkaConnection) -> FastPath | None:
        """Return what handles requests like the connection's earlier ones in this turn of the loop, or None."""


@dataclass(frozen=True, slots=True)
class MemoryPressure:
    """Which work waits for memory now: reading requests, fetching records, making large answers."""

    requests: bool = False
    records: bool = False
    answers: bool = False


NO_PRESSURE = MemoryPressure()


def _patience(size: int) -> float:
    return PRESSURE_SECONDS + size / PRESSURE_BYTES_PER_SECOND


class ConnectionPhase(enum.Enum):
    """What a connection still does; `KafkaConnection` has the table."""

    OPEN = "open"
    DRAINING = "draining"
    ANSWERING = "answering"
    CLOSED = "closed"


_OPEN, _DRAINING, _ANSWERING, _CLOSED = ConnectionPhase
"""Globals, because each request reads them several times: in Python 3.11 an enum member costs six times as much."""

_NEXT_PHASES = {
    _OPEN: (_DRAINING, _ANSWERING, _CLOSED),
    _DRAINING: (_ANSWERING, _CLOSED),
    _ANSWERING: (_CLOSED,),
    _CLOSED: (),
}


def _give_back(reply: Reply) -> None:
    assert reply.on_sent is not None, "it is among those that hold memory"
    reply.on_sent()


class KafkaConnection(asyncio.BufferedProtocol):
    """The protocol object of one socket. All its state belongs to the event loop's thread.

    phase      reads the socket    handles frames     sends answers      next phase
    OPEN       yes, unless paused  yes                yes                DRAINING by `drain`
    DRAINING   no                  those it has read  yes                ANSWERING when it has handled them
    ANSWERING  no                  no                 those outstanding  CLOSED when all are sent
    CLOSED     no                  no                 no

    A reply with `close` leads to ANSWERING. `close`, `abort`, a refused frame and the loss of the socket lead to
    CLOSED.

    Reading pauses once MAX_QUEUED_FRAMES wait, until none waits, and while the memory budget has no room for the next
    frame. Bytes that were read beyond them stay bytes; they are not handled if the connection is drained meanwhile.
    Handling pauses while `max_inflight` answers are outstanding or too many bytes are unsent. Sending pauses above the
    socket's high-water mark. A muted connection (its client is above a quota) is neither read nor handled; when it is
    drained, its client sends the waiting requests to another agent.

    Most connections are idle, so an idle connection is small: it has slots, short lists, and a task only while requests
    wait for their turn.

    Args:
        staging: the buffer for frame heads, shared by the connections of one loop.
        on_open: called once the peer's address is known.
        passes: where requests wait for a pass of the loop; shared by the connections of one loop.
    """

    __slots__ = (
        "_budget", "_charge", "_claim", "_claimed_at", "_counted_bytes", "_dispatch", "_filled", "_frame",
        "_frame_began", "_frames", "_handling", "_held", "_is_handling", "_is_tls", "_is_waiting", "_is_writable",
        "_limits", "_max_inflight", "_monotonic", "_on_close", "_on_open", "_passes", "_paused", "_phase",
        "_pieces", "_replies", "_rest", "_sends_soon", "_sent", "_staging", "_transport", "_turns_left", "_unmuted",
        "_unsent_bytes", "_write_progress", "_written", "_written_at", "access", "client_software", "deferred",
        "last_active", "leadership", "muted_until", "peer_host", "produce_shapes", "fast_path",
    )  # fmt: skip

    sees_all_groups = False
    """A Kafka client asks each agent for that agent's groups."""

    def __init__(
        self,
        dispatch: Dispatch,
        budget: MemoryBudget,
        *,
        max_frame_bytes: int,
        max_inflight: int,
        on_close: Callable[[KafkaConnection], None],
        monotonic: Callable[[], float],
        staging: bytearray | None = None,
        on_open: Callable[[KafkaConnection], None] | None = None,
        passes: LoopPasses | None = None,
    ) -> None:
        self._dispatch = dispatch
        self._budget = budget
        self._limits = FrameLimits.of(max_frame_bytes, budget.largest)
        self._max_inflight = max_inflight
        self._on_open = on_open
        self._on_close = on_close
        self._monotonic = monotonic
        self._staging = bytearray(STAGING_BYTES) if staging is None else staging
        self._passes = passes or LoopPasses()
        self._phase = _OPEN
        self._rest = b""
        self._frame: bytearray | None = None
        self._filled = 0
        self._charge = 0
        self._frames: list[tuple[bytearray, int]] = []
        self._is_writable = True
        self._is_tls = False
        self._pieces: list[list[Buffer]] | None = None
        """The pieces of the written answer that the transport has not received, the last piece first."""
        self._replies: list[Reply] = []
        self._written: Reply | None = None
        self._unsent_bytes = 0
        self._counted_bytes = 0
        self._sent: asyncio.Future[None] | None = None
        """The task waits on it until an answer is sent."""
        self._sends_soon = False
        self._held: list[Reply] = []
        """Replies whose `on_sent` was not called yet."""
        self._is_handling = False
        self._turns_left = REQUESTS_IN_A_TURN
        self._transport: asyncio.Transport | None = None
        self._paused = False
        self._claim: Claim | None = None
        self._is_waiting = False
        """Whether the connection waits for a pass of the loop in which its task may begin."""
        self._handling: asyncio.Task[None] | None = None
        """The task, while it has requests to handle."""
        self.last_active = monotonic()
        self._frame_began = self._claimed_at = self._written_at = self.last_active
        self._write_progress = ((0, 0), self.last_active)
        self.peer_host = "?"
        self.client_software = ""
        self.leadership = KnownLeadership()
        self.access: Access = ANYBODY
        self.produce_shapes: ProduceShapes | None = None
        """The shapes of the produce requests that were fully decoded."""
        self.fast_path: FastPath | None = None
        """Set by the dispatcher: handles requests that look like earlier ones."""
        self.deferred = 0
        """Produce requests that wait for their answers."""
        self.muted_until = 0.0
        self._unmuted: Callable[[], Coroutine[Any, Any, None]] | None = None

    def _enter(self, phase: ConnectionPhase) -> None:
        assert phase in _NEXT_PHASES[self._phase], (
            f"a connection that is {self._phase.value} can't be {phase.value}"
        )
        self._phase = phase

    # --- the transport's side ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "writelines")
        self._transport = transport  # type: ignore[assignment]
        peer = transport.get_extra_info("peername")
        self.peer_host = plain_address(peer[0]) if isinstance(peer, tuple) else "local"
        self._is_tls = transport.get_extra_info("sslcontext") is not None
        transport.set_write_buffer_limits(high=int(self._is_tls))  # type: ignore[attr-defined] # see pause_writing
        if (connected := transport.get_extra_info("socket")) is not None:
            bound_send_buffer(connected)
        if self._on_open is not None:
            self._on_open(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._frame is not None:
            return memoryview(self._frame)[self._filled :]
        rest = len(self._rest)
        self._staging[:rest] = self._rest
        if self._budget.is_contended:
            return memoryview(self._staging)[rest : rest + CONTENDED_READ_BYTES]
        return memoryview(self._staging)[rest:]

    def buffer_updated(self, nbytes: int) -> None:
        now = self.last_active = self._monotonic()
        if self._frame is None:
            self._take_frames(memoryview(self._staging)[: len(self._rest) + nbytes])
        else:
            self._filled += nbytes
            if self._filled < len(self._frame):
                return
            frame, self._frame, self._filled = self._frame, None, 0
            self._turns_left = REQUESTS_IN_A_TURN
            self._handle_in_turn(frame, self._charge)
        self._count_turn(now)

    def connection_lost(self, exc: Exception | None) -> None:
        self._phase = _CLOSED
        if self._handling is not None:
            self._handling.cancel()
        if self._claim is not None:
            self._budget.withdraw(self._claim)
            self._claim = None
        if self._frame is not None:
            self._budget.give(self._charge)
            self._frame = None
        while self._frames:
            self._budget.give(self._frames.pop()[1])
        while self._held:
            _give_back(self._held.pop(0))
        self._pieces = None
        self._replies.clear()  # replies that are made later refer to this connection
        self.fast_path = self.produce_shapes = None  # these refer to it, too
        self._keep_rest(b"")
        self._budget.count(-self._counted_bytes)
        self._on_close(self)

    def pause_writing(self) -> None:
        """The transport has unsent bytes of an answer. With a limit of 0, a TLS transport would pause at zero bytes and
        never resume."""
        self._is_writable = False

    def resume_writing(self) -> None:
        self._is_writable = True
        self._send_replies()

    # --- bytes to frames ------------------------------------------------------------------------------

    def _take_frames(self, data: memoryview, granted: int = 0) -> None:
        """Take the frames out of received bytes; keep the bytes that can't be taken yet in `_rest`.

        Args:
            granted: the bytes that are already charged for the first frame.
        """
        self._turns_left = REQUESTS_IN_A_TURN
        position = 0 if granted else self._take_fast_path(data)
        while (
            self._handles_frames
            and (granted or len(self._frames) < MAX_QUEUED_FRAMES)
            and (head := read_head(data, position, self._limits)) is not None
        ):
            if isinstance(head, FrameRefused):
                self._refuse(head)
                break
            if granted:
                assert granted == head.charge, "what was granted is for this frame"
                granted = 0
            elif not self._budget.try_take(head.charge):
                self._pause()
                self._claimed_at = self.last_active
                self._claim = self._budget.claim(head.charge, self._admitted)
                break
            position += SIZE_BYTES
            end = position + head.size
            if end > len(data):
                self._begin_frame(head, data[position:])
                position = len(data)
                break
            self._handle_in_turn(bytearray(data[position:end]), head.charge)
            position = end
        self._keep_rest(bytes(data[position:]))

    def _take_fast_path(self, data: memoryview) -> int:
        """Handle the whole frames at the front that look like earlier requests. Return where the next begins."""
        if self._frames or self._is_handling or self._passes.is_full or not self._may_handle():
            return 0
        requests = self._dispatch.fast_path(self)
        if requests is None:
            return 0
        position, received = 0, len(data)
        room = min(self._turns_left, self._max_inflight + 1 - len(self._replies))
        while room:
            start = position + SIZE_BYTES
            size = int.from_bytes(data[position:start], "big")
            end, charge = start + size, size + REQUEST_BYTES
            if end > received or size > self._limits.produce_bytes or not self._budget.try_take(charge):
                break
            reply = requests.take(data, start, end, is_kept=False)
            if reply is None:
                self._budget.give(charge)
                break
            room -= 1
            self._turns_left -= 1
            self._take_reply(reply, charge)
            position = end
        return position

    def _count_turn(self, began: float) -> None:
        """Count the requests handled at once since `began` as a step of this pass of the loop."""
        if self._turns_left < REQUESTS_IN_A_TURN and not self._passes.is_full:
            self._passes.did(self._monotonic() - began)

    def _begin_frame(self, head: FrameHead, first: memoryview) -> None:
        """Give a charged frame its buffer, and copy the bytes of it that have arrived."""
        self._charge = head.charge
        self._frame_began = self.last_active
        self._frame = uninitialized(head.size)
        self._filled = len(first)
        self._frame[: self._filled] = first

    def _keep_rest(self, rest: bytes) -> None:
        if rest or self._rest:
            if not self._rest:
                self._frame_began = self.last_active
            self._budget.count(len(rest) - len(self._rest))
            self._rest = rest

    def _admitted(self) -> None:
        """The frame that waited for memory has it. It is not handled if an earlier reply closes the connection."""
        assert self._claim is not None
        granted, self._claim = self._claim.size, None
        if not self._handles_frames:
            self._budget.give(granted)
            return
        now = self.last_active = self._frame_began = self._monotonic()
        self._take_frames(memoryview(self._rest), granted)
        self._count_turn(now)
        self._maybe_resume()

    def _handle_in_turn(self, frame: bytearray, charge: int) -> None:
        """Handle a whole frame at once if it is its turn; otherwise queue it."""
        self._turns_left -= 1
        if (
            not self._frames
            and not self._is_handling
            and self._turns_left >= 0
            and not self._passes.is_full
            and self._may_handle()
        ):
            reply = self._dispatch.at_once(memoryview(frame), self)
            if reply is not None:
                self._take_reply(reply, charge)
                return
        self._frames.append((frame, charge))
        self._begin_handling()
        if len(self._frames) >= MAX_QUEUED_FRAMES:
            self._pause()

    def _refuse(self, frame: FrameRefused) -> None:
        log.warning(
            "closed a connection: frame size out of bounds",
            peer=self.peer_host,
            size=frame.size,
            allowed=frame.allowed,
        )
        self.close()

    def _pause(self) -> None:
        if not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def _maybe_resume(self) -> None:
        """Resume reading if nothing prevents it, after taking the frames that were read before."""
        if self._paused and self._may_read and self._rest:
            self._take_frames(memoryview(self._rest))
        if self._paused and self._may_read:
            self._paused = False
            assert self._transport is not None
            self._transport.resume_reading()

    @property
    def _may_read(self) -> bool:
        return self._phase is _OPEN and self._claim is None and not self._frames and not self.muted_until

    # --- frames to replies -----------------------------------------------------------------------------

    @property
    def _handles_frames(self) -> bool:
        return self._phase is _OPEN or self._phase is _DRAINING

    def _may_handle(self) -> bool:
        """Whether an open connection may handle its next request: few enough answers are outstanding or unsent."""
        return (
            self._phase is _OPEN
            and not self.muted_until
            and len(self._replies) <= self._max_inflight
            and self._unsent_bytes <= (0 if self._budget.is_over else MAX_UNSENT_BYTES)
        )

    def _begin_handling(self) -> None:
        if self._handling is None and not self._is_waiting:
            self._is_waiting = True
            self._passes.begin(self._handle_now)

    def _handle_now(self) -> None:
        self._is_waiting = False
        if self._phase is not _CLOSED:
            loop = asyncio.get_running_loop()
            self._handling = loop.create_task(self._handle_frames(), name=f"requests of {self.peer_host}")

    async def _handle_frames(self) -> None:
        """Handle the waiting requests until there are none; then end the connection if it is draining."""
        turns = Turns(REQUESTS_IN_A_TURN)
        while self._handles_frames and (self._frames or self._unmuted is not None):
            if self._unmuted is not None:
                if self._phase is _DRAINING:
                    break  # its client sends the waiting requests to another agent
                await self._unmuted()
                self._unmuted = None
                self._maybe_resume()
                continue
            if self._unsent_bytes > (0 if self._budget.is_over else MAX_UNSENT_BYTES):
                await self._until_sent()
                continue
            frame, charge = self._frames.pop(0)
            self._is_handling = True
            began = self._monotonic()
            try:
                reply = self._dispatch.at_once(memoryview(frame), self)
                goes_behind = reply is None
                if reply is None:
                    reply = await self._dispatch(memoryview(frame), self)
                else:
                    self._passes.did(self._monotonic() - began)
            except BaseException:
                self._budget.give(charge)
                self.abort()  # nobody would handle the requests behind this one
                raise
            self._is_handling = False
            del frame
            self._take_reply(reply, charge)
            while len(self._replies) > self._max_inflight:
                await self._until_sent()
            self._maybe_resume()
            if self._frames and (self._passes.is_full or (goes_behind and self._passes.is_waited_for)):
                self._handling = None
                self._begin_handling()  # let the connections that wait go first
                return
            await turns.did()
        self._handling = None
        if self._phase is _DRAINING:
            self._end_handling()

    async def _until_sent(self) -> None:
        """Wait until an answer is sent."""
        self._sent = asyncio.get_running_loop().create_future()
        await self._sent

    def _take_reply(self, reply: Reply, charge: int) -> None:
        """Queue the next request's reply, and send the replies that are ready. `charge`: its request's charge."""
        if reply.on_sent is not None:
            self._held.append(reply)
        self._replies.append(reply)
        if not reply.is_made:  # the frame's bytes stay in the active buffer even if the connection ends
            self.deferred += 1
            reply.charge = charge
            reply.on_made = self._is_answered
            return
        self._count_unsent(reply)
        self._budget.give(charge)
        self._send_replies()
        if reply.close:
            self._end_handling()

    def _end_handling(self) -> None:
        """Handle no further request; close once the answers are sent."""
        if self._handles_frames:
            self._enter(_ANSWERING)
            self._pause()
            self._send_replies()

    def _is_answered(self, reply: Reply) -> None:
        """A deferred answer is made, or never will be: give back its request's charge, and send the answer. If more
        replies are queued, all that are made in this turn of the loop are sent in one write."""
        self.deferred -= 1
        self._budget.give(reply.charge)
        if len(self._replies) < 2:
            self._send_replies()
        elif not self._sends_soon:
            self._sends_soon = True
            asyncio.get_running_loop().call_soon(self._send_soon)

    def _send_soon(self) -> None:
        self._sends_soon = False
        self._send_replies()

    def _send_replies(self) -> None:
        """Send the ready answers in request order, as long as the socket accepts them."""
        while self._phase is not _CLOSED and (self._written is not None or self._replies):
            if self._written is None:
                if not self._replies[0].is_made:
                    return
                self._written = self._replies.pop(0)
                parts = self._written.parts
                if self._written.is_deferred and not self._written.close:
                    parts = [*(parts or ()), *self._made_next()]
                if parts and self._transport is not None and not self._transport.is_closing():
                    if self._is_tls:
                        self._pieces = in_pieces(parts, TLS_PIECE_BYTES)[::-1]
                        self._write_pieces()
                    else:
                        self._transport.writelines(parts)
                if not self._is_writable:
                    self._written_at = self._monotonic()
            else:
                self._write_pieces()
            if not self._is_writable:
                return
            reply, self._written = self._written, None
            self.last_active = self._monotonic()
            if reply.counted_bytes:
                self._count_sent(reply)
            if reply.on_sent is not None:
                _give_back(self._held.pop(0))
            if self._sent is not None and not self._sent.done():
                self._sent.set_result(None)
            if reply.close:
                break
        else:
            if self._phase is not _ANSWERING:
                return
        self.close()

    def _write_pieces(self, *, at_once: bool = False) -> None:
        """Write the remaining pieces of an answer: all if `at_once`, else as many as the transport accepts."""
        while self._pieces and (at_once or self._is_writable):
            piece = self._pieces.pop()
            if self._transport is not None and not self._transport.is_closing():
                self._transport.writelines(piece)

    def _made_next(self) -> list[Buffer]:
        """Remove the deferred answers that are made, up to the first other reply, and return their buffers. None of
        them counts as unsent."""
        parts: list[Buffer] = []
        taken = 0
        for reply in self._replies:
            if not reply.is_deferred or not reply.is_made or reply.close:
                break
            parts += reply.parts or ()
            taken += 1
        del self._replies[:taken]
        return parts

    def _count_unsent(self, reply: Reply) -> None:
        """Count an answer as unsent until it is sent. The records of a fetch have their own budget."""
        if not reply.parts:
            return
        reply.counted_bytes = sum(map(len, reply.parts))
        self._unsent_bytes += reply.counted_bytes
        if reply.on_sent is None:
            self._counted_bytes += reply.counted_bytes
            self._budget.count(reply.counted_bytes)

    def _count_sent(self, reply: Reply) -> None:
        self._unsent_bytes -= reply.counted_bytes
        if reply.on_sent is None:
            self._counted_bytes -= reply.counted_bytes
            self._budget.count(-reply.counted_bytes)

    # --- ending ------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Send the remaining pieces of the written answer, then close."""
        if self._phase is not _CLOSED:
            self._enter(_CLOSED)
            self._write_pieces(at_once=True)
            if self._transport is not None:
                self._transport.close()

    def abort(self) -> None:
        """Close without sending what is left."""
        self._phase = _CLOSED
        if self._transport is not None:
            self._transport.abort()

    def hold(self) -> None:
        """Stop reading: the connection is about to be closed."""
        self._pause()

    def mute(self, until: float, wait: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Read and handle no requests until `wait` has ended; answers are still sent (KIP-219)."""
        self.muted_until = until
        self._unmuted = wait
        self._pause()
        self._begin_handling()

    def serve_by(self, dispatch: Dispatch) -> None:
        """Pass the next frames to another dispatcher."""
        self._dispatch = dispatch

    def allow_frames(self, max_frame_bytes: int) -> None:
        """Accept frames up to this size from now on."""
        self._limits = FrameLimits.of(max_frame_bytes, self._budget.largest)

    def peer_certificate(self) -> bytes | None:
        """The client's certificate (DER), or None if it sent none."""
        assert self._transport is not None, "a connection that has read a frame was made"
        connection = self._transport.get_extra_info("ssl_object")
        return None if connection is None else connection.getpeercert(binary_form=True)

    def drain(self) -> None:
        """Stop reading. Close once every request that was read (on a muted connection: begun) is answered."""
        if self._phase is _OPEN:
            self._enter(_DRAINING)
        self._pause()
        if self._unmuted is not None and self._handling is not None and not self._is_handling:
            self._handling.cancel()
            self._end_handling()
            return
        self._begin_handling()

    @property
    def is_idle(self) -> bool:
        """Whether no request is being read or answered."""
        return (
            not self._frames
            and self._frame is None
            and self._written is None
            and not self._replies
            and not self._is_handling
        )

    def _holds_up(self, pressure: MemoryPressure) -> bool:
        """Whether others wait for memory that this client's answers hold, and the client could release it: an answer is
        being written."""
        if self._written is None:
            return False
        return (pressure.requests and self._counted_bytes > 0) or any(
            pressure.records if held.has_records else pressure.answers for held in self._held
        )

    def staleness(
        self, idle_seconds: float, stalled_seconds: float, pressure: MemoryPressure = NO_PRESSURE
    ) -> str | None:
        """Return why this connection should be closed now, or None. It is idle for too long, its client neither
        completes a request nor reads its answers, or does so too slowly while others wait for memory. Called every few
        seconds, and every second while someone waits for memory."""
        now = self._monotonic()
        written = self._transport.get_write_buffer_size() if self._transport is not None else 0
        unsent = (written, len(self._pieces or ()))
        if unsent == (0, 0) or unsent != self._write_progress[0]:
            self._write_progress = (unsent, now)
        elif now - self._write_progress[1] >= stalled_seconds:
            return "answers are not taken"
        if self._holds_up(pressure) and now - self._written_at >= _patience(self._unsent_bytes):
            return "answers are taken too slowly"
        if self._claim is not None and now - self._claimed_at >= ADMISSION_SECONDS:
            return "no memory for its request"
        quiet = now - self.last_active
        if not self._paused:
            if quiet >= stalled_seconds and (self._frame is not None or self._rest):
                return "a request does not end"
            is_in_the_way = pressure.requests and self._frame is not None
            if is_in_the_way and now - self._frame_began >= _patience(len(self._frame or b"")):
                return "a request comes too slowly"
        if quiet >= idle_seconds and (self.is_idle or self._unmuted is not None):
            return "idle"  # a muted connection isn't read, so nothing else shows that its client is gone
        return None
