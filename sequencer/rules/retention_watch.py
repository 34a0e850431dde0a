"""Which partitions retention examines: those that have changed, and those whose oldest run has become too old.

To examine a partition is to read its oldest run from the store. Each partition is examined once when a committer
begins, and then
- when its log start has moved, its topic was deleted, or the limits of its topic or cluster have changed;
- after a commit to it, if its bytes are limited or it had no runs before;
- when its oldest run reaches its age; and once a day, because a swap may have replaced that run by one that is due
  earlier.

Invariant: a partition that was taken remains to be examined until `looked` says that it has nothing to remove. If its
runs can't be removed, it is examined again a minute later (`put_off`), after all others.

Pure: the caller reads the runs.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from uuid import UUID

from sequencer.rules.due import DueList
from sequencer.store.draft import Draft
from sequencer.store.rows import BrokerConfigRow, Changes, PartitionRow, Row, TopicRow, key_of
from sequencer.store.state import HotState, Key
from tailrace.turns import Turns

LOOK_AGAIN_MS = 24 * 3600 * 1000
PUT_OFF_MS = 60_000
DUE_STEP_MS = 1_000
PARTITIONS_IN_A_TURN = 5_000
MOST_DUE = 100_000
"""Limit of due partitions that one call takes; the next call takes more."""


def removable_end(state: HotState | Draft, row: PartitionRow) -> int:
    """Return the offset below which nobody reads: the log start, or the end of the log if the topic is deleted."""
    return row.log_start_offset if state.get(TopicRow, row.topic_id) is not None else row.end_offset


class PartitionWatch:
    """See the module. `note` each change, `take` the partitions to examine, and report each examined one with `looked`
    or `emptied`."""

    def __init__(self) -> None:
        self._due = DueList(DUE_STEP_MS)
        self._pending: dict[Key, None] = {}
        """Partitions to examine."""
        self._changed: dict[Key, Row | None] = {}
        self._topics: dict[UUID, int] = {}
        """Topics that were changed or deleted, with the number of their partitions."""
        self._widths: dict[UUID, int] = {}
        """The number of partitions of each topic: of those that have changed, and after the first `take` of all."""
        self._looked: dict[Key, int] = {}
        """The removable end of each partition when it was last examined."""
        self._is_all_changed = True
        self._has_new_defaults = False
        """The cluster's configs have changed. A plan that used the old configs may still report what it examined."""

    def note(self, changes: Changes) -> None:
        """Note what a transaction changed."""
        self._changed.update(changes.by_kind.get(PartitionRow, {}))
        for (topic_id,), row in changes.by_kind.get(TopicRow, {}).items():
            assert isinstance(topic_id, UUID), "topics are known by their id"
            if isinstance(row, TopicRow):
                self._topics[topic_id] = self._widths[topic_id] = row.partitions
            elif (width := self._widths.pop(topic_id, None)) is not None:
                self._topics[topic_id] = width
            else:
                self._is_all_changed = True  # only its partitions' rows tell which partitions it had
        if BrokerConfigRow in changes.by_kind:
            self._has_new_defaults = True
            self._is_all_changed = True

    def width_of(self, topic_id: UUID) -> int | None:
        """Return the number of a topic's partitions; None if it is not known yet."""
        return self._widths.get(topic_id)

    async def take(
        self, state: HotState, counts_bytes: Callable[[UUID], bool | None], now_ms: int, most: int
    ) -> tuple[list[PartitionRow], bool]:
        """Return at most `most` partitions to examine, and whether there are more. `counts_bytes`: returns whether a
        topic's bytes are limited; None if the topic has no limits."""
        await self._gather(state, counts_bytes, now_ms)
        rows: list[PartitionRow] = []
        for key in list(islice(self._pending, most)):
            row = state.get(PartitionRow, *key)
            if row is None:
                del self._pending[key]
                self._looked.pop(key, None)
            else:
                rows.append(row)
        return rows, len(self._pending) > most

    def looked(self, row: PartitionRow, end: int, due_ms: int | None, now_ms: int) -> None:
        """Note that nothing must be removed from this partition, whose removable end was `end`; examine it again at
        `due_ms`."""
        key = key_of(row)
        self._pending.pop(key, None)
        self._looked[key] = end
        if due_ms is not None:
            self._due.put_back(key, min(due_ms, now_ms + LOOK_AGAIN_MS))

    def emptied(self, row: PartitionRow) -> None:
        """Note that the partition has no runs."""
        key = key_of(row)
        self._pending.pop(key, None)
        self._looked.pop(key, None)

    def put_off(self, key: Key, now_ms: int) -> None:
        """Note that the runs of this partition could not be removed."""
        self._pending.pop(key, None)
        self._due.put_back(key, now_ms + PUT_OFF_MS)

    async def _gather(
        self, state: HotState, counts_bytes: Callable[[UUID], bool | None], now_ms: int
    ) -> None:
        """Find the partitions to examine among all that changed. Nothing is lost if this is cancelled or if more
        changes arrive meanwhile."""
        turns = Turns(PARTITIONS_IN_A_TURN)
        if self._has_new_defaults:
            self._has_new_defaults = False
            self._looked.clear()
        if self._is_all_changed:
            self._is_all_changed = False
            changed, self._changed = self._changed, state.by_key(PartitionRow)
            self._changed.update(changed)
            self._widths.update((topic.topic_id, topic.partitions) for topic in state.all(TopicRow))
        taken = 0
        while taken < MOST_DUE and (due := self._due.take(now_ms, PARTITIONS_IN_A_TURN)):
            self._pending.update(dict.fromkeys(due))
            taken += len(due)
            await turns.did(len(due))
        while self._topics:
            topic_id, partitions = self._topics.popitem()
            for partition in range(partitions):
                self._looked.pop((topic_id, partition), None)
                self._changed[topic_id, partition] = None
            await turns.did(partitions)
        while self._changed:
            key, _ = self._changed.popitem()
            row = state.get(PartitionRow, *key)
            if row is None:
                self._looked.pop(key, None)
            elif self._is_affected(state, row, key, counts_bytes(row.topic_id)):
                self._pending[key] = None
            await turns.did()

    def _is_affected(self, state: HotState, row: PartitionRow, key: Key, counts_bytes: bool | None) -> bool:
        end = removable_end(state, row)
        if row.end_offset == 0 or (counts_bytes is None and end == 0):
            return False
        return bool(counts_bytes) or self._looked.get(key) != end
