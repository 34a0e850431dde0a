"""The bound of large answers: while they are made, and until their clients have taken them.

A handler whose answer may be large says how large before it makes it, and waits for that much (`Room.needs`). Once it
has made a part, it gets more only where that is free at once; else it drops what it has made, gives its memory back,
waits for twice as much and begins anew (`made_anew`). So whoever waits holds nothing of it and has made nothing, and
whoever holds some of it waits for no other budget. A client that takes its answer too slowly while others wait is
closed (`KafkaConnection.staleness`). An answer of less than FREE_BYTES needs no room: its request was charged for that.

An answer that is larger than all of this memory is charged `MemoryBudget.largest`. One at a time can be, so all answers
together take no more than the budget of this memory and `AnswerMemory.most`.

Sizes are estimates of an answer's objects and bytes together. Once it is written, its bytes count.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Protocol, TypeVar

from agent.errors import AnswerTooLarge, NoRoomForAnswer
from agent.memory_budget import Grant, MemoryBudget
from sequencer.api import Value
from sequencer.pages import Page, pages
from tailrace.clock import Clock

PART = 8
"""One part in so many of the memory budget is what large answers have together, beside it."""
LARGEST_PART = 2
"""One part in so many is the most that one answer may take: it is made while no other one of such a size is."""
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
S = TypeVar("S")
A = TypeVar("A")
R = TypeVar("R")


class _Outgrown(Exception):
    """What was made so far must be dropped, as there is no memory for more beside it. `size`: what to wait for."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size = size


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

    def deadline(self) -> float:
        """Until when a request waits that begins to wait now."""
        return self._clock.monotonic() + WAIT_SECONDS

    async def take(self, size: int, deadline: float) -> Grant:
        """As much as this, or as one answer can be charged. Raises NoRoomForAnswer."""
        charge = min(size, self._budget.largest)
        seconds = max(deadline - self._clock.monotonic(), 0.0)
        if not await self._budget.take(charge, self._clock, seconds):
            raise NoRoomForAnswer(f"there is no memory for an answer of {size} bytes now; ask again")
        return Grant(self._budget, charge)

    def try_take(self, size: int) -> Grant | None:
        """The same, if it is there at once and nobody waits before."""
        charge = min(size, self._budget.largest)
        return Grant(self._budget, charge) if self._budget.try_take(charge) else None

    def extended(self, grant: Grant | None, size: int) -> Grant | None:
        """The grant, now of this size, or None where there is no more. One that has all of the memory may pass it."""
        grant = grant or Grant(self._budget, 0)
        charge = min(size, self._budget.largest)
        if grant.bytes < charge:
            if self.used + charge - grant.bytes > self._budget.limit:
                return None
            grant.resize(charge)
        return grant


class Room:
    """What one answer has of the memory. `used`: what it takes so far, as far as its handler knows."""

    __slots__ = ("_deadline", "_grant", "_is_begun", "_memory", "_size", "used")

    def __init__(self, memory: AnswerMemory) -> None:
        self._memory = memory
        self._deadline: float | None = None
        self._grant: Grant | None = None
        self._is_begun = False  # whether a part of the answer is made
        self._size = FREE_BYTES
        self.used = 0

    async def needs(self, size: int) -> None:
        """Have room for `size` bytes in all, before anything of the answer is made. What there was is given back while
        more is waited for.

        Raises:
            AnswerTooLarge: no answer may be so large.
            NoRoomForAnswer: others had all of it for too long.
        """
        if size <= self._size:
            return
        self._check(size)
        if self._grant is not None:
            size = self._enlarged(size)
            self.release()
        if self._deadline is None:
            self._deadline = self._memory.deadline()
        self._grant = await self._memory.take(size, self._deadline)
        self._size = size

    def has(self, size: int) -> bool:
        """Whether there is room for `size` bytes in all without waiting. Raises AnswerTooLarge."""
        if size > self._size and self._grant is None:
            self._check(size)
            self._grant = self._memory.try_take(size)
            if self._grant is not None:
                self._size = size
        return size <= self._size

    async def made(self, make: Callable[[], Awaitable[R]]) -> R:
        """What `make` gives. It is begun anew, with more room, as often as it outgrows what there is.

        Raises:
            NoRoomForAnswer: others had all of it for too long.
        """
        while True:
            try:
                return await make()
            except _Outgrown as outgrown:
                size = outgrown.size
            self.release()
            self.used = 0
            self._is_begun = False
            await self.needs(size)

    async def listing(
        self, ask: Callable[[Q], Awaitable[P]], request: Q, size: Callable[[P], int]
    ) -> list[P]:
        """All pages of a sequencer's listing. Where there are several, none is kept while room for all is waited for.
        Those who call it are `made_anew`.

        Args:
            size: how many bytes of an answer a page leads to.

        Raises:
            AnswerTooLarge: no answer may be so large.
        """
        await self._reserve(PAGE_BYTES)
        page = await ask(request)
        if page.next is None or page.next == -1:
            self.grow(size(page))
            return [page]
        del page
        await self._reserve(LISTING_BYTES)
        found: list[P] = []
        async for page in pages(ask, request):
            found.append(page)
            self.grow(size(page))
        return found

    def grow(self, more: int) -> None:
        """Count what was made and could not be known before. Raises AnswerTooLarge."""
        self._is_begun = True
        self.used += more
        if self.used > self._size:
            self._extend(self.used)
        if self._grant is not None and self.used > self._grant.bytes:
            self._grant.resize(self.used)

    async def _reserve(self, more: int) -> None:
        """Have room for a guess, which is no reason to refuse."""
        size = min(self.used + more, max(self.used, self._memory.most))
        if not self._is_begun:
            await self.needs(size)
        elif size > self._size:
            self._extend(size)

    def _extend(self, size: int) -> None:
        """More room without waiting, as a part of the answer is made."""
        self._check(size)
        grant = self._memory.extended(self._grant, size)
        if grant is None:
            raise _Outgrown(self._enlarged(size))
        self._grant, self._size = grant, size

    def _enlarged(self, size: int) -> int:
        return min(max(size, 2 * self._size), self._memory.most)

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

    def __init__(self) -> None:
        self.used = 0

    async def needs(self, size: int) -> None:
        return

    async def made(self, make: Callable[[], Awaitable[R]]) -> R:
        return await make()

    def grow(self, more: int) -> None:
        return

    async def _reserve(self, more: int) -> None:
        return


NO_BOUND: Room = _NoBound()


class _Context(Protocol):
    @property
    def room(self) -> Room: ...


C = TypeVar("C", bound=_Context)


def made_anew(handler: Callable[[S, C, A], Awaitable[R]]) -> Callable[[S, C, A], Awaitable[R]]:
    """A handler whose answer grows while it is made; see `Room.made`. It changes nothing, so it may be begun anew."""

    @wraps(handler)
    async def handle(services: S, context: C, request: A) -> R:
        return await context.room.made(lambda: handler(services, context, request))

    return handle
