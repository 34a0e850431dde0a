"""Large Metadata answers, kept as they are sent: made once, however many clients ask.

All clients ask for metadata anew when an agent comes or goes, and each of them every five minutes. Making the answer of
10,000 partitions takes tens of milliseconds; sending it once more costs what the socket costs.

Kept beside the snapshot that they were made from, and gone with it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable

from cache.eviction import S3Fifo
from cache.single_flight import SingleFlight

MAX_BYTES = 16 << 20
"""Of all answers of one snapshot. One that is larger is not kept."""


class KeptAnswers:
    """Answers by what was asked."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._kept: S3Fifo[Hashable, bytes] = S3Fifo(max_bytes)
        self._making: SingleFlight[Hashable, bytes] = SingleFlight()

    async def get(self, request: Hashable, make: Callable[[], Awaitable[bytes]]) -> bytes:
        """The answer that is kept, or what `make` gives; those who ask meanwhile wait for the same."""
        kept = self._kept.get(request)
        if kept is None:
            return await self._making.do(request, lambda: self._make(request, make))
        return kept

    async def _make(self, request: Hashable, make: Callable[[], Awaitable[bytes]]) -> bytes:
        made = await make()
        self._kept.put(request, made, len(made))
        return made
