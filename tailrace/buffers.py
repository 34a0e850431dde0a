"""Bytes as they are passed around: whoever takes a Buffer reads it, and copies nothing."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable

Buffer = bytes | bytearray | memoryview

TLS_PIECE_BYTES = 128 * 1024
"""What is written at once through TLS: its transport passes on whatever it is given, and is full at the next write."""

WORTH_A_CALL = 32 * 1024
"""Below this many bytes, filling them with zeros costs less than the call that leaves them as they are."""

_new_bytearray = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t)(
    ("PyByteArray_FromStringAndSize", ctypes.pythonapi)
)


def uninitialized(size: int) -> bytearray:
    """A buffer of so many bytes, all of which are about to be written: what is in it now is not defined."""
    if size < WORTH_A_CALL:
        return bytearray(size)
    made: bytearray = _new_bytearray(None, size)
    return made


def in_pieces(parts: Iterable[Buffer], size: int) -> list[list[Buffer]]:
    """The bytes of the parts in their order, `size` of them in each piece, fewer in the last; nothing is copied."""
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
