"""The bound of what Produce requests of many batches are as objects, beside their frames: from decoding to the answer.

A frame is charged by its bytes, which is fair to records. Of many smallest batches the objects are thirteen times as
large. So a request that names more than FREE_ELEMENTS topics and partitions takes memory for each of them before it is
decoded, and waits for it in order of arrival. Whoever has it waits for nobody who waits for it: what was decoded is
stored, or refused, and gives it back. A producer's request that waits behind one of its later ones, which can't be
stored before it, gets there once that one is refused (`agent.gap_deadline_ms`).

A request that is larger than all of this memory is charged `MemoryBudget.largest`, and one of them is handled at a
time. So all of them together take no more than the memory and the elements of one (200,000 at most).
"""

from __future__ import annotations

from agent.errors import NoRoomForRequest
from agent.memory_budget import Grant, MemoryBudget
from tailrace.clock import Clock

PART = 4
"""One part in so many of the memory budget is what these objects have together, beside it."""
FREE_ELEMENTS = 8
"""Topics and partitions whose objects fit into what each request is charged beside its frame."""
ELEMENT_BYTES = 1_100
"""What a partition is as objects, from decoding to the answer, as tracemalloc counts them for batches of 78 bytes. A
topic, and a partition without records, is less."""
WAIT_SECONDS = 30.0
"""A request that has waited so long is given up: its client has given it up, too."""


class RequestMemory:
    """Bytes of objects. Owned by one event loop."""

    def __init__(self, memory_budget_bytes: int, clock: Clock) -> None:
        self._budget = MemoryBudget(memory_budget_bytes // PART)
        self._clock = clock

    @property
    def used(self) -> int:
        return self._budget.used

    async def take(self, elements: int) -> Grant:
        """Memory for a request of so many elements. Raises NoRoomForRequest."""
        charge = self._charge(elements)
        if not await self._budget.take(charge, self._clock, WAIT_SECONDS):
            raise NoRoomForRequest(f"there is no memory for a request of {elements} topics and partitions")
        return Grant(self._budget, charge)

    def try_take(self, elements: int) -> Grant | None:
        """The same, if it is there at once and nobody waits before."""
        charge = self._charge(elements)
        return Grant(self._budget, charge) if self._budget.try_take(charge) else None

    def _charge(self, elements: int) -> int:
        return min(elements * ELEMENT_BYTES, self._budget.largest)
