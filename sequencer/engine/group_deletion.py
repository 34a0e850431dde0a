"""Deletion of a group that has many positions: they go page by page first, in a transaction each.

So no transaction has many rows, and commits are decided between two of them. Should a member join meanwhile, the
deletion is refused, and the group stays without the positions that are gone by then.

One deletion of a group goes on at a time. Else one that has deleted a page would go on with the group that was made
again under the name, once another deletion was answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

from sequencer.api import GroupRef, SequencerOverloaded
from sequencer.engine.group_commit import GroupCommit
from sequencer.engine.requests import Context
from sequencer.reading.positions import pages_of
from sequencer.rules import groups
from sequencer.store.needed import rows_needed
from sequencer.store.rows import GroupOffsetRow, GroupRow

POSITIONS_AT_ONCE = 5_000
"""Positions that one transaction deletes."""
DELETIONS_OF_A_GROUP = 8
"""Deletions of one group under way: one, and those that wait for it. Each takes one of its agent's calls."""


@dataclass(slots=True)
class _Line:
    """The deletions of one group, those that wait counted."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    length: int = 0


class GroupDeletions:
    """The deletions under way at this committer."""

    def __init__(self) -> None:
        self._lines: dict[str, _Line] = {}

    @asynccontextmanager
    async def turn(self, group_id: str) -> AsyncIterator[None]:
        """Waits for those that came before. Raises SequencerOverloaded where too many wait.

        What a cancelled deletion has queued is decided before what the next one queues.
        """
        line = self._lines.setdefault(group_id, _Line())
        if line.length == DELETIONS_OF_A_GROUP:
            raise SequencerOverloaded(f"{line.length} deletions of group {group_id!r} are under way")
        line.length += 1
        try:
            async with line.lock:
                yield
        finally:
            line.length -= 1
            if not line.length:
                del self._lines[group_id]


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
