"""Row look-ups for a group of requests: the rows that the requests read and that are not in memory are read from the
store before the group is decided, for all requests together, because each query of the database may take long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from uuid import UUID

from sequencer.observer import SequencerObserver, timed
from sequencer.reading.positions import pages_of
from sequencer.reading.view import CommitterView
from sequencer.store.draft import Draft
from sequencer.store.required_rows import RequiredRows
from sequencer.store.row_store import RowStore
from sequencer.store.rows import LOOKED_UP, GroupOffsetRow, GroupRow, ObjectRow, Row
from sequencer.store.state import Key
from tailrace.clock import Clock
from tailrace.turns import Turns, in_turns

POSITIONS_AT_ONCE = 10_000
"""Positions that one statement reads when all positions of groups are read."""
KEYS_AS_A_RUN = 50
"""The number of keys whose look-up in memory costs as much as one run."""


@dataclass(slots=True)
class LookupKeys:
    """What to look up: objects, rows by kind and key, and all positions of some groups. `rows`: upper limit of the
    number of rows, objects not counted."""

    objects: list[UUID] = field(default_factory=list)
    keys: dict[type[Row], dict[Key, None]] = field(default_factory=lambda: {kind: {} for kind in LOOKED_UP})
    groups: dict[str, None] = field(default_factory=dict)
    rows: int = 0

    def __bool__(self) -> bool:
        return bool(self.objects or self.groups or any(self.keys.values()))

    def add(self, other: LookupKeys) -> None:
        """Add the look-ups of `other` (keys and groups)."""
        for kind, keys in other.keys.items():
            self.keys[kind].update(keys)
        self.groups.update(other.groups)
        self.rows += other.rows


@dataclass(frozen=True, slots=True)
class LookupResult:
    """The rows that were found. `rows`: in the order of the kinds."""

    keys: LookupKeys
    objects: Sequence[ObjectRow]
    positions: Sequence[GroupOffsetRow]
    rows: Sequence[Sequence[Row]]

    async def note_in(self, draft: Draft, turns: Turns) -> None:
        """Add the rows to the draft, and note that nothing else exists under these keys."""
        draft.objects.update((row.object_id, row) for row in self.objects)
        await in_turns(draft.note_rows(self.keys.keys, self.rows), turns)
        draft.note_groups(self.keys.groups)
        async for position in turns.over(self.positions):
            draft.note_position(position)


class RowLookup:
    """Reads rows that are not in memory from the store."""

    def __init__(
        self, view: CommitterView, store: RowStore, clock: Clock, observer: SequencerObserver
    ) -> None:
        self._view = view
        self._store = store
        self._clock = clock
        self._observer = observer

    async def unknown(self, needed: RequiredRows, turns: Turns) -> LookupKeys:
        """Return the part of `needed` that is not in memory."""
        state, unknown = self._view.state, LookupKeys(groups=dict.fromkeys(needed.groups))
        groups = (state.get(GroupRow, group_id) for group_id in needed.groups)
        unknown.rows = sum(group.positions for group in groups if group is not None)
        for kind, keys in needed.keys.items():
            recent, left = state.recent[kind], iter(keys)
            while some := list(islice(left, KEYS_AS_A_RUN)):
                unknown.keys[kind].update(dict.fromkeys(recent.missing(some)))
                await turns.did(len(some) // KEYS_AS_A_RUN)
            unknown.rows += len(unknown.keys[kind])
        return unknown

    async def look_up(self, keys: LookupKeys) -> LookupResult:
        """Look up everything concurrently. Raises like RowStore."""
        objects, positions, rows = await asyncio.gather(
            self._object_rows(keys.objects),
            self._positions_of(list(keys.groups)),
            asyncio.gather(*(self._rows_under(kind, list(keys)) for kind, keys in keys.keys.items())),
        )
        return LookupResult(keys, objects, positions, rows)

    async def _object_rows(self, named: list[UUID]) -> list[ObjectRow]:
        if not named:
            return []
        return await timed(self._observer, self._clock, "look_up", self._store.object_rows(named))

    async def _rows_under(self, kind: type[Row], keys: list[Key]) -> list[Row]:
        if not keys:
            return []
        return await timed(self._observer, self._clock, "look_up", self._store.rows_under(kind, keys))

    async def _positions_of(self, group_ids: list[str]) -> list[GroupOffsetRow]:
        rows = (self._view.state.get(GroupRow, group_id) for group_id in group_ids)
        groups = [row for row in rows if row is not None and row.positions]
        if not groups:
            return []
        return await timed(self._observer, self._clock, "look_up", self._all_positions(groups))

    async def _all_positions(self, groups: list[GroupRow]) -> list[GroupOffsetRow]:
        positions: list[GroupOffsetRow] = []
        async for page in pages_of(self._store, groups, POSITIONS_AT_ONCE):
            positions += page
        return positions
