"""Buffers that pending answers pin in memory: a view of some bytes of a chunk pins the whole chunk.

Without a limit, clients that read their answers slowly could pin many times what they requested. All answers together
pin at most `limit` bytes. A buffer counts once, however many answers have views of it. Above the limit an answer gets
copies. There may be as many copies as it has parts, so the caller makes them in turns of the loop.
"""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.buffers import Buffer

LARGER = 2
"""A part counts as pinning its buffer if the buffer is at least this many times as large as the part."""


class PinnedBuffers:
    """The buffers that an agent's answers pin. Owned by one event loop."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.size = 0
        self._answers: dict[int, int] = {}
        """How many answers pin a buffer, by the buffer's id."""

    def pin(self, parts: Sequence[Buffer], pinned: dict[int, memoryview]) -> list[int]:
        """Pin the parts' buffers, and return the indexes of the parts that the answer must copy.

        Args:
            pinned: receives one view of each buffer that the answer pins, by the buffer's id, for `release`. The
                answer's parts may go earlier, and while a view exists no other object gets the id.
        """
        return [
            number
            for number, part in enumerate(parts)
            if type(part) is memoryview
            and memoryview(part.obj).nbytes >= LARGER * part.nbytes
            and id(part.obj) not in pinned
            and not self._try_pin(part, pinned)
        ]

    def _try_pin(self, part: memoryview, pinned: dict[int, memoryview]) -> bool:
        size, buffer_id = memoryview(part.obj).nbytes, id(part.obj)
        answers = self._answers.get(buffer_id, 0)
        if not answers:
            if self.size + size > self.limit:
                return False
            self.size += size
        self._answers[buffer_id] = answers + 1
        pinned[buffer_id] = part
        return True

    def release(self, pinned: dict[int, memoryview]) -> None:
        """Release the buffers of an answer that was sent, or never will be."""
        for buffer_id, part in pinned.items():
            self._answers[buffer_id] -= 1
            if not self._answers[buffer_id]:
                del self._answers[buffer_id]
                self.size -= memoryview(part.obj).nbytes
        pinned.clear()
