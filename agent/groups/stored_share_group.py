"""The stored form of a share group's members: another agent can continue from it."""

from __future__ import annotations

from uuid import UUID

import msgspec

from agent.groups.share_group import ShareGroup, ShareMember
from agent.groups.stored_consumer_group import StoredAssignment, assignment_of, stored_assignment
from agent.groups.stored_group import check_version
from agent.groups.topic_names import in_order, topic_names
from sequencer.api.groups import SHARE_GROUP, GroupState
from tailrace.turns import Steps

VERSION = 1


class StoredShareMember(msgspec.Struct, array_like=True, frozen=True):
    """A member without its deadline; the agent that takes over restarts it."""

    member_id: str
    rack_id: str | None
    client_id: str
    client_host: str
    topics: list[str]
    epoch: int
    assigned: StoredAssignment


class StoredShareGroup(msgspec.Struct, array_like=True, frozen=True):
    """The blob of a group's row. Fields are only ever appended. `members`: each a StoredShareMember, encoded by itself,
    so that they are encoded and decoded in steps."""

    version: int
    assigned_epoch: int
    partitions: list[tuple[UUID, int]]
    members: list[msgspec.Raw]


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(StoredShareGroup)
_MEMBER_DECODER = msgspec.msgpack.Decoder(StoredShareMember)


def stored(group: ShareGroup) -> Steps[GroupState]:
    """Return the row of the group, in steps."""
    members = []
    for member in group.members.values():
        assigned = yield from stored_assignment(member.assigned)
        stored_member = StoredShareMember(
            member_id=member.member_id,
            rack_id=member.rack_id,
            client_id=member.client_id,
            client_host=member.client_host,
            topics=(yield from in_order(member.topics)),
            epoch=member.epoch,
            assigned=assigned,
        )
        members.append(msgspec.Raw(_ENCODER.encode(stored_member)))
        yield 1
    blob = StoredShareGroup(VERSION, group.assigned_epoch, list(group.partitions.items()), members)
    return GroupState(
        group_id=group.group_id,
        generation=group.epoch,
        state=str(group.phase),
        protocol_type="share",
        members=list(group.members),
        blob=_ENCODER.encode(blob),
        type=SHARE_GROUP,
    )


def restored(
    state: GroupState, now: float, session_seconds: float, max_size: int, max_bytes: int
) -> Steps[ShareGroup]:
    """Restore the group from a row, with every session restarted at `now`, in steps."""
    group = ShareGroup(state.group_id, session_seconds, max_size, max_bytes, epoch=state.generation)
    if not state.blob:
        return group
    blob = _DECODER.decode(state.blob)
    check_version(state, blob.version, VERSION)
    group.assigned_epoch, group.partitions = blob.assigned_epoch, dict(blob.partitions)
    for encoded in blob.members:
        member = _MEMBER_DECODER.decode(encoded)
        group.members[member.member_id] = ShareMember(
            member_id=member.member_id,
            rack_id=member.rack_id,
            client_id=member.client_id,
            client_host=member.client_host,
            topics=(yield from topic_names(member.topics)),
            epoch=member.epoch,
            assigned=(yield from assignment_of(member.assigned)),
        )
        yield 1
    group.resume(now)
    return group
