"""Which groups expiry examines: those with changes, and those that are due.

A commit of a position only postpones a group's expiry, unless the position has its own expiry time. A group with
members is examined several times within the period after which members without a coordinator are dropped. Positions are
not in memory: a group's row says when some of them may have expired, and expiry reads them then (`positions_last`).
Positions that were read are not read again until one of them, or one that was written since, may have expired, because
the time of a group's last change only increases.

Pure: the caller passes the state and the time.
"""

from __future__ import annotations

from sequencer.rules.due import DueList
from sequencer.rules.groups import due_ms
from sequencer.rules.positions import soonest_over_ms
from sequencer.settings import SequencerSettings
from sequencer.store.rows import Changes, GroupOffsetRow, GroupRow
from sequencer.store.state import HotState, Key
from tailrace.turns import Turns

GROUPS_IN_A_TURN = 1_000
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
        self._read: dict[str, int] = {}
        """Groups whose positions were read, with a time before which none of these expires."""
        self._written: dict[str, int] = {}
        """Groups with positions written since the last `take`, with a time before which none of these expires."""

    def note(self, changes: Changes) -> None:
        """Note what a transaction changed."""
        self._groups.update(changes.by_kind.get(GroupRow, {}))
        for position in changes.by_kind.get(GroupOffsetRow, {}).values():
            if isinstance(position, GroupOffsetRow):
                at_ms = soonest_over_ms(position, self._settings)
                if at_ms < self._written.get(position.group_id, _NEVER):
                    self._written[position.group_id] = at_ms

    def watch(self, group_id: str) -> None:
        """Schedule a group that was loaded."""
        self._groups[group_id,] = None

    def positions_last(self, group_id: str, until_ms: int) -> None:
        """Note that all of the group's positions were read since the last `take`, and that none of them expires before
        `until_ms`."""
        self._read[group_id] = until_ms

    async def take(self, state: HotState, now_ms: int) -> list[str]:
        """Return the groups of which something may have expired. The next call examines them again."""
        turns = Turns(GROUPS_IN_A_TURN)
        while self._written:
            self._expects(*self._written.popitem())
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
            await turns.did()
        return expiring

    def _expects(self, group_id: str, at_ms: int) -> None:
        """Note that a position of the group may expire at this time, which may be before those of all positions that
        were read. If they were not read yet, the group's row says when to read them."""
        if at_ms < self._read.get(group_id, at_ms):
            self._read[group_id] = at_ms
            self.watch(group_id)

    def _is_due(self, state: HotState, group_id: str, now_ms: int) -> bool:
        """Whether a group is due; if so, it remains among the groups to examine, otherwise it is scheduled."""
        row = state.get(GroupRow, group_id)
        if row is None:
            self._next.pop(group_id, None)
            self._read.pop(group_id, None)
        else:
            at_ms = due_ms(state, row, now_ms, self._settings, positions_ms=self._read.get(group_id, 0))
            if at_ms <= now_ms:
                return True
            if not now_ms < self._next.get(group_id, _NEVER) <= at_ms:
                self._next[group_id] = at_ms
                self._due.put_back((group_id,), at_ms)
        del self._groups[group_id,]
        return False
