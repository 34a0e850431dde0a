"""A classic consumer group: members, generations and assignments, without I/O, clock or tasks.

    state                 | meaning                                   | left when
    Empty                 | no members; offsets may remain            | a member joins
    PreparingRebalance    | members must join again                   | all did, or the rebalance timeout passed
    CompletingRebalance   | the generation is made, the leader        | the assignment arrived, or a member changed
                          | computes the assignment                   |
    Stable                | all members have their assignment         | a member joins, leaves or changes
    Dead                  | deleted or dropped                        | never

Every call takes `now` (seconds, monotonic). JoinGroup and SyncGroup may be answered later: they carry a ticket, and
`take_answers` returns their answers. `is_dirty`: the state must be stored before an answer is sent.

Invariants:
- the generation never falls. Its members, protocol and leader never change once it is made, except that a static member
  may take its own place under a new id (KIP-345);
- a member that waits for a JoinGroup or SyncGroup answer does not expire.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import ClassVar

from agent.groups.subscription import CONSUMER, add_topics, reads_the_same
from sequencer.api.groups import CLASSIC_GROUP, OffsetPosition
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.errors import MalformedRequest
from tailrace.turns import Steps

COST_OF_METADATA = 20
"""Steps count topics and members; to decode a member's metadata costs as much as this many of them."""


class GroupPhase(enum.StrEnum):
    """The group's states, with Kafka's names."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(slots=True)
class GroupMember:
    """A member. `protocols`: (name, metadata), most preferred first. Tickets identify waiting requests."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_seconds: float
    rebalance_seconds: float
    protocols: list[tuple[str, bytes]]
    assignment: bytes = b""
    session_deadline: float = 0.0
    join_ticket: int | None = None
    sync_ticket: int | None = None
    has_synced: bool = False

    @property
    def is_waiting(self) -> bool:
        return self.join_ticket is not None or self.sync_ticket is not None

    @property
    def kept_bytes(self) -> int:
        """Bytes of its names, its protocols and its assignment."""
        names = names_bytes(self.member_id, self.instance_id, self.client_id, self.client_host)
        return names + _bytes_of(self.protocols) + len(self.assignment)

    @property
    def protocol_names(self) -> set[str]:
        return {name for name, _ in self.protocols}

    def metadata(self, protocol: str) -> bytes:
        """Return the member's metadata for this protocol; empty if it doesn't know the protocol."""
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """A JoinGroup request. `fresh_id`: the id for a new member. `requires_known_id`: version 4 and above (KIP-394)."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_seconds: float
    rebalance_seconds: float
    protocol_type: str
    protocols: list[tuple[str, bytes]]
    fresh_id: str
    requires_known_id: bool
    can_skip_assignment: bool = False

    @property
    def kept_bytes(self) -> int:
        """What the member's names and protocols will count."""
        names = names_bytes(
            self.member_id or self.fresh_id, self.instance_id, self.client_id, self.client_host
        )
        return names + _bytes_of(self.protocols)


@dataclass(frozen=True, slots=True)
class JoinAnswer:
    """The answer to a JoinGroup. `members`: (id, instance id, metadata), for the leader only."""

    code: ErrorCode
    member_id: str
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[tuple[str, str | None, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class SyncRequest:
    """A SyncGroup request. `assignments`: (member id, assignment), from the leader only."""

    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol: str | None
    assignments: list[tuple[str, bytes]]


@dataclass(frozen=True, slots=True)
class SyncAnswer:
    """The answer to a SyncGroup."""

    code: ErrorCode
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


Answer = JoinAnswer | SyncAnswer


@dataclass(slots=True)
class Group:
    """One group. Owned by one coordinator. Settings: `initial_delay_seconds`, `max_size` (members) and `max_bytes` (of
    all members' names, protocols and assignments together)."""

    type: ClassVar[str] = CLASSIC_GROUP

    group_id: str
    initial_delay_seconds: float = 0.0
    max_size: int = 10_000
    max_bytes: int = 4 << 20
    phase: GroupPhase = GroupPhase.EMPTY
    generation: int = 0
    protocol_type: str = ""
    protocol: str | None = None
    leader: str | None = None
    members: dict[str, GroupMember] = field(default_factory=dict)
    pending: dict[str, float] = field(default_factory=dict)
    """Ids sent with MEMBER_ID_REQUIRED that no client has joined with yet, and their deadlines; at most `max_size`.
    Above that the oldest is dropped, and its client gets another."""
    is_dirty: bool = False
    _join_deadline: float | None = None
    _delay_limit: float | None = None
    """Set during the initial delay: new members prolong it up to this time."""
    _sync_deadline: float | None = None
    _nothing_before: float | None = None
    """Nothing is due before this time; None if it must be computed."""
    _instances: dict[str, GroupMember] = field(default_factory=dict)
    """The static members, by instance id."""
    _kept_bytes: int = 0
    _knowing: Counter[str] = field(default_factory=Counter)
    """How many members know each protocol."""
    _answers: list[tuple[int, Answer]] = field(default_factory=list)

    # --- for the coordinator

    def answer(self, ticket: int, answer: Answer) -> None:
        """Answer a request once the state is stored."""
        self._answers.append((ticket, answer))

    def take_answers(self) -> list[tuple[int, Answer]]:
        """Return the answers that became ready, by ticket. Each is returned once."""
        answers, self._answers = self._answers, []
        return answers

    def next_deadline(self, now: float) -> float | None:
        """Return when `expire` must be called next; None if never. A past time is exact; a future one may be too early.

        Members are examined only after something other than a heartbeat or a commit, or when the last result has
        passed: heartbeats and commits only move a member's deadline to a later time.
        """
        if self._nothing_before is None or self._nothing_before <= now:
            deadlines = [member.session_deadline for member in self.members.values() if not member.is_waiting]
            deadlines.extend(self.pending.values())
            phase_deadlines = (self._join_deadline, self._sync_deadline)
            deadlines.extend(deadline for deadline in phase_deadlines if deadline is not None)
            self._nothing_before = min(deadlines, default=inf)
        return None if self._nothing_before == inf else self._nothing_before

    @property
    def is_idle(self) -> bool:
        """Whether the group can be dropped from memory without loss, once stored."""
        return self.phase in (GroupPhase.EMPTY, GroupPhase.DEAD) and not self.pending and not self._answers

    def subscribed_topics(self) -> Steps[set[str] | None]:
        """Return the topics of all members; None if a subscription can't be read, or the members are not consumers."""
        if self.members and self.protocol_type != CONSUMER:
            return None
        topics = set[str]()
        try:
            for member in self.members.values():
                for _, metadata in member.protocols[:1]:
                    yield from add_topics(metadata, topics)
                    yield COST_OF_METADATA
        except MalformedRequest:
            return None
        return topics

    def static_member(self, instance_id: str) -> GroupMember | None:
        return self._instances.get(instance_id)

    # --- JoinGroup

    def join(self, now: float, ticket: int, request: JoinRequest) -> Steps[None]:
        """Handle a JoinGroup request. `take_answers` returns its answer, maybe later. Steps count the topics that a
        member names; the group must not be used otherwise between them."""
        before = (self.phase, len(self._answers))
        yield from self._take_join(now, ticket, request)
        if before != (self.phase, len(self._answers)):
            self._nothing_before = None  # a member that only waits has nothing due sooner

    def _take_join(self, now: float, ticket: int, request: JoinRequest) -> Steps[None]:
        if self.phase is GroupPhase.DEAD:
            self._refuse_join(ticket, request.member_id, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        elif not self._supports(request):
            self._refuse_join(ticket, request.member_id, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        elif self._is_too_large(request):
            self._refuse_join(ticket, request.member_id, ErrorCode.GROUP_MAX_SIZE_REACHED)
        elif not request.member_id:
            yield from self._join_unknown(now, ticket, request)
        else:
            self._join_known(now, ticket, request)

    def _join_unknown(self, now: float, ticket: int, request: JoinRequest) -> Steps[None]:
        held_by = None if request.instance_id is None else self.static_member(request.instance_id)
        if held_by is not None:
            yield from self._replace_static(now, ticket, request, held_by)
        elif self._is_full():
            self._refuse_join(ticket, "", ErrorCode.GROUP_MAX_SIZE_REACHED)
        elif request.instance_id is None and request.requires_known_id:
            if len(self.pending) >= self.max_size:
                del self.pending[next(iter(self.pending))]
            self.pending[request.fresh_id] = now + request.session_seconds
            self._refuse_join(ticket, request.fresh_id, ErrorCode.MEMBER_ID_REQUIRED)
        else:
            self._add(now, ticket, request, request.fresh_id)

    def _join_known(self, now: float, ticket: int, request: JoinRequest) -> None:
        if request.instance_id is None and request.member_id in self.pending:
            if self._is_full():
                del self.pending[request.member_id]
                self._refuse_join(ticket, request.member_id, ErrorCode.GROUP_MAX_SIZE_REACHED)
                self._try_complete_join(now)
                return
            self._add(now, ticket, request, request.member_id)
            return
        code = self.validate_member(request.member_id, request.instance_id)
        if code is not ErrorCode.NONE:
            self._refuse_join(ticket, request.member_id, code)
            return
        member = self.members[request.member_id]
        is_unchanged = member.protocols == request.protocols
        if self.phase is GroupPhase.PREPARING_REBALANCE:
            self._rejoin(now, ticket, request, member)
            self._try_complete_join(now)
        elif is_unchanged and (
            self.phase is GroupPhase.COMPLETING_REBALANCE or member.member_id != self.leader
        ):
            # It lost its JoinGroup answer, or only asks again: no rebalance is needed.
            self._restart_session(now, member)
            self._answers.append((ticket, self._join_answer(member)))
        else:
            self._rejoin(now, ticket, request, member)
            self._prepare_rebalance(now)

    def _add(self, now: float, ticket: int, request: JoinRequest, member_id: str) -> None:
        self.pending.pop(member_id, None)
        member = GroupMember(
            member_id=member_id,
            instance_id=request.instance_id,
            client_id=request.client_id,
            client_host=request.client_host,
            session_seconds=request.session_seconds,
            rebalance_seconds=request.rebalance_seconds,
            protocols=request.protocols,
            join_ticket=ticket,
        )
        if not self.members:
            self.protocol_type = request.protocol_type
        self.add(member)
        if self.leader is None:
            self.leader = member_id
        if self.phase is not GroupPhase.PREPARING_REBALANCE:
            self._prepare_rebalance(now)
            return
        if self._delay_limit is not None:
            self._join_deadline = min(self._delay_limit, now + self.initial_delay_seconds)
        self._try_complete_join(now)

    def add(self, member: GroupMember) -> None:
        """Add a member, without a rebalance."""
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self._instances[member.instance_id] = member
        self._count(member)

    def _count(self, member: GroupMember, sign: int = 1) -> None:
        """Add (1) or subtract (-1) a member's bytes and protocols from the group's counts."""
        self._kept_bytes += sign * member.kept_bytes
        for name in member.protocol_names:
            self._knowing[name] += sign
            if not self._knowing[name]:
                del self._knowing[name]

    def _assign(self, given: Mapping[str, bytes]) -> None:
        """Set each member's assignment; an empty one if none is given."""
        for member in self.members.values():
            before, member.assignment = member.assignment, given.get(member.member_id, b"")
            self._kept_bytes += len(member.assignment) - len(before)

    def _rejoin(self, now: float, ticket: int, request: JoinRequest, member: GroupMember) -> None:
        if member.join_ticket is not None:
            self._refuse_join(member.join_ticket, member.member_id, ErrorCode.REBALANCE_IN_PROGRESS)
        self._count(member, -1)
        member.client_id, member.client_host = request.client_id, request.client_host
        member.protocols = request.protocols
        self._count(member)
        member.session_seconds = request.session_seconds
        member.rebalance_seconds = request.rebalance_seconds
        member.join_ticket = ticket
        self._restart_session(now, member)

    def _replace_static(self, now: float, ticket: int, request: JoinRequest, old: GroupMember) -> Steps[None]:
        """KIP-345: a restarted instance takes its old place, and its assignment, under a new id."""
        metadata = next((metadata for name, metadata in request.protocols if name == self.protocol), b"")
        is_same = yield from reads_the_same(self.protocol_type, old.metadata(self.protocol or ""), metadata)
        if old.join_ticket is not None:
            self._refuse_join(old.join_ticket, old.member_id, ErrorCode.FENCED_INSTANCE_ID)
            old.join_ticket = None
        if old.sync_ticket is not None:
            self._answers.append((old.sync_ticket, SyncAnswer(ErrorCode.FENCED_INSTANCE_ID)))
            old.sync_ticket = None
        old_id, old_leader = old.member_id, self.leader
        self._count(old, -1)
        old.member_id = request.fresh_id
        self._count(old)
        # Keep the place in the order of joining, because the choice of a leader depends on it.
        self.members = {member.member_id: member for member in self.members.values()}
        if old_leader == old_id:
            self.leader = request.fresh_id
        self._rejoin(now, ticket, request, old)
        if self.phase is GroupPhase.PREPARING_REBALANCE:
            self._try_complete_join(now)
            return
        is_same = is_same and self._vote() == self.protocol
        if self.phase is not GroupPhase.STABLE or not is_same:
            # The stored generation still names the old id: an interrupted rebalance must not revive it.
            self.is_dirty = True
            self._prepare_rebalance(now)
            return
        self.is_dirty = True
        old.join_ticket = None
        answer = self._join_answer(old)
        if self.leader == request.fresh_id:
            # The assignment stays valid. From version 9 on, the leader is told not to compute one. Before that, its
            # answer names the old id as the leader, so that it acts as a follower (KIP-814).
            members = answer.members if request.can_skip_assignment else ()
            answer = JoinAnswer(
                code=ErrorCode.NONE,
                member_id=old.member_id,
                generation=self.generation,
                protocol_type=self.protocol_type,
                protocol=self.protocol,
                leader=old.member_id if request.can_skip_assignment else (old_leader or ""),
                skip_assignment=request.can_skip_assignment,
                members=members,
            )
        self._answers.append((ticket, answer))

    def _supports(self, request: JoinRequest) -> bool:
        if not request.protocol_type or not request.protocols:
            return False
        if not self.members:
            return True
        if self.protocol_type != request.protocol_type:
            return False
        same = self._same_as(request)
        others = len(self.members) - len(same)
        return not others or any(
            self._knowing[name] - sum(name in member.protocol_names for member in same) == others
            for name, _ in request.protocols
        )

    def _same_as(self, request: JoinRequest) -> list[GroupMember]:
        """Return the members that this request replaces: by its id, and by its instance id."""
        static = None if request.instance_id is None else self.static_member(request.instance_id)
        found = {id(member): member for member in (self.members.get(request.member_id), static) if member}
        return list(found.values())

    def _is_full(self) -> bool:
        return len(self.members) >= self.max_size

    def _is_too_large(self, request: JoinRequest) -> bool:
        """Whether the group would exceed `max_bytes` with this request in place of the same member's earlier one."""
        others = self._kept_bytes - sum(member.kept_bytes for member in self._same_as(request))
        return others + request.kept_bytes > self.max_bytes

    def _refuse_join(self, ticket: int, member_id: str, code: ErrorCode) -> None:
        self._answers.append((ticket, JoinAnswer(code, member_id)))

    def _join_answer(self, member: GroupMember) -> JoinAnswer:
        is_leader = member.member_id == self.leader
        members = (
            tuple(
                (other.member_id, other.instance_id, other.metadata(self.protocol or ""))
                for other in self.members.values()
            )
            if is_leader
            else ()
        )
        return JoinAnswer(
            code=ErrorCode.NONE,
            member_id=member.member_id,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            leader=self.leader or "",
            members=members,
        )

    # --- the rebalance

    def rebalance(self, now: float) -> None:
        """Have all members join again, after the group was a consumer group."""
        self._nothing_before, self.is_dirty = None, True
        self._prepare_rebalance(now)

    def _prepare_rebalance(self, now: float) -> None:
        """Have all members join again. The next generation is made when all did, or when the time is over. The first
        one of an empty group is made after the initial delay. As in Kafka, it does not wait for clients that have only
        asked for an id."""
        is_first = self.phase is GroupPhase.EMPTY
        self._fail_syncs(ErrorCode.REBALANCE_IN_PROGRESS)
        if self.phase is GroupPhase.COMPLETING_REBALANCE:
            self._assign({})
        self._sync_deadline = None
        self.phase = GroupPhase.PREPARING_REBALANCE
        limit = now + max((member.rebalance_seconds for member in self.members.values()), default=0.0)
        self._delay_limit = None
        if is_first and self.initial_delay_seconds > 0:
            self._delay_limit = limit
            self._join_deadline = min(limit, now + self.initial_delay_seconds)
        elif is_first:
            self._complete_join(now)
        else:
            self._join_deadline = limit
            self._try_complete_join(now)

    def _try_complete_join(self, now: float) -> None:
        if self.phase is not GroupPhase.PREPARING_REBALANCE or self.pending or self._delay_limit is not None:
            return
        if all(member.join_ticket is not None for member in self.members.values()):
            self._complete_join(now)

    def _complete_join(self, now: float) -> None:
        """Make the next generation of the members that joined, and of static members, which may be restarting."""
        gone = [
            member
            for member in self.members.values()
            if member.join_ticket is None and member.instance_id is None
        ]
        for member in gone:
            self._remove(member)
        self._replace_leader()
        joined = [member for member in self.members.values() if member.join_ticket is not None]
        self._delay_limit = None
        if self.members and not joined:
            # Only absent static members are left: wait until they return or their sessions expire.
            limit = max(member.rebalance_seconds for member in self.members.values())
            self._join_deadline = now + max(limit, 1.0)
            return
        self._join_deadline = None
        self.generation += 1
        self.is_dirty = True
        if not self.members:
            self.phase, self.protocol, self.leader = GroupPhase.EMPTY, None, None
            return
        if self.leader not in {member.member_id for member in joined}:
            self.leader = joined[0].member_id
        self.protocol = self._vote()
        self.phase = GroupPhase.COMPLETING_REBALANCE
        self._sync_deadline = now + max(member.rebalance_seconds for member in self.members.values())
        for member in self.members.values():
            member.has_synced = False
        for member in joined:
            assert member.join_ticket is not None, "joined members wait for their answer"
            self._answers.append((member.join_ticket, self._join_answer(member)))
            member.join_ticket = None
            self._restart_session(now, member)

    def _vote(self) -> str:
        """Choose the protocol: each member votes for its first that all know. Most votes win, then the lowest name."""
        common = {name for name, known_by in self._knowing.items() if known_by == len(self.members)}
        votes: dict[str, int] = {}
        for member in self.members.values():
            choice = next((name for name, _ in member.protocols if name in common), None)
            if choice is not None:
                votes[choice] = votes.get(choice, 0) + 1
        return max(sorted(votes), key=lambda name: votes[name], default="")

    # --- SyncGroup

    def sync(self, now: float, ticket: int, request: SyncRequest) -> None:
        """Handle a SyncGroup request. Followers are answered once the leader's has arrived."""
        code = self._validate_generation(request.member_id, request.instance_id, request.generation)
        if code is ErrorCode.NONE and self.phase is GroupPhase.PREPARING_REBALANCE:
            code = ErrorCode.REBALANCE_IN_PROGRESS
        if code is ErrorCode.NONE and (
            request.protocol_type not in (None, self.protocol_type)
            or request.protocol not in (None, self.protocol)
        ):
            code = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if code is not ErrorCode.NONE:
            self._answers.append((ticket, SyncAnswer(code)))
            return
        member = self.members[request.member_id]
        is_awaited = self.phase is GroupPhase.COMPLETING_REBALANCE and member.member_id == self.leader
        if is_awaited and self._bytes_with(request.assignments) > self.max_bytes:
            self._answers.append((ticket, SyncAnswer(ErrorCode.INVALID_REQUEST)))
            return
        if member.sync_ticket is not None:
            self._answers.append((member.sync_ticket, SyncAnswer(ErrorCode.REBALANCE_IN_PROGRESS)))
        member.sync_ticket, member.has_synced = ticket, True
        if is_awaited:
            self._assign(dict(request.assignments))
            self.phase, self.is_dirty, self._nothing_before = GroupPhase.STABLE, True, None
            for other in self.members.values():
                self._answer_sync(now, other)
        elif self.phase is GroupPhase.STABLE:
            self._answer_sync(now, member)
        else:
            return  # wait for the leader's
        if self._sync_deadline is not None and all(other.has_synced for other in self.members.values()):
            self._sync_deadline = None

    def _bytes_with(self, assignments: list[tuple[str, bytes]]) -> int:
        """Return the group's bytes once these assignments have replaced the present ones."""
        replaced = sum(len(member.assignment) for member in self.members.values())
        return self._kept_bytes - replaced + _bytes_of(assignments)

    def _answer_sync(self, now: float, member: GroupMember) -> None:
        if member.sync_ticket is not None:
            self._answers.append((member.sync_ticket, self._sync_answer(member)))
            member.sync_ticket = None
            self._restart_session(now, member)

    def _sync_answer(self, member: GroupMember) -> SyncAnswer:
        return SyncAnswer(ErrorCode.NONE, self.protocol_type, self.protocol, member.assignment)

    def _fail_syncs(self, code: ErrorCode) -> None:
        for member in self.members.values():
            if member.sync_ticket is not None:
                self._answers.append((member.sync_ticket, SyncAnswer(code)))
                member.sync_ticket = None

    # --- Heartbeat, OffsetCommit, LeaveGroup

    def heartbeat(self, now: float, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """Keep the member's session alive, and report when it must join again."""
        code = self._validate_generation(member_id, instance_id, generation)
        if code is ErrorCode.NONE:
            self._restart_session(now, self.members[member_id])
            if self.phase is GroupPhase.PREPARING_REBALANCE:
                return ErrorCode.REBALANCE_IN_PROGRESS
        return code

    def commit(
        self,
        now: float,
        member_id: str,
        instance_id: str | None,
        generation: int,
        *,
        positions: Sequence[OffsetPosition] | None = None,
        is_transactional: bool = False,
        names_epochs: bool = True,
    ) -> ErrorCode:
        """Whether this member may commit offsets now. Before the next generation is made it may: it still owns its
        partitions.

        As in Kafka, a transaction's offsets are accepted while the assignment is made, too: they stay pending.
        """
        code = self._validate_generation(member_id, instance_id, generation)
        if code is ErrorCode.NONE:
            self._restart_session(now, self.members[member_id])
            if self.phase is GroupPhase.COMPLETING_REBALANCE and not is_transactional:
                return ErrorCode.REBALANCE_IN_PROGRESS
        return code

    def validate_reader(self, member_id: str, epoch: int) -> ErrorCode:
        """Whether this member may read positions: any client may."""
        return ErrorCode.NONE

    def leave(self, now: float, leaving: Iterable[tuple[str, str | None]]) -> list[ErrorCode]:
        """Remove members, each (id, instance id). A static member may be named by its instance id alone."""
        self._nothing_before = None
        codes: list[ErrorCode] = []
        is_changed = False
        for member_id, instance_id in leaving:
            if instance_id is None and member_id in self.pending:
                del self.pending[member_id]
                codes.append(ErrorCode.NONE)
                continue
            if not member_id and instance_id is not None:
                named = self.static_member(instance_id)
                member_id = "" if named is None else named.member_id
            code = self.validate_member(member_id, instance_id)
            codes.append(code)
            if code is ErrorCode.NONE:
                self._remove(self.members[member_id])
                is_changed = True
        self._after_removal(now, is_changed)
        return codes

    def validate_member(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Return NONE if this is a member and holds the instance id, if one is given; otherwise the error."""
        if self.phase is GroupPhase.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        member = self.members.get(member_id)
        if instance_id is not None and (member is None or member.instance_id != instance_id):
            held_by = self.static_member(instance_id)
            if held_by is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if held_by.member_id != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member is not None else ErrorCode.UNKNOWN_MEMBER_ID

    def _validate_generation(self, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        code = self.validate_member(member_id, instance_id)
        if code is ErrorCode.NONE and generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        return code

    # --- time, and the end

    def expire(self, now: float) -> None:
        """Handle everything that is due: expired sessions, the end of a rebalance, unused pending ids."""
        self._nothing_before = None
        over = [member_id for member_id, deadline in self.pending.items() if deadline <= now]
        for member_id in over:
            del self.pending[member_id]
        must_have_synced = self._sync_deadline is not None and self._sync_deadline <= now
        if must_have_synced:
            self._sync_deadline = None
        dead = [
            member
            for member in self.members.values()
            if (not member.is_waiting and member.session_deadline <= now)
            or (must_have_synced and not member.has_synced)
        ]
        for member in dead:
            self._remove(member)
        self._after_removal(now, bool(dead))
        if self._join_deadline is not None and self._join_deadline <= now:
            self._complete_join(now)

    def close(self, code: ErrorCode) -> None:
        """Answer all waiting requests with this code, and mark the group as dead."""
        self._nothing_before = None
        for member in self.members.values():
            if member.join_ticket is not None:
                self._refuse_join(member.join_ticket, member.member_id, code)
                member.join_ticket = None
        self._fail_syncs(code)
        self.phase = GroupPhase.DEAD
        self._join_deadline = self._sync_deadline = self._delay_limit = None
        self.pending.clear()

    def resume(self, now: float) -> None:
        """Take over from another coordinator: every session, and an expected assignment, gets its full time.

        It is unknown which members have fetched their assignment, because only the leader's SyncGroup is stored.
        Members that are gone expire with their sessions.
        """
        self._nothing_before = None
        for member in self.members.values():
            self._restart_session(now, member)
        limit = now + max((member.rebalance_seconds for member in self.members.values()), default=0.0)
        if self.phase is GroupPhase.PREPARING_REBALANCE:
            self._join_deadline = limit
        elif self.phase is GroupPhase.COMPLETING_REBALANCE:
            self._sync_deadline = limit

    def _after_removal(self, now: float, is_changed: bool) -> None:
        self._replace_leader()
        if is_changed and self.phase in (GroupPhase.STABLE, GroupPhase.COMPLETING_REBALANCE):
            self._prepare_rebalance(now)
        else:
            self._try_complete_join(now)
        if not self.members and self.phase is GroupPhase.PREPARING_REBALANCE and not self.pending:
            self._complete_join(now)

    def _remove(self, member: GroupMember) -> None:
        del self.members[member.member_id]
        if member.instance_id is not None:
            del self._instances[member.instance_id]
        self._count(member, -1)
        if member.join_ticket is not None:
            self._refuse_join(member.join_ticket, member.member_id, ErrorCode.UNKNOWN_MEMBER_ID)
        if member.sync_ticket is not None:
            self._answers.append((member.sync_ticket, SyncAnswer(ErrorCode.UNKNOWN_MEMBER_ID)))

    def _replace_leader(self) -> None:
        """Choose another leader if it was removed: once for all removed members, because finding the first member walks
        over those that were removed before it."""
        if self.leader not in self.members:
            self.leader = next(iter(self.members), None)

    def _restart_session(self, now: float, member: GroupMember) -> None:
        member.session_deadline = now + member.session_seconds


def names_bytes(*names: str | None) -> int:
    """Return how much a member's names count: they are kept and stored with it."""
    return sum(len(name) for name in names if name is not None)


def _bytes_of(named: Iterable[tuple[str, bytes]]) -> int:
    return sum(len(name) + len(data) for name, data in named)
