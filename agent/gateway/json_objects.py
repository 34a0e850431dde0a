"""Cuts a stream of bytes into consecutive JSON objects. Pure.

Only braces, strings and escapes are examined; the decoder checks whether an object is valid. Each byte is examined
once, however the stream is divided.
"""

from __future__ import annotations

import re

_OUTSIDE = re.compile(rb'[{}"]')
_INSIDE = re.compile(rb'["\\]')
_SPACE = b" \t\r\n"


class NotAnObject(ValueError):
    """Something other than an object begins, or the stream ends within an object."""


class ObjectTooLarge(ValueError):
    """An object is larger than allowed."""


class JsonObjects:
    """`held_bytes`: bytes kept of an object that has not ended."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._rest = bytearray()
        self._looked_at = 0
        self._depth = 0
        self._is_in_string = False

    @property
    def held_bytes(self) -> int:
        return len(self._rest)

    def feed(self, data: bytes) -> list[bytes]:
        """Return the objects that end in this data. Raises NotAnObject, ObjectTooLarge."""
        self._rest += data
        objects: list[bytes] = []
        start = self._begin(0) if not self._depth else 0
        while (token := self._next()) is not None:
            if self._is_in_string:
                if token == b'"':
                    self._is_in_string = False
                elif self._looked_at < len(self._rest):
                    self._looked_at += 1  # skip the escaped byte
                else:
                    self._looked_at -= 1  # it has not arrived yet
                    break
            elif token == b'"':
                self._is_in_string = True
            else:
                self._depth += 1 if token == b"{" else -1
                if not self._depth:
                    objects.append(bytes(self._rest[start : self._looked_at]))
                    start = self._begin(self._looked_at)
        for size in (*map(len, objects), len(self._rest) - start):
            if size > self._max_bytes:
                raise ObjectTooLarge(f"An object of more than {self._max_bytes} bytes.")
        del self._rest[:start]
        self._looked_at -= start
        return objects

    def finish(self) -> None:
        """End the stream. Raises NotAnObject if it ends within an object."""
        if self._rest:
            raise NotAnObject("The body ends within an object.")

    def _begin(self, at: int) -> int:
        """Return where the object after the white space at `at` begins."""
        end = len(self._rest)
        while at < end and self._rest[at] in _SPACE:
            at += 1
        if at < end and self._rest[at] != 0x7B:
            raise NotAnObject("An object was expected: {...}.")
        self._looked_at = at
        return at

    def _next(self) -> bytes | None:
        match = (_INSIDE if self._is_in_string else _OUTSIDE).search(self._rest, self._looked_at)
        self._looked_at = len(self._rest) if match is None else match.end()
        return None if match is None else match[0]
