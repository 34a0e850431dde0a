"""Frames: the encoding of calls and responses.

    u32 length of what follows | u16 header length | u32 body length | header | body | raw tail | MAC

Header and body are MessagePack arrays (UUIDs as 16 bytes). The tail is raw bytes that are not decoded: it carries
chunks without a copy. A frame has a MAC if the hello agreed on one (`tailrace.rpc.security`). Every declared length is
checked against the available bytes before anything is allocated.

Pure: this module uses no sockets.
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
"""The newest version that this code speaks. `hello` agrees on a version that both sides speak."""
FIRST_VERSION = 1
"""The version of frames before the two sides have agreed on one."""

LENGTH = struct.Struct(">I")
_LENGTHS = struct.Struct(">HI")
_HEAD = struct.Struct(">IHI")
SMALLEST_FRAME = _LENGTHS.size
MAX_FRAME_BYTES = 64 << 20
MAX_HELLO_BYTES = 4096
"""The largest frame length that is accepted before the peer has finished its hello."""

RESPONSE = 1
ERROR = 2
FLAGS = RESPONSE | ERROR


class Header(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A frame's header. `correlation` matches a response to its request within one connection. `method` is '' in
    responses."""

    version: int
    correlation: int
    method: str
    flags: int
    request_id: str = ""


class Failure(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The body of a response with the ERROR flag."""

    code: str
    message: str


class Frame(msgspec.Struct, frozen=True, gc=False):
    """A decoded frame. `body` and `tail` are views of the received buffer."""

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
    return _encoder.encode(value)


def decode_body(body: Buffer, kind: type[T]) -> T:
    """Decode a struct of this type from a body. Raises msgspec.DecodeError (or its ValidationError)."""
    decoded: T = messagepack.decode(_decoder(cast(Hashable, kind)), body)
    return decoded


def frame_bytes(tail: Sequence[Buffer]) -> int:
    """Return the size of a tail: the sum of its buffers' bytes."""
    return sum(part.nbytes if isinstance(part, memoryview) else len(part) for part in tail)


def encode_frame(
    header: Header, body: bytes, tail: Sequence[Buffer] = (), *, mac_bytes: int = 0
) -> list[Buffer]:
    """Return the frame as a gather list that starts with its length. The tail's buffers are not copied.

    `mac_bytes`: the size of the MAC that the caller will append; the length counts it.
    """
    head = _encoder.encode(header)
    length = _LENGTHS.size + len(head) + len(body) + frame_bytes(tail) + mac_bytes
    start = b"".join((_HEAD.pack(length, len(head), len(body)), head, body))
    return [start, *tail]


def decode_frame(frame: memoryview) -> Frame:
    """Decode a frame, given without its length. Raises ProtocolViolation."""
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
