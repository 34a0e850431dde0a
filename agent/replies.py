"""Replies to requests: what a dispatcher gives to the connection that a frame came from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from tailrace.buffers import Buffer


class Reply(msgspec.Struct, eq=False):
    """The dispatcher's answer to a frame: buffers to send (none for acks=0); `close` ends the connection after it.
    `on_sent` is called once, when `parts` were sent or never will be; it releases the memory of fetched records if
    `has_records`, else the memory of a large answer.

    A deferred reply is completed later by `made`, or by `failed`, which ends the connection. The connection sets the
    other fields: `charge`, the bytes of the memory budget that the request holds until then; `on_made`, called then;
    `counted_bytes`, the bytes that count as unsent.
    """

    parts: Sequence[Buffer] | None = None
    close: bool = False
    on_sent: Callable[[], None] | None = None
    has_records: bool = False
    is_made: bool = True
    charge: int = 0
    counted_bytes: int = 0
    on_made: Callable[[Reply], None] | None = None

    @property
    def is_deferred(self) -> bool:
        """Whether the answer is made after the connection received the reply, or was."""
        return self.on_made is not None

    @classmethod
    def deferred(cls) -> Reply:
        """Return a reply whose answer is made later."""
        return cls(is_made=False)

    def made(self, parts: Sequence[Buffer] | None) -> None:
        """Complete a deferred reply with its answer."""
        self.parts = parts
        self.is_made = True
        if self.on_made is not None:
            self.on_made(self)

    def failed(self) -> None:
        """Complete a deferred reply without an answer; the connection closes."""
        self.close = True
        self.made(None)


class FastPath(Protocol):
    """Takes requests that look like earlier ones of their connection."""

    def begin(self) -> bool:
        """Whether it still takes requests. Call it before `take`, in the same turn of the loop."""

    def take(self, data: memoryview, start: int, end: int, *, is_kept: bool) -> Reply | None:
        """Return the reply to the request in `data[start:end]`. Return None, without side effects, if the request
        differs from the others. `is_kept`: nobody changes the bytes later."""
