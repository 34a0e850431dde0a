"""Unsigned varints and tagged fields, which flexible versions (KIP-482) use.

The readers raise IndexError at the end of the buffer; their callers convert it to MalformedRequest.
"""

from __future__ import annotations

from functools import lru_cache

from tailrace.buffers import Buffer
from tailrace.kafka.errors import MalformedRequest

_MAX_SHIFT = 28  # five bytes carry 32 bits


def read_unsigned_varint(buffer: Buffer, offset: int) -> tuple[int, int]:
    """Return (value, offset after it)."""
    first = buffer[offset]
    if first < 128:
        return first, offset + 1
    return finish_unsigned_varint(buffer, offset + 1, first)


def finish_unsigned_varint(buffer: Buffer, offset: int, first: int) -> tuple[int, int]:
    """Read the rest of a varint whose first byte says that more follow. Return (value, offset after it)."""
    value = first & 0x7F
    shift = 7
    while True:
        byte = buffer[offset]
        offset += 1
        value |= (byte & 0x7F) << shift
        if byte < 128:
            return value, offset
        shift += 7
        if shift > _MAX_SHIFT:
            raise MalformedRequest("a varint of more than five bytes")


@lru_cache(4_096)
def unsigned_varint(value: int) -> bytes:
    """Encode a non-negative value."""
    out = bytearray()
    while value > 127:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def skip_tagged_fields(buffer: Buffer, offset: int, count: int) -> int:
    """Return the offset after `count` unknown tagged fields."""
    end = len(buffer)
    if count * 2 > end - offset:
        raise MalformedRequest(f"{count} tagged fields in {end - offset} bytes")
    for _ in range(count):
        _, offset = read_unsigned_varint(buffer, offset)
        size, offset = read_unsigned_varint(buffer, offset)
        offset += size
        if offset > end:
            raise MalformedRequest("a tagged field reaches over the end of the message")
    return offset
