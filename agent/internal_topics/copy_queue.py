"""The queue of changes to copy to internal topics, and the task that copies them.

Requests only note here that something changed, and wait for nothing. The state is read when it is copied. So several
changes make one record, the last record has the last state, and a failed copy is simply noted again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from uuid import UUID

import structlog

from agent.catalog import Catalog
from sequencer.api.groups import OffsetPosition
from tailrace.background_tasks import cancel_and_wait, log_and_continue
from tailrace.clock import Clock, wait_until_set
from tailrace.configs.internal_topics import GROUPS, TRANSACTIONS, is_kept

log = structlog.get_logger("agent.internal_topics")

MAX_CHANGES = 100_000
"""The most groups, positions and transactional ids that wait to be copied. Changes above it are not copied until the
next change."""
PAUSE_SECONDS = 1.0
"""The pause before each round. An agent whose clients only commit offsets uploads at most one object per second for the
copies, and a transaction whose first batch was accepted has begun by then."""
REFRESH_SECONDS = 86_400.0
"""How often groups with members are copied whole, so that no record is older than the retention."""

Partition = tuple[UUID, int]
"""A topic id, and a partition."""


@dataclass(slots=True)
class GroupChanges:
    """What has changed of a group: its state, all of its positions, or those in some partitions."""

    state: bool = False
    all_positions: bool = False
    partitions: dict[Partition, None] = field(default_factory=dict)


@dataclass(slots=True)
class PendingChanges:
    """The changes, in the order in which they were first noted."""

    groups: dict[str, GroupChanges] = field(default_factory=dict)
    transactional_ids: dict[str, None] = field(default_factory=dict)
    count: int = 0

    def group(self, group_id: str, added: GroupChanges) -> bool:
        """Note changes of a group. Return False if there is no room."""
        if self.count >= MAX_CHANGES:
            return False
        self.count += group_id not in self.groups
        noted = self.groups.setdefault(group_id, GroupChanges())
        noted.state |= added.state
        noted.all_positions |= added.all_positions
        self.count -= len(noted.partitions)
        noted.partitions |= added.partitions
        self.count += len(noted.partitions)
        return True

    def transactional_id(self, transactional_id: str) -> bool:
        """Note a change of a transactional id. Return False if there is no room."""
        if self.count >= MAX_CHANGES:
            return False
        self.count += transactional_id not in self.transactional_ids
        self.transactional_ids[transactional_id] = None
        return True


Copy = Callable[[PendingChanges], Awaitable[None]]
"""Copies the changes, and notes again those that could not be copied."""


class CopyQueue:
    """The changes of one agent. `start` before use, `close` or `stop` at the end. Nothing is noted for a topic that is
    not kept.

    `on_dropped` is called for each change for which there is no room.
    """

    def __init__(self, catalog: Catalog, clock: Clock, on_dropped: Callable[[], None]) -> None:
        self._catalog = catalog
        self._clock = clock
        self._on_dropped = on_dropped
        self._changes = PendingChanges()
        self._has_changes = asyncio.Event()
        self._is_closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self, copy: Copy, used_groups: Callable[[], Iterable[str]]) -> None:
        """Start copying. `used_groups` returns the groups of this agent that have members."""
        self._task = asyncio.create_task(self._run(copy, used_groups), name="agent: internal topics")

    async def close(self) -> None:
        """Copy what is noted, then stop."""
        self._is_closing.set()
        self._has_changes.set()
        if self._task is not None:
            await self._task

    async def stop(self) -> None:
        await cancel_and_wait(self._task)

    @property
    def keeps_groups(self) -> bool:
        """Whether groups are copied, as far as this agent knows."""
        return is_kept(GROUPS, self._catalog.snapshot.broker_configs)

    def committed(self, group_id: str, positions: Iterable[OffsetPosition]) -> None:
        """Note positions that were committed, or will be when a transaction ends."""
        self.positions(group_id, ((position.topic_id, position.partition) for position in positions))

    def positions(self, group_id: str, partitions: Iterable[Partition]) -> None:
        """Note positions of a group that may have changed."""
        if self.keeps_groups:
            self.group(group_id, GroupChanges(partitions=dict.fromkeys(partitions)))

    def group_state(self, group_id: str) -> None:
        """Note that the state of a group was stored."""
        self.group(group_id, GroupChanges(state=True))

    def whole_group(self, group_id: str) -> None:
        """Note a group that was loaded: the previous agent may not have copied everything."""
        self.group(group_id, GroupChanges(state=True, all_positions=True))

    def group(self, group_id: str, changes: GroupChanges) -> None:
        """Note changes of a group."""
        if self.keeps_groups:
            self._note(self._changes.group(group_id, changes))

    def transaction(self, transactional_id: str) -> None:
        """Note that a transactional id has a new producer, a new transaction, or that its transaction ended."""
        if is_kept(TRANSACTIONS, self._catalog.snapshot.broker_configs):
            self._note(self._changes.transactional_id(transactional_id))

    def _note(self, has_room: bool) -> None:
        if not has_room:
            self._on_dropped()
        self._has_changes.set()

    async def _run(self, copy: Copy, used_groups: Callable[[], Iterable[str]]) -> None:
        is_last, refresh_at = False, self._clock.monotonic() + REFRESH_SECONDS
        while not is_last:
            left = refresh_at - self._clock.monotonic()
            await wait_until_set(self._clock, self._has_changes, max(left, 0.0))
            if self._clock.monotonic() >= refresh_at:
                refresh_at = self._clock.monotonic() + REFRESH_SECONDS
                for group_id in used_groups():
                    self.whole_group(group_id)
            self._has_changes.clear()
            is_last = await wait_until_set(self._clock, self._is_closing, PAUSE_SECONDS)
            changes, self._changes = self._changes, PendingChanges()
            with log_and_continue(log, "changes of groups and transactional ids are not copied"):
                await copy(changes)
