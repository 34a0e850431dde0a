"""A store that is slow and fails like real ones, driven by a seed: for tests, simulations and the bench.

The same entropy and the same calls in the same order give the same faults.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeVar

from tailrace.background_tasks import cancel_and_wait
from tailrace.buffers import Buffer
from tailrace.clock import Clock, Entropy
from tailrace.object_store.api import ObjectInfo, ObjectStore, StoreFull, StoreUnavailable

T = TypeVar("T")

_Z99 = 2.3263478740408408  # the 99th percentile of the standard normal distribution


class Operation(Enum):
    """The operations of a store, as S3 bills them."""

    PUT = "put"
    GET = "get"
    LIST = "list"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Latency:
    """A log-normal distribution by its median and its 99th percentile, in milliseconds. (0, 0): none."""

    p50_ms: float
    p99_ms: float

    def __post_init__(self) -> None:
        if not 0 <= self.p50_ms <= self.p99_ms or (self.p50_ms == 0) != (self.p99_ms == 0):
            raise ValueError(
                f"latency p50 {self.p50_ms} ms, p99 {self.p99_ms} ms: must be 0 < p50 <= p99, or both 0"
            )

    def draw_seconds(self, entropy: Entropy) -> float:
        if self.p50_ms == 0:
            return 0.0
        spread = math.log(self.p99_ms / self.p50_ms) / _Z99
        # Box-Muller; 1 - fraction() is never 0.
        normal = math.sqrt(-2 * math.log(1 - entropy.fraction())) * math.cos(2 * math.pi * entropy.fraction())
        return self.p50_ms / 1000 * math.exp(spread * normal)


NO_LATENCY = Latency(0, 0)


@dataclass(frozen=True, slots=True)
class Faults:
    """How one operation fails. The chances are exclusive: their sum is at most 1.

    Attributes:
        latency: the wait before the effect.
        fails_before: chance of StoreUnavailable without effect.
        fails_after: chance of StoreUnavailable after the effect took place (a lost answer).
        hangs_before: chance of no answer for `hang_seconds`, then StoreUnavailable; no effect.
        hangs_after: the same, but the effect takes place at the *end* of the wait: a write that lands long after its
            caller gave up and was cancelled.
        hang_seconds: how long a hanging call hangs.
    """

    latency: Latency = NO_LATENCY
    fails_before: float = 0.0
    fails_after: float = 0.0
    hangs_before: float = 0.0
    hangs_after: float = 0.0
    hang_seconds: float = 60.0

    def __post_init__(self) -> None:
        chances = (self.fails_before, self.fails_after, self.hangs_before, self.hangs_after)
        if any(chance < 0 for chance in chances) or sum(chances) > 1:
            raise ValueError(f"chances {chances}: each must be at least 0, their sum at most 1")


NO_FAULTS = Faults()


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """Which faults a store has, operation by operation. `head` counts as a GET."""

    put: Faults = NO_FAULTS
    get: Faults = NO_FAULTS
    list: Faults = NO_FAULTS
    delete: Faults = NO_FAULTS

    def of(self, operation: Operation) -> Faults:
        return {
            Operation.PUT: self.put,
            Operation.GET: self.get,
            Operation.LIST: self.list,
            Operation.DELETE: self.delete,
        }[operation]


NO_PLAN = FaultPlan()

S3_STANDARD = FaultPlan(
    put=Faults(latency=Latency(150, 400)),
    get=Faults(latency=Latency(30, 120)),
    list=Faults(latency=Latency(50, 200)),
    delete=Faults(latency=Latency(50, 200)),
)
"""Latencies of S3 Standard, without faults."""


@dataclass(slots=True)
class Outage:
    """Switches that a test sets while the store is in use.

    Attributes:
        operations: these fail at once, without effect.
        prefix: the outage covers only keys with this prefix (for a listing: its prefix); "" covers all.
        is_full: every put raises StoreFull.
    """

    operations: set[Operation] = field(default_factory=set)
    prefix: str = ""
    is_full: bool = False

    def begin(self, *operations: Operation, prefix: str = "") -> None:
        """Make the given operations (all, if none is given) fail on keys that begin with `prefix`."""
        self.operations = set(operations or Operation)
        self.prefix = prefix

    def end(self) -> None:
        self.operations = set()
        self.prefix = ""
        self.is_full = False


class FaultyStore:
    """`inner` with the faults of `plan`. A test may replace `plan` and switch `outage` at any time."""

    def __init__(self, inner: ObjectStore, clock: Clock, entropy: Entropy, plan: FaultPlan = NO_PLAN) -> None:
        self._inner = inner
        self._clock = clock
        self._entropy = entropy
        self.plan = plan
        self.outage = Outage()
        self._late: dict[asyncio.Task[None], None] = {}  # a dict, for its order: sets of tasks have none

    async def put(self, key: str, parts: Sequence[Buffer], *, if_absent: bool = False) -> None:
        if self.outage.is_full:
            raise StoreFull(f"{key}: no room (injected)")
        await self._do(Operation.PUT, key, lambda: self._inner.put(key, parts, if_absent=if_absent))

    async def get(self, key: str) -> bytes:
        return await self._do(Operation.GET, key, lambda: self._inner.get(key))

    async def get_range(self, key: str, start: int, length: int) -> bytes | bytearray:
        return await self._do(Operation.GET, key, lambda: self._inner.get_range(key, start, length))

    async def head(self, key: str) -> ObjectInfo:
        return await self._do(Operation.GET, key, lambda: self._inner.head(key))

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        await self._do(Operation.LIST, prefix, _nothing)
        async for info in self._inner.list(prefix, start_after=start_after):
            yield info

    async def list_prefixes(self, prefix: str) -> Sequence[str]:
        return await self._do(Operation.LIST, prefix, lambda: self._inner.list_prefixes(prefix))

    async def delete(self, keys: Sequence[str]) -> None:
        if keys:
            await self._do(Operation.DELETE, keys[0], lambda: self._inner.delete(keys))

    async def close(self) -> None:
        """Close `inner`; writes that are hanging now never take effect."""
        await cancel_and_wait(*self._late)
        await self._inner.close()

    async def _do(self, operation: Operation, key: str, effect: Callable[[], Awaitable[T]]) -> T:
        self._check_outage(operation, key)
        faults = self.plan.of(operation)
        # All draws come before the first wait, so one call's draws don't depend on concurrent calls.
        luck = self._entropy.fraction()
        latency_seconds = faults.latency.draw_seconds(self._entropy)
        what = f"{operation.value} {key}"

        await self._pause(latency_seconds)
        self._check_outage(operation, key)
        if (luck := luck - faults.fails_before) < 0:
            raise StoreUnavailable(f"{what}: failed before it took effect (injected)")
        if (luck := luck - faults.fails_after) < 0:
            await effect()
            raise StoreUnavailable(f"{what}: took effect, but the answer was lost (injected)")
        if (luck := luck - faults.hangs_before) < 0:
            await self._pause(faults.hang_seconds)
            raise StoreUnavailable(f"{what}: no answer in {faults.hang_seconds} s, no effect (injected)")
        if luck - faults.hangs_after < 0:
            late = asyncio.get_running_loop().create_task(self._take_effect_late(effect, faults.hang_seconds))
            self._late[late] = None
            late.add_done_callback(self._forget)
            await asyncio.shield(late)
            raise StoreUnavailable(f"{what}: took effect after {faults.hang_seconds} s (injected)")
        return await effect()

    async def _take_effect_late(self, effect: Callable[[], Awaitable[object]], seconds: float) -> None:
        await self._pause(seconds)
        await effect()

    def _forget(self, late: asyncio.Task[None]) -> None:
        self._late.pop(late, None)
        if not late.cancelled():
            late.exception()  # the caller has the result, or was cancelled

    def _check_outage(self, operation: Operation, key: str) -> None:
        if operation in self.outage.operations and key.startswith(self.outage.prefix):
            raise StoreUnavailable(f"{operation.value} {key}: outage (injected)")

    async def _pause(self, seconds: float) -> None:
        if seconds > 0:
            await self._clock.sleep(seconds)


async def _nothing() -> None:
    return
