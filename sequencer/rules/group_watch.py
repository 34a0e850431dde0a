"""Which groups expiry examines: those with changes or deletions, and those that are due.

A commit of a position only postpones a group's time, unless the position has an expiry of its own. A group with
members is examined several times within the period after which members without a coordinator are dropped.

Pure: the caller passes the state and the time.
"""

from __future__ import annotations

from sequencer.rules.due import DueList
from sequencer.rules.groups import due_ms
from sequencer.settings import SequencerSettings
from sequencer.store.rows import Changes, GroupOffsetRow, GroupRow, Row
from sequencer.store.state import HotState, Key
from tailrace.turns import Turns

GROUPS_IN_A_TURN = 1_000
POSITIONS_AS_A_GROUP = 5
MOST_DUE = 100_000
"""Limit of due groups that one call takes; the next call takes more."""
STEPS_OF_A_TIME = 100
_NEVER = 1 << 62


class GroupWatch:
    """See the module. `note` each change, then `take` the groups with something to expire."""

    def __init__(self, settings: SequencerSettings) -> None:
        self._settings = settings
        shortest_ms = min(
            settings.empty_group_ms,
            settings.orphaned_members_ms,
            settings.offsets_retention_ms,
            settings.share_offsets_retention_ms,
        )
        self._due = DueList(shortest_ms // STEPS_OF_A_TIME)
        self._next: dict[str, int] = {}
        """When each group is examined next."""
        self._groups: dict[Key, object] = {}
        """Groups to examine now."""
        self._positions: dict[Key, Row | None] = {}
        """Positions that changed."""

    def note(self, changes: Changes) -> None:
        """Note what a transaction changed."""
        self._groups.update(changes.by_kind.get(GroupRow, {}))
        self._positions.update(changes.by_kind.get(GroupOffsetRow, {}))

    def watch(self, group_id: str) -> None:
        """Schedule a group that was loaded."""
        self._groups[group_id,] = None

    async def take(self, state: HotState, now_ms: int) -> list[str]:
        """The groups that `groups.expire_groups` would change. They are looked at again by the next call."""
        turns = Turns(GROUPS_IN_A_TURN)
        while self._positions:
            key, position = self._positions.popitem()
            if isinstance(position, GroupOffsetRow) and position.expires_ms is None:
                if position.group_id not in self._next:
                    self.watch(position.group_id)
            else:
                self.watch(str(key[0]))
            await turns.did()
        for key in self._due.take(now_ms, MOST_DUE):
            group_id = str(key[0])
            if self._next.get(group_id, _NEVER) <= now_ms:
                self._groups[key] = None
        expiring: list[str] = []
        for key in list(self._groups):
            group_id = str(key[0])
            if self._is_due(state, group_id, now_ms):
                expiring.append(group_id)
            await turns.did(1 + len(state.offsets_of.get(group_id, ())) // POSITIONS_AS_A_GROUP)
        return expiring

    def _is_due(self, state: HotState, group_id: str, now_ms: int) -> bool:
        """Whether a group is due; then it stays among those to examine. Otherwise it is scheduled."""
        row = state.get(GroupRow, group_id)
        if row is None:
            self._next.pop(group_id, None)
        else:
            at_ms = due_ms(state, row, now_ms, self._settings)
            if at_ms <= now_ms:
                return True
            if not now_ms < self._next.get(group_id, _NEVER) <= at_ms:
                self._next[group_id] = at_ms
                self._due.put_back((group_id,), at_ms)
        del self._groups[group_id,]
        return False
