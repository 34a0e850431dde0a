"""How a coroutine makes calls that block: on its loop, or in a thread."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

Blocking = Callable[[Callable[[], T]], Awaitable[T]]
"""Makes a call that blocks, and returns its result. `asyncio.to_thread` makes it in a thread."""


async def run_here(call: Callable[[], T]) -> T:
    """Make the call on this loop."""
    return call()
