"""Single flight: concurrent callers that want the same thing share one call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from tailrace.background_tasks import cancel_and_wait, retrieve_error

K = TypeVar("K")
V = TypeVar("V")


class SingleFlight(Generic[K, V]):
    """Runs at most one call per key at a time; all callers that wait get its result or its error.

    A cancelled caller does not cancel the call. A call that no caller waits for any more continues, because its result
    fills the cache; `close` cancels it.
    """

    def __init__(self) -> None:
        self._flights: dict[K, asyncio.Task[V]] = {}

    def __len__(self) -> int:
        return len(self._flights)

    def __contains__(self, key: K) -> bool:
        return key in self._flights

    def start(self, key: K, call: Callable[[], Awaitable[V]]) -> asyncio.Task[V]:
        """Return the task that runs the call for `key`; start it if none is running. It is shared: await it
        shielded."""
        flight = self._flights.get(key)
        if flight is None:
            flight = asyncio.create_task(_run(call), name=f"flight {key}")
            self._flights[key] = flight
            flight.add_done_callback(lambda done: self._ended(key, done))
        return flight

    async def do(self, key: K, call: Callable[[], Awaitable[V]]) -> V:
        """Return the result of `call`, or of the call for `key` that is already running."""
        return await asyncio.shield(self.start(key, call))

    async def close(self) -> None:
        """Cancel the running calls and wait until they have ended."""
        await cancel_and_wait(*self._flights.values())

    def _ended(self, key: K, flight: asyncio.Task[V]) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]
        retrieve_error(flight)


async def _run(call: Callable[[], Awaitable[V]]) -> V:
    return await call()
