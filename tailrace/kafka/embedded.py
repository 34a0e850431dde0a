"""Messages that members of a consumer group exchange through the coordinator: a version (int16), then the message."""

from __future__ import annotations

from typing import TypeVar

from tailrace.kafka.apis import MAX_ITEMS_BY_PARTITION
from tailrace.kafka.compiler import codec, step_decoder
from tailrace.kafka.errors import MalformedRequest
from tailrace.kafka.messages.consumer_protocol import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from tailrace.kafka.schema import MessageType
from tailrace.turns import Steps

Embedded = ConsumerProtocolSubscription | ConsumerProtocolAssignment
M = TypeVar("M", bound=Embedded)

VERSION_BYTES = 2
_LATEST = 3


def known_version(data: bytes) -> int:
    """Return the version in which to read these bytes. A later version is read as the latest known one, because new
    versions only append fields."""
    return min(int.from_bytes(data[:VERSION_BYTES], "big"), _LATEST)


def read_embedded(kind: type[M], data: bytes) -> tuple[M, int]:
    """Decode a message. Return it and the offset after it. Raises MalformedRequest."""
    if len(data) < VERSION_BYTES:
        raise MalformedRequest(f"{len(data)} bytes where a version comes first")
    declared: MessageType = kind
    messages = codec(declared, known_version(data), False, max_items=MAX_ITEMS_BY_PARTITION)
    try:
        message, end = messages.decode(memoryview(data), VERSION_BYTES)
    except IndexError as error:
        raise MalformedRequest("it ends too early") from error
    assert isinstance(message, kind), "the codec makes what it was compiled for"
    return message, end


def read_embedded_in_steps(kind: type[M], data: bytes) -> Steps[M]:
    """Decode a message that may be long. Raises MalformedRequest."""
    if len(data) < VERSION_BYTES:
        raise MalformedRequest(f"{len(data)} bytes where a version comes first")
    declared: MessageType = kind
    decode = step_decoder(declared, known_version(data), False, MAX_ITEMS_BY_PARTITION)
    try:
        message, _ = yield from decode(memoryview(data), VERSION_BYTES)
    except IndexError as error:
        raise MalformedRequest("it ends too early") from error
    assert isinstance(message, kind), "the decoder makes what it was compiled for"
    return message


def write_embedded(message: Embedded, version: bytes) -> bytes:
    """Encode a message after its version, which is given as its two bytes."""
    out = bytearray(version)
    last = codec(type(message), known_version(version), False).encode(message, out, [])
    assert last is out, "without records there is one part"
    return bytes(out)
