"""The copies' records, in the format of Kafka's coordinators. Names are those that clients use. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agent.groups.group import Group, GroupMember, GroupPhase
from agent.groups.group_bytes import AnyGroup
from agent.tenants.names import to_local
from sequencer.api.groups import OffsetPosition
from sequencer.api.transactions import TransactionDescription, TransactionState
from tailrace.batches.records import NewRecord
from tailrace.kafka.compiler import codec
from tailrace.kafka.messages.coordinator_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
    PartitionsSchema,
    TransactionLogKey,
    TransactionLogValue,
)
from tailrace.kafka.schema import Entity, Message
from tailrace.tenants import local_name, tenant_of
from tailrace.turns import Steps, in_parts

OFFSET_COMMIT, GROUP_METADATA, TRANSACTION_LOG = 1, 2, 0
"""Key types."""
OFFSET_VERSION, GROUP_VERSION, TRANSACTION_VERSION = 4, 3, 1
"""Value versions, as Kafka 4.3 writes them."""
MEMBERS_IN_A_STEP = 100
MEMBER_WORK = 20
"""A member counts as this many topics: a tenant's member is decoded and encoded again."""
STATUS = {
    TransactionState.EMPTY: 0,
    TransactionState.ONGOING: 1,
    TransactionState.COMPLETE_COMMIT: 4,
    TransactionState.COMPLETE_ABORT: 5,
}


def position_record(group_id: str, topic: str, position: OffsetPosition) -> NewRecord:
    """Return the record of a group's position; a tombstone if it has none. `group_id`, `topic`: as stored."""
    key = OffsetCommitKey(local_name(group_id), local_name(topic), position.partition)
    if position.offset < 0:
        return NewRecord(_key(OFFSET_COMMIT, key), None)
    value = OffsetCommitValue(
        offset=position.offset,
        leader_epoch=position.leader_epoch,
        metadata=position.metadata,
        commit_timestamp=position.commit_ms,
        topic_id=position.topic_id,
    )
    return NewRecord(_key(OFFSET_COMMIT, key), _value(OFFSET_VERSION, value, flexible=True))


def group_records(group: AnyGroup, now_ms: int) -> Steps[list[NewRecord]]:
    """Return the record of a classic group between rebalances; a tombstone if it does not exist, or has another type
    now. Steps count topics, as those of assignments do."""
    key = _key(GROUP_METADATA, GroupMetadataKey(local_name(group.group_id)))
    if not isinstance(group, Group) or (group.generation == 0 and group.is_idle):
        return [NewRecord(key, None)]
    if group.phase not in (GroupPhase.EMPTY, GroupPhase.STABLE):
        return []  # it is stored again when the rebalance ends
    members: list[MemberMetadata] = []
    for some in in_parts(list(group.members.values()), MEMBERS_IN_A_STEP):
        members += [_member(group, member) for member in some]
        yield MEMBER_WORK * len(some)
    value = GroupMetadataValue(
        protocol_type=group.protocol_type,
        generation=group.generation,
        protocol=group.protocol if group.members else None,
        leader=group.leader if group.members else None,
        current_state_timestamp=now_ms,
        members=members,
    )
    return [NewRecord(key, _value(GROUP_VERSION, value))]


def _member(group: Group, member: GroupMember) -> MemberMetadata:
    return MemberMetadata(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout=round(member.rebalance_seconds * 1_000),
        session_timeout=round(member.session_seconds * 1_000),
        subscription=_local(Entity.SUBSCRIPTION, group.group_id, member.metadata(group.protocol or "")),
        assignment=_local(Entity.ASSIGNMENT, group.group_id, member.assignment),
    )


def _local(kind: Entity, group_id: str, said: bytes) -> bytes:
    """Return a member's metadata or assignment, with the names that its clients use."""
    tenant = tenant_of(group_id)
    local: bytes = said if tenant is None else to_local(tenant)[kind](said, None)
    return local


def transaction_record(
    described: TransactionDescription, partitions: Mapping[str, Sequence[int]], now_ms: int
) -> NewRecord:
    """Return the record of a transactional id. `partitions`: those in its open transaction, by topic."""
    is_empty = described.state is TransactionState.EMPTY
    value = TransactionLogValue(
        producer_id=described.producer_id,
        producer_epoch=described.producer_epoch,
        transaction_timeout_ms=described.timeout_ms,
        transaction_status=STATUS[described.state],
        transaction_partitions=None
        if is_empty
        else [PartitionsSchema(topic, list(indexes)) for topic, indexes in partitions.items()],
        transaction_last_update_timestamp_ms=now_ms,
        transaction_start_timestamp_ms=described.started_ms,
    )
    key = TransactionLogKey(local_name(described.transactional_id))
    return NewRecord(_key(TRANSACTION_LOG, key), _value(TRANSACTION_VERSION, value, flexible=True))


def _key(kind: int, key: Message) -> bytes:
    return _behind(kind, key, flexible=False, version=0)


def _value(version: int, value: Message, *, flexible: bool = False) -> bytes:
    return _behind(version, value, flexible=flexible, version=version)


def _behind(number: int, message: Message, *, flexible: bool, version: int) -> bytes:
    out = bytearray(number.to_bytes(2, "big"))
    last = codec(type(message), version, flexible).encode(message, out, [])
    assert last is out, "without records there is one part"
    return bytes(out)
