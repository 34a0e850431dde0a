"""The tail: what the sequencer's feed says was committed, so that waiting fetches wake at once.

The feed is a hint (correctness: the feed and the fetch): it wakes; what is read is always asked of the sequencer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from uuid import UUID

import structlog

from sequencer.api import FeedRequest, Sequencer, SequencerError
from tailrace.clock import Clock
from tailrace.keepers import outlived

log = structlog.get_logger("agent.tail")

FEED_WAIT_MS = 500
Partition = tuple[UUID, int]


class Tail:
    """Follows the feed while somebody waits, and wakes the waiters of the partitions that changed."""

    def __init__(self, sequencer: Sequencer, clock: Clock) -> None:
        self._sequencer = sequencer
        self._clock = clock
        self._waiting: dict[Partition, set[asyncio.Future[None]]] = {}
        self._anyone = asyncio.Event()
        self._commit_number = -1
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._follow(), name="tail: feed")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def wait(self, partitions: Iterable[Partition], after_commit: int, seconds: float) -> None:
        """Return when one of the partitions changed after commit number `after_commit`, or after `seconds`."""
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        wanted = list(partitions)
        for partition in wanted:
            self._waiting.setdefault(partition, set()).add(woken)
        if self._commit_number < 0 or after_commit < self._commit_number:
            self._commit_number = after_commit
        self._anyone.set()
        timer = asyncio.ensure_future(self._clock.sleep(seconds))
        try:
            await asyncio.wait((woken, timer), return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            woken.cancel()
            for partition in wanted:
                waiters = self._waiting.get(partition)
                if waiters is not None:
                    waiters.discard(woken)
                    if not waiters:
                        del self._waiting[partition]

    async def _follow(self) -> None:
        while True:
            if not self._waiting:
                self._anyone.clear()
                await self._anyone.wait()
            is_silent = True
            with outlived(log, "the feed is silent; waiting fetches ask the sequencer", SequencerError):
                await self._take_updates()
                is_silent = False
            if is_silent:
                self._wake(list(self._waiting))
                await self._clock.sleep(0.5)

    async def _take_updates(self) -> None:
        after_commit = self._commit_number
        answer = await self._sequencer.feed(FeedRequest(after_commit, [], FEED_WAIT_MS, wants_runs=False))
        if answer.reset:
            self._wake(list(self._waiting))
        else:
            self._wake([(update.topic_id, update.partition) for update in answer.updates])
        if self._commit_number == after_commit:  # nobody asked for an earlier one meanwhile
            self._commit_number = answer.commit_number

    def _wake(self, partitions: Iterable[Partition]) -> None:
        for partition in partitions:
            for waiter in self._waiting.get(partition, ()):
                if not waiter.done():
                    waiter.set_result(None)
