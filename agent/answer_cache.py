"""A cache of large encoded Metadata answers: each is made once, however many clients ask.

All clients ask for metadata when an agent joins or leaves, and each client asks every five minutes. Making the answer
for 10,000 partitions takes tens of milliseconds; sending a cached answer costs only the socket write.

The cache belongs to the snapshot that its answers were made from, and is dropped with it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable

from cache.eviction import S3Fifo
from cache.single_flight import SingleFlight

MAX_BYTES = 16 << 20
"""The limit of all answers of one snapshot. A larger answer is not cached."""


class AnswerCache:
    """Encoded answers by request."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._answers: S3Fifo[Hashable, bytes] = S3Fifo(max_bytes)
        self._making: SingleFlight[Hashable, bytes] = SingleFlight()

    async def get(self, request: Hashable, make: Callable[[], Awaitable[bytes]]) -> bytes:
        """Return the cached answer, or the result of `make`. Callers that ask meanwhile wait for the same result."""
        cached = self._answers.get(request)
        if cached is None:
            return await self._making.do(request, lambda: self._make(request, make))
        return cached

    async def _make(self, request: Hashable, make: Callable[[], Awaitable[bytes]]) -> bytes:
        made = await make()
        self._answers.put(request, made, len(made))
        return made
