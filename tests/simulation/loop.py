"""An event loop without sockets or real time: time is a number, and ready callbacks run in an order drawn from a seed.

The same seed gives the same order, whatever the machine, the load or PYTHONHASHSEED. The loop never waits: when all
tasks sleep, the clock moves to the first that wakes. If no task will ever wake, `Deadlock` reports where each one
waits.

Code may belong to a `SimulatedProcess` (by its context, which tasks and timers inherit). A stopped process runs
nothing, whatever is due, until it resumes; a crashed one never runs again.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import io
import random
import traceback
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Executor
from contextvars import Context, ContextVar
from typing import Any, TypeVar

T = TypeVar("T")
START_WALL_MS = 1_700_000_000_000
MAX_CLEAN_UPS = 5


class Deadlock(Exception):
    """Nothing is ready and nothing is scheduled; the message has the stack of every task."""


class Overtime(Exception):
    """A run took more simulated time than it may; the message has the stack of every task."""


class SimulatedProcess:
    """A process on its own machine: its clocks, and whether it runs.

    `wall_offset_ms` is the current error of its wall clock. A stopped process (SIGSTOP, a long pause of its virtual
    machine) resumes where it was, and its clocks have moved on; a dead one never resumes.
    """

    def __init__(self, name: str, loop: SimulatedLoop, wall_offset_ms: int = 0) -> None:
        self.name = name
        self.loop = loop
        self.wall_offset_ms = wall_offset_ms
        self.is_stopped = False
        self.is_dead = False
        self.stutter = 0.0
        """The chance that the process is paused each time before it runs: a garbage collector, a busy host."""
        self._stops = 0
        self.context = contextvars.copy_context()
        self.context.run(PROCESS.set, self)
        self.crashed: asyncio.Future[None] = loop.create_future()
        """Done when the process has crashed, for callers that would wait for it."""
        self._held: list[Due] = []
        loop.processes.append(self)

    def __repr__(self) -> str:
        return f"<process {self.name}>"

    def hold(self, due: Due) -> None:
        """Keep a due call while the process does not run."""
        self._held.append(due)

    def stop(self) -> None:
        """Run nothing from now on, until each `stop` has had its `go_on`."""
        self._stops += 1
        self.is_stopped = True

    def go_on(self) -> None:
        """Resume, overdue calls first; a process that has crashed meanwhile does not resume."""
        self._stops -= 1
        if self.is_dead or self._stops:
            return
        self.is_stopped = False
        self._release()

    def crash(self) -> None:
        """Never run again. Messages that it sent are still delivered."""
        self.is_stopped = self.is_dead = True
        if not self.crashed.done():
            self.crashed.set_result(None)

    def _release(self) -> None:
        held, self._held = self._held, []
        self.loop.take_up(held)

    def spawn(self, coroutine: Coroutine[Any, Any, T], name: str | None = None) -> asyncio.Task[T]:
        """Start a task of this process."""
        return self.loop.create_task(coroutine, name=name, context=self.context.copy())

    async def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in this process and return its result. Raises Crashed."""
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
    """The process crashed before it completed the call."""


class NumberedTask(asyncio.Task[T]):
    """A task that hashes by its creation number. Plain tasks hash by address, so sets of them would differ between
    runs."""

    _number = 0
    process: SimulatedProcess | None = None

    def __hash__(self) -> int:
        # Needed at creation, because asyncio puts the task into a set.
        if not self._number:
            self._number = self.get_loop().next_birth()  # type: ignore[attr-defined]
        return self._number

    def cancel(self, msg: Any | None = None) -> bool:
        """Cancel as asyncio does, but not a finished task: asyncio then considers a failed task's error as seen."""
        return not self.done() and super().cancel(msg)


class NumberedFuture(asyncio.Future[Any]):
    """A future that hashes by a number, which it gets when its hash is first needed."""

    _number = 0

    def __hash__(self) -> int:
        if not self._number:
            self._number = self.get_loop().next_birth()  # type: ignore[attr-defined]
        return self._number


class Due:
    """A scheduled call. It is leaner than asyncio's handles, of which a history makes 20,000."""

    __slots__ = ("_args", "_callback", "_when", "context", "is_cancelled")

    def __init__(self, callback: Callable[..., object], args: Any, context: Context, when: float) -> None:
        self._callback = callback
        self._args = args
        self._when = when
        self.context = context
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True
        self._args = ()

    def cancelled(self) -> bool:
        return self.is_cancelled

    def when(self) -> float:
        return self._when

    def run(self, loop: SimulatedLoop) -> None:
        try:
            self.context.run(self._callback, *self._args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            loop.call_exception_handler({"message": f"in {self._callback!r}", "exception": error})


class SimulatedLoop(asyncio.BaseEventLoop):
    """A loop that has no sockets: its `select` moves the time forward instead of waiting."""

    def __init__(self, seed: int, end_seconds: float = 3600.0) -> None:
        super().__init__()
        self._random = random.Random(seed)
        self._now = 0.0
        self._end = end_seconds
        self._births = 0
        self._due_now: deque[Due] = deque()
        self._due_later: list[tuple[float, int, Due]] = []
        self._timers = 0
        self._outside = contextvars.copy_context()
        self._is_ending = False
        self.born: list[NumberedTask[Any]] = []
        """Every task, kept to the end: otherwise tasks of a dead process would go whenever Python's collector runs."""
        self.turns = 0
        self.set_task_factory(_numbered_task)
        self.set_exception_handler(self._remember)
        self.unhandled: list[str] = []
        self.processes: list[SimulatedProcess] = []

    # --- what BaseEventLoop asks of its subclass

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Due:
        due = Due(callback, args, contextvars.copy_context() if context is None else context, self._now)
        self._due_now.append(due)
        return due

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Due:
        due = Due(callback, args, contextvars.copy_context() if context is None else context, when)
        self._timers += 1
        heapq.heappush(self._due_later, (when, self._timers, due))
        return due

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Due:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def _run_once(self) -> None:
        """Run one turn: move the time if nothing is ready, then run what is ready in a drawn order."""
        ready, later = self._due_now, self._due_later
        while later and later[0][2].is_cancelled:
            heapq.heappop(later)
        if not ready and not self._stopping:  # type: ignore[attr-defined]
            if not later:
                raise Deadlock(
                    f"at {self._now:.3f} s nothing is ready and nothing is scheduled\n{self.stacks()}"
                )
            self._now = max(self._now, later[0][0])
            if self._now > self._end:
                raise Overtime(f"not done after {self._now:.3f} s\n{self.stacks()}")
        while later and later[0][0] <= self._now:
            ready.append(heapq.heappop(later)[2])
        if len(ready) == 1:
            self._run(ready.popleft())
            return
        drawn = list(ready)
        ready.clear()
        self._shuffle(drawn)
        for due in drawn:
            self._run(due)

    def _run(self, due: Due) -> None:
        if due.is_cancelled:
            return
        process = due.context.get(PROCESS)
        if process is not None and not self._is_ending:
            if process.stutter and not process.is_stopped and self._random.random() < process.stutter:
                process.stop()
                self.call_later(_drawn_pause_s(self._random), process.go_on, context=self._outside)
            if process.is_stopped:
                process.hold(due)
                return
        self.turns += 1
        due.run(self)

    def _shuffle(self, drawn: list[Due]) -> None:
        """Shuffle like random.shuffle, in a third of its time."""
        fraction = self._random.random
        for last in range(len(drawn) - 1, 0, -1):
            other = int(fraction() * (last + 1))
            drawn[last], drawn[other] = drawn[other], drawn[last]

    def take_up(self, held: list[Due]) -> None:
        """Run the calls that a stopped process held back."""
        self._due_now.extend(held)

    def end_world(self, processes: list[SimulatedProcess]) -> None:
        """Run everything again for the clean-up, without checking errors or time."""
        self._is_ending = True
        self._end = float("inf")
        self.set_exception_handler(lambda loop, context: None)
        for process in processes:
            process._release()

    def time(self) -> float:
        return self._now

    def _process_events(self, event_list: list[Any]) -> None:
        assert not event_list

    def _write_to_self(self) -> None:
        """Do nothing: no other thread ever wakes this loop."""

    # --- methods that tasks call

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Run `func` on the loop itself, after a drawn delay. Threads would bring their own order."""
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
        return NumberedFuture(loop=self)

    def next_birth(self) -> int:
        self._births += 1
        return self._births

    def living(self) -> list[asyncio.Task[Any]]:
        """Return the tasks that are not done, oldest first. asyncio.all_tasks includes those of earlier histories
        too."""
        return [task for task in self.born if not task.done()]

    def unseen_errors(self) -> list[str]:
        """Describe failed tasks whose errors nobody retrieved, except those of dead processes."""
        failed = [
            task
            for task in self.born
            if task.done() and task._log_traceback and not (task.process and task.process.is_dead)
        ]
        return [
            f"nobody saw how {task.get_coro().__qualname__} of {task.process} ended: "
            + "".join(traceback.format_exception(task.exception())[-6:])
            for task in failed
        ]

    def stacks(self) -> str:
        """Return where each living task waits, oldest first."""
        out = io.StringIO()
        for task in self.living():
            task.print_stack(limit=6, file=out)
        return out.getvalue()

    def _remember(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.unhandled.append(f"{context['message']}: {type(error).__name__}: {error}")


def _drawn_pause_s(luck: random.Random) -> float:
    """Draw a pause from 2 ms to 5 s; each order of magnitude is equally likely."""
    return float(0.002 * 2500 ** luck.random())


def _numbered_task(
    loop: asyncio.AbstractEventLoop,
    coroutine: Coroutine[Any, Any, T] | Generator[Any, None, T],
    context: Context | None = None,
) -> asyncio.Task[T]:
    assert isinstance(loop, SimulatedLoop) and isinstance(coroutine, Coroutine)
    task = NumberedTask(coroutine, loop=loop, context=context)
    task.process = PROCESS.get() if context is None else context.get(PROCESS)
    loop.born.append(task)
    return task


class SimulatedClock:
    """The loop's time as the product's Clock. A process's wall clock may be wrong and may jump."""

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
    """Run `main` to its end on a new loop. Raises Deadlock, Overtime, and whatever `main` raises."""
    loop = SimulatedLoop(seed, end_seconds)
    asyncio.set_event_loop(loop)
    try:
        return loop.run_until_complete(main(loop))
    finally:
        loop.end_world(loop.processes)
        for _ in range(MAX_CLEAN_UPS):
            leftover = loop.living()
            if not leftover:
                break
            for task in leftover:
                task.cancel()
            loop.run_until_complete(asyncio.wait(leftover, timeout=60.0))
        loop.run_until_complete(loop.shutdown_asyncgens())
        asyncio.set_event_loop(None)
        loop.close()
