"""An event loop without a world: time is a number, and whoever is ready runs in an order drawn by a seed.

The same seed gives the same order, whatever the machine, the load or PYTHONHASHSEED. Nothing here waits: where all
tasks sleep, the clock moves to the first that wakes; where nothing will ever wake, `Deadlock` tells who waits where.

What runs may belong to a `SimulatedProcess` (by its context, which tasks and timers inherit): a process that is
stopped runs nothing, whatever is due, until it goes on; one that has crashed never does.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import io
import random
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Executor
from contextvars import Context, ContextVar
from typing import Any, TypeVar

T = TypeVar("T")
START_WALL_MS = 1_700_000_000_000
MAX_CLEAN_UPS = 5


class Deadlock(Exception):
    """Nothing is ready and nothing is scheduled; the message holds the stack of every task."""


class Overtime(Exception):
    """The simulated time that a run may take is over; the message holds the stack of every task."""


class SimulatedProcess:
    """A process on a machine of its own: its clocks, and whether it runs at all.

    `wall_offset_ms` is how wrong its wall clock is now. A process that is stopped (SIGSTOP, a long pause of its
    virtual machine) goes on where it was, its clocks moved on; one that is dead stays where it is.
    """

    def __init__(self, name: str, loop: SimulatedLoop, wall_offset_ms: int = 0) -> None:
        self.name = name
        self.loop = loop
        self.wall_offset_ms = wall_offset_ms
        self.is_stopped = False
        self.is_dead = False
        self.context = contextvars.copy_context()
        self.context.run(PROCESS.set, self)
        self.crashed: asyncio.Future[None] = loop.create_future()
        """Done when the process has crashed: for those who would wait for it."""
        self._held: list[asyncio.Handle] = []
        loop.processes.append(self)

    def __repr__(self) -> str:
        return f"<process {self.name}>"

    def hold(self, handle: asyncio.Handle) -> None:
        """Keep what is due while the process does not run."""
        self._held.append(handle)

    def stop(self) -> None:
        """Run nothing from now on."""
        self.is_stopped = True

    def go_on(self) -> None:
        """Run again, what is overdue first; one that has crashed meanwhile does not."""
        if self.is_dead:
            return
        self.is_stopped = False
        self._release()

    def crash(self) -> None:
        """Never run again. What it sent is on its way."""
        self.is_stopped = self.is_dead = True
        if not self.crashed.done():
            self.crashed.set_result(None)

    def _release(self) -> None:
        held, self._held = self._held, []
        self.loop.take_up(held)

    def spawn(self, coroutine: Coroutine[Any, Any, T], name: str | None = None) -> asyncio.Task[T]:
        """A task of this process."""
        return self.loop.create_task(coroutine, name=name, context=self.context.copy())

    async def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The outcome of a coroutine that runs in this process. Raises Crashed."""
        task = self.spawn(coroutine)
        try:
            await asyncio.wait({task, self.crashed}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if not task.done():
            raise Crashed(self.name)
        return await task


PROCESS: ContextVar[SimulatedProcess | None] = ContextVar("PROCESS", default=None)
"""The process to which the running code belongs; None for the world outside."""


class Crashed(Exception):
    """The process that was to do something has crashed before it was done."""


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
        self._is_ending = False
        self.turns = 0
        self.set_task_factory(_numbered_task)
        self.set_exception_handler(self._remember)
        self.unhandled: list[str] = []
        self.processes: list[SimulatedProcess] = []

    # --- what BaseEventLoop asks of its subclass

    def _run_once(self) -> None:
        """One turn: move the time where nothing is ready, then run what is ready in a drawn order."""
        ready: Any = self._ready  # type: ignore[attr-defined]
        scheduled: list[Any] = self._scheduled  # type: ignore[attr-defined]
        while scheduled and scheduled[0]._cancelled:
            heapq.heappop(scheduled)._scheduled = False
        if not ready and not self._stopping:  # type: ignore[attr-defined]
            if not scheduled:
                raise Deadlock(
                    f"at {self._now:.3f} s nothing is ready and nothing is scheduled\n{self.stacks()}"
                )
            self._now = max(self._now, scheduled[0]._when)
            if self._now > self._end:
                self._end = float("inf")  # once: the clean-up after it must be able to run
                raise Overtime(f"not done after {self._now:.3f} s\n{self.stacks()}")
        while scheduled and scheduled[0]._when <= self._now:
            handle = heapq.heappop(scheduled)
            handle._scheduled = False
            ready.append(handle)
        handles = list(ready)
        ready.clear()
        if len(handles) > 1:
            self._random.shuffle(handles)
        for handle in handles:
            if handle._cancelled:
                continue
            process = handle._context.get(PROCESS)
            if process is not None and process.is_stopped and not self._is_ending:
                process.hold(handle)
            else:
                self.turns += 1
                handle._run()

    def take_up(self, handles: list[asyncio.Handle]) -> None:
        """Run what a stopped process was kept from."""
        self._ready.extend(handles)  # type: ignore[attr-defined]

    def end_world(self, processes: list[SimulatedProcess]) -> None:
        """For the clean-up: everything runs again, and nobody looks at what goes wrong."""
        self._is_ending = True
        self.set_exception_handler(lambda loop, context: None)
        for process in processes:
            process._release()

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
    """The loop's time as the product's Clock; a process's wall clock may be wrong and may jump."""

    def __init__(self, loop: SimulatedLoop, process: SimulatedProcess | None = None) -> None:
        self._loop = loop
        self._process = process

    def wall_ms(self) -> int:
        wrong = 0 if self._process is None else self._process.wall_offset_ms
        return START_WALL_MS + wrong + int(self._loop.time() * 1000)

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
        loop.end_world(loop.processes)
        for _ in range(MAX_CLEAN_UPS):
            leftover = sorted(asyncio.all_tasks(loop), key=hash)
            if not leftover:
                break
            for task in leftover:
                task.cancel()
            loop.run_until_complete(asyncio.wait(leftover, timeout=60.0))
        loop.run_until_complete(loop.shutdown_asyncgens())
        asyncio.set_event_loop(None)
        loop.close()
