"""Single flight: all who want the same thing at the same time wait for one call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class SingleFlight(Generic[K, V]):
    """At most one call per key at a time; its outcome, value or error, goes to all who wait.

    A caller that is cancelled leaves the flight to the others; a flight that nobody waits for any more goes
    on (its result fills the cache), until `close`.
    """

    def __init__(self) -> None:
        self._flights: dict[K, asyncio.Task[V]] = {}

    def __len__(self) -> int:
        return len(self._flights)

    def __contains__(self, key: K) -> bool:
        return key in self._flights

    def start(self, key: K, call: Callable[[], Awaitable[V]]) -> asyncio.Task[V]:
        """The flight for `key`, begun by this call or by an earlier one. Await it shielded: it is shared."""
        flight = self._flights.get(key)
        if flight is None:
            flight = asyncio.create_task(_run(call), name=f"flight {key}")
            self._flights[key] = flight
            flight.add_done_callback(lambda done: self._land(key, done))
        return flight

    async def do(self, key: K, call: Callable[[], Awaitable[V]]) -> V:
        """What `call` gives, or gave to the one who came first."""
        return await asyncio.shield(self.start(key, call))

    async def close(self) -> None:
        """Cancel what still flies, and wait until it has landed."""
        flights = list(self._flights.values())
        for flight in flights:
            flight.cancel()
        await asyncio.gather(*flights, return_exceptions=True)

    def _land(self, key: K, flight: asyncio.Task[V]) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]
        if not flight.cancelled():
            flight.exception()  # seen, so that a flight whose waiters all left is not logged as unowned


async def _run(call: Callable[[], Awaitable[V]]) -> V:
    return await call()
