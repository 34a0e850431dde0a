"""An upload session as its lane sees it: its prefix, how long PUTs may start, and which of its numbers are unanswered.

    numbers    0  1  2  3  4  5  6 | 7 ...
               answered |  ?  answered ?
                        ^answered_below     ^next_number

The sequencer applies a session's commits in the order of their numbers. Between sessions the lane keeps the order: it
waits until all numbers of a rotated session are answered before it sends the next session's first.
"""

from __future__ import annotations

import asyncio
from math import inf
from uuid import UUID


class UploadSession:
    """An open upload session. `opened_at`, `no_put_after`: monotonic seconds. No PUT starts after `no_put_after`.
    `by_reference_s`: how long a stored batch can be committed again by reference."""

    def __init__(
        self,
        session_id: UUID,
        prefix: str,
        *,
        opened_at: float,
        no_put_after: float,
        by_reference_s: float = inf,
        predecessor: UploadSession | None = None,
    ) -> None:
        self.session_id = session_id
        self.prefix = prefix
        self.opened_at = opened_at
        self.no_put_after = no_put_after
        self.by_reference_s = by_reference_s
        self.last_error = "the sequencer says nothing"
        """Why the last retried commit had no answer."""
        self._predecessor = predecessor
        self._next_number = 0
        self._unanswered: set[int] = set()
        self._is_answered = asyncio.Event()
        self._is_answered.set()

    def take_number(self) -> int:
        """Return the number of the next commit. It is unanswered until `answered`."""
        number = self._next_number
        self._next_number += 1
        self._unanswered.add(number)
        self._is_answered.clear()
        return number

    def answered(self, number: int) -> None:
        """Note that the number's commit was answered, or was dropped with the session."""
        self._unanswered.discard(number)
        if not self._unanswered:
            self._is_answered.set()

    @property
    def answered_below(self) -> int:
        """The number below which all numbers are answered."""
        return min(self._unanswered, default=self._next_number)

    async def predecessors_answered(self) -> None:
        """Wait until every number of the sessions before this one is answered."""
        if self._predecessor is not None:
            await self._predecessor.all_answered()
            self._predecessor = None

    async def all_answered(self) -> None:
        """Wait until every number taken so far is answered, in this session and in the sessions before it."""
        await self.predecessors_answered()
        await self._is_answered.wait()
