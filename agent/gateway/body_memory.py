"""What is kept of requests' bodies until they are served, and of decoded records until they are written: counted in the
agent's memory, and a part of it at most."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from agent.gateway.errors import HttpRefusal
from agent.memory_budget import MemoryBudget

PART = 4
"""One part in so many of the memory budget is the most that these have together: the rest is for requests."""
SMALL_BYTES = 128 * 1024
"""A body of which no more is kept is never refused: it is what a connection reads ahead."""


@dataclass(slots=True)
class BodyMemory:
    """All bodies of a gateway."""

    budget: MemoryBudget
    kept_bytes: int = 0

    @contextmanager
    def body(self) -> Iterator[KeptBody]:
        """One more body. What is kept of it is given back at the end."""
        body = KeptBody(self)
        try:
            yield body
        finally:
            body.keep(0)

    def has_room(self, more: int, own: int) -> bool:
        """Whether a body of which `own` bytes are kept may keep so many more. One alone has room while nobody waits."""
        if self.budget.is_contended:
            return False
        return self.kept_bytes == own or self.kept_bytes + more <= self.budget.limit // PART

    def count(self, more: int) -> None:
        """Count what is kept, or, if it is negative, what is not any more."""
        self.kept_bytes += more
        self.budget.count(more)


@dataclass(slots=True)
class KeptBody:
    """One body, of which `size` bytes are kept."""

    memory: BodyMemory
    size: int = 0

    def keep(self, size: int) -> None:
        """So much is kept from now on. Raises HttpRefusal where there is no memory for more."""
        more = size - self.size
        if more > 0 and size > SMALL_BYTES and not self.memory.has_room(more, self.size):
            raise HttpRefusal(503, "The agent has no memory for this now. Try again.")
        self.size = size
        self.memory.count(more)
