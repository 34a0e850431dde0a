"""An upload session as its lane sees it: where it may write, until when, and which of its numbers are unanswered.

    numbers    0  1  2  3  4  5  6 | 7 ...
               answered |  ?  answered ?
                        ^answered_below     ^next_number

The sequencer applies a session's commits in the order of their numbers. Between sessions the lane keeps the order: the
numbers of a rotated session are answered before the next session sends its first.
"""

from __future__ import annotations

import asyncio
from uuid import UUID


class UploadSession:
    """An open upload session. `opened_at`, `no_put_after`: monotonic seconds; no PUT starts after the latter."""

    def __init__(
        self,
        session_id: UUID,
        prefix: str,
        *,
        opened_at: float,
        no_put_after: float,
        predecessor: UploadSession | None = None,
    ) -> None:
        self.session_id = session_id
        self.prefix = prefix
        self.opened_at = opened_at
        self.no_put_after = no_put_after
        self.last_error = "the sequencer says nothing"
        """Why the last commit that was retried was not answered."""
        self._predecessor = predecessor
        self._next_number = 0
        self._unanswered: set[int] = set()
        self._is_answered = asyncio.Event()
        self._is_answered.set()

    def take_number(self) -> int:
        """The number of the next commit; it is unanswered until `answered`."""
        number = self._next_number
        self._next_number += 1
        self._unanswered.add(number)
        self._is_answered.clear()
        return number

    def answered(self, number: int) -> None:
        """The number's commit is answered, or given up with the session."""
        self._unanswered.discard(number)
        if not self._unanswered:
            self._is_answered.set()

    @property
    def answered_below(self) -> int:
        """All numbers below this one are answered."""
        return min(self._unanswered, default=self._next_number)

    async def predecessors_answered(self) -> None:
        """Wait until every number of the sessions before this one is answered."""
        if self._predecessor is not None:
            await self._predecessor.all_answered()
            self._predecessor = None

    async def all_answered(self) -> None:
        """Wait until every number that was taken is answered, here and in the sessions before."""
        await self.predecessors_answered()
        await self._is_answered.wait()
