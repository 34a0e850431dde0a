"""A share group's members and what each may read (KIP-932), without I/O, clock or tasks.

Members heartbeat. The group's epoch rises whenever the partitions that are read or the members change, and a new
assignment is made at once. No member has to give anything up first, because several members may read the same
partition. The sequencer decides which member gets which record (sequencer.rules.shares), so correctness does not depend
on the assignment.

    Empty    no members; acknowledged positions remain
    Stable   all others

Every call takes `now` (seconds, monotonic). `is_dirty`: the state must be stored before an answer is sent. A change of
a member's epoch alone is not stored: a coordinator that takes over accepts any epoch that the member may have been
sent.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar
from uuid import UUID

from agent.groups.assignors import Assignment, shared
from agent.groups.consumer_group import JOINS, LEAVES, Topics
from agent.groups.group import Answer, names_bytes
from agent.groups.topic_names import NO_TOPICS, TopicNames
from sequencer.api.groups import SHARE_GROUP, OffsetPosition
from tailrace.kafka.error_codes import ErrorCode
from tailrace.turns import Steps

ASSIGNOR = "simple"
"""Kafka's name for its only assignor of share groups."""


class ShareGroupPhase(enum.StrEnum):
    """The group's states, with Kafka's names."""

    EMPTY = "Empty"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(slots=True)
class ShareMember:
    """A member. `epoch`: the group's epoch at its last heartbeat."""

    member_id: str
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: TopicNames = NO_TOPICS
    epoch: int = 0
    assigned: Assignment = field(default_factory=dict)
    session_deadline: float = 0.0

    @property
    def kept_bytes(self) -> int:
        names = names_bytes(self.member_id, self.client_id, self.client_host, self.rack_id)
        return names + self.topics.kept_bytes


@dataclass(frozen=True, slots=True)
class ShareHeartbeat:
    """A ShareGroupHeartbeat request. None: the client left the field out, because it has not changed."""

    member_id: str
    epoch: int
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: TopicNames | None = None

    @property
    def names_bytes(self) -> int:
        """What the member's names will count."""
        return names_bytes(self.member_id, self.client_id, self.client_host, self.rack_id)


@dataclass(frozen=True, slots=True)
class ShareHeartbeatAnswer:
    """The answer to a heartbeat. `assigned` is None if it has not changed."""

    code: ErrorCode
    epoch: int = 0
    assigned: Assignment | None = None
    message: str | None = None


@dataclass(slots=True)
class ShareGroup:
    """One group. Owned by one coordinator. Settings: `session_seconds`, `max_size` (members) and `max_bytes` (of all
    members' names and subscriptions together)."""

    type: ClassVar[str] = SHARE_GROUP

    group_id: str
    session_seconds: float = 45.0
    max_size: int = 200
    max_bytes: int = 4 << 20
    epoch: int = 0
    assigned_epoch: int = 0
    """The epoch for which the assignment was made."""
    members: dict[str, ShareMember] = field(default_factory=dict)
    """In the order in which they joined."""
    partitions: dict[UUID, int] = field(default_factory=dict)
    """The number of partitions of each topic that is read."""
    is_dirty: bool = False
    _is_dead: bool = False
    _known: Topics | None = None
    """The topics from which `partitions` was looked up."""

    # --- for the coordinator

    @property
    def generation(self) -> int:
        """The generation of the stored state. It rises with every change of members, subscriptions or partitions."""
        return self.epoch

    @property
    def phase(self) -> ShareGroupPhase:
        if self._is_dead:
            return ShareGroupPhase.DEAD
        return ShareGroupPhase.STABLE if self.members else ShareGroupPhase.EMPTY

    def take_answers(self) -> list[tuple[int, Answer]]:
        """Return nothing: every heartbeat is answered at once."""
        return []

    @property
    def is_idle(self) -> bool:
        """Whether the group can be dropped from memory without loss, once stored."""
        return not self.members

    def next_deadline(self, now: float) -> float | None:
        """Return when `expire` must be called next; None if never."""
        return min((member.session_deadline for member in self.members.values()), default=None)

    def subscribed_topics(self) -> Steps[set[str]]:
        """Return the topic names that members subscribe to."""
        names = set[str]()
        for member in self.members.values():
            names |= member.topics
            yield 1 + len(member.topics)
        return names

    # --- ShareGroupHeartbeat

    def heartbeat(self, now: float, request: ShareHeartbeat, topics: Topics) -> Steps[ShareHeartbeatAnswer]:
        """Handle a heartbeat: join, continue or leave. Steps count topics and partitions; the group must not be used
        otherwise between them."""
        refusal = self._refusal(request)
        if refusal is not None:
            return refusal
        if request.epoch == LEAVES:
            self._remove(request.member_id)
            return ShareHeartbeatAnswer(ErrorCode.NONE, LEAVES)
        member = self.members.get(request.member_id)
        is_changed = member is None
        if member is None:
            member = self.members[request.member_id] = ShareMember(request.member_id)
        if self._take(member, request) or is_changed:
            self._raise_epoch()
        if self.assigned_epoch < self.epoch or topics is not self._known:
            yield from self._assign(topics)
        has_changed = request.epoch != self.epoch or request.topics is not None
        member.epoch, member.session_deadline = self.epoch, now + self.session_seconds
        return ShareHeartbeatAnswer(ErrorCode.NONE, self.epoch, member.assigned if has_changed else None)

    def _refusal(self, request: ShareHeartbeat) -> ShareHeartbeatAnswer | None:
        """Return the error of a request that can't be served, or None."""
        if self._is_dead:
            return _refused(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        known = self.members.get(request.member_id)
        if request.epoch != JOINS:
            if known is None:
                return _refused(ErrorCode.UNKNOWN_MEMBER_ID)
            if request.epoch > self.epoch:
                return _refused(
                    ErrorCode.FENCED_MEMBER_EPOCH, f"the group is at epoch {self.epoch}, not {request.epoch}"
                )
        elif known is None and len(self.members) >= self.max_size:
            return _refused(ErrorCode.GROUP_MAX_SIZE_REACHED, f"{self.max_size} members are allowed")
        if request.topics is not None:
            kept = sum(member.kept_bytes for member in self.members.values() if member is not known)
            if kept + request.names_bytes + request.topics.kept_bytes > self.max_bytes:
                return _refused(
                    ErrorCode.GROUP_MAX_SIZE_REACHED,
                    f"names and subscriptions of more than {self.max_bytes} bytes",
                )
        return None

    def _take(self, member: ShareMember, request: ShareHeartbeat) -> bool:
        """Update the member from the request. Return whether its subscription changed."""
        rack_id = member.rack_id if request.rack_id is None else request.rack_id
        described = (request.client_id, request.client_host, rack_id)
        if described != (member.client_id, member.client_host, member.rack_id):
            member.client_id, member.client_host, member.rack_id = described
            self.is_dirty = True
        if request.topics is None or request.topics == member.topics:
            return False
        member.topics = request.topics
        return True

    def begin(self) -> None:
        """Give the group a state before its first member joins, for positions that an administrator sets."""
        if self.epoch == 0:
            self._raise_epoch()

    def _raise_epoch(self) -> None:
        """Note a change. Changes before the next assignment share an epoch."""
        self.epoch = self.assigned_epoch + 1
        self.is_dirty = True

    def _assign(self, topics: Topics) -> Steps[None]:
        """Look up the partitions that are read, and assign them again if they or the members have changed."""
        names = yield from self.subscribed_topics()
        read = [topics[name].topic for name in sorted(names) if name in topics]
        partitions = {topic.topic_id: topic.partitions for topic in read}
        yield len(read)
        self._known = topics
        if partitions != self.partitions:
            self.partitions = partitions
            self._raise_epoch()
        if self.assigned_epoch == self.epoch:
            return
        readers: dict[str, frozenset[UUID]] = {}
        for member in self.members.values():
            found = (topics[name].topic.topic_id for name in member.topics if name in topics)
            readers[member.member_id] = frozenset(found)
            yield 1 + len(member.topics)
        for member_id, assigned in (yield from shared(readers, partitions)).items():
            self.members[member_id].assigned = assigned
        self.assigned_epoch = self.epoch

    # --- OffsetCommit, OffsetFetch: there are no positions

    def validate_reader(self, member_id: str, epoch: int) -> ErrorCode:
        """Whether this member may read positions: share groups have none."""
        return ErrorCode.GROUP_ID_NOT_FOUND

    def commit(
        self,
        now: float,
        member_id: str,
        instance_id: str | None,
        epoch: int,
        *,
        positions: Sequence[OffsetPosition] | None = None,
        is_transactional: bool = False,
        names_epochs: bool = True,
    ) -> ErrorCode:
        """Whether this member may commit positions: share groups have none."""
        return ErrorCode.GROUP_ID_NOT_FOUND

    # --- time, and the end

    def expire(self, now: float) -> None:
        """Remove members whose session timed out."""
        for member in list(self.members.values()):
            if member.session_deadline <= now:
                self._remove(member.member_id)

    def resume(self, now: float) -> None:
        """Take over from another coordinator: every session gets its full time."""
        for member in self.members.values():
            member.session_deadline = now + self.session_seconds

    def close(self, code: ErrorCode) -> None:
        """Mark the group as dead. No request waits for an answer of this group."""
        self._is_dead = True

    def _remove(self, member_id: str) -> None:
        del self.members[member_id]
        self._raise_epoch()


def _refused(code: ErrorCode, message: str | None = None) -> ShareHeartbeatAnswer:
    return ShareHeartbeatAnswer(code, message=message)
