"""Frames: how a call and its answer look in bytes.

    u32 length of what follows | u16 header length | u32 body length | header | body | raw tail | MAC

Header and body are MessagePack arrays (UUIDs as 16 bytes), the tail is raw bytes that nobody decodes: chunks
travel there without a copy. The MAC is there where the hello agreed on it (`tailrace.rpc.security`). Every
declared length is checked against what is there before anything is allocated.

Pure: no sockets here.
"""

from __future__ import annotations

import struct
from collections.abc import Hashable, Sequence
from functools import lru_cache
from typing import Any, TypeVar, cast

import msgspec

from tailrace import messagepack
from tailrace.buffers import Buffer
from tailrace.rpc.errors import ProtocolViolation

VERSION = 2
"""The newest that this code speaks; `hello` agrees on one that both sides do."""
FIRST_VERSION = 1
"""Of the frames before they have agreed."""

LENGTH = struct.Struct(">I")
_LENGTHS = struct.Struct(">HI")
_HEAD = struct.Struct(">IHI")
SMALLEST_FRAME = _LENGTHS.size
MAX_FRAME_BYTES = 64 << 20
MAX_HELLO_BYTES = 4096
"""What may be declared before the peer has shown that it belongs here."""

RESPONSE = 1
ERROR = 2
FLAGS = RESPONSE | ERROR


class Header(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """`correlation` pairs an answer with its request within one connection; `method` is '' in answers."""

    version: int
    correlation: int
    method: str
    flags: int
    request_id: str = ""


class Failure(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The body of an answer with the ERROR flag."""

    code: str
    message: str


class Frame(msgspec.Struct, frozen=True, gc=False):
    """A frame taken apart; `body` and `tail` are views into the buffer it came in."""

    header: Header
    body: memoryview
    tail: memoryview


_encoder = msgspec.msgpack.Encoder(uuid_format="bytes")
_header_decoder = msgspec.msgpack.Decoder(Header)
T = TypeVar("T")


@lru_cache(maxsize=1024)
def _decoder(kind: Hashable) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(cast(Any, kind))


def encode_body(value: Any) -> bytes:
    """A struct as the body of a frame."""
    return _encoder.encode(value)


def decode_body(body: Buffer, kind: type[T]) -> T:
    """The struct of this type in a body. Raises msgspec.DecodeError (or its ValidationError)."""
    decoded: T = messagepack.decode(_decoder(cast(Hashable, kind)), body)
    return decoded


def frame_bytes(tail: Sequence[Buffer]) -> int:
    """The size of a tail: the bytes of its buffers."""
    return sum(part.nbytes if isinstance(part, memoryview) else len(part) for part in tail)


def encode_frame(
    header: Header, body: bytes, tail: Sequence[Buffer] = (), *, mac_bytes: int = 0
) -> list[Buffer]:
    """The frame as a gather list, its length first; the tail's buffers are passed on as they are.

    `mac_bytes`: what will be appended, counted in the length.
    """
    head = _encoder.encode(header)
    length = _LENGTHS.size + len(head) + len(body) + frame_bytes(tail) + mac_bytes
    start = b"".join((_HEAD.pack(length, len(head), len(body)), head, body))
    return [start, *tail]


def decode_frame(frame: memoryview) -> Frame:
    """Take a frame (without its length) apart. Raises ProtocolViolation."""
    if len(frame) < SMALLEST_FRAME:
        raise ProtocolViolation(f"a frame of {len(frame)} bytes has no room for its lengths")
    header_length, body_length = _LENGTHS.unpack_from(frame)
    body_start = _LENGTHS.size + header_length
    tail_start = body_start + body_length
    if tail_start > len(frame):
        raise ProtocolViolation(
            f"header {header_length} and body {body_length} exceed a frame of {len(frame)} bytes"
        )
    try:
        header = messagepack.decode(_header_decoder, frame[_LENGTHS.size : body_start])
    except msgspec.DecodeError as error:
        raise ProtocolViolation(f"no header: {error}") from error
    if header.flags & ~FLAGS:
        raise ProtocolViolation(f"unknown flags {header.flags:#x}")
    return Frame(header, frame[body_start:tail_start], frame[tail_start:])
