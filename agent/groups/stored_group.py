"""The stored form of a classic group: another agent can continue from it without a rebalance."""

from __future__ import annotations

import msgspec

from agent.groups.group import Group, GroupMember, GroupPhase
from sequencer.api.groups import GroupState
from tailrace.turns import Steps

VERSION = 1


class StoredMember(msgspec.Struct, array_like=True, frozen=True):
    """A member without its deadlines: the agent that takes over restarts its session."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_seconds: float
    rebalance_seconds: float
    protocols: list[tuple[str, bytes]]
    assignment: bytes
    has_synced: bool


class StoredGroup(msgspec.Struct, array_like=True, frozen=True):
    """The blob of a group's row. Fields are only ever appended."""

    version: int
    protocol: str | None
    leader: str | None
    members: list[StoredMember]


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(StoredGroup)


def check_version(state: GroupState, written: int, read: int) -> None:
    """Raise ValueError if a row has another version than this agent reads."""
    if written != read:
        raise ValueError(f"group {state.group_id!r} is stored in version {written}; this agent reads {read}")


def stored(group: Group) -> Steps[GroupState]:
    """Return the row of the group. Steps count members."""
    members = []
    for member in group.members.values():
        members.append(msgspec.convert(member, StoredMember, from_attributes=True))
        yield 1
    blob = StoredGroup(VERSION, group.protocol, group.leader, members)
    return GroupState(
        group_id=group.group_id,
        generation=group.generation,
        state=str(group.phase),
        protocol_type=group.protocol_type,
        members=list(group.members),
        blob=_ENCODER.encode(blob),
    )


def restored(
    state: GroupState, now: float, initial_delay_seconds: float, max_size: int, max_bytes: int
) -> Steps[Group]:
    """Restore the group from a row, with every session restarted at `now`. Steps count members."""
    group = Group(state.group_id, initial_delay_seconds, max_size, max_bytes, generation=state.generation)
    if not state.blob:
        return group
    blob = _DECODER.decode(state.blob)
    check_version(state, blob.version, VERSION)
    group.protocol_type, group.protocol, group.leader = state.protocol_type, blob.protocol, blob.leader
    for member in blob.members:
        group.add(GroupMember(**msgspec.structs.asdict(member)))
        yield 1
    phase = GroupPhase(state.state)
    group.phase = GroupPhase.EMPTY if not group.members else phase
    group.resume(now)
    return group
