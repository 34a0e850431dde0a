"""RPC: calls, deadlines, lost connections, the hello, and bytes that no peer of ours sends."""

from __future__ import annotations

import asyncio
import select
import socket
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from tailrace.buffers import Buffer
from tailrace.clock import SystemClock, SystemEntropy
from tailrace.rpc import (
    CallFailed,
    CallTimedOut,
    ClusterIdentity,
    FrameTooLarge,
    HelloRefused,
    KnownCluster,
    LinkDown,
    RpcClient,
    RpcSecurity,
    RpcServer,
    TcpLink,
    decode_body,
    encode_body,
)
from tailrace.rpc.client import following
from tailrace.rpc.errors import ProtocolViolation
from tailrace.rpc.frames import LENGTH, Header, decode_frame, encode_frame
from tailrace.rpc.hello import HELLO, make_hello
from tailrace.rpc.link import FrameProtocol, join_address, split_address
from tailrace.rpc.liveness import PeerLiveness
from tailrace.rpc.pending_hellos import PendingHellos
from tests.support.clocks import ManualClock, SeededEntropy
from tests.support.patience import PATIENCE_SECONDS
from tests.support.simulated_link import SimulatedLink, Weather


class Number(msgspec.Struct, array_like=True):
    value: int


class Desk:
    """A handler with a few habits; counts what it was asked."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.gate = asyncio.Event()

    async def handle(self, method: str, body: memoryview) -> tuple[bytes, Sequence[Buffer]]:
        number = decode_body(body, Number)
        self.asked.append(number.value)
        if method == "wait":
            await self.gate.wait()
        if method == "refuse":
            raise CallFailed("no_such_thing", "there is none")
        if method == "break":
            raise ZeroDivisionError
        tail: list[Buffer] = (
            [b"x" * number.value, memoryview(b"y" * number.value)] if method == "chunk" else []
        )
        return encode_body(Number(number.value + 1)), tail


def security_of(secret: bytes) -> RpcSecurity:
    return RpcSecurity((secret,) if secret else ())


def tcp_client(server: RpcServer, **options: object) -> RpcClient:
    link = TcpLink(f"127.0.0.1:{server.port}")
    return RpcClient(link, clock=SystemClock(), entropy=SystemEntropy(), **options)  # type: ignore[arg-type]


@asynccontextmanager
async def opened_server(
    server_options: dict[str, object] | None = None, client_options: dict[str, object] | None = None
) -> AsyncIterator[tuple[Desk, RpcServer, RpcClient]]:
    desk = Desk()
    server = RpcServer(
        desk.handle,
        clock=SystemClock(),
        entropy=SystemEntropy(),
        **(server_options or {}),  # type: ignore[arg-type]
    )
    await server.listen("127.0.0.1", 0)
    client = tcp_client(server, **(client_options or {}))
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            yield desk, server, client
    finally:
        desk.gate.set()
        await client.close()
        await server.close()


async def test_a_call_is_answered_and_large_tails_arrive_whole() -> None:
    async with opened_server() as (_, _, client):
        answer, tail = await client.call("add", Number(1), Number, PATIENCE_SECONDS)
        assert (answer.value, len(tail)) == (2, 0)
        for size in (1, 8_000, 16_384, 1_000_000, 3):
            answer, tail = await client.call("chunk", Number(size), Number, PATIENCE_SECONDS)
            assert answer.value == size + 1
            assert tail == b"x" * size + b"y" * size


async def test_calls_overtake_each_other_on_one_connection() -> None:
    async with opened_server() as (desk, server, client):
        slow = asyncio.create_task(client.call("wait", Number(7), Number, PATIENCE_SECONDS))
        many = await asyncio.gather(
            *(client.call("add", Number(n), Number, PATIENCE_SECONDS) for n in range(500))
        )
        assert [answer.value for answer, _ in many] == list(range(1, 501))
        assert not slow.done()
        desk.gate.set()
        assert (await slow)[0].value == 8
        assert server.connections == 1


async def test_errors_of_the_handler_come_back_by_code_and_a_crash_tells_no_details() -> None:
    async with opened_server() as (_, _, client):
        with pytest.raises(CallFailed) as refused:
            await client.call("refuse", Number(1), Number, PATIENCE_SECONDS)
        assert (refused.value.code, refused.value.message) == ("no_such_thing", "there is none")
        with pytest.raises(CallFailed) as broken:
            await client.call("break", Number(1), Number, PATIENCE_SECONDS)
        assert broken.value.code == "internal"
        assert (await client.call("add", Number(1), Number, PATIENCE_SECONDS))[0].value == 2


async def test_a_call_without_an_answer_times_out_and_its_late_answer_is_ignored() -> None:
    async with opened_server() as (desk, _, client):
        with pytest.raises(CallTimedOut):
            await client.call("wait", Number(1), Number, 0.05)
        desk.gate.set()
        assert (await client.call("add", Number(1), Number, PATIENCE_SECONDS))[0].value == 2


async def test_a_wait_that_expires_in_the_moment_in_which_it_is_over_is_no_error() -> None:
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
    shared: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    own = following(shared)
    shared.set_result(1)
    own.set_exception(TimeoutError())
    with pytest.raises(TimeoutError):
        await own
    assert complaints == []


async def test_calls_beyond_the_bound_in_flight_wait_for_a_slot_within_their_time() -> None:
    async with opened_server(client_options={"max_in_flight": 2}) as (desk, _, client):
        slow = [
            asyncio.create_task(client.call("wait", Number(n), Number, PATIENCE_SECONDS)) for n in range(2)
        ]
        while len(desk.asked) < 2:
            await asyncio.sleep(0)
        with pytest.raises(CallTimedOut):
            await client.call("add", Number(1), Number, 0.05)
        assert len(desk.asked) == 2
        desk.gate.set()
        await asyncio.gather(*slow)
        assert (await client.call("add", Number(1), Number, PATIENCE_SECONDS))[0].value == 2


async def test_requests_beyond_a_connections_bound_are_answered_overloaded() -> None:
    async with opened_server(server_options={"max_concurrent": 1}) as (desk, _, client):
        slow = asyncio.create_task(client.call("wait", Number(1), Number, PATIENCE_SECONDS))
        while not desk.asked:
            await asyncio.sleep(0)
        with pytest.raises(CallFailed) as refused:
            await client.call("add", Number(1), Number, PATIENCE_SECONDS)
        assert refused.value.code == "overloaded"
        desk.gate.set()
        await slow


async def test_requests_beyond_what_a_server_may_hold_are_answered_overloaded() -> None:
    async with opened_server() as (desk, server, client):
        slow = asyncio.create_task(client.call("wait", Number(1), Number, PATIENCE_SECONDS))
        while not desk.asked:
            await asyncio.sleep(0)
        held = server.held_bytes
        assert held > 0
        server._max_held_bytes = held
        with pytest.raises(CallFailed) as refused:
            await client.call("add", Number(1), Number, PATIENCE_SECONDS)
        assert refused.value.code == "overloaded" and server.held_bytes == held
        desk.gate.set()
        await slow
        while server.held_bytes:
            await asyncio.sleep(0)
        assert (await client.call("add", Number(1), Number, PATIENCE_SECONDS))[0].value == 2


async def test_connections_beyond_the_bound_are_refused_and_counted() -> None:
    async with opened_server(server_options={"max_connections": 1}) as (_, server, client):
        await client.call("add", Number(1), Number, PATIENCE_SECONDS)
        other = tcp_client(server)
        with pytest.raises(LinkDown), capture_logs() as logs:
            await other.call("add", Number(1), Number, PATIENCE_SECONDS)
        await other.close()
        assert server.refused_connections >= 1
        assert any(line["event"] == "refused an RPC connection" for line in logs)
        assert (await client.call("add", Number(1), Number, PATIENCE_SECONDS))[0].value == 2


async def connected(client: RpcClient) -> tuple[Any, asyncio.Transport]:
    """A connection after its hello, and its transport."""
    connection = await client._connected("any", client._clock.monotonic() + 5)
    return connection, connection.wire._transport  # type: ignore[attr-defined]


def ask_patiently(connection: Any, number: Number) -> asyncio.Future[Any]:
    """Ask for a chunk, and don't mind that nothing comes."""
    answer = connection._waiting[500] = asyncio.get_running_loop().create_future()
    connection._send(Header(connection.version, 500, "chunk", 0), encode_body(number))
    return answer


async def test_a_frame_that_is_half_there_counts_as_held_and_beyond_the_bound_ends_its_connection() -> None:
    async with opened_server({"max_held_bytes": 1_000_000}) as (_, server, client):
        others = [tcp_client(server), tcp_client(server)]
        for other in others:
            connection, transport = await connected(other)
            transport.write(LENGTH.pack(600_000) + bytes(400_000))
            while not server.held_bytes or (other is others[1] and connection._ended is None):
                await asyncio.sleep(0)
            assert server.held_bytes == 600_000
        assert (await client.call("add", Number(1), Number, PATIENCE_SECONDS))[0].value == 2
        for other in others:
            await other.close()
        while server.held_bytes:
            await asyncio.sleep(0)


async def test_an_answer_counts_as_held_until_its_peer_has_taken_it() -> None:
    async with opened_server({"max_held_bytes": 40 << 20}) as (_, server, client):
        half = 12 << 20  # more than sockets take
        lazy = tcp_client(server)
        connection, transport = await connected(lazy)
        transport.pause_reading()
        answer = ask_patiently(connection, Number(half))
        while server.held_bytes < 2 * half or server._running:
            await asyncio.sleep(0)
        with pytest.raises(CallFailed) as refused:
            await client.call("chunk", Number(half), Number, PATIENCE_SECONDS)
        assert refused.value.code == "overloaded"
        transport.resume_reading()
        assert len((await answer).tail) == 2 * half
        while server.held_bytes:
            await asyncio.sleep(0)
        assert len((await client.call("chunk", Number(half), Number, PATIENCE_SECONDS))[1]) == 2 * half
        await lazy.close()


@pytest.mark.parametrize("sends", [True, False])
async def test_a_frame_that_never_ends_and_an_answer_that_nobody_takes_end_their_connection(
    sends: bool,
) -> None:
    async with opened_server({"stall_timeout_s": 0.05}) as (_, server, client):
        connection, transport = await connected(client)
        if sends:
            transport.write(LENGTH.pack(600_000) + bytes(400_000))
        else:
            transport.pause_reading()
            ask_patiently(connection, Number(12 << 20))
        while not server.held_bytes:
            await asyncio.sleep(0)
        while server.held_bytes or server.connections:
            await asyncio.sleep(0)


async def test_a_connection_that_makes_progress_is_not_stalled() -> None:
    async with opened_server() as (_, server, client):
        _, transport = await connected(client)
        (served,) = server._connections
        frame = b"".join(encode_frame(Header(1, 99, "add", 0), encode_body(Number(1)), [bytes(600_000)]))
        for _ in range(3):
            transport.write(frame[:400_000])
            while not server.held_bytes:
                await asyncio.sleep(0)
            assert not served.is_stalled()
            transport.write(frame[400_000:])
            while server.held_bytes:
                await asyncio.sleep(0)
        transport.write(frame[:400_000])
        while not server.held_bytes:
            await asyncio.sleep(0)
        assert [served.is_stalled(), served.is_stalled()] == [False, True]


async def test_pending_connections_that_say_nothing_keep_no_peer_out() -> None:
    async with opened_server({"max_connections": 1}) as (_, server, client):
        silent = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(3)]
        while server.connections < 3:
            await asyncio.sleep(0)
        assert (await client.call("add", Number(1), Number, PATIENCE_SECONDS))[0].value == 2
        assert server.refused_connections == 0
        for _, writer in silent:
            writer.close()


async def test_hundreds_of_peers_that_come_back_together_wait_for_a_busy_server() -> None:
    async with opened_server() as (_, server, _):
        peers = [socket.socket() for _ in range(500)]
        try:
            for peer in peers:
                peer.setblocking(False)
                peer.connect_ex(("127.0.0.1", server.port))  # the server's loop accepts none meanwhile
            poll = select.poll()
            for peer in peers:
                poll.register(peer, select.POLLOUT)
            assert len(poll.poll(0)) == 500, "the system has dropped the others"
        finally:
            for peer in peers:
                peer.close()


async def test_the_oldest_of_too_many_pending_connections_is_closed_and_counted() -> None:
    async with opened_server({"max_pending_hellos": 2}) as (_, server, client):
        silent = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(3)]
        with pytest.raises(ConnectionResetError):
            assert await silent[0][0].read() == b""
            raise ConnectionResetError
        assert server.connections == 2
        assert (await client.call("add", Number(1), Number, PATIENCE_SECONDS))[0].value == 2
        assert server.refused_hellos == 2  # the second made room for the client
        for _, writer in silent:
            writer.close()


def test_the_address_with_most_pending_connections_loses_its_oldest() -> None:
    pending_hellos = PendingHellos[int](limit=4)
    assert [pending_hellos.add(number, "flood") for number in range(3)] == [None] * 3
    assert pending_hellos.add(10, "quiet") is None
    assert [pending_hellos.add(number, "flood") for number in (3, 4)] == [0, 1]
    pending_hellos.discard(10)
    pending_hellos.discard(10)
    assert pending_hellos.add(11, "other") is None
    assert pending_hellos.add(12, "other") == 2
    assert list(pending_hellos) == [3, 4, 11, 12]


async def test_frames_above_the_limit_are_refused_on_either_side_before_they_are_sent() -> None:
    async with opened_server(
        server_options={"max_frame_bytes": 10_000}, client_options={"max_frame_bytes": 10_000}
    ) as (_, _, client):
        with pytest.raises(CallFailed) as refused:
            await client.call("chunk", Number(9_000), Number, PATIENCE_SECONDS)
        assert refused.value.code == "too_large"
        with pytest.raises(FrameTooLarge):
            await client.call("add", b"z" * 20_000, Number, PATIENCE_SECONDS)
        assert (await client.call("add", Number(1), Number, PATIENCE_SECONDS))[0].value == 2


async def test_a_closing_server_answers_what_runs_and_takes_nothing_new() -> None:
    async with opened_server() as (desk, server, client):
        slow = asyncio.create_task(client.call("wait", Number(1), Number, PATIENCE_SECONDS))
        while not desk.asked:
            await asyncio.sleep(0)
        closing = asyncio.create_task(server.close(grace_s=PATIENCE_SECONDS))
        await asyncio.sleep(0)
        with pytest.raises(CallFailed) as refused:
            await client.call("add", Number(1), Number, PATIENCE_SECONDS)
        assert refused.value.code == "closing"
        desk.gate.set()
        assert (await slow)[0].value == 2
        await closing
        await asyncio.sleep(0.01)
        with pytest.raises(LinkDown):
            await client.call("add", Number(1), Number, PATIENCE_SECONDS)


async def test_a_lost_connection_fails_what_waits_and_the_next_call_connects_again() -> None:
    clock, entropy, desk = SystemClock(), SeededEntropy(1), Desk()
    server = RpcServer(desk.handle, clock=clock, entropy=entropy)
    link = SimulatedLink(server, clock=clock, entropy=entropy)
    client = RpcClient(link, clock=clock, entropy=entropy)
    waiting = asyncio.create_task(client.call("wait", Number(1), Number, PATIENCE_SECONDS))
    while not desk.asked:
        await asyncio.sleep(0)
    link.cut()
    with pytest.raises(LinkDown):
        await waiting
    assert (await client.call("add", Number(1), Number, PATIENCE_SECONDS))[0].value == 2
    desk.gate.set()
    await client.close()
    await server.close()


async def test_while_a_peer_is_away_calls_fail_at_once_and_attempts_get_rarer() -> None:
    clock, entropy, desk = ManualClock(), SeededEntropy(1), Desk()
    server = RpcServer(desk.handle, clock=clock, entropy=entropy)
    link = SimulatedLink(server, clock=clock, entropy=entropy, weather=Weather(is_down=True))
    client = RpcClient(link, clock=clock, entropy=entropy, min_backoff_s=1, max_backoff_s=8)
    for _ in range(3):
        with pytest.raises(LinkDown, match="refused"):
            await client.call("add", Number(1), Number, PATIENCE_SECONDS)
        with pytest.raises(LinkDown, match="tried again in"):
            await client.call("add", Number(1), Number, PATIENCE_SECONDS)
        clock.advance(8)
    link.weather.is_down = False
    assert (await client.call("add", Number(1), Number, PATIENCE_SECONDS))[0].value == 2
    await client.close()
    await server.close()


class SilentPeer:
    """A server on a manual clock behind a link that may fall silent, and a client of it with one call that waits."""

    def __init__(self) -> None:
        self.clock, entropy, self.desk = ManualClock(), SeededEntropy(1), Desk()
        self._server = RpcServer(self.desk.handle, clock=self.clock, entropy=entropy)
        self.link = SimulatedLink(self._server, clock=self.clock, entropy=entropy)
        self.client = RpcClient(self.link, clock=self.clock, entropy=entropy)

    async def __aenter__(self) -> SilentPeer:
        self.call = asyncio.create_task(self.client.call("wait", Number(1), Number, 60))
        while not self.desk.asked:
            await asyncio.sleep(0)
        return self

    async def __aexit__(self, *error: object) -> None:
        self.desk.gate.set()
        await self.client.close()
        await self._server.close(grace_s=0)
        await asyncio.gather(self.call, return_exceptions=True)

    async def pass_time(self, seconds: float, step: float = 0.1) -> None:
        for _ in range(round(seconds / step)):
            self.clock.advance(step)
            for _ in range(20):
                await asyncio.sleep(0)


async def test_a_peer_that_falls_silent_is_left_within_two_and_a_half_seconds() -> None:
    async with SilentPeer() as peer:
        peer.link.weather.loss = 1.0  # a process that is stopped: its connections stay
        await peer.pass_time(1.9)
        assert not peer.call.done()
        await peer.pass_time(0.6)
        assert peer.call.done()
        with pytest.raises(LinkDown, match="the peer is silent"):
            await peer.call
        assert peer.client._connection is None


async def test_a_peer_that_takes_long_but_lives_keeps_its_connection() -> None:
    async with SilentPeer() as peer:
        await peer.pass_time(50)
        peer.desk.gate.set()
        assert (await peer.call)[0].value == 2
        assert peer.desk.asked == [1]  # no handler sees the questions


async def test_a_caller_that_was_stopped_itself_does_not_take_its_peer_for_dead() -> None:
    async with SilentPeer() as peer:
        for _ in range(4):
            await peer.pass_time(12, step=12)
        peer.desk.gate.set()
        assert (await peer.call)[0].value == 2


@pytest.mark.parametrize("is_taken", [False, True])
def test_a_peer_that_takes_no_bytes_of_a_long_request_is_silent_and_one_that_does_is_not(
    is_taken: bool,
) -> None:
    liveness = PeerLiveness(heard=7)
    queued, unsent = 20_000_000, 10_000_000
    seen = []
    for _ in range(8):
        seen.append(liveness.look(7, queued - unsent, 0.5, has_unsent=True))
        queued, unsent = queued + 1_000, unsent + 1_000  # others call, too
        unsent -= 2_000 * is_taken
    assert seen[:4] == (["wait"] * 4 if is_taken else ["wait", "ask", "ask", "dead"])
    assert ("dead" in seen) is not is_taken


def test_bytes_that_the_system_takes_at_once_are_no_sign_of_life() -> None:
    liveness = PeerLiveness(heard=7)
    seen = [liveness.look(7, 100 * number, 0.5, has_unsent=False) for number in range(4)]
    assert seen == ["wait", "ask", "ask", "dead"]


async def test_a_peer_that_stops_within_a_long_request_is_left() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        clock, desk = ManualClock(), Desk()
        server = RpcServer(desk.handle, clock=SystemClock(), entropy=SystemEntropy())
        await server.listen("127.0.0.1", 0)
        client = RpcClient(TcpLink(f"127.0.0.1:{server.port}"), clock=clock, entropy=SeededEntropy(1))
        await client.call("add", Number(1), Number, 60)
        (served,) = server._connections
        assert isinstance(served.wire, FrameProtocol) and served.wire._transport is not None
        served.wire._transport.pause_reading()  # as a process that is stopped
        call = asyncio.create_task(client.call("add", bytes(32 << 20), Number, 10_000))
        while not call.done():
            clock.advance(0.1)
            await asyncio.sleep(0)
        with pytest.raises(LinkDown, match="the peer is silent"):
            await call
        assert clock.monotonic() < 2_000
        await client.close()
        await server.close(grace_s=0)


async def test_a_connection_tells_what_the_system_has_taken() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):

        async def nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reading.wait()
            while await reader.read(1 << 20):
                continue
            writer.close()

        class Deaf:
            def frame_limit(self) -> int:
                return 0

            def makes_room(self, length: int) -> bool:
                return False

            def received(self, frame: memoryview) -> None: ...

            def lost(self, reason: str) -> None: ...

        reading = asyncio.Event()
        server = await asyncio.start_server(nothing, "127.0.0.1", 0)
        wire = await TcpLink(f"127.0.0.1:{server.sockets[0].getsockname()[1]}").connect(Deaf())
        wire.send([b"x", bytes(64 << 20)])
        assert wire.queued == (64 << 20) + 1 and wire.unsent > 0
        reading.set()
        while wire.unsent:
            await asyncio.sleep(0.001)
        assert wire.queued == (64 << 20) + 1
        wire.close()
        server.close()


async def test_a_peer_that_answers_in_small_pieces_is_not_silent() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):

        async def dribble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while data := await reader.read(1 << 16):
                writer.write(data)

        server = await asyncio.start_server(dribble, "127.0.0.1", 0)
        heard = asyncio.Event()

        class Whole:
            def frame_limit(self) -> int:
                return 1 << 20

            def makes_room(self, length: int) -> bool:
                return True

            def received(self, frame: memoryview) -> None:
                heard.set()

            def lost(self, reason: str) -> None:
                pass

        wire = await TcpLink(f"127.0.0.1:{server.sockets[0].getsockname()[1]}").connect(Whole())
        frame = encode_frame(Header(1, 1, "", 0), b"x" * 10)
        whole = b"".join(frame)
        for part in (whole[:9], whole[9:12]):
            before = wire.heard
            wire.send([part])
            while wire.heard == before:
                await asyncio.sleep(0.001)
            assert not heard.is_set()
        wire.send([whole[12:]])
        await heard.wait()
        wire.close()
        server.close()


def test_calls_on_a_bad_link_are_answered_right_or_time_out() -> None:
    async def run(seed: int) -> list[int]:
        clock, entropy, desk = ManualClock(), SeededEntropy(seed), Desk()
        server = RpcServer(desk.handle, clock=clock, entropy=entropy)
        weather = Weather(loss=0.2, repetition=0.2, min_delay_s=0.01, max_delay_s=0.3)
        link = SimulatedLink(server, clock=clock, entropy=entropy, weather=weather)
        client = RpcClient(link, clock=clock, entropy=entropy)

        async def tick() -> None:
            while True:
                for _ in range(20):
                    await asyncio.sleep(0)
                clock.advance(0.05)

        async def ask(number: int) -> int:
            try:
                answer, _ = await client.call("add", Number(number), Number, 2)
            except (CallTimedOut, LinkDown):
                return -1
            assert answer.value == number + 1
            return number

        ticking = asyncio.create_task(tick())
        outcomes = [await ask(number) for number in range(60)]
        ticking.cancel()
        await client.close()
        await server.close(grace_s=0)
        assert outcomes.count(-1) < 50
        assert len(desk.asked) > len(set(desk.asked))  # repetitions reached the handler
        return outcomes

    assert asyncio.run(run(5)) == asyncio.run(run(5))


# --- the hello


@pytest.mark.parametrize(
    ("ours", "theirs", "code"),
    [
        ((ClusterIdentity("a", 1), b""), (ClusterIdentity("b", 1), b""), "cluster"),
        ((ClusterIdentity("a", 1), b""), (ClusterIdentity("a", 2), b""), "incarnation"),
        ((ClusterIdentity("a", 2), b""), (ClusterIdentity("a", 1), b""), "incarnation"),
        ((ClusterIdentity("a", 1), b"right"), (ClusterIdentity("a", 1), b"wrong"), "secret"),
        ((ClusterIdentity("a", 1), b"right"), (ClusterIdentity("a", 1), b""), "secret"),
        ((ClusterIdentity("a", 1), b""), (ClusterIdentity("a", 1), b"right"), "secret"),
    ],
)
async def test_incompatible_members_get_a_reason(
    ours: tuple[ClusterIdentity, bytes], theirs: tuple[ClusterIdentity, bytes], code: str
) -> None:
    async with opened_server(
        {"known": KnownCluster(ours[0]), "security": security_of(ours[1])},
        {"known": KnownCluster(theirs[0]), "security": security_of(theirs[1])},
    ) as (desk, _, client):
        with capture_logs() as lines, pytest.raises(HelloRefused) as refused:
            await client.call("add", Number(1), Number, PATIENCE_SECONDS)
        assert refused.value.code == code
        assert desk.asked == []
        told = [line for line in lines if line["event"] == "an RPC hello is refused"]
        assert [(line["peer"], line["code"]) for line in told] == [("127.0.0.1", code)]


async def test_a_client_that_knows_nothing_learns_its_cluster_from_the_hello() -> None:
    async with opened_server(
        {"known": KnownCluster(ClusterIdentity("a", 3)), "security": security_of(b"s")},
        {"security": security_of(b"s")},
    ) as (_, _, client):
        await client.call("add", Number(1), Number, PATIENCE_SECONDS)
        assert client.known.identity == ClusterIdentity("a", 3)


async def test_a_server_does_not_accept_a_client_that_skips_the_proof() -> None:
    async with opened_server({"security": security_of(b"s")}) as (desk, server, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        hello = encode_body(make_hello(ClusterIdentity(), bytes(16)))
        writer.writelines(encode_frame(Header(1, 0, HELLO, 0), hello))
        writer.writelines(encode_frame(Header(1, 1, "add", 0), encode_body(Number(1))))
        await reader.read()
        assert desk.asked == []
        writer.close()


async def test_a_connection_that_does_not_finish_its_hello_is_closed() -> None:
    async with opened_server({"hello_timeout_s": 0.02}) as (_, server, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        with pytest.raises(ConnectionResetError):
            assert await reader.read() == b""
            raise ConnectionResetError
        writer.close()
        assert server.connections == 0


# --- bad bytes


async def _throw(server: RpcServer, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        writer.write(data)
        writer.write_eof()
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def test_garbage_closes_its_connection_and_nothing_else() -> None:
    entropy = SeededEntropy(11)
    good = b"".join(
        encode_frame(Header(1, 0, HELLO, 0), encode_body(make_hello(ClusterIdentity(), bytes(16))))
    )
    cases = [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff\xff\xff\xff" + bytes(10),  # 4 GiB announced
        b"\x00\x00\x10\x01" + bytes(10),  # one more than a hello may have
        b"\x00\x00\x00\x00",
        b"\x00\x00\x00\x06\xff\xff\xff\xff\xff\xff",  # header and body beyond the frame
        b"\x00\x00\x00\x07\x00\x01\x00\x00\x00\x00\xc1",
        good[: len(good) // 2],
        good[:4],
        *(bytes(entropy.below(256) for _ in range(entropy.below(200))) for _ in range(60)),
        *(good[:at] + bytes([entropy.below(256)]) + good[at + 1 :] for at in range(4, len(good))),
    ]

    async with opened_server() as (desk, server, client):
        await client.call("add", Number(1), Number, PATIENCE_SECONDS)
        tracemalloc.start()
        for case in cases:
            await _throw(server, case)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 4 << 20
        assert desk.asked == [1]
        assert (await client.call("add", Number(2), Number, PATIENCE_SECONDS))[0].value == 3
        while server.connections > 1:
            await asyncio.sleep(0)


async def call_of(serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> None:
    """Call a method of a server that speaks something else."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    client = RpcClient(TcpLink(address), clock=SystemClock(), entropy=SystemEntropy())
    try:
        await client.call("add", Number(1), Number, PATIENCE_SECONDS)
    finally:
        await client.close()
        server.close()


async def test_an_answer_that_is_no_answer_ends_the_connection() -> None:
    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(b"\x00\x00\x00\x07\x00\x01\x00\x00\x00\x00\xc1")
        await reader.read()
        writer.close()

    with pytest.raises(LinkDown, match="no header"):
        await call_of(babble)


async def test_the_address_of_an_http_server_is_named_as_such() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await reader.read()
        writer.close()

    with pytest.raises(LinkDown, match="speaks HTTP: give the address of its --rpc, not of its --http"):
        await call_of(refuse)


@settings(deadline=None, max_examples=300, derandomize=True)
@given(st.binary(max_size=200))
def test_decoding_any_bytes_gives_a_frame_or_a_violation(data: bytes) -> None:
    try:
        frame = decode_frame(memoryview(data))
    except ProtocolViolation:
        return
    assert isinstance(frame.header, Header)


@settings(deadline=None, max_examples=200, derandomize=True)
@given(
    st.integers(0, 2**60),
    st.text(max_size=40),
    st.sampled_from([0, 1, 3]),
    st.binary(max_size=50),
    st.lists(st.binary(max_size=50), max_size=3),
)
def test_a_frame_survives_its_encoding(
    number: int, method: str, flags: int, body: bytes, tail: list[bytes]
) -> None:
    header = Header(1, number, method, flags, "r")
    whole = b"".join(encode_frame(header, body, tail))
    frame = decode_frame(memoryview(whole)[4:])
    assert (frame.header, bytes(frame.body), bytes(frame.tail)) == (header, body, b"".join(tail))


@pytest.mark.parametrize("address", ["", "host", ":1", "host:", "host:x", "host:70000"])
def test_an_address_without_host_or_port_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="expected host:port"):
        split_address(address)


def test_addresses_may_be_ipv6() -> None:
    assert split_address("[::1]:80") == ("::1", 80)


@pytest.mark.parametrize("address", ["[::1]:80", "broker-1.example:9092"])
def test_an_address_that_was_split_is_joined_to_what_it_was(address: str) -> None:
    assert join_address(*split_address(address)) == address
