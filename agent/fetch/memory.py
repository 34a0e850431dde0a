"""The budget of records on their way to consumers: read, perhaps waiting for a slow client to take them.

A fetch is granted at most a quarter of what is free, so many slow consumers leave room for the others, and never
less than LEAST_BYTES, so that nobody starves: used bytes may pass the limit by that much per connection, no more.
"""

from __future__ import annotations

LEAST_BYTES = 1024 * 1024


class FetchMemory:
    """Bytes granted to fetches. Owned by one event loop."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0

    def grant(self, wanted: int) -> Grant:
        """Room for up to `wanted` bytes; ask `bytes` how much it is."""
        share = max(LEAST_BYTES, (self.limit - self.used) // 4)
        return Grant(self, min(wanted, share))


class Grant:
    """Bytes of the budget, until `release`."""

    __slots__ = ("_memory", "bytes")

    def __init__(self, memory: FetchMemory, size: int) -> None:
        self._memory = memory
        self.bytes = size
        memory.used += size

    def resize(self, size: int) -> None:
        """What was really read: less, or more where a first batch must be whole."""
        self._memory.used += size - self.bytes
        self.bytes = size

    def release(self) -> None:
        """Give all of it back; again does nothing."""
        self.resize(0)
