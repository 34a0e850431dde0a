"""Keeps large encoded Metadata answers: each is made once, however many clients ask.

All clients ask for metadata when an agent joins or leaves, and each client asks every five minutes. Making the answer
for 10,000 partitions takes tens of milliseconds; sending a kept answer costs only the socket write.

The answers are kept with the snapshot that they were made from, and dropped with it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable

from cache.eviction import S3Fifo
from cache.single_flight import SingleFlight

MAX_BYTES = 16 << 20
"""The limit of all answers of one snapshot. A larger answer is not kept."""


class KeptAnswers:
    """Encoded answers by request."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._kept: S3Fifo[Hashable, bytes] = S3Fifo(max_bytes)
        self._making: SingleFlight[Hashable, bytes] = SingleFlight()

    async def get(self, request: Hashable, make: Callable[[], Awaitable[bytes]]) -> bytes:
        """Return the kept answer, or the result of `make`. Callers that ask meanwhile wait for the same result."""
        kept = self._kept.get(request)
        if kept is None:
            return await self._making.do(request, lambda: self._make(request, make))
        return kept

    async def _make(self, request: Hashable, make: Callable[[], Awaitable[bytes]]) -> bytes:
        made = await make()
        self._kept.put(request, made, len(made))
        return made
