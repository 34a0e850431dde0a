"""Releases the records that share sessions had acquired when their connection ends, as Kafka does.

Records that are not released (the agent dies, the sequencer is unreachable, too many requests wait) become available
when their lock expires.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

import structlog

from agent.fetch.share_sessions import ShareSessions
from sequencer.api.errors import SequencerError
from sequencer.api.interface import Sequencer
from sequencer.api.share_groups import ShareLimits, ShareRequest, ShareWork
from sequencer.bounds import MAX_WORKS
from tailrace.background_tasks import cancel_and_wait, log_and_continue

log = structlog.get_logger("agent.share")

MAX_WAITING = 10_000
"""Requests that wait for the sequencer. If there are more, the oldest are dropped."""


class ShareReleases:
    """The releases of one agent. `start` before use, `close` at the end. `limits` returns a group's settings."""

    def __init__(
        self, sequencer: Sequencer, sessions: ShareSessions, limits: Callable[[str], ShareLimits]
    ) -> None:
        self._sequencer = sequencer
        self._sessions = sessions
        self._limits = limits
        self._waiting: deque[ShareRequest] = deque(maxlen=MAX_WAITING)
        self._is_waiting = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="agent: share sessions")

    async def close(self) -> None:
        await cancel_and_wait(self._task)

    def connection_ended(self, connection: object) -> None:
        """End the connection's sessions and queue the release of what they may have acquired."""
        for (group_id, member_id), session in self._sessions.end_of(connection):
            works = [
                ShareWork(*partition, releases=True)
                for partition, acquirable in session.partitions.items()
                if acquirable.is_acquired
            ]
            for first in range(0, len(works), MAX_WORKS):
                some = works[first : first + MAX_WORKS]
                limits = self._limits(group_id)
                self._waiting.append(ShareRequest(group_id, member_id, limits, some, session=session.number))
                self._is_waiting.set()

    async def _run(self) -> None:
        while True:
            await self._is_waiting.wait()
            self._is_waiting.clear()
            while self._waiting:
                request = self._waiting.popleft()
                with log_and_continue(
                    log, "records of an ended share session stay locked for now", SequencerError
                ):
                    await self._sequencer.share_records(request)
