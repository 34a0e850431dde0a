"""Memory of request bodies until they are served, and of decoded records until they are written. Counted in the agent's
memory budget, up to a part of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from agent.gateway.errors import HttpRefusal
from agent.memory_budget import MemoryBudget

PART = 4
"""Bodies together may use this fraction (1 / PART) of the memory budget; the rest is for requests."""
SMALL_BYTES = 128 * 1024
"""A body of at most this size is never refused: a connection reads this much ahead."""


@dataclass(slots=True)
class BodyMemory:
    """The memory of all bodies of a gateway."""

    budget: MemoryBudget
    kept_bytes: int = 0

    @contextmanager
    def body(self) -> Iterator[BodyCharge]:
        """Open the accounting of one more body. Its memory is given back at the end."""
        body = BodyCharge(self)
        try:
            yield body
        finally:
            body.keep(0)

    def has_room(self, more: int, own: int) -> bool:
        """Whether a body that keeps `own` bytes may keep `more`. A single body may, while no request waits."""
        if self.budget.is_contended:
            return False
        return self.kept_bytes == own or self.kept_bytes + more <= self.budget.limit // PART

    def count(self, more: int) -> None:
        """Count bytes that are kept, or, if negative, no longer kept."""
        self.kept_bytes += more
        self.budget.count(more)


@dataclass(slots=True)
class BodyCharge:
    """The `size` bytes that one body uses of the memory budget."""

    memory: BodyMemory
    size: int = 0

    def keep(self, size: int) -> None:
        """Keep `size` bytes from now on. Raises HttpRefusal if there is no memory for more."""
        more = size - self.size
        if more > 0 and size > SMALL_BYTES and not self.memory.has_room(more, self.size):
            raise HttpRefusal(503, "The agent has no memory for this now. Try again.")
        self.size = size
        self.memory.count(more)
