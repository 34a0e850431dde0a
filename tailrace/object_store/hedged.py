"""A store that sends a second request when the first one is slow, and retries failed ones, until a deadline.

"The Tail at Scale" (Dean, Barroso, 2013): a second request after the 95th percentile of latency cuts the tail for a few
per cent more requests. Reads can always be repeated. So can plain PUTs: a key has one writer, which sends the same
bytes. A conditional PUT can't: its second attempt could find the first one's object.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from tailrace.buffers import Buffer
from tailrace.clock import Clock, Entropy
from tailrace.object_store.api import ObjectInfo, ObjectStore, StoreUnavailable

T = TypeVar("T")

_WINDOW = 200  # latencies remembered per operation
_FREE_HEDGES = 10  # before the share of hedged calls is held


class RepeatObserver(Protocol):
    """Called for each attempt but a call's first, on the event loop; must not block."""

    def repeated(self, operation: str, reason: str) -> None:
        """Another attempt was begun. `operation`: "put" or "get", which HEADs count as. `reason`: "hedge" (the one
        before is slow), "lost" (it is silent for so long that it counts as lost) or "retry" (it failed)."""
        ...


@dataclass(frozen=True, slots=True)
class Patience:
    """How long one kind of call may take, and when it is repeated.

    Attributes:
        deadline_seconds: after this, StoreUnavailable is raised and all attempts are cancelled.
        first_hedge_seconds: silence before a second attempt, until latencies are known; then their 95th percentile,
            but never less than `least_hedge_seconds`.
        attempts: at most this many in all.
        backoff_seconds: pause after a failed attempt; doubled each time, with jitter.
        hedged_share: share of calls that may be hedged, so that a slow store doesn't get twice the load. 0: none.
        lost_seconds: silence after which an attempt counts as lost and another is made, whatever the share and
            `attempts`; four times the median latency, if that is more. Doubled each time.
    """

    deadline_seconds: float
    first_hedge_seconds: float
    least_hedge_seconds: float
    attempts: int = 4
    backoff_seconds: float = 0.05
    hedged_share: float = 0.1
    lost_seconds: float = 0.5


PUT_PATIENCE = Patience(deadline_seconds=2.0, first_hedge_seconds=0.4, least_hedge_seconds=0.05)
GET_PATIENCE = Patience(
    deadline_seconds=10.0, first_hedge_seconds=0.15, least_hedge_seconds=0.02, hedged_share=0.05
)


class HedgedStore:
    """`inner`, with PUTs and GETs hedged and retried. Other calls pass through unchanged.

    After a PUT that raised StoreUnavailable, or was cancelled, the object may exist or may still appear.
    """

    def __init__(
        self,
        inner: ObjectStore,
        clock: Clock,
        entropy: Entropy,
        *,
        put: Patience = PUT_PATIENCE,
        get: Patience = GET_PATIENCE,
        observer: RepeatObserver | None = None,
    ) -> None:
        self._inner = inner
        self._put = _Persistence("put", clock, entropy, patience=put, observer=observer)
        self._get = _Persistence("get", clock, entropy, patience=get, observer=observer)

    @property
    def hedges(self) -> int:
        """Attempts made because an earlier one was slow."""
        return self._put.hedges + self._get.hedges

    @property
    def lost(self) -> int:
        """Attempts made because the one before was silent for so long that it counts as lost."""
        return self._put.lost + self._get.lost

    @property
    def retries(self) -> int:
        """Attempts made because an earlier one failed."""
        return self._put.retries + self._get.retries

    async def put(self, key: str, parts: Sequence[Buffer], *, if_absent: bool = False) -> None:
        await self._put.ask(
            f"put {key}", lambda: self._inner.put(key, parts, if_absent=if_absent), may_repeat=not if_absent
        )

    async def get(self, key: str) -> bytes:
        return await self._get.ask(f"get {key}", lambda: self._inner.get(key))

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        return await self._get.ask(f"get {key}", lambda: self._inner.get_range(key, start, length))

    async def head(self, key: str) -> ObjectInfo:
        return await self._get.ask(f"head {key}", lambda: self._inner.head(key))

    def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        return self._inner.list(prefix, start_after=start_after)

    async def list_prefixes(self, prefix: str) -> Sequence[str]:
        return await self._inner.list_prefixes(prefix)

    async def delete(self, keys: Sequence[str]) -> None:
        await self._inner.delete(keys)

    async def close(self) -> None:
        await self._inner.close()


class _Persistence:
    """Repeats a call until it is answered or the deadline has passed; remembers latencies."""

    def __init__(
        self,
        operation: str,
        clock: Clock,
        entropy: Entropy,
        *,
        patience: Patience,
        observer: RepeatObserver | None,
    ) -> None:
        self._operation = operation
        self._observer = observer
        self._clock = clock
        self._entropy = entropy
        self._patience = patience
        self._latencies: deque[float] = deque(maxlen=_WINDOW)
        self.calls = 0
        self.hedges = 0
        self.retries = 0
        self.lost = 0

    async def ask(
        self, what: str, call: Callable[[], Coroutine[Any, Any, T]], *, may_repeat: bool = True
    ) -> T:
        self.calls += 1
        patience = self._patience
        deadline = self._clock.monotonic() + patience.deadline_seconds
        attempts_left = patience.attempts if may_repeat else 1
        next_start = self._clock.monotonic()
        because_of_failure = False
        failures = 0
        failure: StoreUnavailable | None = None
        lost_seconds = self._lost_seconds()
        lost_at = deadline  # when the newest attempt counts as lost
        running: list[tuple[asyncio.Task[T], float]] = []  # with when each began, in that order
        try:
            while True:
                now = self._clock.monotonic()
                if now >= deadline:
                    raise StoreUnavailable(
                        f"{what}: no answer within {patience.deadline_seconds} s; last failure: {failure}"
                    ) from failure
                is_lost = bool(running) and may_repeat and now >= lost_at
                if is_lost or (attempts_left and now >= next_start):
                    if running and not because_of_failure and not is_lost and not self._may_hedge():
                        next_start = deadline  # unless an attempt fails or is lost
                    else:
                        self._count(running, because_of_failure, is_lost)
                        attempts_left = max(0, attempts_left - 1)
                        running.append((asyncio.get_running_loop().create_task(call()), now))
                        next_start = now + self._hedge_seconds()
                        lost_at, lost_seconds = now + lost_seconds, lost_seconds * (2 if is_lost else 1)
                        because_of_failure = False
                until = min(next_start, deadline) if attempts_left else deadline
                if running and may_repeat:
                    until = min(until, lost_at)
                await self._wait([task for task, _ in running], until - now)
                for task, began in [entry for entry in running if entry[0].done()]:
                    running.remove((task, began))
                    try:
                        answer = task.result()
                    except StoreUnavailable as error:
                        failure = error
                        next_start = min(
                            next_start, self._clock.monotonic() + self._backoff_seconds(failures)
                        )
                        because_of_failure = True
                        failures += 1
                    else:
                        self._latencies.append(self._clock.monotonic() - began)
                        return answer
                if not running and not attempts_left and failure is not None:
                    raise failure
        finally:
            for task, _ in running:
                task.cancel()
            await asyncio.gather(*(task for task, _ in running), return_exceptions=True)

    async def _wait(self, tasks: Sequence[asyncio.Task[T]], seconds: float) -> None:
        """Until a task is done, or so many seconds on our clock have passed."""
        timer = asyncio.get_running_loop().create_task(self._sleep(seconds))
        try:
            await asyncio.wait([*tasks, timer], return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            await asyncio.gather(timer, return_exceptions=True)

    async def _sleep(self, seconds: float) -> None:
        await self._clock.sleep(seconds)

    def _may_hedge(self) -> bool:
        share = self._patience.hedged_share
        return share > 0 and self.hedges < _FREE_HEDGES + self.calls * share

    def _count(self, running: Sequence[object], because_of_failure: bool, is_lost: bool) -> None:
        if because_of_failure:
            self.retries += 1
            reason = "retry"
        elif is_lost:
            self.lost += 1
            reason = "lost"
        elif running:
            self.hedges += 1
            reason = "hedge"
        else:
            return
        if self._observer is not None:
            self._observer.repeated(self._operation, reason)

    def _lost_seconds(self) -> float:
        seen = sorted(self._latencies)
        median = seen[len(seen) // 2] if len(seen) >= 20 else self._patience.first_hedge_seconds
        return max(4 * median, self._patience.lost_seconds)

    def _hedge_seconds(self) -> float:
        seen = sorted(self._latencies)
        expected = seen[int(len(seen) * 0.95)] if len(seen) >= 20 else self._patience.first_hedge_seconds
        return max(expected, self._patience.least_hedge_seconds)

    def _backoff_seconds(self, failures: int) -> float:
        return self._patience.backoff_seconds * float(2**failures) * (0.5 + self._entropy.fraction())
