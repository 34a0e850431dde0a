"""Members of the classic protocol in a consumer group, and the migration of a group from one protocol to the other.

When the clients of a group are restarted one by one with `group.protocol=consumer`, the first of them turns the classic
group into a consumer group (`upgraded`). The others stay in it as classic members until they are restarted, too. When
the last member of the new protocol leaves and classic members remain, the group becomes classic again (`downgraded`),
so the migration can be undone client by client (KIP-848, "Online migration").

    a classic request | means for the consumer group
    JoinGroup         | what the client reads and owns; the answer names no leader
    SyncGroup         | the member asks for its partitions
    Heartbeat         | answered REBALANCE_IN_PROGRESS if the member has a step to take: it takes it with JoinGroup
    LeaveGroup        | the member leaves

A classic member's generation is its member epoch. An eager client owns nothing when it joins. A cooperative client
names what it owns, and joins again after it has given something up. Both joins are handled as heartbeats that name the
owned partitions.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from agent.groups.assignors import Assignment
from agent.groups.consumer_group import (
    ClassicClient,
    Consumer,
    ConsumerGroup,
    MemberPhase,
    Subscription,
    Topics,
)
from agent.groups.group import (
    Group,
    GroupMember,
    GroupPhase,
    JoinAnswer,
    JoinRequest,
    SyncAnswer,
    SyncRequest,
)
from agent.groups.subscription import CONSUMER, read_assignment, read_subscription, write_assignment
from agent.groups.topic_names import topic_names
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.errors import MalformedRequest
from tailrace.kafka.messages.consumer_protocol import TopicPartition
from tailrace.turns import Steps

KNOWN_ASSIGNORS = frozenset({"range", "roundrobin", "sticky", "cooperative-sticky"})
"""Members of these assignors need only their partitions, although librdkafka's sticky assignors send more."""


class NotUpgradable(Exception):
    """A classic group can't become a consumer group: not now (`code` is retriable), or not in its current form."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


# --- the migration


def upgraded(group: Group, into: ConsumerGroup, now: float, topics: Topics) -> Steps[ConsumerGroup]:
    """Fill the empty group `into` with the members of a classic group, at its generation, with their partitions. Steps
    count members and partitions.

    Raises NotUpgradable, also during a rebalance: until it ends, it is unknown who reads what.
    """
    if group.members and group.protocol_type != CONSUMER:
        raise NotUpgradable(ErrorCode.GROUP_ID_NOT_FOUND, f"{group.group_id!r} is not a group of consumers")
    if group.phase is not GroupPhase.STABLE:
        raise NotUpgradable(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"{group.group_id!r} is {group.phase}")
    try:
        for member in group.members.values():
            into.members[member.member_id] = yield from _upgraded_member(group, member, topics)
    except MalformedRequest as error:
        raise NotUpgradable(
            ErrorCode.GROUP_ID_NOT_FOUND, f"{group.group_id!r}: a member's metadata can't be read: {error}"
        ) from error
    into.epoch = into.target_epoch = group.generation
    yield from into.resume(now)
    into.is_dirty = True
    return into


def _upgraded_member(group: Group, member: GroupMember, topics: Topics) -> Steps[Consumer]:
    assignment = read_assignment(member.assignment) if member.assignment else None
    partitions = [] if assignment is None else assignment.assigned_partitions
    yield 1 + _count_of(partitions)
    if assignment is not None and assignment.user_data and group.protocol not in KNOWN_ASSIGNORS:
        raise NotUpgradable(
            ErrorCode.GROUP_ID_NOT_FOUND,
            f"{group.group_id!r} uses an assignor that gives members data of its own ({group.protocol}); "
            "switch to one of Kafka's before the upgrade",
        )
    subscription = yield from read_subscription(member.metadata(group.protocol or ""))
    assigned = yield from _by_topic_id(partitions, topics)
    wanted = Subscription((yield from topic_names(subscription.topics)))
    return Consumer(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=subscription.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_seconds=member.rebalance_seconds,
        subscription=wanted,
        epoch=group.generation,
        previous_epoch=group.generation,
        assigned=assigned,
        target=assigned,
        classic=ClassicClient(member.session_seconds, tuple(member.protocols)),
    )


def downgraded(group: ConsumerGroup, into: Group, now: float, topics: Topics) -> Steps[Group]:
    """Fill the empty group `into` with the remaining classic members, and have them join again. Steps count topics and
    partitions.

    `into.generation` must be the epoch that was sent to them before the last member of the new protocol left: at a
    later one they would drop their partitions at once.
    """
    into.phase, into.protocol_type = GroupPhase.STABLE, CONSUMER
    for member in group.members.values():
        assert member.classic is not None, "only classic members are left"
        assignment = yield from _written(group, member, topics)
        into.add(
            GroupMember(
                member_id=member.member_id,
                instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                session_seconds=member.classic.session_seconds,
                rebalance_seconds=member.rebalance_seconds,
                protocols=list(member.classic.protocols),
                assignment=assignment,
                session_deadline=member.session_deadline,
                has_synced=True,
            )
        )
    for ticket, answer in group.take_answers():  # a static client may have replaced the last new one
        into.answer(ticket, answer)
    into.leader = next(iter(into.members), None)
    into.rebalance(now)
    return into


# --- requests of classic clients


def join(group: ConsumerGroup, now: float, request: JoinRequest, topics: Topics) -> Steps[JoinAnswer]:
    """JoinGroup: become a member, or take the next step."""
    code = _code_of_join(group, request)
    subscription = None
    if code is ErrorCode.NONE:
        try:
            subscription = yield from read_subscription(request.protocols[0][1])
        except MalformedRequest:
            code = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if subscription is None:
        return JoinAnswer(code, request.member_id)
    if not request.member_id and request.instance_id is None and request.requires_known_id:
        return JoinAnswer(ErrorCode.MEMBER_ID_REQUIRED, request.fresh_id)
    yield len(subscription.topics) + _count_of(subscription.owned_partitions)
    size = len(group.members)
    member = yield from _member_of(group, request)
    member.classic = ClassicClient(request.session_seconds, tuple(request.protocols))
    group.is_dirty = True
    group.describe(
        member,
        client_id=request.client_id,
        client_host=request.client_host,
        rack_id=subscription.rack_id,
        rebalance_seconds=request.rebalance_seconds,
    )
    wanted = Subscription((yield from topic_names(subscription.topics)))
    is_changed = group.subscribe(member, wanted) or len(group.members) > size
    yield from group.retarget(topics, is_changed=is_changed)
    owned = yield from _by_topic_id(subscription.owned_partitions, topics)
    yield from group.advance(now, member, owned)
    group.await_nothing(member, now)
    group.await_answer(member, now)
    return JoinAnswer(
        code=ErrorCode.NONE,
        member_id=member.member_id,
        generation=member.epoch,
        protocol_type=CONSUMER,
        protocol=request.protocols[0][0],
    )


def _code_of_join(group: ConsumerGroup, request: JoinRequest) -> ErrorCode:
    held_by = None if request.instance_id is None else group.static_member(request.instance_id)
    if request.member_id and request.instance_id is not None:
        code = group.code_of_member(request.member_id, request.instance_id)
        if code is not ErrorCode.NONE:
            return code
    known = group.members.get(request.member_id) or held_by
    others = [member for member in group.members.values() if member is not known]
    names = {name for name, _ in request.protocols}
    for member in others:
        if member.classic is not None:
            names &= {name for name, _ in member.classic.protocols}
    if request.protocol_type != CONSUMER or not names:
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    # A subscription is kept in addition to the metadata that it was read from.
    is_too_large = 2 * request.kept_bytes + sum(member.kept_bytes for member in others) > group.max_bytes
    if is_too_large or (known is None and len(group.members) >= group.max_size):
        return ErrorCode.GROUP_MAX_SIZE_REACHED
    return ErrorCode.NONE


def _member_of(group: ConsumerGroup, request: JoinRequest) -> Steps[Consumer]:
    member = group.members.get(request.member_id)
    if member is not None:
        return member
    held_by = None if request.instance_id is None else group.static_member(request.instance_id)
    if held_by is None:
        member = Consumer(request.member_id or request.fresh_id, request.instance_id)
        group.add(member)
        return member
    group.rename(held_by, request.fresh_id)
    yield from group.restart(held_by)
    return held_by


def sync(group: ConsumerGroup, now: float, request: SyncRequest, topics: Topics) -> Steps[SyncAnswer]:
    """SyncGroup: return the member's partitions."""
    member, code = _current(group, request.member_id, request.instance_id, request.generation)
    if member is None or member.classic is None:
        return SyncAnswer(code)
    named = request.protocol
    if request.protocol_type not in (None, CONSUMER) or named not in (
        None,
        *(name for name, _ in member.classic.protocols),
    ):
        return SyncAnswer(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if member.epoch < group.target_epoch and member.phase is not MemberPhase.UNREVOKED:
        group.await_answer(member, now)
        return SyncAnswer(ErrorCode.REBALANCE_IN_PROGRESS)
    group.await_nothing(member, now)
    protocol = named or member.classic.protocols[0][0]
    assignment = yield from _written(group, member, topics)
    return SyncAnswer(ErrorCode.NONE, CONSUMER, protocol, assignment)


def heartbeat(
    group: ConsumerGroup, now: float, request: tuple[str, str | None, int], topics: Topics
) -> Steps[ErrorCode]:
    """Heartbeat, with (member id, instance id, generation): keep the session; report whether the member has a step to
    take."""
    member, code = _current(group, *request)
    if member is None:
        return code
    yield from group.retarget(topics)
    if (yield from group.has_a_step(member)):
        group.await_answer(member, now)
        return ErrorCode.REBALANCE_IN_PROGRESS
    group.restart_session(member, now)
    return ErrorCode.NONE


def leave(group: ConsumerGroup, leaving: list[tuple[str, str | None]]) -> Steps[list[ErrorCode]]:
    """LeaveGroup: return one code per (member id, instance id). An instance id alone names a static member."""
    codes = []
    for member_id, instance_id in leaving:
        named = group.static_member(instance_id) if instance_id is not None and not member_id else None
        member = group.members.get(member_id) if named is None else named
        code = group.code_of_member(member_id if member is None else member.member_id, instance_id)
        if code is ErrorCode.NONE and member is not None:
            yield from group.remove(member)
        codes.append(code)
        yield 1
    return codes


def _current(
    group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int
) -> tuple[Consumer | None, ErrorCode]:
    """Return the classic member if it is at this generation, or the error."""
    code = group.code_of_member(member_id, instance_id)
    if code is not ErrorCode.NONE:
        return None, code
    member = group.members[member_id]
    if member.classic is None:
        return None, ErrorCode.UNKNOWN_MEMBER_ID
    if generation != member.epoch:
        return None, ErrorCode.ILLEGAL_GENERATION
    return member, ErrorCode.NONE


# --- names and ids


def _count_of(named: list[TopicPartition]) -> int:
    return len(named) + sum(len(part.partitions) for part in named)


def _by_topic_id(named: list[TopicPartition], topics: Topics) -> Steps[Assignment]:
    """Return the partitions by topic id, without topics that do not exist."""
    assignment: Assignment = {}
    for part in named:
        if part.topic in topics and part.partitions:
            topic_id = topics[part.topic].topic.topic_id
            assignment[topic_id] = assignment.get(topic_id, frozenset()).union(part.partitions)
        yield 1 + len(part.partitions)
    return assignment


def _written(group: ConsumerGroup, member: Consumer, topics: Topics) -> Steps[bytes]:
    """Return the member's assignment in its client's format."""
    assert member.classic is not None, "of a classic member"
    names: Mapping[UUID, str] = {
        topics[name].topic.topic_id: name for name in group.names_of(member) if name in topics
    }
    yield len(names)
    metadata = next((metadata for _, metadata in member.classic.protocols), b"")
    written = write_assignment(
        metadata, {names[topic_id]: parts for topic_id, parts in member.assigned.items() if topic_id in names}
    )
    yield sum(map(len, member.assigned.values()))
    return written
