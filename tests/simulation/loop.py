"""An event loop without a world: time is a number, and whoever is ready runs in an order drawn by a seed.

The same seed gives the same order, whatever the machine, the load or PYTHONHASHSEED. Nothing here waits: where all
tasks sleep, the clock moves to the first that wakes; where nothing will ever wake, `Deadlock` tells who waits where.
"""

from __future__ import annotations

import asyncio
import io
import random
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Executor
from contextvars import Context
from typing import Any, TypeVar

T = TypeVar("T")
START_WALL_MS = 1_700_000_000_000


class Deadlock(Exception):
    """Nothing is ready and nothing is scheduled; the message holds the stack of every task."""


class Overtime(Exception):
    """The simulated time that a run may take is over; the message holds the stack of every task."""


class NumberedTask(asyncio.Task[T]):
    """A task that hashes by its birth number: plain ones hash by address, so that sets of them differ by run."""

    def __init__(
        self, number: int, coroutine: Coroutine[Any, Any, T], loop: SimulatedLoop, **more: Any
    ) -> None:
        self._number = number  # before the rest: asyncio puts the task into a set at birth
        super().__init__(coroutine, loop=loop, **more)

    def __hash__(self) -> int:
        return self._number


class NumberedFuture(asyncio.Future[Any]):
    """A future that hashes by its birth number."""

    def __init__(self, number: int, loop: SimulatedLoop) -> None:
        self._number = number
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number


class SimulatedLoop(asyncio.BaseEventLoop):
    """A loop whose `select` moves the time on instead of waiting for sockets; it has none."""

    def __init__(self, seed: int, end_seconds: float = 3600.0) -> None:
        super().__init__()
        self._random = random.Random(seed)
        self._now = 0.0
        self._end = end_seconds
        self._births = 0
        self._clock_resolution = 1e-9
        self._selector = self
        self.set_task_factory(_numbered_task)
        self.set_exception_handler(self._remember)
        self.unhandled: list[str] = []

    # --- what BaseEventLoop asks of its selector and its subclass

    def select(self, timeout: float | None) -> list[Any]:
        """Move the time to the next timer, and draw the order of what is ready."""
        if timeout is None:
            raise Deadlock(f"at {self._now:.3f} s nothing is ready and nothing is scheduled\n{self.stacks()}")
        self._now += timeout
        if self._now > self._end:
            self._end = float("inf")  # once: the clean-up after it must be able to run
            raise Overtime(f"not done after {self._now:.3f} s\n{self.stacks()}")
        ready: Any = self._ready  # type: ignore[attr-defined]
        if len(ready) > 1:
            handles = list(ready)
            self._random.shuffle(handles)
            ready.clear()
            ready.extend(handles)
        return []

    def time(self) -> float:
        return self._now

    def _process_events(self, event_list: list[Any]) -> None:
        assert not event_list

    def _write_to_self(self) -> None:
        """Nobody else's thread ever wakes this loop."""

    # --- what tasks ask of it

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Run `func` on the loop itself, after a drawn delay; threads would bring an order of their own."""
        done: asyncio.Future[T] = self.create_future()

        def run() -> None:
            if done.cancelled():
                return
            try:
                result = func(*args)
            except Exception as error:
                done.set_exception(error)
            else:
                done.set_result(result)

        self.call_later(self._random.random() * 0.002, run)
        return done

    def create_future(self) -> asyncio.Future[Any]:
        return NumberedFuture(self.next_birth(), self)

    def next_birth(self) -> int:
        self._births += 1
        return self._births

    def stacks(self) -> str:
        """Where each living task waits, oldest first."""
        out = io.StringIO()
        for task in sorted(asyncio.all_tasks(self), key=hash):
            task.print_stack(limit=6, file=out)
        return out.getvalue()

    def _remember(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.unhandled.append(f"{context['message']}: {type(error).__name__}: {error}")


def _numbered_task(
    loop: asyncio.AbstractEventLoop,
    coroutine: Coroutine[Any, Any, T] | Generator[Any, None, T],
    context: Context | None = None,
) -> asyncio.Task[T]:
    assert isinstance(loop, SimulatedLoop) and isinstance(coroutine, Coroutine)
    return NumberedTask(loop.next_birth(), coroutine, loop, context=context)


class SimulatedClock:
    """The loop's time as the product's Clock."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop

    def wall_ms(self) -> int:
        return START_WALL_MS + int(self._loop.time() * 1000)

    def monotonic(self) -> float:
        return self._loop.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def run_simulated(
    seed: int, main: Callable[[SimulatedLoop], Coroutine[Any, Any, T]], end_seconds: float
) -> T:
    """Run `main` to its end on a loop of its own. Raises Deadlock, Overtime, and what `main` raises."""
    loop = SimulatedLoop(seed, end_seconds)
    asyncio.set_event_loop(loop)
    try:
        return loop.run_until_complete(main(loop))
    finally:
        leftover = sorted(asyncio.all_tasks(loop), key=hash)
        for task in leftover:
            task.cancel()
        if leftover:
            loop.run_until_complete(asyncio.gather(*leftover, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        asyncio.set_event_loop(None)
        loop.close()
