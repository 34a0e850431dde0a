"""Reads varints of Protocol Buffers' wire format, for code that parses it without the library."""

from __future__ import annotations


def read_varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """Read an unsigned number. Return (value, offset after it).

    Raises IndexError if the data ends within it, OverflowError if it has more than ten bytes.
    """
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
