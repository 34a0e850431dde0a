"""The memory of large answers: it is held while an answer is made, and until its client has received it.

A handler whose answer may be large says how large before it makes it, and waits for that much memory
(`AnswerReservation.needs`). Once it has made a part, it gets more only if that is free at once. Otherwise it drops what
it has made, releases its memory, waits for twice as much and starts over (`restartable`). So a request that waits holds
none of this memory and has made nothing, and a request that holds some of it waits for no other budget. A client that
reads its answer too slowly while others wait is disconnected (`KafkaConnection.staleness`). An answer of less than
FREE_BYTES needs no reservation: its request's charge covers it.

An answer that needs more than all of this memory is charged `MemoryBudget.largest`. Only one such answer is made at a
time, so all answers together take no more than this memory's budget plus `AnswerMemory.most`.

Sizes are estimates of an answer's objects and bytes together. Once it is encoded, its bytes count.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Protocol, TypeVar

from agent.errors import AnswerMemoryExhausted, AnswerTooLarge
from agent.memory_budget import Grant, MemoryBudget
from sequencer.api.values import Value
from sequencer.pages import Page, pages
from tailrace.clock import Clock

PART = 8
"""Large answers together get this fraction (1 / PART) of the memory budget, in addition to it."""
LARGEST_PART = 2
"""One answer may take this fraction (1 / LARGEST_PART) of the memory budget, but only one at a time."""
FREE_BYTES = 16 * 1024
WAIT_SECONDS = 30.0
"""A request that has waited this long for its answer's memory is dropped: its client has given up, too."""
PAGE_BYTES = 2 * 1024 * 1024
"""The estimate of one page of the sequencer's listings, with the objects made from it."""
LISTING_BYTES = 16 * 1024 * 1024
"""The first estimate of a listing of several pages."""
ENTRY_BYTES = 400
"""The estimate of one entry of a listing: the sequencer's row, the answer's row, and its bytes."""

Q = TypeVar("Q", bound=Value)
P = TypeVar("P", bound=Page)
S = TypeVar("S")
A = TypeVar("A")
R = TypeVar("R")


class _ReservationTooSmall(Exception):
    """There is no memory for more, so what was made so far must be dropped. `size`: how many bytes to wait for."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size = size


class AnswerMemory:
    """The memory of large answers, in bytes. Owned by one event loop. `most`: the limit of one answer."""

    def __init__(self, memory_budget_bytes: int, clock: Clock) -> None:
        self.most = memory_budget_bytes // LARGEST_PART
        self._budget = MemoryBudget(memory_budget_bytes // PART)
        self._clock = clock

    @property
    def used(self) -> int:
        return self._budget.used

    @property
    def is_contended(self) -> bool:
        """Whether a request waits for this memory."""
        return self._budget.is_contended

    def deadline(self) -> float:
        """Return when a request that starts to wait now gives up (monotonic seconds)."""
        return self._clock.monotonic() + WAIT_SECONDS

    async def take(self, size: int, deadline: float) -> Grant:
        """Take `size` bytes, or the largest charge if that is less; wait until `deadline`.

        Raises AnswerMemoryExhausted.
        """
        charge = min(size, self._budget.largest)
        seconds = max(deadline - self._clock.monotonic(), 0.0)
        if not await self._budget.take(charge, self._clock, seconds):
            raise AnswerMemoryExhausted(f"there is no memory for an answer of {size} bytes now; try again")
        return Grant(self._budget, charge)

    def try_take(self, size: int) -> Grant | None:
        """Take the memory if it is free and no request waits for it; otherwise return None."""
        charge = min(size, self._budget.largest)
        return Grant(self._budget, charge) if self._budget.try_take(charge) else None

    def extended(self, grant: Grant | None, size: int) -> Grant | None:
        """Return the grant, enlarged to `size`; None if that is not free. A grant of all the memory may exceed it."""
        grant = grant or Grant(self._budget, 0)
        charge = min(size, self._budget.largest)
        if grant.bytes < charge:
            if self.used + charge - grant.bytes > self._budget.limit:
                return None
            grant.resize(charge)
        return grant


class AnswerReservation:
    """One answer's part of the memory. `used`: bytes that the answer takes so far, as far as its handler knows."""

    __slots__ = ("_deadline", "_grant", "_is_begun", "_memory", "_size", "used")

    def __init__(self, memory: AnswerMemory) -> None:
        self._memory = memory
        self._deadline: float | None = None
        self._grant: Grant | None = None
        self._is_begun = False  # whether a part of the answer was made
        self._size = FREE_BYTES
        self.used = 0

    async def needs(self, size: int) -> None:
        """Reserve `size` bytes in all, before any part of the answer is made. While it waits for more, it holds
        nothing.

        Raises:
            AnswerTooLarge: the size exceeds the limit of one answer.
            AnswerMemoryExhausted: other answers held the memory for too long.
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
        """Whether `size` bytes in all can be reserved without waiting; if so, reserve them. Raises AnswerTooLarge."""
        if size > self._size and self._grant is None:
            self._check(size)
            self._grant = self._memory.try_take(size)
            if self._grant is not None:
                self._size = size
        return size <= self._size

    async def made(self, make: Callable[[], Awaitable[R]]) -> R:
        """Return the result of `make`. If its memory is not enough, start it again with more, as often as needed.

        Raises:
            AnswerTooLarge: the size exceeds the limit of one answer.
            AnswerMemoryExhausted: other answers held the memory for too long.
        """
        while True:
            try:
                return await make()
            except _ReservationTooSmall as too_small:
                size = too_small.size
            self.release()
            self.used = 0
            self._is_begun = False
            await self.needs(size)

    async def listing(
        self, ask: Callable[[Q], Awaitable[P]], request: Q, size: Callable[[P], int]
    ) -> list[P]:
        """Return all pages of a sequencer's listing. If there are several, keep none while waiting for memory for all.
        Handlers that call this are `restartable`.

        Args:
            size: returns the bytes of an answer that a page leads to.

        Raises:
            AnswerTooLarge: the size exceeds the limit of one answer.
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
        """Count bytes of the answer that were not known before they were made. Raises AnswerTooLarge."""
        self._is_begun = True
        self.used += more
        if self.used > self._size:
            self._extend(self.used)
        if self._grant is not None and self.used > self._grant.bytes:
            self._grant.resize(self.used)

    async def _reserve(self, more: int) -> None:
        """Reserve an estimate. It is capped at the limit of one answer, so it never raises AnswerTooLarge."""
        size = min(self.used + more, max(self.used, self._memory.most))
        if not self._is_begun:
            await self.needs(size)
        elif size > self._size:
            self._extend(size)

    def _extend(self, size: int) -> None:
        """Reserve more without waiting, because a part of the answer was made.

        Raises AnswerTooLarge, _ReservationTooSmall.
        """
        self._check(size)
        grant = self._memory.extended(self._grant, size)
        if grant is None:
            raise _ReservationTooSmall(self._enlarged(size))
        self._grant, self._size = grant, size

    def _enlarged(self, size: int) -> int:
        return min(max(size, 2 * self._size), self._memory.most)

    def _check(self, size: int) -> None:
        if size > self._memory.most:
            raise AnswerTooLarge(
                f"the answer would take {size} bytes of memory, of at most {self._memory.most} "
                f"(agent.memory_budget_bytes / {LARGEST_PART}): request less at a time"
            )

    def written(self, size: int) -> bool:
        """Hold only the encoded answer's `size` bytes. Return whether they are held, until `release`."""
        if self._grant is None:
            return False
        if size <= FREE_BYTES:
            self.release()
            return False
        self._grant.resize(size)
        return True

    def release(self) -> None:
        """Give back the memory; a second call does nothing."""
        if self._grant is not None:
            self._grant.release()
            self._grant = None
            self._size = FREE_BYTES


class _Unreserved(AnswerReservation):
    """The reservation of callers that use a handler without a dispatcher. It holds nothing, so all of them share it."""

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


UNRESERVED: AnswerReservation = _Unreserved()


class _Context(Protocol):
    @property
    def reservation(self) -> AnswerReservation: ...


C = TypeVar("C", bound=_Context)


def restartable(handler: Callable[[S, C, A], Awaitable[R]]) -> Callable[[S, C, A], Awaitable[R]]:
    """Wrap a handler whose answer grows while it is made (see `AnswerReservation.made`). It must change nothing, so
    that it can start again."""

    @wraps(handler)
    async def handle(services: S, context: C, request: A) -> R:
        return await context.reservation.made(lambda: handler(services, context, request))

    return handle
