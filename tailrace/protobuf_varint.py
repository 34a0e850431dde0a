"""Numbers in the wire format of Protocol Buffers, of whoever reads that format without its library."""

from __future__ import annotations


def read_varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """(value, offset after it) of an unsigned number. Raises IndexError where the data ends, OverflowError after ten
    bytes."""
    byte = data[at]
    if byte < 0x80:
        return byte, at + 1
    value = byte & 0x7F
    for shift in range(7, 70, 7):
        at += 1
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at + 1
    raise OverflowError("a number of more than ten bytes")
