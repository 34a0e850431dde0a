"""Targets for our own RPC: frames, the hello, a server's connection, and the values of every sequencer method."""

from __future__ import annotations

import asyncio
import contextlib
import random
import typing
from collections.abc import Sequence
from enum import Enum
from functools import cache
from types import UnionType
from typing import Any
from uuid import UUID

import msgspec

from cache.peer import ChunkAnswer, ChunkRequest
from sequencer.methods import METHODS
from tailrace.rpc import KnownCluster, RpcSecurity, RpcServer
from tailrace.rpc.errors import ProtocolViolation
from tailrace.rpc.frames import Failure, Header, decode_body, decode_frame, encode_body, encode_frame
from tailrace.rpc.hello import Accepted, ClusterIdentity, Hello, Proof, Welcome, check_welcome, make_hello
from tailrace.rpc.link import FrameProtocol
from tests.fuzz.target import Target
from tests.support.clocks import ManualClock, SeededEntropy

SECRET = b"shared"
_INTEGERS = (0, 1, -1, 7, 200, 2**31, 2**63 - 1, -(2**63))


def value_of(kind: Any, rng: random.Random, depth: int = 0) -> Any:
    """A value of an annotation, as far as the sequencer's structs use them."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Union or origin is UnionType:
        return value_of(rng.choice(arguments), rng, depth)
    if kind is None or kind is type(None):
        return None
    if origin in (list, Sequence) or kind is list:
        return [value_of(arguments[0], rng, depth + 1) for _ in range(rng.randrange(3))]
    if origin is tuple:
        if arguments[-1] is Ellipsis:
            return tuple(value_of(arguments[0], rng, depth + 1) for _ in range(rng.randrange(3)))
        return tuple(value_of(argument, rng, depth + 1) for argument in arguments)
    if origin is dict:
        key, value = arguments
        return {
            value_of(key, rng, depth + 1): value_of(value, rng, depth + 1) for _ in range(rng.randrange(3))
        }
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        hints = typing.get_type_hints(kind)
        return kind(**{name: value_of(hints[name], rng, depth + 1) for name in kind.__struct_fields__})
    if isinstance(kind, type) and issubclass(kind, Enum):
        return rng.choice(list(kind))
    if kind is bool:
        return rng.random() < 0.5
    if kind is int:
        return rng.choice(_INTEGERS) if rng.random() < 0.4 else rng.randrange(200)
    if kind is float:
        return rng.uniform(-5, 5)
    if kind is str:
        return rng.choice(("", "t", "flights", "grüße", "g-1"))
    if kind is bytes:
        return rng.randbytes(rng.randrange(9))
    if kind is UUID:
        return UUID(int=rng.choice((0, 1, 2, rng.getrandbits(128))))
    raise TypeError(f"no values of {kind!r} are made here")


@cache
def structs() -> list[type[Any]]:
    """Every struct that travels: requests and answers of all methods, the hello's, the peers'."""
    found: dict[type[Any], None] = {}
    for method in METHODS.values():
        found[method.request] = None
        found[method.answer] = None
    for kind in (Hello, Welcome, Proof, Accepted, Failure, ChunkRequest, ChunkAnswer):
        found[kind] = None
    return list(found)


@cache
def value_seeds() -> list[bytes]:
    """A byte that names the struct, and the MessagePack of one."""
    rng = random.Random(3)
    return [
        bytes((number,)) + encode_body(value_of(kind, rng))
        for number, kind in enumerate(structs())
        for _ in range(3)
    ]


def check_value(data: bytes) -> bool:
    """Decode as the struct that the first byte names; an accepted value must be the same after encoding it again."""
    kinds = structs()
    if not data or data[0] >= len(kinds):
        return False
    try:
        value = decode_body(memoryview(data)[1:], kinds[data[0]])
    except msgspec.DecodeError:
        return False
    again = decode_body(encode_body(value), kinds[data[0]])
    assert again == value or "nan" in repr(value)
    return True


def frame_seeds() -> list[bytes]:
    """Frames without their length."""
    rng = random.Random(4)
    found = []
    for name, method in METHODS.items():
        header = Header(1, rng.randrange(1000), name, 0, rng.choice(("", "r-1")))
        tail = [rng.randbytes(20)] if rng.random() < 0.3 else []
        found.append(b"".join(encode_frame(header, encode_body(value_of(method.request, rng)), tail))[4:])
    found.append(b"".join(encode_frame(Header(1, 5, "", 3), encode_body(Failure("x", "y"))))[4:])
    return found


def check_frame(data: bytes) -> bool:
    """A frame taken apart, its body read as a failure, as the calling side may."""
    try:
        frame = decode_frame(memoryview(data))
    except ProtocolViolation:
        return False
    with contextlib.suppress(msgspec.DecodeError):
        decode_body(frame.body, Failure)
    return True


class _Transport(asyncio.Transport):
    """Records the written bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = bytearray()
        self.ended = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        return

    def writelines(self, list_of_data: Any) -> None:
        for part in list_of_data:
            self.sent += part

    def is_closing(self) -> bool:
        return self.ended

    def pause_reading(self) -> None:
        return

    def resume_reading(self) -> None:
        return

    def close(self) -> None:
        self.ended = True

    abort = close


def _hello_frame(hello: Hello) -> bytes:
    return b"".join(encode_frame(Header(1, 0, "hello", 0), encode_body(hello)))


class Served:
    """An RpcServer that gets what peers may send.

    The first byte of an input: 0, before the hello; 2, after one that agreed on MACs; else after one that didn't.
    """

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.answered = 0
        known = KnownCluster(ClusterIdentity("c", 1))
        self.server = RpcServer(
            self._answer,
            clock=ManualClock(),
            entropy=SeededEntropy(1),
            known=known,
            security=RpcSecurity((SECRET,)),
        )
        newest = make_hello(ClusterIdentity("c", 1), bytes(16), (SECRET,))
        self._hellos = {
            True: newest,
            False: msgspec.structs.replace(newest, versions=[1]),  # without MACs: requests are read
        }
        self.hello = _hello_frame(newest)

    async def _answer(self, method: str, body: memoryview) -> tuple[bytes, Sequence[bytes]]:
        self.answered += 1
        return b"\x90", ()

    def check(self, data: bytes) -> bool:
        """Feed a new connection; True if a request was answered or the hello accepted."""
        return self.loop.run_until_complete(self._feed(data))

    async def _feed(self, data: bytes) -> bool:
        answered = self.answered
        protocol = FrameProtocol(self.server.accept, reads_wait_for_writes=True)
        transport = _Transport()
        protocol.connection_made(transport)
        if data[:1] != b"\x00":
            hello = self._hellos[data[:1] == b"\x02"]
            self._pour(protocol, _hello_frame(hello))
            welcome = decode_body(decode_frame(memoryview(transport.sent)[4:]).body, Welcome)
            proof, _ = check_welcome(hello, welcome, (SECRET,))
            self._pour(protocol, b"".join(encode_frame(Header(1, 1, "proof", 0), encode_body(proof))))
        before = len(transport.sent)
        if not transport.ended:
            self._pour(protocol, data[1:], transport)
        for _ in range(4):
            await asyncio.sleep(0)
        said = len(transport.sent) > before
        protocol.connection_lost(None)
        await asyncio.sleep(0)
        assert self.server.connections == 0
        return said or self.answered > answered

    def _pour(self, protocol: Any, data: bytes, transport: _Transport | None = None) -> None:
        view = memoryview(data)
        while view and not (transport is not None and transport.ended):
            buffer = protocol.get_buffer(-1)
            taken = min(len(buffer), len(view))
            assert taken, "the connection gave an empty buffer"
            buffer[:taken] = view[:taken]
            protocol.buffer_updated(taken)
            view = view[taken:]

    def close(self) -> None:
        """End the loop."""
        self.loop.run_until_complete(self.server.close(grace_s=0))
        self.loop.close()

    def seeds(self) -> list[bytes]:
        """Conversations before and after the hello."""
        sized = [len(frame).to_bytes(4, "big") + frame for frame in frame_seeds()]
        return [
            b"\x00" + self.hello,
            b"\x00" + self.hello * 2,
            b"\x00" + self.hello + b"".join(encode_frame(Header(1, 1, "proof", 0), encode_body(Proof(b"x")))),
            *(b"\x01" + frame for frame in sized),
            b"\x01" + b"".join(sized[:5]),
            *(b"\x02" + frame for frame in sized[:5]),
        ]


def targets() -> list[Target]:
    """All of this module."""
    served = Served()
    return [
        Target("RPC frame", 6, frame_seeds(), check_frame),
        Target("RPC connection", 6, served.seeds(), served.check, served.close, max_growth_mib=80),
        Target("RPC values", 14, value_seeds(), check_value),
    ]
