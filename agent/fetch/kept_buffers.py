"""Buffers that answers on their way keep in memory: a view of some bytes of a chunk keeps all of the chunk.

So clients that take their answers slowly could keep many times what they asked for. All answers together keep at most
`limit` bytes in such buffers, each counted once, however many have a view of it; beyond that an answer gets copies.
There may be as many of these as it has parts, so its maker makes them in turns of the loop.
"""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.buffers import Buffer

LARGER = 2
"""A part keeps more than itself if its buffer is so many times as large."""


class KeptBuffers:
    """Owned by one event loop."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.size = 0
        self._answers: dict[int, int] = {}
        """How many answers keep a buffer, by its id."""

    def keep(self, parts: Sequence[Buffer], kept: dict[int, memoryview]) -> list[int]:
        """The numbers of those parts that an answer may not have as they are, but as copies. `kept`: of each buffer
        that it keeps, by its id, a view for `release`: some of the answer may go before that, and nobody else gets the
        id while there is a view."""
        return [
            number
            for number, part in enumerate(parts)
            if type(part) is memoryview
            and memoryview(part.obj).nbytes >= LARGER * part.nbytes
            and id(part.obj) not in kept
            and not self._may_keep(part, kept)
        ]

    def _may_keep(self, part: memoryview, kept: dict[int, memoryview]) -> bool:
        size, buffer_id = memoryview(part.obj).nbytes, id(part.obj)
        answers = self._answers.get(buffer_id, 0)
        if not answers:
            if self.size + size > self.limit:
                return False
            self.size += size
        self._answers[buffer_id] = answers + 1
        kept[buffer_id] = part
        return True

    def release(self, kept: dict[int, memoryview]) -> None:
        """An answer has left, or never will."""
        for buffer_id, part in kept.items():
            self._answers[buffer_id] -= 1
            if not self._answers[buffer_id]:
                del self._answers[buffer_id]
                self.size -= memoryview(part.obj).nbytes
        kept.clear()
