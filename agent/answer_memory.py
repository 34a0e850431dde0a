"""The bound of large answers: while they are made, and until their clients have taken them.

A handler whose answer may be large says how large before it makes it, and waits for that much (`Room.needs`). Whoever
waits holds nothing of it, and whoever holds some of it waits for no other budget. A client that takes its answer too
slowly while others wait is closed (`KafkaConnection.staleness`). An answer of less than FREE_BYTES needs no room: its
request was charged for that.

Sizes are estimates of an answer's objects and bytes together. Once it is written, its bytes count.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from agent.errors import AnswerTooLarge, NoRoomForAnswer
from agent.memory_budget import Grant, MemoryBudget
from sequencer.api import Value
from sequencer.pages import Page, pages
from tailrace.clock import Clock

PART = 8
"""One part in so many of the memory budget is what large answers have together, beside it."""
LARGEST_PART = 2
"""One part in so many is the most that one answer may take: it is made while no other large one is."""
FREE_BYTES = 16 * 1024
WAIT_SECONDS = 30.0
"""A request that has waited so long for its answer's memory is given up: its client has given it up, too."""
PAGE_BYTES = 2 * 1024 * 1024
"""A page of the sequencer's listings, with what is made of it."""
LISTING_BYTES = 16 * 1024 * 1024
"""What a listing of several pages is taken for at first."""
ENTRY_BYTES = 400
"""An entry of a listing: the sequencer's row, the answer's, and its bytes."""

Q = TypeVar("Q", bound=Value)
P = TypeVar("P", bound=Page)


class AnswerMemory:
    """Bytes of large answers. Owned by one event loop. `most`: what one answer may take."""

    def __init__(self, memory_budget_bytes: int, clock: Clock) -> None:
        self.most = memory_budget_bytes // LARGEST_PART
        self._budget = MemoryBudget(memory_budget_bytes // PART)
        self._clock = clock

    @property
    def used(self) -> int:
        return self._budget.used

    @property
    def is_contended(self) -> bool:
        """Whether somebody waits."""
        return self._budget.is_contended

    async def take(self, size: int) -> Grant:
        """As much as this, or as one answer can be charged. Raises NoRoomForAnswer."""
        charge = min(size, self._budget.largest)
        if not await self._budget.take(charge, self._clock, WAIT_SECONDS):
            raise NoRoomForAnswer(f"there is no memory for an answer of {size} bytes now; ask again")
        return Grant(self._budget, charge)


class Room:
    """What one answer has of the memory. `used`: what it takes so far, as far as its handler knows."""

    __slots__ = ("_grant", "_memory", "_size", "used")

    def __init__(self, memory: AnswerMemory) -> None:
        self._memory = memory
        self._grant: Grant | None = None
        self._size = FREE_BYTES
        self.used = 0

    async def needs(self, size: int) -> None:
        """Have room for `size` bytes in all. What there was is given back while more is waited for.

        Raises:
            AnswerTooLarge: no answer may be so large.
            NoRoomForAnswer: others had all of it for too long.
        """
        if size <= self._size:
            return
        self._check(size)
        if self._grant is not None:
            size = max(size, 2 * self._size)
            self.release()
        self._grant = await self._memory.take(size)
        self._size = size

    async def listing(
        self, ask: Callable[[Q], Awaitable[P]], request: Q, size: Callable[[P], int]
    ) -> list[P]:
        """All pages of a sequencer's listing. Where there are several, none is kept while room for all is waited for.

        Args:
            size: how many bytes of an answer a page leads to.

        Raises:
            AnswerTooLarge: no answer may be so large.
        """
        await self._needs_about(PAGE_BYTES)
        page = await ask(request)
        if page.next is None or page.next == -1:
            self.used += size(page)
            return [page]
        del page
        await self._needs_about(LISTING_BYTES)
        found: list[P] = []
        async for page in pages(ask, request):
            found.append(page)
            self.grow(size(page))
        return found

    def grow(self, more: int) -> None:
        """Count what could not be known before. Raises AnswerTooLarge."""
        self.used += more
        if self._grant is not None and self.used > self._grant.bytes:
            self._check(self.used)
            self._grant.resize(self.used)

    async def _needs_about(self, more: int) -> None:
        """As `needs`, for a guess, which is no reason to refuse."""
        await self.needs(min(self.used + more, max(self.used, self._memory.most)))

    def _check(self, size: int) -> None:
        if size > self._memory.most:
            raise AnswerTooLarge(
                f"the answer would take {size} bytes of memory, of at most {self._memory.most} "
                f"(agent.memory_budget_bytes / {LARGEST_PART}): ask for less at a time",
            )

    def written(self, size: int) -> bool:
        """The answer has this many bytes. Returns whether they are held, until `release`."""
        if self._grant is None:
            return False
        if size <= FREE_BYTES:
            self.release()
            return False
        self._grant.resize(size)
        return True

    def release(self) -> None:
        """Give back what there is; again does nothing."""
        if self._grant is not None:
            self._grant.release()
            self._grant = None
            self._size = FREE_BYTES


class _NoBound(Room):
    """Of those who ask a handler without a dispatcher. It keeps nothing, so all of them share it."""

    __slots__ = ()

    async def needs(self, size: int) -> None:
        return

    async def _needs_about(self, more: int) -> None:
        return

    def grow(self, more: int) -> None:
        return


NO_BOUND: Room = _NoBound(None)  # type: ignore[arg-type]
