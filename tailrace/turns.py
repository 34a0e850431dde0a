"""Turns of the event loop: long work is split into steps, so that no request blocks the loop for long.

Steps count work, not time, so that a simulation takes the same steps in each run.

A decision that can take long is a generator (`Steps`). It stays pure and reports its progress at each `yield`. Its
driver either lets other tasks run between steps (`in_turns`) or does not (`at_once`).
"""

from __future__ import annotations

import asyncio
import time  # noqa: TID251 - a pause of a thread, which no simulation has
from collections.abc import AsyncIterator, Generator, Iterable, Iterator, Sequence
from typing import TypeAlias, TypeVar

T = TypeVar("T")

Steps: TypeAlias = Generator[int, None, T]
"""Work that returns a T. Each `yield` says how much was done since the last one, in the unit of its driver's turns."""


PAUSE_SECONDS = 0.0001
"""Long enough for the event loop to wake up and take the interpreter."""


class Turns:
    """Lets all other ready tasks run after each `step` of work.

    State that the caller read before a pause may have changed after it.
    """

    __slots__ = ("_left", "_step")

    def __init__(self, step: int) -> None:
        assert step > 0, f"a step of {step}"
        self._step = step
        self._left = step

    async def did(self, work: int = 1) -> None:
        """Count the work done since the last call, and yield to other tasks if a step is full."""
        if self.fills(work):
            await self.give()

    def fills(self, work: int = 1) -> bool:
        """Count the work and return whether a step is full, so that `give` is due. Cheaper than `did` in a loop that is
        mostly short."""
        self._left -= work
        if self._left > 0:
            return False
        self._left = self._step
        return True

    async def give(self) -> None:
        """Yield to other tasks."""
        await asyncio.sleep(0)  # noqa: TID251 - a turn, not a time

    async def over(self, items: Sequence[T]) -> AsyncIterator[T]:
        """Iterate over the items, with one step of them per turn."""
        for some in in_parts(items, self._step):
            for item in some:
                yield item
            await self.did(len(some))

    def parts(self, items: Sequence[T]) -> AsyncIterator[Sequence[T]]:
        """Iterate over the items in parts of one step, one part per turn. The loop over them may end early."""
        return _Parts(self, iter(in_parts(items, self._step)))


class _Parts(AsyncIterator[Sequence[T]]):
    """The parts of some items. Not an async generator, because one that is left early stays open: the event loop closes
    it later, in a task of its own."""

    __slots__ = ("_done", "_parts", "_turns")

    def __init__(self, turns: Turns, parts: Iterator[Sequence[T]]) -> None:
        self._turns = turns
        self._parts = parts
        self._done = 0

    async def __anext__(self) -> Sequence[T]:
        if self._done and self._turns.fills(self._done):
            await self._turns.give()
        some = next(self._parts, None)
        if some is None:
            raise StopAsyncIteration
        self._done = len(some)
        return some


class ThreadTurns:
    """For long work in another thread: lets the event loop have the interpreter after each `step` of work. By itself,
    Python makes the loop wait for up to 5 ms (`sys.getswitchinterval`) each time that something wakes it."""

    __slots__ = ("_left", "_step")

    def __init__(self, step: int) -> None:
        self._step = step
        self._left = step

    def did(self) -> None:
        """Count one piece of work, and pause if a step is full."""
        self._left -= 1
        if self._left <= 0:
            self._left = self._step
            time.sleep(PAUSE_SECONDS)


def in_parts(items: Sequence[T], size: int) -> Iterable[Sequence[T]]:
    """Split the items into parts of `size`. Items that fit into one part are returned as they are."""
    if len(items) <= size:
        return (items,) if items else ()
    return (items[first : first + size] for first in range(0, len(items), size))


async def in_turns(steps: Steps[T], turns: Turns) -> T:
    """Do the work in as many turns as it needs, and return its result."""
    try:
        while True:
            await turns.did(next(steps))
    except StopIteration as done:
        result: T = done.value
        return result


class PacedStarts:
    """Lets concurrent tasks start one after another, each after the earlier tasks' work has had its turns.

    Otherwise the first steps of all tasks run in one turn of the loop, however small each step is.
    """

    __slots__ = ("_ahead", "_lock", "_step")

    def __init__(self, step: int) -> None:
        self._step = step
        self._ahead = 0
        self._lock = asyncio.Lock()

    async def begin(self, work: int) -> None:
        """Wait until a task with this much work may start. The amount is what it does without waiting."""
        async with self._lock:
            for _ in range(self._ahead // self._step):
                await asyncio.sleep(0)  # noqa: TID251 - a turn, not a time
            self._ahead = self._ahead % self._step + work


def done_in_a_step(steps: Steps[T]) -> T | None:
    """Return the result of work that never pauses; None for other work, which is then at its first pause."""
    try:
        next(steps)
    except StopIteration as done:
        result: T = done.value
        return result
    return None


def at_once(steps: Steps[T]) -> T:
    """Do the work in this turn and return its result. For callers while nothing else waits for the loop."""
    try:
        while True:
            next(steps)
    except StopIteration as done:
        result: T = done.value
        return result
