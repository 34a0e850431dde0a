"""The local disk of a simulated agent, for the cache's disk tier.

It is slow, sometimes fails or hangs, and changes bits. A read that overlaps a write may return some bytes of before and
some of after it.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence

from fastcrc.crc32 import iscsi as crc32c

from cache.disk import READ_SECONDS, DiskTier
from cache.observer import CacheObserver, DiskRead
from tailrace.buffers import Buffer
from tailrace.clock import Clock, Entropy

DISK_BYTES = 64 * 1024
"""A few chunks, so that the ring is overwritten often."""
LONGEST_CALL_S = 0.02
FAILS, HANGS, ROTS = 0.003, 0.003, 0.03
"""The chances of a call, and of a written chunk. After an error or a hang the disk is not used for a minute, so these
are rare."""


class SimulatedDisk:
    """A `ChunkFile` in memory."""

    def __init__(self, clock: Clock, entropy: Entropy) -> None:
        self._clock = clock
        self._entropy = entropy
        self._bytes = bytearray(DISK_BYTES)

    async def write(self, start: int, parts: Sequence[Buffer]) -> int:
        data = bytearray().join(parts)
        checksum, half = crc32c(data), len(data) // 2
        await self._call()
        if data and self._entropy.fraction() < ROTS:
            data[self._entropy.below(len(data))] ^= 1 << self._entropy.below(8)
        self._bytes[start : start + half] = data[:half]
        await self._call()
        self._bytes[start + half : start + len(data)] = data[half:]
        return checksum

    async def read(self, start: int, length: int) -> tuple[bytearray, int]:
        half = length // 2
        data = self._bytes[start : start + half]
        await self._call()
        data += self._bytes[start + half : start + length]
        return data, crc32c(data)

    async def close(self) -> None:
        pass

    async def _call(self) -> None:
        luck = self._entropy.fraction()
        await self._clock.sleep(LONGEST_CALL_S * self._entropy.fraction())
        if luck < FAILS:
            raise OSError(errno.EIO, "the disk fails")
        if luck < FAILS + HANGS:
            await self._clock.sleep(2 * READ_SECONDS)


class CountedReads(CacheObserver):
    """Counts the chunks that all disks returned."""

    def __init__(self) -> None:
        self.hits = 0

    def disk_read(self, outcome: DiskRead) -> None:
        self.hits += outcome is DiskRead.HIT


def disk_tier(clock: Clock, entropy: Entropy, observer: CountedReads) -> DiskTier:
    """Return the disk tier of an agent that has just started: with an empty disk."""
    return DiskTier(SimulatedDisk(clock, entropy), DISK_BYTES, clock, observer)
