"""The stored form of a consumer group: another agent can continue from it without a rebalance."""

from __future__ import annotations

from uuid import UUID

import msgspec

from agent.groups.assignors import Assignment
from agent.groups.consumer_group import ClassicClient, Consumer, ConsumerGroup, MemberPhase, Subscription
from agent.groups.stored_group import check_version
from agent.groups.topic_names import in_order, topic_names
from sequencer.api.groups import CONSUMER_GROUP, GroupState
from tailrace.turns import Steps

VERSION = 1
COST_OF_MEMBER = 10
"""Steps count topics and partitions; a member costs as much as this many of them, besides its own."""

StoredAssignment = list[tuple[UUID, list[int]]]
"""An assignment: partitions by topic."""


class StoredClassicClient(msgspec.Struct, array_like=True, frozen=True):
    """What a member of the classic protocol sent when it joined."""

    session_seconds: float
    protocols: list[tuple[str, bytes]]


class StoredConsumer(msgspec.Struct, array_like=True, frozen=True):
    """A member without its deadlines; the agent that takes over restarts them."""

    member_id: str
    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    rebalance_seconds: float
    topics: list[str]
    pattern: str
    assignor: str
    epoch: int
    previous_epoch: int
    phase: int
    assigned: StoredAssignment
    revoking: StoredAssignment
    target: StoredAssignment
    classic: StoredClassicClient | None = None


class StoredConsumerGroup(msgspec.Struct, array_like=True, frozen=True):
    """The blob of a group's row. Fields are only ever appended. `members`: each a StoredConsumer, encoded by itself, so
    that very many members are encoded and decoded in steps."""

    version: int
    target_epoch: int
    assignor: str
    partitions: list[tuple[UUID, int]]
    members: list[msgspec.Raw]


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(StoredConsumerGroup)
_MEMBER_DECODER = msgspec.msgpack.Decoder(StoredConsumer)


def stored(group: ConsumerGroup) -> Steps[GroupState]:
    """Return the row of the group, in steps."""
    members = []
    for member in group.members.values():
        encoded = _ENCODER.encode((yield from _stored_member(member)))
        members.append(msgspec.Raw(encoded))
    blob = StoredConsumerGroup(
        version=VERSION,
        target_epoch=group.target_epoch,
        assignor=group.assignor,
        partitions=list(group.partitions.items()),
        members=members,
    )
    return GroupState(
        group_id=group.group_id,
        generation=group.epoch,
        state=str(group.phase),
        protocol_type="consumer",
        members=list(group.members),
        blob=_ENCODER.encode(blob),
        type=CONSUMER_GROUP,
    )


def _stored_member(member: Consumer) -> Steps[StoredConsumer]:
    subscription = member.subscription
    yield COST_OF_MEMBER
    return StoredConsumer(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_seconds=member.rebalance_seconds,
        topics=(yield from in_order(subscription.topics)),
        pattern=subscription.pattern,
        assignor=subscription.assignor,
        epoch=member.epoch,
        previous_epoch=member.previous_epoch,
        phase=member.phase,
        assigned=(yield from stored_assignment(member.assigned)),
        revoking=(yield from stored_assignment(member.revoking)),
        target=(yield from stored_assignment(member.target)),
        classic=(
            None
            if member.classic is None
            else StoredClassicClient(member.classic.session_seconds, list(member.classic.protocols))
        ),
    )


def stored_assignment(assignment: Assignment) -> Steps[StoredAssignment]:
    """Return an assignment in its stored form."""
    stored: StoredAssignment = []
    for topic_id, partitions in assignment.items():
        stored.append((topic_id, sorted(partitions)))
        yield 1 + len(partitions)
    return stored


def restored(
    state: GroupState, now: float, session_seconds: float, max_size: int, max_bytes: int
) -> Steps[ConsumerGroup]:
    """Restore the group from a row, with every deadline restarted at `now`, in steps."""
    group = ConsumerGroup(state.group_id, session_seconds, max_size, max_bytes, epoch=state.generation)
    if not state.blob:
        return group
    blob = _DECODER.decode(state.blob)
    check_version(state, blob.version, VERSION)
    group.target_epoch, group.assignor = blob.target_epoch, blob.assignor
    group.partitions = dict(blob.partitions)
    for encoded in blob.members:
        member = _MEMBER_DECODER.decode(encoded)
        group.members[member.member_id] = yield from _restored_member(member)
    yield from group.resume(now)
    return group


def _restored_member(member: StoredConsumer) -> Steps[Consumer]:
    yield COST_OF_MEMBER
    names = yield from topic_names(member.topics)
    return Consumer(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_seconds=member.rebalance_seconds,
        subscription=Subscription(names, member.pattern, member.assignor),
        epoch=member.epoch,
        previous_epoch=member.previous_epoch,
        phase=MemberPhase(member.phase),
        assigned=(yield from assignment_of(member.assigned)),
        revoking=(yield from assignment_of(member.revoking)),
        target=(yield from assignment_of(member.target)),
        classic=(
            None
            if member.classic is None
            else ClassicClient(member.classic.session_seconds, tuple(member.classic.protocols))
        ),
    )


def assignment_of(stored: StoredAssignment) -> Steps[Assignment]:
    """Return the assignment of a stored form."""
    assignment: Assignment = {}
    for topic_id, partitions in stored:
        assignment[topic_id] = frozenset(partitions)
        yield 1 + len(partitions)
    return assignment
