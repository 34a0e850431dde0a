"""Deletion of a group with many positions or share partitions: they are deleted page by page first, one transaction per
page.

So no transaction has many rows, and commits are decided between the pages. If a member joins meanwhile, the deletion is
refused, and the group stays without the positions that are already deleted.

Only one deletion of a group runs at a time. Otherwise a deletion that has deleted a page could continue with a new
group of the same name, created after another deletion was answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

from sequencer.api.errors import SequencerOverloaded
from sequencer.api.groups import GroupRef
from sequencer.engine.group_commit import GroupCommit
from sequencer.engine.requests import Context
from sequencer.reading.positions import pages_of
from sequencer.rules import groups
from sequencer.store.ordered import NO_PARTITION_KEYS
from sequencer.store.required_rows import rows_needed
from sequencer.store.rows import GroupOffsetRow, GroupRow

POSITIONS_AT_ONCE = 5_000
"""Positions, or share partitions, that one transaction deletes."""
DELETIONS_OF_A_GROUP = 8
"""Limit of deletions of one group: one that runs and others that wait for it. Each occupies one call of its agent."""


@dataclass(slots=True)
class _GroupDeletion:
    """The deletions of one group, including those that wait."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    length: int = 0


class GroupDeletions:
    """The deletions in progress at this committer."""

    def __init__(self) -> None:
        self._lines: dict[str, _GroupDeletion] = {}

    @asynccontextmanager
    async def turn(self, group_id: str) -> AsyncIterator[None]:
        """Wait for earlier deletions of the group. Raises SequencerOverloaded if too many wait.

        Requests that a cancelled deletion has queued are decided before those of the next one.
        """
        line = self._lines.setdefault(group_id, _GroupDeletion())
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
    """Delete positions and share partitions of a group that has more of them than one transaction deletes, until a page
    is refused; the decision that deletes the group then gives the reason. Raises SequencerError."""
    while len(shares := context.state.shares_of.get(request.group_id, NO_PARTITION_KEYS)) > POSITIONS_AT_ONCE:
        some = list(islice(shares, POSITIONS_AT_ONCE))
        delete_shares = partial(groups.delete_some_shares, request=request, keys=some)
        if not await group_commit.decide("delete_group", delete_shares):
            return
    group = context.state.get(GroupRow, request.group_id)
    if group is None or group.positions <= POSITIONS_AT_ONCE:
        return
    async for page in pages_of(context.reads, [group], POSITIONS_AT_ONCE):
        keys = [position.key for position in page]
        delete = partial(groups.delete_some, request=request, keys=keys)
        if not await group_commit.decide("delete_group", delete, needs=rows_needed(GroupOffsetRow, keys)):
            return
