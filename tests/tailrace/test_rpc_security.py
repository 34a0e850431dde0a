"""RPC between peers with a shared secret: modified frames, and secrets that are replaced."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.buffers import Buffer
from tailrace.clock import SystemClock, SystemEntropy
from tailrace.rpc import (
    CallTimedOut,
    ClusterIdentity,
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
from tailrace.rpc.errors import ProtocolViolation
from tailrace.rpc.exposure import is_private
from tailrace.rpc.frames import LENGTH, Failure, Frame, Header, decode_frame, encode_frame
from tailrace.rpc.hello import (
    HELLO,
    Hello,
    Proof,
    Welcome,
    answer_hello,
    check_proof,
    check_welcome,
    frame_keys,
    make_hello,
    spoken_versions,
)
from tailrace.rpc.link import Receiver, RpcConnection
from tailrace.rpc.loaded_security import LoadedSecurity, SecurityFiles
from tailrace.rpc.security import MAC_BYTES, FrameSigner, FrameVerifier
from tailrace.security.credentials import BadCredential
from tests.support.clocks import SeededEntropy
from tests.support.patience import PATIENCE_SECONDS

SECRET = b"one of thirty-two characters ..."
OTHER = b"another of the same length ....."
KEY = bytes(range(32))


def signed(signer: FrameSigner, number: int, tail: bytes = b"") -> bytes:
    """A frame without its length, as it arrives."""
    header = Header(2, number, "add", 0)
    frame = signer.sign(encode_frame(header, encode_body(number), [tail], mac_bytes=MAC_BYTES))
    whole = b"".join(frame)
    assert LENGTH.unpack_from(whole)[0] == len(whole) - LENGTH.size
    return whole[LENGTH.size :]


# --- frames


@given(st.lists(st.binary(max_size=50), min_size=1, max_size=5))
def test_signed_frames_are_read_in_their_order(tails: list[bytes]) -> None:
    signer, verifier = FrameSigner(KEY), FrameVerifier(KEY)
    for number, tail in enumerate(tails):
        frame = decode_frame(verifier.verify(memoryview(signed(signer, number, tail))))
        assert (frame.header.correlation, bytes(frame.tail)) == (number, tail)


@given(st.binary(max_size=50), st.data())
def test_a_frame_in_which_any_bit_was_changed_is_refused(tail: bytes, data: st.DataObject) -> None:
    frame = bytearray(signed(FrameSigner(KEY), 7, tail))
    frame[data.draw(st.integers(0, len(frame) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(ProtocolViolation, match="does not carry the MAC"):
        FrameVerifier(KEY).verify(memoryview(frame))


@given(st.binary(max_size=50), st.data())
def test_a_frame_that_was_cut_or_grew_is_refused(tail: bytes, data: st.DataObject) -> None:
    frame = signed(FrameSigner(KEY), 7, tail)
    for changed in (frame[: data.draw(st.integers(0, len(frame) - 1))], frame + b"\x00"):
        with pytest.raises(ProtocolViolation):
            FrameVerifier(KEY).verify(memoryview(changed))


@given(st.permutations(range(4)).filter(lambda order: list(order) != [0, 1, 2, 3]))
def test_frames_that_are_moved_are_refused_from_the_first_on(order: list[int]) -> None:
    signer, verifier = FrameSigner(KEY), FrameVerifier(KEY)
    frames = [signed(signer, number) for number in range(4)]
    with pytest.raises(ProtocolViolation):
        for number in order:
            verifier.verify(memoryview(frames[number]))


@pytest.mark.parametrize("taken", [[0, 0], [0, 1, 1], [1], [0, 2]])
def test_a_repeated_and_a_missing_frame_are_refused(taken: list[int]) -> None:
    signer, verifier = FrameSigner(KEY), FrameVerifier(KEY)
    frames = [signed(signer, number) for number in range(3)]
    for number in taken[:-1]:
        verifier.verify(memoryview(frames[number]))
    with pytest.raises(ProtocolViolation):
        verifier.verify(memoryview(frames[taken[-1]]))


def test_each_connection_and_each_direction_has_a_key_of_its_own() -> None:
    def keys(client_nonce: bytes, server_nonce: bytes, secret: bytes) -> list[bytes]:
        hello = make_hello(ClusterIdentity(), client_nonce, (secret,))
        welcome, found = answer_hello(hello, KnownCluster(), (secret,), server_nonce)
        pair = frame_keys(hello, welcome, found)
        assert pair is not None
        return [pair.of_client, pair.of_server]

    a, b = bytes(16), b"\x01" + bytes(15)
    all_keys = [*keys(a, a, SECRET), *keys(a, b, SECRET), *keys(b, a, SECRET), *keys(a, a, OTHER)]
    assert len(set(all_keys)) == len(all_keys)
    assert keys(a, b, SECRET) == keys(a, b, SECRET)


# --- the hello


def greet(client: Sequence[bytes], server: Sequence[bytes]) -> bytes:
    """The secret that the two agree on. Raises HelloRefused."""
    hello = make_hello(ClusterIdentity(), bytes(16), client)
    welcome, of_server = answer_hello(hello, KnownCluster(), server, b"\x02" * 16)
    proof, of_client = check_welcome(hello, welcome, client)
    check_proof(hello, welcome, proof, of_server)
    assert of_client == of_server
    return of_server


def test_a_peer_with_one_common_secret_is_served() -> None:
    old, new = SECRET, OTHER
    assert greet((old,), (old, new)) == old
    assert greet((new, old), (old,)) == old
    assert greet((new,), (old, new)) == new
    assert greet((old, new), (new, old)) == new
    with pytest.raises(HelloRefused, match="the client shows another one"):
        greet((old,), (new,))
    with pytest.raises(HelloRefused, match=r"the client shows none: .*rpc_secret_file"):
        greet((), (new,))
    with pytest.raises(HelloRefused, match="the server has none"):
        greet((new,), ())


def test_versions_cannot_be_downgraded_by_a_man_in_the_middle() -> None:
    hello = make_hello(ClusterIdentity(), bytes(16), (SECRET,))
    talked_down = msgspec.structs.replace(hello, versions=[1])
    welcome, _ = answer_hello(talked_down, KnownCluster(), (SECRET,), bytes(16))
    assert welcome.version == 1 and not welcome.has_macs
    with pytest.raises(HelloRefused, match="does not know the shared secret"):
        check_welcome(hello, welcome, (SECRET,))


@pytest.mark.parametrize("field", ["has_macs", "version", "nonce", "cluster_id", "incarnation"])
def test_a_welcome_that_was_changed_is_refused(field: str) -> None:
    hello = make_hello(ClusterIdentity(), bytes(16), (SECRET,))
    welcome, _ = answer_hello(hello, KnownCluster(), (SECRET,), bytes(16))
    changed = {"has_macs": False, "version": 1, "nonce": b"\x01" * 16, "cluster_id": "x", "incarnation": 9}
    with pytest.raises(HelloRefused):
        check_welcome(hello, msgspec.structs.replace(welcome, **{field: changed[field]}), (SECRET,))


def test_a_peer_that_claims_tls_on_a_plain_connection_gets_macs_anyway() -> None:
    hello = make_hello(ClusterIdentity(), bytes(16), (SECRET,), is_encrypted=True)
    welcome, _ = answer_hello(hello, KnownCluster(), (SECRET,), bytes(16), is_encrypted=False)
    assert welcome.has_macs
    welcome, _ = answer_hello(hello, KnownCluster(), (SECRET,), bytes(16), is_encrypted=True)
    assert not welcome.has_macs


def test_a_client_of_the_version_before_is_served_without_macs() -> None:
    hello = Hello("tailrace", [1], "", 0, bytes(16))
    welcome, secret = answer_hello(hello, KnownCluster(), (SECRET, OTHER), bytes(16))
    assert (welcome.version, welcome.has_macs, secret) == (1, False, SECRET)
    proof, _ = check_welcome(hello, welcome, (SECRET,), versions=(1,))
    check_proof(hello, welcome, proof, secret)
    with pytest.raises(HelloRefused):
        check_proof(hello, welcome, Proof(bytes(32)), secret)


class _Host:
    """A connection from somewhere that keeps what is sent to it."""

    heard = queued = unsent = 0

    def __init__(self, peer_host: str, is_encrypted: bool) -> None:
        self.peer_host, self.is_encrypted = peer_host, is_encrypted
        self.sent: list[Frame] = []

    def send(self, frame: Sequence[Buffer]) -> None:
        self.sent.append(decode_frame(memoryview(b"".join(frame))[LENGTH.size :]))

    def room(self) -> None:
        return None

    def close(self) -> None:
        return None

    abort = close


@pytest.mark.parametrize(
    ("host", "is_encrypted", "secrets", "is_served"),
    [
        ("10.0.0.7", False, (SECRET,), False),
        ("10.0.0.7", True, (SECRET,), True),
        ("127.0.0.1", False, (SECRET,), True),
        ("::ffff:127.0.0.1", False, (SECRET,), True),
        ("10.0.0.7", False, (), True),
    ],
)
def test_frames_without_macs_do_not_leave_the_machine_where_there_is_a_secret(
    host: str, is_encrypted: bool, secrets: tuple[bytes, ...], is_served: bool
) -> None:
    async def run() -> Frame:
        wire = _Host(host, is_encrypted)
        server = RpcServer(
            lambda method, body: _echo([], body),
            clock=SystemClock(),
            entropy=SeededEntropy(1),
            security=RpcSecurity(secrets),
        )
        hello = encode_body(Hello("tailrace", [1], "", 0, bytes(16)))
        frame = b"".join(encode_frame(Header(1, 0, HELLO, 0), hello))
        server.accept(wire).received(memoryview(frame)[LENGTH.size :])
        await server.close(grace_s=0)
        return wire.sent[0]

    answer = asyncio.run(run())
    if is_served:
        assert decode_body(answer.body, Welcome).version == 1
    else:
        assert decode_body(answer.body, Failure).code == "version"
    spoken = spoken_versions(has_secret=bool(secrets), is_private=is_private(_Host(host, is_encrypted)))
    assert (1 in spoken) == is_served


# --- somebody in between

Meddle = Callable[[bool, int, bytes], list[bytes]]
"""(whether it is the client's, its number, the frame): what arrives in its place."""


class MeddledLink:
    """A way to a server on which somebody may change what is sent."""

    address = "meddled:1"

    def __init__(self, server: RpcServer, meddle: Meddle) -> None:
        self._server = server
        self._meddle = meddle

    async def connect(self, receiver: Receiver) -> RpcConnection:
        near, far = _End(self._meddle, True), _End(self._meddle, False)
        near.other, far.other = far, near
        near.receiver = receiver
        far.receiver = self._server.accept(far)
        return near


class _End:
    is_encrypted = False
    peer_host = ""
    heard = queued = unsent = 0
    other: _End
    receiver: Receiver

    def __init__(self, meddle: Meddle, is_client: bool) -> None:
        self._meddle = meddle
        self._is_client = is_client
        self._sent = 0
        self.is_over = False

    def send(self, frame: Sequence[Buffer]) -> None:
        data = b"".join(frame)[LENGTH.size :]
        for arriving in self._meddle(self._is_client, self._sent, data):
            asyncio.get_running_loop().call_soon(self.other.deliver, arriving)
        self._sent += 1

    def deliver(self, data: bytes) -> None:
        if not self.is_over:
            self.receiver.received(memoryview(data))

    def room(self) -> asyncio.Future[None] | None:
        return None

    def close(self) -> None:
        for end in (self, self.other):
            if not end.is_over:
                end.is_over = True
                asyncio.get_running_loop().call_soon(end.receiver.lost, "closed")

    abort = close


async def _echo(asked: list[int], body: memoryview) -> tuple[bytes, Sequence[Buffer]]:
    number = decode_body(body, int)
    asked.append(number)
    return encode_body(number + 1), [b"t" * 10]


@asynccontextmanager
async def meddled(meddle: Meddle) -> AsyncIterator[tuple[RpcClient, list[int]]]:
    asked: list[int] = []
    clock, entropy = SystemClock(), SeededEntropy(3)
    security = RpcSecurity((SECRET,))
    server = RpcServer(
        lambda method, body: _echo(asked, body), clock=clock, entropy=entropy, security=security
    )
    client = RpcClient(MeddledLink(server, meddle), clock=clock, entropy=entropy, security=security)
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            yield client, asked
    finally:
        await client.close()
        await server.close(grace_s=0)


def flip(data: bytes) -> bytes:
    """The last bit of the body, not of the MAC."""
    return data[: -MAC_BYTES - 1] + bytes([data[-MAC_BYTES - 1] ^ 1]) + data[-MAC_BYTES:]


async def test_a_request_that_was_changed_ends_the_connection_and_is_not_carried_out() -> None:
    changed: list[int] = []

    def meddle(is_client: bool, number: int, data: bytes) -> list[bytes]:
        if is_client and number == 3 and not changed:
            changed.append(number)
            return [flip(data)]
        return [data]

    async with meddled(meddle) as (client, asked):
        answer, tail = await client.call("add", 1, int, 5)
        assert (answer, tail) == (2, b"t" * 10)
        with pytest.raises(LinkDown):
            await client.call("add", 2, int, 5)
        assert asked == [1]
        assert (await client.call("add", 3, int, 5))[0] == 4


async def test_an_answer_that_was_changed_is_not_believed() -> None:
    async with meddled(
        lambda is_client, number, data: [flip(data) if (is_client, number) == (False, 2) else data]
    ) as (client, asked):
        with pytest.raises(LinkDown, match="does not carry the MAC"):
            await client.call("add", 1, int, 5)
        assert asked == [1]


async def test_a_request_that_was_repeated_is_carried_out_once_and_ends_the_connection() -> None:
    async with meddled(
        lambda is_client, number, data: [data] * (2 if (is_client, number) == (True, 2) else 1)
    ) as (client, asked):
        with pytest.raises(LinkDown):
            await client.call("add", 1, int, 5)
        assert asked == [1]


async def test_a_request_behind_one_that_was_left_out_ends_the_connection() -> None:
    async with meddled(
        lambda is_client, number, data: [] if (is_client, number) == (True, 2) else [data]
    ) as (client, asked):
        with pytest.raises(CallTimedOut):
            await client.call("add", 1, int, 0.05)
        with pytest.raises(LinkDown):
            await client.call("add", 2, int, 5)
        assert asked == []


async def test_an_acceptance_by_a_peer_without_the_secret_is_refused() -> None:
    def meddle(is_client: bool, number: int, data: bytes) -> list[bytes]:
        if is_client or number != 1:
            return [data]
        bare = b"".join(encode_frame(Header(1, 1, "", 1), encode_body([])))
        return [bare[LENGTH.size :]]

    async with meddled(meddle) as (client, asked):
        with pytest.raises(LinkDown):
            await client.call("add", 1, int, 5)
        assert asked == []


def test_an_open_server_and_its_clients_send_no_macs() -> None:
    welcome, _ = answer_hello(make_hello(ClusterIdentity(), bytes(16)), KnownCluster(), (), bytes(16))
    assert isinstance(welcome, Welcome) and not welcome.has_macs


# --- over TCP


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 200_000))
def test_tails_of_any_size_arrive_whole_with_their_mac(size: int) -> None:
    async def answer(method: str, body: memoryview) -> tuple[bytes, Sequence[Buffer]]:
        return encode_body(1), [b"x" * size, memoryview(b"y" * size)]

    async def run() -> None:
        clock, entropy, security = SystemClock(), SystemEntropy(), RpcSecurity((SECRET,))
        server = RpcServer(answer, clock=clock, entropy=entropy, security=security)
        await server.listen("127.0.0.1", 0)
        client = RpcClient(
            TcpLink(f"127.0.0.1:{server.port}"), clock=clock, entropy=entropy, security=security
        )
        _, tail = await client.call("any", 1, int, 5)
        assert tail == b"x" * size + b"y" * size
        await client.close()
        await server.close(grace_s=0)

    asyncio.run(run())


# --- exchanging secrets without a restart


def test_secrets_in_a_file_are_exchanged_while_they_are_in_use(tmp_path: Path) -> None:
    old, new = SECRET.decode(), OTHER.decode()
    file = tmp_path / "rpc.secret"
    file.touch(0o600)
    file.write_text(old)
    opened = LoadedSecurity(SecurityFiles(secret_file=file))
    assert opened.rpc.secrets == (SECRET,)

    file.write_text(f"{new}\n{old}\n")
    opened.refresh()
    assert opened.rpc.secrets == (OTHER, SECRET)

    file.chmod(0o644)
    file.write_text("")
    opened.refresh()
    opened.refresh()
    assert opened.rpc.secrets == (OTHER, SECRET) and opened.failures == 2

    file.chmod(0o600)
    file.write_text(new)
    opened.refresh()
    assert opened.rpc.secrets == (OTHER,) and opened.failures == 0


def test_a_short_secret_is_refused_without_showing_it(tmp_path: Path) -> None:
    with pytest.raises(BadCredential, match="a secret has 8 characters") as refused:
        LoadedSecurity(SecurityFiles(secret="hushhush"))
    assert "hush" not in str(refused.value)
    assert "hush" not in repr(SecurityFiles(secret="hushhush"))
