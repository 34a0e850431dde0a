"""The positions of groups, and what a group's row states about them.

Positions are looked up in the store (decision 65); group rows are in memory. So a group's row states what must be known
of its positions when nobody reads them.

Invariants:
- `GroupRow.positions` is the number of the group's position rows, after each transaction;
- a group whose positions may have their own expiry times says so (`has_expiries`). In a group without them, no position
  expires before the retention time has passed since the group's last change.

So all positions are put and deleted by these functions, except when their group is deleted with them.
"""

from __future__ import annotations

from collections.abc import Iterable

import structlog

from sequencer.settings import SequencerSettings
from sequencer.store.draft import Draft
from sequencer.store.rows import GroupOffsetRow, GroupRow, PositionKey
from sequencer.store.state import replace_row
from tailrace.turns import Steps

_log = structlog.get_logger(__name__)

POSITIONS_AS_A_STEP = 5
"""The number of positions that cost as much as one run of a commit."""


def put_position(
    draft: Draft, group: GroupRow, position: GroupOffsetRow, before: GroupOffsetRow | None
) -> GroupRow:
    """Put a position in place of the previous one, which was looked up. Return the group's updated row, which the
    caller puts."""
    draft.put(position)
    has_expiries = group.has_expiries or position.expires_ms is not None
    if before is not None and has_expiries == group.has_expiries:
        return group
    return replace_row(group, positions=group.positions + (before is None), has_expiries=has_expiries)


def delete_positions(draft: Draft, keys: Iterable[PositionKey]) -> Steps[int]:
    """Delete those of these positions that exist; they must have been looked up. Return how many."""
    counts: dict[str, int] = {}
    for number, key in enumerate(keys):
        if number % POSITIONS_AS_A_STEP == 0:
            yield 1
        if draft.get(GroupOffsetRow, *key) is not None:
            draft.delete(GroupOffsetRow, *key)
            counts[key[0]] = counts.get(key[0], 0) + 1
    for group_id, count in counts.items():
        group = draft.get(GroupRow, group_id)
        if group is None:
            continue  # the audit finds positions without a group
        if group.positions < count:
            # An older server wrote after the database was migrated: see docs/upgrades.md.
            _log.error(
                "a group has more positions than its row counts: run `tailrace audit`",
                group=group_id,
                counted=group.positions,
                deleted=count,
            )
        left = max(0, group.positions - count)
        draft.put(replace_row(group, positions=left, has_expiries=group.has_expiries and left > 0))
    return sum(counts.values())


def over_ms(group: GroupRow, position: GroupOffsetRow, settings: SequencerSettings) -> int:
    """Return when a position of a group without members expires: at its own time, or when the retention time has passed
    since the last member left."""
    soonest_ms = soonest_over_ms(position, settings)
    if position.expires_ms is not None:
        return soonest_ms
    return max(soonest_ms, group.updated_ms + settings.offsets_retention_ms)


def soonest_over_ms(position: GroupOffsetRow, settings: SequencerSettings) -> int:
    """Return a bound from the position alone: it does not expire before that, whatever its group does."""
    if position.expires_ms is not None:
        return min(position.expires_ms, position.commit_ms + settings.max_offsets_retention_ms)
    return position.commit_ms + settings.offsets_retention_ms


def forget_positions(draft: Draft, keys: Iterable[PositionKey], settings: SequencerSettings) -> Steps[int]:
    """Delete those of these positions that have expired; they must have been looked up. Return how many. A position
    that was committed meanwhile is kept, and so are all positions of a group that has members now."""
    over: list[PositionKey] = []
    for number, key in enumerate(keys):
        if number % POSITIONS_AS_A_STEP == 0:
            yield 1
        group, position = draft.get(GroupRow, key[0]), draft.get(GroupOffsetRow, *key)
        if group is None or group.members or position is None:
            continue
        if over_ms(group, position, settings) <= draft.now_ms:
            over.append(key)
    if over:
        draft.visible_change()
    return (yield from delete_positions(draft, over))
