"""Maintenance: which rows expiry and retention examine next, kept with a committer's state.

A change of rows notes what it may have made due; everything else becomes due with time (sequencer.rules.due). Rows that
nothing happens to are examined once when a committer begins, and then when they are due.

It is only in memory: the next committer examines everything once, in turns, concurrently with its queue.
"""

from __future__ import annotations

from typing import cast
from uuid import UUID

from sequencer.rules.due import DueList
from sequencer.rules.group_watch import GroupWatch
from sequencer.rules.retention_watch import PartitionWatch
from sequencer.rules.time_to_live import row_lifetimes
from sequencer.settings import SequencerSettings
from sequencer.store.rows import (
    AnswerRow,
    Changes,
    DelegationTokenRow,
    GroupRow,
    ProducerKey,
    Row,
    TopicRow,
    key_of,
)
from sequencer.store.state import HotState, Key
from tailrace.turns import Turns

ROWS_IN_A_TURN = 5_000
_DELETED_EARLY: tuple[type[Row], ...] = (AnswerRow, DelegationTokenRow)
"""The kinds whose rows are also deleted before they are due: answers beyond their limit, and tokens on request."""
STEPS_OF_A_TIME = 1_000
"""A row is examined early by at most a thousandth of the time that it is kept, and then once more. For rows that are
kept for a short time it is a thousandth of the time that answers are kept."""


class Maintenance:
    """The due rows of one loaded state. Call `note` after each change of that state, and `fill` before rows are
    taken."""

    def __init__(self, state: HotState, settings: SequencerSettings) -> None:
        self._state = state
        self.lifetimes = row_lifetimes(settings)
        self.last_producer: ProducerKey | None = None
        """The last producer that expiry has examined; producers are not all in memory."""
        self._unused = {
            kind: DueList(
                max(lifetime.ms, settings.request_answers_ms) // STEPS_OF_A_TIME,
                keeps_earliest=kind in _DELETED_EARLY,
            )
            for kind, lifetime in self.lifetimes.items()
        }
        self.partitions = PartitionWatch()
        self.groups = GroupWatch(settings)
        self.deleted_topics: dict[UUID, int] | None = None
        """The deleted topics of which rows may remain, with the number of their partitions; None if they must be looked
        for among all partitions."""
        self._is_filled = False
        self._appeared: list[Row] = []
        """New rows that are not watched yet: a commit of thousands of rows only appends them here."""
        for kind in self._unused:
            state.watch_new(kind, self._appeared.append)

    def note(self, changes: Changes) -> None:
        """Note what a transaction may have made due."""
        for (topic_id,), row in changes.by_kind.get(TopicRow, {}).items():
            if row is None:
                self._note_deleted(cast("UUID", topic_id))
        self.partitions.note(changes)
        self.groups.note(changes)
        for token in changes.by_kind.get(DelegationTokenRow, {}).values():
            if token is not None:
                self._watch(token)  # it may expire earlier than before
        for kind in _DELETED_EARLY:
            for key, row in changes.by_kind.get(kind, {}).items():
                if row is None:
                    self._unused[kind].discard(key)

    def _note_deleted(self, topic_id: UUID) -> None:
        width = self.partitions.width_of(topic_id)
        if width is None:
            self.deleted_topics = None
        elif self.deleted_topics is not None:
            self.deleted_topics[topic_id] = width

    async def fill(self) -> None:
        """Watch the rows that were loaded (once), and those that have appeared since."""
        turns = Turns(ROWS_IN_A_TURN)
        while self._appeared:
            self._watch_new(self._appeared.pop())
            await turns.did()
        if self._is_filled:
            return
        for kind in self._unused:
            for row in list(self._state.all(kind)):
                self._watch(row)
                await turns.did()
        for group in list(self._state.all(GroupRow)):
            self.groups.watch(group.group_id)
            await turns.did()
        self._is_filled = True

    def _watch_new(self, row: Row) -> None:
        """Watch a row that has appeared, unless it was deleted since."""
        if self._state.get(type(row), *key_of(row)) is not None:
            self._watch(row)

    def _watch(self, row: Row) -> None:
        kind = type(row)
        self._unused[kind].put(key_of(row), self.lifetimes[kind].until_ms(row))

    def take_unused(self, kind: type[Row], now_ms: int, most: int) -> tuple[list[Key], int]:
        """Return the keys of rows that are no longer kept because they were not used, and how many rows were
        examined."""
        while self._appeared:
            self._watch_new(self._appeared.pop())
        due, lifetime = self._unused[kind], self.lifetimes[kind]
        taken = due.take(now_ms, most)
        unused: list[Key] = []
        for key in taken:
            row = self._state.get(kind, *key)
            if row is None:
                continue
            if lifetime.until_ms(row) <= now_ms:
                unused.append(key)
            else:
                due.put_back(key, lifetime.until_ms(row))
        return unused, len(taken)

    def put_back_unused(self, kind: type[Row], keys: list[Key], now_ms: int) -> None:
        """Schedule these rows again if they still exist: they could not be removed."""
        for key in keys:
            if self._state.get(kind, *key) is not None:
                self._unused[kind].put_back(key, now_ms)
