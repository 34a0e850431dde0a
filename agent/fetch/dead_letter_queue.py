"""The dead-letter queue: records that share groups could not process, until `agent.handlers.dead_letters` writes them
to the groups' dead-letter topics."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import structlog

from agent.catalog import KnownTopic
from sequencer.api.errors import SequencerError
from sequencer.api.share_groups import AcquiredRecords, ShareLimits
from tailrace.background_tasks import cancel_and_wait, log_and_continue
from tailrace.ids import TopicPartition

log = structlog.get_logger("agent.share")

MAX_WAITING = 1_000
"""Queued tasks. Above it the oldest are dropped; another agent writes them after their lock expires."""
AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class UndeliverableRecords:
    """Records of a partition that a group could not process, and the member in whose name the sequencer is asked."""

    group_id: str
    member_id: str
    limits: ShareLimits
    topic: KnownTopic
    topic_partition: TopicPartition
    records: Sequence[AcquiredRecords]


WriteDeadLetters = Callable[[UndeliverableRecords], Awaitable[None]]
"""Writes records to the group's dead-letter topic. Raises SequencerError; then another agent writes them later."""


class DeadLetterQueue:
    """The dead-letter queue of one agent. `start` before use, `close` at the end."""

    def __init__(self) -> None:
        self._waiting: deque[UndeliverableRecords] = deque(maxlen=MAX_WAITING)
        self._is_waiting = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self, write_dead_letters: WriteDeadLetters) -> None:
        self._task = asyncio.create_task(self._run(write_dead_letters), name="agent: dead letters")

    async def close(self) -> None:
        """Stop writing."""
        await cancel_and_wait(self._task)

    def take(self, undeliverable: UndeliverableRecords) -> None:
        """Queue records to be written."""
        self._waiting.append(undeliverable)
        self._is_waiting.set()

    async def _run(self, write_dead_letters: WriteDeadLetters) -> None:
        while True:
            await self._is_waiting.wait()
            self._is_waiting.clear()
            while self._waiting:
                some = [self._waiting.popleft() for _ in range(min(AT_ONCE, len(self._waiting)))]
                await asyncio.gather(
                    *(_log_and_continue(write_dead_letters, undeliverable) for undeliverable in some)
                )


async def _log_and_continue(
    write_dead_letters: WriteDeadLetters, undeliverable: UndeliverableRecords
) -> None:
    with log_and_continue(log, "dead letters could not be written; they are retried", SequencerError):
        await write_dead_letters(undeliverable)
