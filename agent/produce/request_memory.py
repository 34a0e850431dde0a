"""Limits the memory of Produce requests of many batches as Python objects, from decoding to the answer.

A frame is charged for its bytes, which is fair for records. But the objects of many tiny batches take thirteen times
the frame's bytes. So a request that names more than FREE_ELEMENTS topics and partitions takes memory for each of them
before it is decoded, and waits for it in order of arrival. A request that holds this memory never waits for one that
waits for it: its batches are stored or refused, and then it gives the memory back. If a producer's request waits behind
a later one of the same producer that can't be stored before it, it gets memory once the later one is refused
(`agent.gap_deadline_ms`).

A request that needs more than all of this memory is charged `MemoryBudget.largest`, and only one of them is handled at
a time. So all requests together take at most this memory plus the elements of one request (200,000 at most).
"""

from __future__ import annotations

from agent.errors import RequestMemoryExhausted
from agent.memory_budget import Grant, MemoryBudget
from tailrace.clock import Clock

PART = 4
"""These objects get this fraction (1 / PART) of the memory budget, in addition to it."""
FREE_ELEMENTS = 8
"""This many topics and partitions fit into the fixed charge of each request."""
ELEMENT_BYTES = 1_100
"""Bytes that a partition takes as objects from decoding to the answer, measured with tracemalloc for batches of 78
bytes. A topic, and a partition without records, takes less."""
WAIT_SECONDS = 30.0
"""A request that has waited this long is dropped: its client has given up, too."""


class RequestMemory:
    """The memory of requests' objects, in bytes. Owned by one event loop."""

    def __init__(self, memory_budget_bytes: int, clock: Clock) -> None:
        self._budget = MemoryBudget(memory_budget_bytes // PART)
        self._clock = clock

    @property
    def used(self) -> int:
        return self._budget.used

    async def take(self, elements: int) -> Grant:
        """Take memory for a request of `elements` topics and partitions; wait for it. Raises RequestMemoryExhausted."""
        charge = self._charge(elements)
        if not await self._budget.take(charge, self._clock, WAIT_SECONDS):
            raise RequestMemoryExhausted(
                f"there is no memory for a request of {elements} topics and partitions"
            )
        return Grant(self._budget, charge)

    def try_take(self, elements: int) -> Grant | None:
        """Take the memory if it is free and no request waits for it; otherwise return None."""
        charge = self._charge(elements)
        return Grant(self._budget, charge) if self._budget.try_take(charge) else None

    def _charge(self, elements: int) -> int:
        return min(elements * ELEMENT_BYTES, self._budget.largest)
