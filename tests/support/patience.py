"""How long a test waits for something that should happen.

Longer than a machine takes that is ten times slower and stops for seconds, and shorter than `faulthandler_timeout`: a
test that hangs fails with its own message.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol, TypeVar

PATIENCE_SECONDS = 240.0


class Bench(Protocol):
    """What a test opens, uses and closes."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...


B = TypeVar("B", bound=Bench)


@asynccontextmanager
async def opened(bench: B) -> AsyncIterator[B]:
    """Open the bench, and close it after the block, which has PATIENCE_SECONDS."""
    await bench.open()
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            yield bench
    finally:
        await bench.close()
