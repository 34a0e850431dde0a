"""Frames in, replies out: a connection over a transport that only remembers."""

from __future__ import annotations

import asyncio
import tracemalloc
from functools import partial
from itertools import pairwise
from typing import Any
from unittest import mock

import pytest

from agent.connection import (
    ADMISSION_SECONDS,
    MAX_QUEUED_FRAMES,
    PRESSURE_SECONDS,
    REQUESTS_IN_A_TURN,
    STAGING_BYTES,
    KafkaConnection,
    MemoryPressure,
)
from agent.framing import DECODED_FACTOR, FIRST_BYTES, REQUEST_BYTES
from agent.loop_passes import PASS_SECONDS, LoopPasses
from agent.memory_budget import MemoryBudget
from agent.replies import Reply
from tailrace.buffers import TLS_PIECE_BYTES
from tests.support.agents import settle
from tests.support.patience import PATIENCE_SECONDS

LARGE = STAGING_BYTES + 1
PRODUCE = b"\0\0"
"""What a produce request begins with: its API key."""


class Transport(asyncio.Transport):
    """Keeps what is written; closes when told."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[bytes] = []
        self.is_paused = False
        self.closed = False
        self.unsent = 0
        self.is_tls = False
        self.connection: KafkaConnection | None = None

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "sslcontext" and self.is_tls:
            return self
        return ("10.0.0.7", 1234) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        return

    def writelines(self, list_of_data: Any) -> None:
        assert not self.closed
        self.sent.append(b"".join(list_of_data))
        if self.is_tls:  # full again
            assert self.connection is not None
            self.connection.pause_writing()
            self.unsent = len(self.sent[-1])

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            assert self.connection is not None
            asyncio.get_running_loop().call_soon(self.connection.connection_lost, None)

    abort = close


class Line:
    """A connection with its transport, its budget, and a dispatcher that echoes, defers or fails by the frame."""

    def __init__(
        self,
        budget: int | MemoryBudget = 8 << 20,
        max_frame: int = 200_000,
        max_inflight: int = 64,
        tries_at_once: bool = False,
        is_tls: bool = False,
        passes: LoopPasses | None = None,
    ) -> None:
        self.tries_at_once = tries_at_once
        self.passes = passes or LoopPasses()
        self.budget = MemoryBudget(budget) if isinstance(budget, int) else budget
        self.seen: list[bytes] = []
        self.later: dict[bytes, Reply] = {}
        self.hold = asyncio.Event()
        self.hold.set()
        self.lost: list[KafkaConnection] = []
        self.now = 0.0
        self.released: list[bytes] = []
        self.transport = Transport()
        self.connection = KafkaConnection(
            self,
            self.budget,
            max_frame_bytes=max_frame,
            max_inflight=max_inflight,
            on_close=self.lost.append,
            monotonic=lambda: self.now,
            passes=self.passes,
        )
        self.transport.connection = self.connection
        self.transport.is_tls = is_tls
        self.connection.connection_made(self.transport)

    async def __call__(self, frame: memoryview, connection: KafkaConnection) -> Reply:
        said = bytes(frame)
        self.seen.append(said)
        await self.hold.wait()
        return self.reply_to(said)

    def at_once(self, frame: memoryview, connection: KafkaConnection) -> Reply | None:
        said = bytes(frame)
        if not self.tries_at_once or said.startswith(b"waits"):
            return None
        self.seen.append(said)
        return self.reply_to(said)

    def fast_path(self, connection: KafkaConnection) -> None:
        return None

    def reply_to(self, said: bytes) -> Reply:
        if said.startswith((b"later", PRODUCE)):
            self.later[said] = Reply.deferred()
            return self.later[said]
        if said.startswith(b"made"):
            reply = Reply.deferred()
            reply.made([b"made"])
            return reply
        if said.startswith(b"close"):
            return Reply([b"bye"], close=True)
        if said.startswith(b"silent"):
            return Reply(None)
        if said.startswith(b"large"):
            released = partial(self.released.append, said)
            return Reply([b"L" * 3_000_000], on_sent=released, has_records=said.endswith(b"records"))
        return Reply([b"<", said[:8], b">"])

    def feed(self, data: bytes, at_once: int = 1 << 30) -> None:
        """What the loop does with received bytes."""
        view = memoryview(data)
        while view:
            view = view[self.read(view, at_once) :]

    def read(self, view: memoryview, at_once: int = 1 << 30) -> int:
        """One read of the loop: how many bytes it took."""
        buffer = self.connection.get_buffer(-1)
        taken = min(len(buffer), len(view), at_once)
        assert taken, "the connection gave an empty buffer"
        buffer[:taken] = view[:taken]
        self.connection.buffer_updated(taken)
        return taken


class Timed(Line):
    """A line on which time passes while a request is handled at once."""

    def __init__(self, step: float, order: list[bytes], *, tries_at_once: bool, passes: LoopPasses) -> None:
        super().__init__(tries_at_once=tries_at_once, passes=passes)
        self.step = step
        self.order = order

    def reply_to(self, said: bytes) -> Reply:
        self.now += self.step
        self.order.append(said)
        return super().reply_to(said)


def framed(*bodies: bytes) -> bytes:
    return b"".join(len(body).to_bytes(4, "big") + body for body in bodies)


async def test_frames_are_the_same_however_the_bytes_are_cut() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        bodies = [b"a", b"bb" * 400, b"c" * 20_000, b"d", b"e" * LARGE, b"f"]
        for at_once in (1 << 30, 16_384, 4_999, 7):
            line = Line()
            line.feed(framed(*bodies), at_once)
            await settle()
            assert line.seen == bodies
            assert len(line.transport.sent) == len(bodies)
            assert line.budget.used == 0
            line.connection.abort()
            await settle()


async def test_a_frame_whose_size_is_cut_between_reads_waits_for_its_rest() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        line = Line()
        for byte in framed(b"hello"):
            assert line.seen == []
            line.feed(bytes([byte]))
        await settle()
        assert line.transport.sent == [b"<hello>"]


async def test_sizes_out_of_bounds_close_before_a_byte_is_allocated() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        for size in (200_001, 2**31 - 1, -1, 0, -(2**31)):
            line = Line()
            line.feed(size.to_bytes(4, "big", signed=True))
            await settle()
            assert line.transport.closed and line.lost == [line.connection]
            assert line.budget.used == 0 and line.seen == []


async def test_a_declared_size_is_charged_nothing_before_the_first_bytes_are_there() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        budget = MemoryBudget(16 << 20)
        lines = [Line(budget, max_frame=10 << 20) for _ in range(100)]
        for line in lines:
            line.feed((10 << 20).to_bytes(4, "big"))
        assert budget.used == 400, "the bytes that came"
        lines[0].feed(PRODUCE + bytes(FIRST_BYTES - 2))
        assert budget.used == 396 + (10 << 20) + REQUEST_BYTES
        for line in lines:
            line.connection.abort()
        await settle()
        assert budget.used == 0


async def test_a_frame_waits_for_the_budget_whatever_its_size_and_reading_stops_meanwhile() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        for size in (100, LARGE):
            line = Line()
            body = PRODUCE + b"x" * (size - 2)
            assert line.budget.try_take(line.budget.largest)
            line.budget.count(line.budget.limit - line.budget.used)
            line.feed(framed(body)[: FIRST_BYTES + 4])
            await settle()
            assert line.transport.is_paused and line.budget.is_contended
            line.budget.count(-line.budget.limit // 4)
            await settle()
            assert not line.transport.is_paused
            assert line.budget.used == line.budget.largest + size + REQUEST_BYTES
            line.feed(framed(body)[FIRST_BYTES + 4 :])
            await settle()
            assert line.seen == [body]
            line.later[body].made([b"stored"])
            await settle()
            assert line.budget.used == line.budget.largest


async def test_many_connections_with_many_requests_stay_within_the_budget_and_all_are_served() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        budget = MemoryBudget(16 << 20)
        lines = [Line(budget) for _ in range(40)]
        sent = memoryview(framed(*[PRODUCE + b"%02d" % number + b"x" * 60_000 for number in range(64)]))
        fed = [0] * len(lines)
        answered = 0
        while answered < 40 * 64:
            for number, line in enumerate(lines):
                while fed[number] < len(sent) and not line.transport.is_paused:
                    fed[number] += line.read(sent[fed[number] :])
                assert budget.used <= budget.limit
            await settle(3)
            for line in lines:
                while line.later:
                    line.later.popitem()[1].made([b"stored"])
            await settle(3)
            answered = sum(b"".join(line.transport.sent).count(b"stored") for line in lines)
        assert budget.used == 0


async def test_requests_that_are_decoded_into_objects_are_charged_for_them() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        line = Line()
        line.hold.clear()
        line.feed(framed(b"\0\3" + b"x" * 998))
        assert line.budget.used == 1000 * DECODED_FACTOR + REQUEST_BYTES
        line.feed(
            (line.budget.largest // DECODED_FACTOR + 1).to_bytes(4, "big") + bytes(FIRST_BYTES - 1) + b"x"
        )
        line.connection.abort()
        await settle()

        refused = Line(max_frame=8 << 20)
        refused.feed(
            (refused.budget.largest // DECODED_FACTOR).to_bytes(4, "big") + b"\0\3" + bytes(FIRST_BYTES)
        )
        await settle()
        assert refused.transport.closed and refused.budget.used == 0


async def test_a_connection_lost_gives_its_bytes_back() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        line = Line()
        waiting = Line(line.budget)
        line.feed(framed(b"later 1") + framed(PRODUCE + bytes(LARGE))[: FIRST_BYTES + 4])
        left = line.budget.limit - line.budget.used
        line.budget.count(left)
        waiting.feed(framed(b"waits"))
        await settle()
        assert line.budget.is_contended
        waiting.connection.abort()
        line.connection.abort()
        await settle()
        line.budget.count(-left)
        charge = 7 * DECODED_FACTOR + REQUEST_BYTES
        assert line.budget.used == charge  # the deferred one's bytes are still in the active buffer
        line.later[b"later 1"].made([b"stored"])
        await settle()
        assert line.budget.used == 0
        assert line.transport.sent == []


async def test_answers_not_taken_are_counted_and_no_more_are_made_while_the_budget_is_exceeded() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        line = Line()
        line.connection.pause_writing()
        line.feed(framed(b"one"))
        await settle()
        assert line.budget.used == 5
        line.budget.count(line.budget.limit)
        line.feed(framed(b"two"))
        await settle()
        assert line.seen == [b"one"] and line.budget.is_contended
        line.budget.count(-line.budget.limit)
        await settle()
        assert line.seen == [b"one", b"two"]
        line.connection.abort()
        await settle()
        assert line.budget.used == 0


async def test_reading_stops_while_many_frames_wait() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        line = Line()
        line.hold.clear()
        line.feed(framed(*[b"%d" % number for number in range(MAX_QUEUED_FRAMES + 1)]))
        await settle()
        assert line.transport.is_paused
        line.hold.set()
        await settle()
        assert not line.transport.is_paused
        assert len(line.transport.sent) == MAX_QUEUED_FRAMES + 1


async def test_few_of_very_many_requests_in_one_read_wait_and_none_is_lost() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        for tries_at_once in (True, False):
            line = Line(tries_at_once=tries_at_once)
            line.hold.clear()
            bodies = [b"waits%d" % number for number in range(1_000)] + [b"the last one"]
            line.feed(framed(*bodies))
            for _ in range(10):
                await asyncio.sleep(0)
            charge = len(bodies[-1]) * DECODED_FACTOR + REQUEST_BYTES
            assert line.budget.used <= (MAX_QUEUED_FRAMES + 1) * charge + STAGING_BYTES
            assert line.transport.is_paused
            line.hold.set()
            await settle(2_000)
            assert line.seen == bodies
            assert not line.transport.is_paused and line.budget.used == 0


async def test_requests_in_flight_are_bounded() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        line = Line(max_inflight=2)
        line.feed(framed(*[b"later %d" % number for number in range(9)]))
        await settle()
        seen = len(line.seen)
        assert seen <= 5
        while line.later:
            line.later.pop(min(line.later)).made([b"ok"])
            await settle()
        assert len(line.transport.sent) == 9


async def test_replies_leave_in_the_order_of_their_requests() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        line = Line()
        line.feed(framed(b"later 1", b"silent", b"two", b"later 3", b"four"))
        await settle()
        assert len(line.seen) == 5, "a deferred answer does not hinder the next request"
        assert line.transport.sent == []
        line.later[b"later 3"].made([b"3"])
        await settle()
        assert line.transport.sent == []
        line.later[b"later 1"].made([b"1"])
        await settle()
        assert line.transport.sent == [b"1", b"<two>", b"3", b"<four>"]


async def test_requests_handled_at_once_keep_their_place_between_those_that_wait() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        line = Line(tries_at_once=True)
        line.feed(framed(b"one", b"later 2"))
        assert line.seen == [b"one", b"later 2"], "no turn of the loop was needed"
        assert line.transport.sent == [b"<one>"]
        line.feed(framed(b"waits 3", b"four"))
        assert len(line.seen) == 2, "what comes behind a request that waits, waits, too"
        await settle()
        assert line.seen[2:] == [b"waits 3", b"four"]
        line.later[b"later 2"].made([b"2"])
        line.feed(framed(b"five"))
        assert line.transport.sent == [b"<one>", b"2", b"<waits 3>", b"<four>", b"<five>"]
        assert line.budget.used == 0


async def test_answers_that_leave_together_are_counted_no_more() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        line = Line(tries_at_once=True)
        line.feed(framed(b"later", b"made", b"made", b"later 2"))
        assert not line.transport.sent
        line.later[b"later"].made([b"first"])
        line.later[b"later 2"].made([b"last"])
        await settle()
        assert b"".join(line.transport.sent) == b"firstmademadelast"
        assert line.budget.used == 0 and line.connection.deferred == 0


async def test_requests_handled_at_once_stay_within_the_bounds_of_a_connection() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        line = Line(max_inflight=2, tries_at_once=True)
        line.feed(framed(*[b"later %d" % number for number in range(9)]))
        assert len(line.seen) == 3
        while line.later:
            line.later.pop(min(line.later)).made([b"ok"])
            await settle()
        assert len(line.transport.sent) == 9

        slow = Line(tries_at_once=True)
        slow.connection.pause_writing()
        slow.feed(framed(b"large 1", b"large 2", b"large 3"))
        assert slow.seen == [b"large 1", b"large 2"]


async def test_a_closing_reply_at_once_is_the_last_though_more_has_come() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        line = Line(tries_at_once=True)
        line.feed(framed(b"later 1", b"close", b"never", b"waits never"))
        await settle()
        assert line.transport.sent == [] and not line.transport.closed
        line.later[b"later 1"].made([b"1"])
        await settle()
        assert line.transport.sent == [b"1", b"bye"] and line.transport.closed
        assert line.seen == [b"later 1", b"close"] and line.budget.used == 0


async def test_writing_waits_for_a_slow_reader() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        line = Line()
        line.connection.pause_writing()
        line.feed(framed(b"one", b"two"))
        await settle()
        assert line.transport.sent == [b"<one>"]
        line.connection.resume_writing()
        await settle()
        assert line.transport.sent == [b"<one>", b"<two>"]


async def test_through_tls_an_answer_leaves_in_pieces_and_a_slow_client_is_not_stuck() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        line = Line(is_tls=True)
        line.feed(framed(b"large"))
        await settle()
        while line.released == []:
            assert line.connection.staleness(1e9, 30.0) is None
            line.now += 20.0
            line.connection.resume_writing()
        assert {len(piece) for piece in line.transport.sent[:-1]} == {TLS_PIECE_BYTES}
        assert b"".join(line.transport.sent) == b"L" * 3_000_000
        line.feed(framed(b"large 2"))
        await settle()
        assert line.connection.staleness(1e9, 30.0) is None
        line.now += 31.0
        assert line.connection.staleness(1e9, 30.0) == "answers are not taken"
        line.connection.abort()
        line.connection.resume_writing()
        await settle()
        assert line.released == [b"large", b"large 2"]


async def test_an_answer_that_leaves_through_tls_is_whole_when_its_connection_is_closed() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        line = Line(is_tls=True)
        line.feed(framed(b"large"))
        await settle()
        assert len(line.transport.sent) == 1
        line.connection.close()
        assert b"".join(line.transport.sent) == b"L" * 3_000_000
        assert line.transport.closed


async def test_a_closing_reply_is_sent_and_is_the_last() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        line = Line()
        line.feed(framed(b"one", b"close", b"never"))
        await settle()
        assert line.transport.sent == [b"<one>", b"bye"]
        assert line.transport.closed
        assert b"never" not in line.seen
        assert line.budget.used == 0


async def test_memory_that_is_granted_after_the_last_request_is_given_back() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        line = Line()
        line.feed(framed(b"later 1", b"close"))
        line.budget.count(line.budget.limit)
        line.feed(framed(b"never"))
        await settle()
        assert line.budget.is_contended
        line.budget.count(-line.budget.limit)
        await settle()
        assert not line.transport.closed, "the first answer is outstanding"
        line.later[b"later 1"].made([b"1"])
        await settle()
        assert line.transport.closed and line.budget.used == 0


async def test_a_deferred_answer_that_fails_ends_the_connection() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        line = Line()
        line.feed(framed(b"later 1", b"two"))
        await settle()
        line.later[b"later 1"].failed()
        await settle()
        assert line.transport.closed
        assert line.transport.sent == []
        assert line.budget.used == 0


async def test_a_request_that_fails_outside_of_its_handler_ends_the_connection() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        line = Line()
        line.hold = mock.Mock(wait=mock.AsyncMock(side_effect=OSError("by the test")))
        line.feed(framed(b"one", b"two"))
        handling = line.connection._handling
        assert handling is not None
        with pytest.raises(OSError, match="by the test"):
            await handling
        await settle()
        assert line.seen == [b"one"] and line.lost == [line.connection]
        assert line.budget.used == 0


async def test_a_drained_connection_answers_what_was_read_and_closes() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        line = Line()
        line.feed(framed(b"later 1", b"two") + b"\0\0")
        await settle()
        line.connection.drain()
        await settle()
        assert line.transport.is_paused and not line.transport.closed
        line.later[b"later 1"].made([b"1"])
        await settle()
        assert line.transport.sent == [b"1", b"<two>"]
        assert line.transport.closed


async def test_a_client_that_takes_no_answers_gets_no_more_handled_and_gives_back_what_it_held() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        line = Line()
        line.connection.pause_writing()
        line.feed(framed(b"large 1", b"large 2", b"large 3", b"large 4"))
        await settle()
        assert line.seen == [b"large 1", b"large 2"]
        assert line.released == []
        line.connection.resume_writing()
        await settle()
        assert line.seen == [b"large 1", b"large 2", b"large 3", b"large 4"]
        assert line.released == line.seen
        line.connection.pause_writing()
        line.feed(framed(b"large 5", b"large 6"))
        await settle()
        line.connection.abort()
        await settle()
        assert line.released[-2:] == [b"large 5", b"large 6"]


async def test_connections_idle_or_stuck_for_too_long_are_closed() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):

        def staleness(line: Line, seconds: float) -> str | None:
            line.now = seconds
            return line.connection.staleness(idle_seconds=600, stalled_seconds=60)

        idle = Line()
        assert [staleness(idle, at) for at in (0, 599, 600)] == [None, None, "idle"]

        waiting = Line()
        waiting.hold.clear()
        waiting.feed(framed(b"a long poll"))
        await settle()
        assert staleness(waiting, 700) is None

        for sent in (3, 500, 5_000):
            half = Line()
            half.feed(framed(b"x" * 10_000)[:sent])
            assert [staleness(half, at) for at in (59, 60)] == [None, "a request does not end"]
            half.connection.abort()

        deaf = Line()
        deaf.transport.unsent = 100
        assert [staleness(deaf, at) for at in (0, 59)] == [None, None]
        deaf.transport.unsent = 90
        assert [staleness(deaf, at) for at in (60, 119, 120)] == [None, None, "answers are not taken"]

        muted = Line()
        muted.connection.mute(1e9, asyncio.Event().wait)
        muted.feed(framed(b"came before it was read no more"))
        assert [staleness(muted, at) for at in (599, 600)] == [None, "idle"]

        waiting.hold.set()
        for line in (idle, waiting, deaf, muted):
            line.connection.abort()


async def test_a_slow_client_is_closed_while_others_wait_for_memory() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):

        def staleness(line: Line, seconds: float, **pressure: bool) -> str | None:
            line.now = seconds
            return line.connection.staleness(600, 60, MemoryPressure(**pressure))

        half = Line()
        half.feed(framed(PRODUCE + bytes(100_000))[:50_000])
        late = PRESSURE_SECONDS + 1
        assert staleness(half, late) is None
        assert staleness(half, PRESSURE_SECONDS, requests=True) is None
        assert staleness(half, late, requests=True) == "a request comes too slowly"

        for pressure, expected in (
            ({"answers": True}, "answers are taken too slowly"),
            ({"records": True}, None),
            ({"requests": True}, None),
        ):
            deaf = Line()
            deaf.connection.pause_writing()
            deaf.feed(framed(b"large"))
            await settle()
            assert staleness(deaf, PRESSURE_SECONDS + 1, **pressure) is None, "3 MB at 1 MiB/s"
            assert staleness(deaf, PRESSURE_SECONDS + 4, **pressure) == expected
            deaf.connection.abort()

        waiting = Line()
        waiting.budget.count(waiting.budget.limit)
        waiting.feed(framed(b"x" * 1000))
        await settle()
        assert staleness(waiting, ADMISSION_SECONDS - 1, requests=True) is None
        assert staleness(waiting, ADMISSION_SECONDS, requests=True) == "no memory for its request"
        for line in (half, waiting):
            line.connection.abort()
        await settle()


async def test_only_those_who_hold_the_kind_of_memory_that_others_wait_for_are_in_their_way() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        late = PRESSURE_SECONDS + 4
        for asked, wanted, other in (
            (b"large", {"answers": True}, {"records": True}),
            (b"large records", {"records": True}, {"answers": True}),
        ):
            deaf = Line()
            deaf.connection.pause_writing()
            deaf.feed(framed(asked))
            await settle()
            deaf.now = late
            assert deaf.connection.staleness(600, 60, MemoryPressure(**other)) is None
            assert (
                deaf.connection.staleness(600, 60, MemoryPressure(**wanted)) == "answers are taken too slowly"
            )
            deaf.connection.abort()
            await settle()


async def test_an_answer_that_cannot_be_written_yet_is_not_taken_slowly() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        line = Line()
        everybody = MemoryPressure(requests=True, records=True, answers=True)
        line.feed(framed(b"later", b"large"))
        await settle()
        line.now = 100.0
        assert line.connection.staleness(600, 60, everybody) is None, (
            "its turn comes after the first's commit"
        )
        line.connection.pause_writing()
        line.later[b"later"].made([b"a"])
        await settle()
        assert line.connection.staleness(600, 60, everybody) is None, "it has only now been written"
        line.now += PRESSURE_SECONDS + 4
        assert line.connection.staleness(600, 60, everybody) == "answers are taken too slowly"
        line.connection.abort()
        await settle()


async def test_a_drain_sends_the_answer_that_is_being_made_though_its_client_is_muted() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        line = Line()
        line.hold.clear()
        line.feed(framed(b"stored", b"waits while muted"))
        await settle()
        line.connection.mute(1e9, asyncio.Event().wait)
        line.connection.drain()
        await settle()
        assert not line.transport.closed
        line.hold.set()
        await settle()
        assert line.transport.sent == [b"<stored>"] and line.seen == [b"stored"]
        assert line.transport.closed and line.budget.used == 0


async def test_a_drain_does_not_wait_until_a_client_is_unmuted() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        line = Line()
        line.connection.mute(1e9, asyncio.Event().wait)
        await settle()
        line.connection.drain()
        await settle()
        assert line.transport.closed and line.budget.used == 0


def full() -> LoopPasses:
    """A loop of whose pass a request has just used all there is, as each other does."""
    passes = LoopPasses()
    passes.did(PASS_SECONDS)
    return passes


async def test_a_request_waits_for_a_pass_of_the_loop_and_is_answered_though_it_drains() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        line = Line(passes=full())
        line.feed(framed(b"one", b"two"))
        line.connection.drain()
        assert line.passes.is_waited_for
        await settle()
        assert line.transport.sent == [b"<one>", b"<two>"]
        assert line.transport.closed


async def test_a_request_that_waits_for_a_pass_of_the_loop_ends_with_its_connection() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        passes = full()
        gone, other = Line(passes=passes), Line(passes=passes)
        gone.feed(framed(b"one", b"two"))
        other.feed(framed(b"three"))
        gone.connection.abort()
        await settle()
        assert gone.lost and gone.seen == []
        assert gone.budget.used == 0
        assert other.transport.sent == [b"<three>"]
        assert not passes.is_waited_for


async def test_immediate_requests_fill_a_pass_of_the_loop_and_the_rest_waits_in_order() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        passes, order, step = LoopPasses(), list[bytes](), PASS_SECONDS / 10
        lines = [Timed(step, order, tries_at_once=True, passes=passes) for _ in range(100)]
        for number, line in enumerate(lines):
            line.feed(framed(b"%02d" % number, b"%02d, the second" % number))
        in_a_pass = [len(order)]
        assert in_a_pass[0] * step <= PASS_SECONDS + 2 * step, "the reads of one pass handle a part"
        while len(order) < 2 * len(lines):
            await asyncio.sleep(0)
            in_a_pass.append(len(order) - sum(in_a_pass))
        assert max(in_a_pass) * step <= 2 * PASS_SECONDS + 2 * step
        firsts = [said for said in order if b"second" not in said]
        assert firsts == [b"%02d" % number for number in range(100)]
        assert all(line.transport.sent == [b"<%s>" % said[:8] for said in line.seen] for line in lines)
        assert lines[0].budget.used == 0 and not passes.is_waited_for


async def test_while_others_wait_for_a_pass_of_the_loop_a_connection_has_one_request_in_turn() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        passes, order = full(), list[bytes]()
        many, other, third = (Line(passes=passes) for _ in range(3))
        many.seen = other.seen = third.seen = order
        many.feed(framed(b"a", b"b", b"c"))
        other.feed(framed(b"x"))
        third.feed(framed(b"y"))
        await settle()
        assert order == [b"a", b"x", b"y", b"b", b"c"]
        assert many.transport.sent == [b"<a>", b"<b>", b"<c>"]


async def test_an_idle_connection_closes_at_once_when_drained() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        line = Line()
        await settle()
        assert line.connection.is_idle
        line.connection.drain()
        await settle()
        assert line.transport.closed and line.lost == [line.connection]


async def test_an_idle_connection_takes_less_than_two_kib() -> None:
    class Small(asyncio.Transport):
        """Takes nothing beside the connection."""

        __slots__ = ()

        def __init__(self) -> None:
            return

        def get_extra_info(self, name: str, default: Any = None) -> Any:
            return default

        def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
            return

        def writelines(self, list_of_data: Any) -> None:
            return

        def is_closing(self) -> bool:
            return False

    line = Line(tries_at_once=True)
    staging, transport, request = bytearray(4_096), Small(), framed(b"hello")

    def idle() -> KafkaConnection:
        connection = KafkaConnection(
            line, line.budget, max_frame_bytes=1_000, max_inflight=64, staging=staging,
            on_close=line.lost.append, monotonic=line.connection._monotonic, passes=line.passes,
        )  # fmt: skip
        connection.connection_made(transport)
        connection.get_buffer(-1)[: len(request)] = request
        connection.buffer_updated(len(request))
        return connection

    idle()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    connections = [idle() for _ in range(100)]
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after - before < 2_048 * len(connections)


async def test_a_client_with_many_small_requests_in_one_read_leaves_others_their_turns() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        for tries_at_once in (True, False):
            greedy, other = Line(tries_at_once=tries_at_once), Line(tries_at_once=tries_at_once)
            handled_before: list[int] = []

            def ask_the_other(left: int, greedy: Line, other: Line, handled_before: list[int]) -> None:
                handled_before.append(len(greedy.seen))
                other.feed(framed(b"silent"))
                if left:
                    asyncio.get_running_loop().call_soon(
                        ask_the_other, left - 1, greedy, other, handled_before
                    )

            asyncio.get_running_loop().call_soon(ask_the_other, 300, greedy, other, handled_before)
            greedy.feed(framed(*[b"silent"] * 1_000))
            await settle(400)
            assert len(greedy.seen) == 1_000 and len(other.seen) == 301
            between = [after - before for before, after in pairwise([0, *handled_before])]
            assert max(between) <= 2 * REQUESTS_IN_A_TURN  # those of the read, and those that wait
