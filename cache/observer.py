"""What the cache reports to metrics, tests and the console."""

from __future__ import annotations

import enum


class Tier(enum.Enum):
    """Where the bytes of a chunk came from."""

    FRESH = "fresh"
    """This agent uploaded the object recently."""
    MEMORY = "memory"
    PEER = "peer"
    """The agent of this zone that owns the chunk."""
    DISK = "disk"
    """This agent's own disk."""
    STORE = "store"


class DiskRead(enum.Enum):
    """The outcome of looking up a chunk on the disk."""

    HIT = "hit"
    MISS = "miss"
    CORRUPT = "corrupt"
    """The checksum was wrong, or the file was too short."""
    FAILED = "failed"
    """An I/O error, or no answer in time."""


class DiskWrite(enum.Enum):
    """The outcome of a chunk to be written to the disk."""

    WRITTEN = "written"
    DROPPED = "dropped"
    """The queue was full, writes are paused, or the chunk is larger than the disk."""
    FAILED = "failed"


class CacheObserver:
    """Receives an event for every chunk that a reader gets. Called on the loop; must not block or raise. This class
    ignores all events."""

    def chunk_read(self, tier: Tier, length: int, *, is_catch_up: bool, chunks: int = 1) -> None:
        """A reader got `chunks` chunks, `length` bytes in total; readers that share one GET are reported separately."""

    def framed_read(self, length: int) -> None:
        """A reader got `length` bytes from the cache of ready-to-send runs; it needed no chunk."""

    def peer_failed(self, broker_id: int, reason: str) -> None:
        """A call to a peer failed; the chunk was read from the store instead."""

    def peer_bypassed(self, broker_id: int) -> None:
        """A peer was not called because its recent calls failed."""

    def batch_corrupt(self, key: str, start: int, length: int, *, is_repaired: bool) -> None:
        """A batch failed its CRC check; `is_repaired`: a second read from the store returned a sound batch."""

    def disk_read(self, outcome: DiskRead) -> None:
        """A chunk was looked up on the disk."""

    def disk_write(self, outcome: DiskWrite, length: int) -> None:
        """A chunk of `length` bytes was to be written to the disk."""
