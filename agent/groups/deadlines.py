"""When groups must be examined next: their deadlines, earliest first.

A deadline that moves to a later time leaves its entry where it is: the group is then examined early, once, and armed
again. So a heartbeat, which only moves a deadline, costs nothing here.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Iterator

from tailrace.clock import Clock, wait_for

MANY_OUTDATED = 1_000
"""How many outdated entries may be left, in addition to two for each group."""
MIN_WAIT_SECONDS = 0.001
"""The shortest wait for a deadline: timers may fire a little early."""


class GroupDeadlines:
    """The armed deadline of each group, in monotonic seconds."""

    def __init__(self) -> None:
        self._armed: dict[str, float] = {}
        self._entries: list[tuple[float, str]] = []
        self._sooner: asyncio.Future[None] | None = None

    def arm(self, group_id: str, deadline: float) -> None:
        """Have the group examined at this time, unless it will be examined earlier."""
        armed = self._armed.get(group_id)
        if armed is not None and armed <= deadline:
            return
        self._armed[group_id] = deadline
        is_soonest = not self._entries or deadline < self._entries[0][0]
        heapq.heappush(self._entries, (deadline, group_id))
        if len(self._entries) > MANY_OUTDATED + 2 * len(self._armed):
            self._entries = [(deadline, group_id) for group_id, deadline in self._armed.items()]
            heapq.heapify(self._entries)
        if is_soonest and self._sooner is not None and not self._sooner.done():
            self._sooner.set_result(None)

    def forget(self, group_id: str) -> None:
        """Disarm a group that is not in memory any more."""
        self._armed.pop(group_id, None)

    def take_due(self, now: float) -> Iterator[str]:
        """Disarm and yield the groups whose deadlines have passed."""
        while self._entries and self._entries[0][0] <= now:
            _, group_id = heapq.heappop(self._entries)
            if self._armed.get(group_id, now + 1) <= now:
                del self._armed[group_id]
                yield group_id

    async def wait(self, clock: Clock, most_seconds: float) -> None:
        """Wait for the first deadline, or for an earlier one that is armed meanwhile, or until the time is over."""
        self._sooner = asyncio.get_running_loop().create_future()
        seconds = self._entries[0][0] - clock.monotonic() if self._entries else most_seconds
        await wait_for(clock, self._sooner, min(max(seconds, MIN_WAIT_SECONDS), most_seconds))
