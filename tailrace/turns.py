"""Turns of the event loop: work that can be long is done in steps, so that no request holds the loop for long.

Counted in work, not in time: a simulation takes the same steps at each run.
"""

from __future__ import annotations

import asyncio


class Turns:
    """Lets everything else that is ready run after each `step` of work.

    What the caller looked at before a pause may have changed after it.
    """

    __slots__ = ("_left", "_step")

    def __init__(self, step: int) -> None:
        assert step > 0, f"a step of {step}"
        self._step = step
        self._left = step

    async def did(self, work: int = 1) -> None:
        """Count what was done since the last call; give the turn away when a step is full."""
        self._left -= work
        if self._left <= 0:
            self._left = self._step
            await asyncio.sleep(0)  # noqa: TID251 - a turn, not a time
