"""A store that sends a second request when the first one is slow, and retries failed requests, until a deadline.

"The Tail at Scale" (Dean, Barroso, 2013): a second request after the 95th percentile of latency cuts the tail for a few
per cent more requests. Reads can always be repeated. So can plain PUTs, because a key has one writer, which sends the
same bytes. A conditional PUT can't: its second attempt could find the object of the first.
"""

from __future__ import annotations

import asyncio
import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

from tailrace.background_tasks import cancel_and_wait
from tailrace.buffers import Buffer
from tailrace.clock import Clock, Entropy
from tailrace.object_store.api import ObjectInfo, ObjectStore, StoreUnavailable

T = TypeVar("T")

_Reason = Literal["first", "retry", "hedge", "lost"]
"""Why an attempt starts."""

_WINDOW = 200  # latencies remembered per operation
_FREE_HEDGES = 10  # hedges before the limit on their share applies


class RepeatObserver(Protocol):
    """Called for each attempt except a call's first, on the event loop. Must not block."""

    def repeated(self, operation: str, reason: str) -> None:
        """Another attempt has started.

        `operation`: "put" or "get", which includes HEADs. `reason`: "hedge" (the attempt before is slow), "lost" (it
        has been silent for so long that it counts as lost) or "retry" (it failed).
        """


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long one kind of call may take, and when it is repeated.

    Attributes:
        deadline_seconds: after this, all attempts are cancelled and StoreUnavailable is raised.
        first_hedge_seconds: silence before a second attempt while latencies are unknown. Later it is their 95th
            percentile, but at least `least_hedge_seconds`.
        attempts: at most this many in total.
        backoff_seconds: pause after a failed attempt; doubles each time, with jitter.
        hedged_share: the share of calls that may be hedged, so that a slow store does not get twice the load. 0: none.
        lost_seconds: silence after which an attempt counts as lost and another starts, regardless of `hedged_share` and
            `attempts`. Four times the median latency if that is more. Doubles each time.
    """

    deadline_seconds: float
    first_hedge_seconds: float
    least_hedge_seconds: float
    attempts: int = 4
    backoff_seconds: float = 0.05
    hedged_share: float = 0.1
    lost_seconds: float = 0.5


PUT_POLICY = RetryPolicy(deadline_seconds=2.0, first_hedge_seconds=0.4, least_hedge_seconds=0.05)
GET_POLICY = RetryPolicy(
    deadline_seconds=10.0, first_hedge_seconds=0.15, least_hedge_seconds=0.02, hedged_share=0.05
)


class HedgedStore:
    """Hedges and retries the PUTs and GETs of `inner`. Passes other calls through.

    After a PUT that raised StoreUnavailable or was cancelled, the object may exist or may still appear.
    """

    def __init__(
        self,
        inner: ObjectStore,
        clock: Clock,
        entropy: Entropy,
        *,
        put: RetryPolicy = PUT_POLICY,
        get: RetryPolicy = GET_POLICY,
        observer: RepeatObserver | None = None,
    ) -> None:
        self._inner = inner
        self._put = _Persistence("put", clock, entropy, policy=put, observer=observer)
        self._get = _Persistence("get", clock, entropy, policy=get, observer=observer)

    @property
    def hedges(self) -> int:
        """The attempts that started because an earlier one was slow."""
        return self._put.attempts["hedge"] + self._get.attempts["hedge"]

    @property
    def lost(self) -> int:
        """The attempts that started because the one before counts as lost."""
        return self._put.attempts["lost"] + self._get.attempts["lost"]

    @property
    def retries(self) -> int:
        """The attempts that started because an earlier one failed."""
        return self._put.attempts["retry"] + self._get.attempts["retry"]

    async def put(self, key: str, parts: Sequence[Buffer], *, if_absent: bool = False) -> None:
        await self._put.ask(
            f"put {key}", lambda: self._inner.put(key, parts, if_absent=if_absent), may_repeat=not if_absent
        )

    async def get(self, key: str) -> bytes:
        return await self._get.ask(f"get {key}", lambda: self._inner.get(key))

    async def get_range(self, key: str, start: int, length: int) -> bytes | bytearray:
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


class _Schedule:
    """Decides when the attempts of one call start. Pure: `now` is monotonic seconds.

    first   at once
    retry   a pause after an attempt has failed
    hedge   when the newest attempt is slow
    lost    when the newest attempt counts as lost, even if no attempts are left

    Args:
        lost_seconds: silence after which an attempt counts as lost; doubles each time.
    """

    def __init__(self, now: float, *, deadline: float, attempts: int, lost_seconds: float) -> None:
        self._deadline = deadline
        self._attempts_left = attempts
        self._lost_seconds = lost_seconds
        self._next = now
        self._lost_at = deadline
        self._has_failed = False
        """Whether an attempt has failed since the newest one started."""

    @property
    def is_over(self) -> bool:
        """Whether no attempt is left, except one for a lost attempt."""
        return not self._attempts_left

    def due(self, now: float, *, is_running: bool) -> _Reason | None:
        """Return why another attempt may start now, or None. `is_running`: whether an attempt is running."""
        is_lost = self._is_lost(now, is_running)
        if not is_lost and (self.is_over or now < self._next):
            return None
        if self._has_failed:
            return "retry"
        if is_lost:
            return "lost"
        return "hedge" if is_running else "first"

    def _is_lost(self, now: float, is_running: bool) -> bool:
        return is_running and now >= self._lost_at

    def started(self, now: float, hedge_seconds: float, *, is_running: bool) -> None:
        """Note that an attempt has started. `is_running`: whether another one is running."""
        is_lost = self._is_lost(now, is_running)
        self._attempts_left = max(0, self._attempts_left - 1)
        self._next = now + hedge_seconds
        self._lost_at = now + self._lost_seconds
        self._lost_seconds *= 2 if is_lost else 1
        self._has_failed = False

    def refused_hedge(self) -> None:
        """Note that no hedge is allowed: the next attempt starts only if one fails or is lost."""
        self._next = self._deadline

    def failed(self, now: float, backoff_seconds: float) -> None:
        """Note that an attempt has failed."""
        self._next = min(self._next, now + backoff_seconds)
        self._has_failed = True

    def wakes_at(self, *, is_running: bool) -> float:
        """Return when another attempt may be due if nothing happens until then."""
        until = self._deadline if self.is_over else min(self._next, self._deadline)
        return min(until, self._lost_at) if is_running else until


class _Latencies:
    """The last _WINDOW latencies. They are also kept sorted, because every call needs a quantile."""

    def __init__(self) -> None:
        self._newest: deque[float] = deque()
        self._sorted: list[float] = []

    def add(self, seconds: float) -> None:
        """Add a latency and drop the oldest."""
        if len(self._newest) == _WINDOW:
            del self._sorted[bisect_left(self._sorted, self._newest.popleft())]
        self._newest.append(seconds)
        insort(self._sorted, seconds)

    def quantile(self, share: float, unknown: float) -> float:
        """Return the latency that this share of calls does not exceed; `unknown` until enough calls were seen."""
        return self._sorted[int(len(self._sorted) * share)] if len(self._sorted) >= 20 else unknown


class _Persistence:
    """Repeats a call until it succeeds or the deadline has passed, and remembers latencies."""

    def __init__(
        self,
        operation: str,
        clock: Clock,
        entropy: Entropy,
        *,
        policy: RetryPolicy,
        observer: RepeatObserver | None,
    ) -> None:
        self._operation = operation
        self._observer = observer
        self._clock = clock
        self._entropy = entropy
        self._policy = policy
        self._latencies = _Latencies()
        self.attempts: dict[_Reason, int] = {"first": 0, "retry": 0, "hedge": 0, "lost": 0}
        """The number of started attempts, by reason."""

    async def ask(
        self, what: str, call: Callable[[], Coroutine[Any, Any, T]], *, may_repeat: bool = True
    ) -> T:
        began = self._clock.monotonic()
        deadline = began + self._policy.deadline_seconds
        schedule = _Schedule(
            began,
            deadline=deadline,
            attempts=self._policy.attempts if may_repeat else 1,
            lost_seconds=self._lost_seconds() if may_repeat else math.inf,
        )
        failures: list[StoreUnavailable] = []
        running: list[tuple[asyncio.Task[T], float]] = []  # with each one's start, in that order
        try:
            while (now := self._clock.monotonic()) < deadline:
                reason = schedule.due(now, is_running=bool(running))
                if reason == "hedge" and not self._may_hedge():
                    schedule.refused_hedge()
                elif reason is not None:
                    self._count(reason)
                    schedule.started(now, self._hedge_seconds(), is_running=bool(running))
                    running.append((asyncio.get_running_loop().create_task(call()), now))
                wakes_at = schedule.wakes_at(is_running=bool(running))
                await self._wait([task for task, _ in running], wakes_at - now)
                for task, started in [entry for entry in running if entry[0].done()]:
                    running.remove((task, started))
                    try:
                        answer = task.result()
                    except StoreUnavailable as error:
                        schedule.failed(self._clock.monotonic(), self._backoff_seconds(len(failures)))
                        failures.append(error)
                    else:
                        self._latencies.add(self._clock.monotonic() - started)
                        return answer
                if failures and schedule.is_over and not running:
                    raise failures[-1]
            last = failures[-1] if failures else None
            raise StoreUnavailable(
                f"{what}: no answer within {self._policy.deadline_seconds} s; last failure: {last}"
            ) from last
        finally:
            await cancel_and_wait(*(task for task, _ in running))

    async def _wait(self, tasks: Sequence[asyncio.Task[T]], seconds: float) -> None:
        """Wait until a task is done, or `seconds` on our clock have passed."""
        timer = asyncio.get_running_loop().create_task(self._sleep(seconds))
        try:
            await asyncio.wait([*tasks, timer], return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel_and_wait(timer)

    async def _sleep(self, seconds: float) -> None:
        await self._clock.sleep(seconds)

    def _may_hedge(self) -> bool:
        share = self._policy.hedged_share
        return share > 0 and self.attempts["hedge"] < _FREE_HEDGES + self.attempts["first"] * share

    def _count(self, reason: _Reason) -> None:
        self.attempts[reason] += 1
        if reason != "first" and self._observer is not None:
            self._observer.repeated(self._operation, reason)

    def _lost_seconds(self) -> float:
        median = self._latencies.quantile(0.5, self._policy.first_hedge_seconds)
        return max(4 * median, self._policy.lost_seconds)

    def _hedge_seconds(self) -> float:
        expected = self._latencies.quantile(0.95, self._policy.first_hedge_seconds)
        return max(expected, self._policy.least_hedge_seconds)

    def _backoff_seconds(self, failures: int) -> float:
        return self._policy.backoff_seconds * float(2**failures) * (0.5 + self._entropy.fraction())
