"""Limits the bytes of members' names, metadata and assignments in all groups of an agent together.

Each group counts its own bytes for its own limit. Changes adjust the sum, so no request examines other groups. At the
limit, groups that don't grow continue. Pure.
"""

from __future__ import annotations

from agent.groups.consumer_group import ConsumerGroup, ConsumerHeartbeat
from agent.groups.group import Group, JoinRequest, SyncRequest
from agent.groups.share_group import ShareGroup, ShareHeartbeat

AnyGroup = Group | ConsumerGroup | ShareGroup

PENDING_BYTES = 400
"""The cost of a member id that was sent to a client, until the client joins with it or its session times out."""
PARTITION_BYTES = 32
"""The cost of a partition that the coordinator itself assigns: much less than it takes in memory, so that groups may
read millions of partitions."""
ASSIGNMENTS_MAY_PASS = 4
"""Assignments may exceed the limit by this fraction (1 / N): groups of admitted members get theirs."""


class GroupBytes:
    """The bytes of all groups of one agent. `most`: the limit for all together."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._of: dict[str, int] = {}
        self._pending: dict[str, int] = {}
        self.total = 0

    def count(self, group: AnyGroup) -> None:
        """Recount a group's members after a change."""
        said = sum(member.kept_bytes for member in group.members.values())
        self._set(group.group_id, said + _assigned_bytes(group))

    def count_pending(self, group: AnyGroup) -> None:
        """Count the ids that were sent to clients that have not joined yet."""
        pending = len(group.pending) if isinstance(group, Group) else 0
        before = self._pending.get(group.group_id, 0)
        if pending != before:
            self._set_pending(group.group_id, pending - before)

    def _set_pending(self, group_id: str, more: int) -> None:
        self.total += PENDING_BYTES * more
        left = self._pending.pop(group_id, 0) + more
        if left:
            self._pending[group_id] = left

    def forget(self, group_id: str) -> None:
        """Subtract a group that was dropped from memory."""
        self._set_pending(group_id, -self._pending.get(group_id, 0))
        self._set(group_id, 0)

    def add(self, group_id: str, more: int) -> None:
        """Add to (or subtract from) a group's bytes."""
        self._set(group_id, self._of.get(group_id, 0) + more)

    def _set(self, group_id: str, size: int) -> None:
        self.total += size - self._of.pop(group_id, 0)
        if size:
            self._of[group_id] = size

    def may_join(self, group: Group | ConsumerGroup, request: JoinRequest) -> bool:
        """Whether there is room for a classic member's names and protocols."""
        return self._has_room(request.kept_bytes - self.of_member(group, request), self._most)

    def may_assign(self, group: Group | ConsumerGroup, request: SyncRequest) -> bool:
        """Whether there is room for the assignments from a leader."""
        if not request.assignments or isinstance(group, ConsumerGroup):
            return True
        given = sum(len(member_id) + len(assignment) for member_id, assignment in request.assignments)
        before = sum(len(member.assignment) for member in group.members.values())
        return self._has_room(given - before, self._most + self._most // ASSIGNMENTS_MAY_PASS)

    def may_subscribe(
        self, group: ConsumerGroup | ShareGroup, request: ConsumerHeartbeat | ShareHeartbeat
    ) -> bool:
        """Whether there is room for the subscription of a member of the new protocols."""
        pattern = request.pattern if isinstance(request, ConsumerHeartbeat) else None
        if request.topics is None and pattern is None:
            return True
        known = group.members.get(request.member_id)
        said = (
            request.names_bytes
            + (0 if request.topics is None else request.topics.kept_bytes)
            + len(pattern or "")
        )
        return self._has_room(said - (0 if known is None else known.kept_bytes), self._most)

    def _has_room(self, more: int, most: int) -> bool:
        return more <= 0 or self.total + more <= most

    @staticmethod
    def of_member(group: Group | ConsumerGroup, request: JoinRequest) -> int:
        """Return the bytes of the member that sends this: it is known, was just added, or has an instance id."""
        ids = dict.fromkeys((request.member_id, request.fresh_id))
        if request.instance_id is not None:
            static = group.static_member(request.instance_id)
            if static is not None:
                ids[static.member_id] = None
        found = (group.members.get(member_id) for member_id in ids)
        return sum(member.kept_bytes for member in found if member is not None)


def _assigned_bytes(group: AnyGroup) -> int:
    """Return the cost of what the coordinator assigns; a classic leader's assignments are members' bytes."""
    if isinstance(group, Group) or not group.members:
        return 0
    return PARTITION_BYTES * sum(group.partitions.values())
