"""Waiting for a future, but not for ever: the bound is on the clock that was passed in."""

from __future__ import annotations

import asyncio
from typing import Any

from tailrace.clock import Clock


async def wait_for(clock: Clock, awaited: asyncio.Future[Any], seconds: float) -> bool:
    """Wait until `awaited` is done (True) or `seconds` have passed (False). It is neither read nor
    cancelled."""
    if awaited.done():
        return True
    bell = asyncio.ensure_future(clock.sleep(seconds))
    try:
        await asyncio.wait({awaited, bell}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        bell.cancel()
        await asyncio.gather(bell, return_exceptions=True)
    return awaited.done()
