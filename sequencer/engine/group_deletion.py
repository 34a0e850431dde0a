"""Deletion of a group that has many positions: they go page by page first, in a transaction each.

So no transaction has many rows, and commits are decided between two of them. Should a member join meanwhile, the
deletion is refused, and the group stays without the positions that are gone by then.
"""

from __future__ import annotations

from functools import partial

from sequencer.api import GroupRef
from sequencer.engine.group_commit import GroupCommit
from sequencer.engine.requests import Context
from sequencer.reading.positions import pages_of
from sequencer.rules import groups
from sequencer.store.needed import rows_needed
from sequencer.store.rows import GroupOffsetRow, GroupRow

POSITIONS_AT_ONCE = 5_000
"""Positions that one transaction deletes."""


async def delete_positions_first(request: GroupRef, context: Context, group_commit: GroupCommit) -> None:
    """Delete the positions of a group that has more than one transaction deletes, until something refuses it: the
    decision that deletes the group says what. Raises SequencerError."""
    group = context.state.get(GroupRow, request.group_id)
    if group is None or group.positions <= POSITIONS_AT_ONCE:
        return
    async for page in pages_of(context.reads, [group], POSITIONS_AT_ONCE):
        keys = [position.key for position in page]
        delete = partial(groups.delete_some, request=request, keys=keys)
        if not await group_commit.decide("delete_group", delete, needs=rows_needed(GroupOffsetRow, keys)):
            return
