"""Members of the classic protocol in a consumer group, and the change of a group from one protocol to the other.

When the clients of a group are restarted one by one with `group.protocol=consumer`, the first of them makes the classic
group a consumer group (`upgraded`). The others go on in it as classic members, until they are restarted, too. When the
last member of the new protocol has gone and classic ones are left, it is a classic group again (`downgraded`): so the
change can be taken back, one by one (KIP-848, "Online migration").

    a classic request | is to the consumer group
    JoinGroup         | what the client reads and owns; the answer names no leader
    SyncGroup         | the question for its partitions
    Heartbeat         | answered REBALANCE_IN_PROGRESS if the member has a step to take: it does so by JoinGroup
    LeaveGroup        | the end of the member

A classic member's generation is its member epoch. An eager client owns nothing when it joins; a cooperative one names
what it owns, and joins again when it has given something up: both are heartbeats that name what is owned.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from agent.groups.assignors import Assignment, united
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
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.errors import MalformedRequest
from tailrace.kafka.messages.consumer_protocol import ConsumerProtocolSubscription, TopicPartition
from tailrace.turns import Steps

KNOWN_ASSIGNORS = frozenset({"range", "roundrobin", "sticky", "cooperative-sticky"})
"""Their members need nothing but their partitions; librdkafka's sticky assignors nevertheless send more than that."""


class NotUpgradable(Exception):
    """A classic group can't become a consumer group: now (`code` is retriable) or as it is."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


# --- the change of protocol


def upgraded(group: Group, into: ConsumerGroup, now: float, topics: Topics) -> ConsumerGroup:
    """Fill `into`, which is empty, with the members of a classic group: at their generation, with their partitions.

    Raises NotUpgradable. A rebalance has to end first: during it nobody knows who reads what.
    """
    if group.phase is not GroupPhase.STABLE:
        raise NotUpgradable(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"{group.group_id!r} is {group.phase}")
    if group.protocol_type != CONSUMER:
        raise NotUpgradable(ErrorCode.GROUP_ID_NOT_FOUND, f"{group.group_id!r} is not a group of consumers")
    try:
        members = [_upgraded_member(group, member, topics) for member in group.members.values()]
    except MalformedRequest as error:
        raise NotUpgradable(
            ErrorCode.GROUP_ID_NOT_FOUND, f"{group.group_id!r}: a member's metadata can't be read: {error}"
        ) from error
    into.epoch = into.target_epoch = group.generation
    into.members = {member.member_id: member for member in members}
    into.resume(now)
    into.is_dirty = True
    return into


def _upgraded_member(group: Group, member: GroupMember, topics: Topics) -> Consumer:
    assignment = read_assignment(member.assignment) if member.assignment else None
    if assignment is not None and assignment.user_data and group.protocol not in KNOWN_ASSIGNORS:
        raise NotUpgradable(
            ErrorCode.GROUP_ID_NOT_FOUND,
            f"{group.group_id!r} uses an assignor that gives members data of its own ({group.protocol}); "
            "switch to one of Kafka's before the upgrade",
        )
    subscription = read_subscription(member.metadata(group.protocol or ""))
    assigned = {} if assignment is None else _places(assignment.assigned_partitions, topics)
    return Consumer(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=subscription.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_seconds=member.rebalance_seconds,
        subscription=_topics_of(subscription),
        epoch=group.generation,
        previous_epoch=group.generation,
        assigned=assigned,
        target=assigned,
        classic=ClassicClient(member.session_seconds, tuple(member.protocols)),
    )


def downgraded(group: ConsumerGroup, into: Group, now: float, topics: Topics) -> Group:
    """Fill `into`, which is empty, with the classic members that are left, and have them join again.

    `into.generation` is the epoch that they were told before the last other member went: at a later one they would drop
    their partitions at once.
    """
    into.phase, into.protocol_type = GroupPhase.STABLE, CONSUMER
    for member in group.members.values():
        assert member.classic is not None, "only classic members are left"
        into.add(
            GroupMember(
                member_id=member.member_id,
                instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                session_seconds=member.classic.session_seconds,
                rebalance_seconds=member.rebalance_seconds,
                protocols=list(member.classic.protocols),
                assignment=_written(group, member, topics),
                session_deadline=member.session_deadline,
                has_synced=True,
            )
        )
    for ticket, answer in group.take_answers():  # to a static member, in the place of the last other one
        into.answer(ticket, answer)
    into.leader = next(iter(into.members), None)
    into.rebalance(now)
    return into


# --- what classic clients ask


def join(group: ConsumerGroup, now: float, request: JoinRequest, topics: Topics) -> Steps[JoinAnswer]:
    """JoinGroup: become a member, or take the next step."""
    code = _code_of_join(group, request)
    subscription = None
    if code is ErrorCode.NONE:
        try:
            subscription = read_subscription(request.protocols[0][1])
        except MalformedRequest:
            code = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if subscription is None:
        return JoinAnswer(code, request.member_id)
    if not request.member_id and request.instance_id is None and request.requires_known_id:
        return JoinAnswer(ErrorCode.MEMBER_ID_REQUIRED, request.fresh_id)
    size = len(group.members)
    member = _member_of(group, request)
    member.classic = ClassicClient(request.session_seconds, tuple(request.protocols))
    group.is_dirty = True
    group.describe(
        member,
        client_id=request.client_id,
        client_host=request.client_host,
        rack_id=subscription.rack_id,
        rebalance_seconds=request.rebalance_seconds,
    )
    is_changed = group.subscribe(member, _topics_of(subscription)) or len(group.members) > size
    yield from group.retarget(topics, is_changed=is_changed)
    yield from group.advance(now, member, _places(subscription.owned_partitions, topics))
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
    said = sum(len(name) + len(metadata) for name, metadata in request.protocols)
    # A subscription is kept beside the metadata that it was read from.
    is_too_large = 2 * said + sum(member.kept_bytes for member in others) > group.max_bytes
    if is_too_large or (known is None and len(group.members) >= group.max_size):
        return ErrorCode.GROUP_MAX_SIZE_REACHED
    return ErrorCode.NONE


def _member_of(group: ConsumerGroup, request: JoinRequest) -> Consumer:
    member = group.members.get(request.member_id)
    if member is not None:
        return member
    held_by = None if request.instance_id is None else group.static_member(request.instance_id)
    if held_by is None:
        member = Consumer(request.member_id or request.fresh_id, request.instance_id)
        group.add(member)
        return member
    group.rename(held_by, request.fresh_id)
    group.restart(held_by)
    return held_by


def sync(group: ConsumerGroup, now: float, request: SyncRequest, topics: Topics) -> SyncAnswer:
    """SyncGroup: the member's partitions."""
    member, code = _current(group, request.member_id, request.instance_id, request.generation)
    if member is None or member.classic is None:
        return SyncAnswer(code)
    named = request.protocol
    if request.protocol_type not in (None, CONSUMER) or named not in (
        None,
        *(name for name, _ in member.classic.protocols),
    ):
        return SyncAnswer(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if member.epoch < group.epoch and member.phase is not MemberPhase.UNREVOKED:
        group.await_answer(member, now)
        return SyncAnswer(ErrorCode.REBALANCE_IN_PROGRESS)
    group.await_nothing(member, now)
    protocol = named or member.classic.protocols[0][0]
    return SyncAnswer(ErrorCode.NONE, CONSUMER, protocol, _written(group, member, topics))


def heartbeat(
    group: ConsumerGroup, now: float, request: tuple[str, str | None, int], topics: Topics
) -> Steps[ErrorCode]:
    """Heartbeat, of (member id, instance id, generation): keep the session; say when the member has a step to take."""
    member, code = _current(group, *request)
    if member is None:
        return code
    yield from group.retarget(topics)
    if group.has_a_step(member):
        group.await_answer(member, now)
        return ErrorCode.REBALANCE_IN_PROGRESS
    group.restart_session(member, now)
    return ErrorCode.NONE


def leave(group: ConsumerGroup, leaving: list[tuple[str, str | None]]) -> list[ErrorCode]:
    """LeaveGroup: one code per (member id, instance id). An administrator names a static member by its instance."""
    codes = []
    for member_id, instance_id in leaving:
        named = group.static_member(instance_id) if instance_id is not None and not member_id else None
        member = group.members.get(member_id) if named is None else named
        code = group.code_of_member(member_id if member is None else member.member_id, instance_id)
        if code is ErrorCode.NONE and member is not None:
            group.remove(member)
        codes.append(code)
    return codes


def _current(
    group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int
) -> tuple[Consumer | None, ErrorCode]:
    """The classic member, if it is one and at this generation; else the error."""
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


def _topics_of(subscription: ConsumerProtocolSubscription) -> Subscription:
    return Subscription(frozenset(subscription.topics))


def _places(named: list[TopicPartition], topics: Topics) -> Assignment:
    """Partitions by topic id; topics that do not exist are left out."""
    return united(
        (topics[part.topic].topic.topic_id, part.partitions)
        for part in named
        if part.topic in topics and part.partitions
    )


def _written(group: ConsumerGroup, member: Consumer, topics: Topics) -> bytes:
    """What the member is assigned, as its client reads it."""
    assert member.classic is not None, "of a classic member"
    names: Mapping[UUID, str] = {
        topics[name].topic.topic_id: name for name in group.names_of(member) if name in topics
    }
    metadata = next((metadata for _, metadata in member.classic.protocols), b"")
    return write_assignment(
        metadata, {names[topic_id]: parts for topic_id, parts in member.assigned.items() if topic_id in names}
    )
