"""What the cache reports: to metrics, tests, the console."""

from __future__ import annotations

import enum
from typing import Protocol


class Tier(enum.Enum):
    """Where the bytes of a chunk came from."""

    FRESH = "fresh"
    """Uploaded by this agent a moment ago."""
    MEMORY = "memory"
    PEER = "peer"
    """The owner in this zone."""
    STORE = "store"


class CacheObserver(Protocol):
    """Told of every chunk that a reader got. Called on the loop; must not block or raise."""

    def chunk_read(self, tier: Tier, length: int, *, is_catch_up: bool, chunks: int = 1) -> None:
        """A reader got so many chunks, `length` bytes together; readers that shared one GET are reported one by one."""
        ...

    def framed_read(self, length: int) -> None:
        """A reader got so many bytes that were kept in the form in which they are sent: no chunk was needed."""
        ...

    def peer_failed(self, broker_id: int, reason: str) -> None:
        """A peer did not answer as it should; the store was read in its place."""
        ...

    def peer_bypassed(self, broker_id: int) -> None:
        """A peer was not asked, because it failed often recently."""
        ...

    def batch_corrupt(self, key: str, start: int, length: int, *, is_repaired: bool) -> None:
        """A batch failed its CRC; `is_repaired`: the store's own bytes were right."""
        ...


class NoObserver:
    """Nobody counts."""

    def chunk_read(self, tier: Tier, length: int, *, is_catch_up: bool, chunks: int = 1) -> None:
        """Nothing."""

    def framed_read(self, length: int) -> None:
        """Nothing."""

    def peer_failed(self, broker_id: int, reason: str) -> None:
        """Nothing."""

    def peer_bypassed(self, broker_id: int) -> None:
        """Nothing."""

    def batch_corrupt(self, key: str, start: int, length: int, *, is_repaired: bool) -> None:
        """Nothing."""
