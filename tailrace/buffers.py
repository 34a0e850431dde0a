"""Buffers: bytes that are passed on and read without a copy."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable

Buffer = bytes | bytearray | memoryview

TLS_PIECE_BYTES = 128 * 1024
"""Bytes of one write through TLS. The TLS transport accepts a write of any size, and is full only at the next one."""

WORTH_A_CALL = 32 * 1024
"""For fewer bytes, zeroing costs less than the call that avoids it."""

_new_bytearray = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t)(
    ("PyByteArray_FromStringAndSize", ctypes.pythonapi)
)


def uninitialized(size: int) -> bytearray:
    """Return a buffer of `size` bytes with undefined contents. The caller must write all of them."""
    if size < WORTH_A_CALL:
        return bytearray(size)
    made: bytearray = _new_bytearray(None, size)
    return made


def in_pieces(parts: Iterable[Buffer], size: int) -> list[list[Buffer]]:
    """Cut the bytes of the parts, in order, into pieces of `size` bytes. The last may be shorter. Copies nothing."""
    pieces: list[list[Buffer]] = []
    room = 0
    for part in parts:
        rest = memoryview(part)
        while rest:
            if not room:
                pieces.append([])
                room = size
            pieces[-1].append(rest[:room])
            taken = min(len(rest), room)
            rest, room = rest[taken:], room - taken
    return pieces
