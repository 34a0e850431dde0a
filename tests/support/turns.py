"""Measures passes of the event loop. A pass is all callbacks and task steps that were ready together, before the loop
polls for input again.

It counts CPU time of the loop's thread, so that a busy machine doesn't make a turn longer. It leaves out the garbage
collector, which runs at any time.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import time
from asyncio import BaseEventLoop, events
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

import pytest

from tailrace.turns import Turns

P = ParamSpec("P")
T = TypeVar("T")

YARDSTICK_ROWS = 50_000
YARDSTICK_SECONDS = 0.030
"""Measured on an idle core of an AMD EPYC with Python 3.11, the machine of docs/figures.md."""


@dataclass(slots=True)
class MeasuredTurns:
    """The longest passes so far, longest first, as (seconds, what): the number of turns, and the longest of them."""

    longest: list[tuple[float, str]] = field(default_factory=list)
    keep: int = 5
    slowness: float = 1.0
    """How much slower than the reference this machine is now; at least 1."""
    _pass: list[tuple[float, str]] = field(default_factory=list)

    def add(self, seconds: float, what: str) -> None:
        """Note a turn of the current pass."""
        self._pass.append((seconds, what))

    def end_pass(self) -> None:
        """End the current pass: the loop polls for input again."""
        seconds = sum(each for each, _ in self._pass)
        if self._pass and (len(self.longest) < self.keep or seconds > self.longest[-1][0]):
            self.longest.append((seconds, _sum_of(self._pass)))
            self.longest.sort(key=lambda each: -each[0])
            del self.longest[self.keep :]
        self._pass.clear()

    @property
    def seconds(self) -> float:
        """Return the CPU seconds of the longest pass."""
        return self.longest[0][0] if self.longest else 0.0

    def check(self, seconds: float) -> None:
        """Raise HeldTooLong if a pass took at least this long on the reference machine."""
        if self.seconds >= seconds * self.slowness:
            raise HeldTooLong(f"(slowness {self.slowness:.2f}) {self}")

    def __str__(self) -> str:
        return "; ".join(f"{seconds * 1000:.1f} ms {what}" for seconds, what in self.longest)


class HeldTooLong(AssertionError):
    """A pass of the loop took more CPU time than it may."""


def least_of_three(test: Callable[P, Awaitable[None]]) -> Callable[P, Awaitable[None]]:
    """Run the test again if a pass took too long, up to three times in all.

    Other load on the machine raises CPU time too; the cost of a pass is the lowest measured.
    """

    @functools.wraps(test)
    async def run(*args: P.args, **kwargs: P.kwargs) -> None:
        for _ in range(2):
            try:
                return await test(*args, **kwargs)
            except HeldTooLong:
                gc.collect()
        return await test(*args, **kwargs)

    return run


@contextmanager
def measured_turns() -> Iterator[MeasuredTurns]:
    """Measure every pass of asyncio's own loop inside the block (not uvloop's)."""
    turns = MeasuredTurns()
    was_enabled = gc.isenabled()
    gc.disable()
    run, run_once = events.Handle._run, BaseEventLoop._run_once  # type: ignore[attr-defined]

    def timed(self: events.Handle) -> None:
        what = _what(self)
        began = time.thread_time()
        run(self)
        if (
            events.Handle._run is timed
        ):  # a turn that continued after the block would include the garbage collector
            turns.add(time.thread_time() - began, what)

    def timed_pass(loop: BaseEventLoop) -> None:
        turns.end_pass()
        run_once(loop)

    turns.slowness = _slowness()
    events.Handle._run = timed  # type: ignore[method-assign]
    BaseEventLoop._run_once = timed_pass  # type: ignore[attr-defined]
    try:
        yield turns
    finally:
        events.Handle._run = run  # type: ignore[method-assign]
        BaseEventLoop._run_once = run_once  # type: ignore[attr-defined]
        turns.end_pass()
        turns.slowness = max(turns.slowness, _slowness())
        if was_enabled:
            gc.enable()


async def passes_of(work: Awaitable[T]) -> int:
    """Return how often others had the loop while this ran. A store in memory never gives up a turn by itself."""
    task = asyncio.ensure_future(work)
    passes = 0
    while not task.done():
        await asyncio.sleep(0)
        passes += 1
    await task
    return passes


def _slowness() -> float:
    """Measure the CPU time of a fixed piece of work, relative to an idle core of the reference machine."""
    began = time.thread_time()
    rows = {(number, str(number)): [number] for number in range(YARDSTICK_ROWS)}
    sum(len(row) for row in rows.values())
    return max(1.0, (time.thread_time() - began) / YARDSTICK_SECONDS)


def _sum_of(turns: list[tuple[float, str]]) -> str:
    """Describe a pass: how many turns it had, and the longest of them."""
    seconds, what = max(turns)
    return f"in {len(turns)} turns, the longest {seconds * 1000:.1f} ms {what}"


def _what(handle: Any) -> str:
    callback = getattr(handle, "_callback", None)
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return f"{owner.get_name()}: {owner.get_coro()!r}"
    return repr(callback)


def counted_turns(monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> list[None]:
    """Have a module count the turns that it gives to others. Return a list with one entry for each."""
    given: list[None] = []

    class Counted(Turns):
        async def give(self) -> None:
            given.append(None)
            await super().give()

    monkeypatch.setattr(module, "Turns", Counted)
    return given
