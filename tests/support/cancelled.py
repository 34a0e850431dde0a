"""Cancels work at one of the points where it waits, as a lost connection does."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any


class CancelledAt:
    """Awaits `work`, and cancels it when it waits for the `number`-th time, counted from 1.

    Returns the result if the work waits less often, or completes in spite of the cancellation. Otherwise it raises
    CancelledError.
    """

    def __init__(self, work: Coroutine[Any, Any, Any], number: int) -> None:
        self._work = work
        self._number = number

    def __await__(self) -> Generator[Any, Any, Any]:
        try:
            waits_for = self._work.send(None)
            for _ in range(self._number - 1):
                yield waits_for
                waits_for = self._work.send(None)
            waits_for = self._work.throw(asyncio.CancelledError())
            while True:
                yield waits_for
                waits_for = self._work.send(None)
        except StopIteration as done:
            return done.value
