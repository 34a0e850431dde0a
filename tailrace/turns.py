"""Turns of the event loop: long work is done in steps, so that no request holds the loop for long.

Steps count work, not time: a simulation takes the same steps in each run.

A decision that can be long is a generator (`Steps`): it stays pure and reports its progress at each `yield`. Its driver
gives turns to other tasks (`in_turns`) or doesn't (`at_once`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator, Iterable, Sequence
from typing import TypeAlias, TypeVar

T = TypeVar("T")

Steps: TypeAlias = Generator[int, None, T]
"""Work that gives a T. Each `yield` says how much was done since the last, in the unit of its driver's turns."""


class Turns:
    """Lets all other ready tasks run after each `step` of work.

    What the caller read before a pause may have changed after it.
    """

    __slots__ = ("_left", "_step")

    def __init__(self, step: int) -> None:
        assert step > 0, f"a step of {step}"
        self._step = step
        self._left = step

    async def did(self, work: int = 1) -> None:
        """Count what was done since the last call; give the turn away when a step is full."""
        if self.fills(work):
            await self.give()

    def fills(self, work: int = 1) -> bool:
        """The same in two parts, for loops of which most are short: whether a step is full, and `give` is due."""
        self._left -= work
        if self._left > 0:
            return False
        self._left = self._step
        return True

    async def give(self) -> None:
        """Give the turn away."""
        await asyncio.sleep(0)  # noqa: TID251 - a turn, not a time

    async def over(self, items: Sequence[T]) -> AsyncIterator[T]:
        """The items, with a step of them in a turn."""
        for some in in_parts(items, self._step):
            for item in some:
                yield item
            await self.did(len(some))

    async def parts(self, items: Sequence[T]) -> AsyncIterator[Sequence[T]]:
        """The same, a step of items at a time."""
        for some in in_parts(items, self._step):
            yield some
            await self.did(len(some))


def in_parts(items: Sequence[T], size: int) -> Iterable[Sequence[T]]:
    """The items, as they are where they fit into one part, else so many after the other."""
    if len(items) <= size:
        return (items,) if items else ()
    return (items[first : first + size] for first in range(0, len(items), size))


async def in_turns(steps: Steps[T], turns: Turns) -> T:
    """The result of the work, done in as many turns as it needs."""
    try:
        while True:
            await turns.did(next(steps))
    except StopIteration as done:
        result: T = done.value
        return result


class Starts:
    """Lets tasks side by side begin one after the other, each once the work of those before it has had its turns.

    Otherwise the first steps of all of them are one turn of the loop, however small each is.
    """

    __slots__ = ("_ahead", "_lock", "_step")

    def __init__(self, step: int) -> None:
        self._step = step
        self._ahead = 0
        self._lock = asyncio.Lock()

    async def begin(self, work: int) -> None:
        """Wait for the turn of a task that has so much to do, if it waits for nothing."""
        async with self._lock:
            for _ in range(self._ahead // self._step):
                await asyncio.sleep(0)  # noqa: TID251 - a turn, not a time
            self._ahead = self._ahead % self._step + work


def done_in_a_step(steps: Steps[T]) -> T | None:
    """The result of work that pauses nowhere; None for other work, which is now at its first pause."""
    try:
        next(steps)
    except StopIteration as done:
        result: T = done.value
        return result
    return None


def at_once(steps: Steps[T]) -> T:
    """The result of the work, done in this turn: for callers beside whom nothing else waits for the loop."""
    try:
        while True:
            next(steps)
    except StopIteration as done:
        result: T = done.value
        return result
