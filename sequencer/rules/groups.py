"""Groups: the coordinator's state and the offsets. Each change is fenced by owner, generation and member.

Invariants:
- only the group's owner, under its live lease, changes the group's state; its generation never decreases;
- a group gets its row with its first member or offset; a look-up creates none;
- offsets are accepted from members of the current generation, or from outside while the group is empty;
- offsets of a transaction are pending and invisible until it ends;
- a coordinator numbers its states and positions by turns: one of an earlier turn that arrives late does not replace one
  of a later turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import merge

from msgspec import convert
from msgspec.structs import asdict

from sequencer.api.errors import GroupNotEmpty, InvalidRequest, LimitReached, StaleGroup, UnknownGroup
from sequencer.api.groups import (
    SHARE_GROUP,
    CommitOffsets,
    DeleteOffsets,
    GroupListing,
    GroupListings,
    GroupRef,
    GroupState,
    LagsRequest,
    ListGroups,
    LoadGroup,
    OffsetErrors,
    OffsetPosition,
    SaveGroup,
    first_turn,
)
from sequencer.api.reads import PartitionError
from sequencer.api.values import Empty
from sequencer.bounds import PageBudget, text_bytes
from sequencer.rules import repeats
from sequencer.rules.leases import EMPTY_GROUP, live_agent, new_group, placeable_agent
from sequencer.rules.positions import POSITIONS_AS_A_STEP, delete_positions, put_position
from sequencer.rules.transactions import transaction_for_offsets
from sequencer.settings import SequencerSettings
from sequencer.store.draft import Draft
from sequencer.store.rows import (
    AgentRow,
    GroupOffsetRow,
    GroupRow,
    PendingOffsetRow,
    PositionKey,
    ShareRow,
    key_of,
)
from sequencer.store.state import COMMIT_NUMBER, HotState, Key, replace_row
from tailrace.limits import INT32, later
from tailrace.turns import Steps

LOOKS_AT_MEMBERS = 4
"""How often a group with members is examined within the time after which its members would be forgotten."""


def load_group(draft: Draft, request: LoadGroup) -> GroupState:
    """Make this agent, under this lease, the group's owner, and return the stored state.

    A group without a row gets one only at `save_group`: several agents may load it as empty; the first to save it owns
    it.
    """
    agent = live_agent(draft, request.broker_id, request.lease_epoch)
    row = draft.get(GroupRow, request.group_id)
    if row is None:
        return GroupState(
            group_id=request.group_id, generation=0, state=EMPTY_GROUP, protocol_type="", members=[], blob=b""
        )
    if row.owner != agent.broker_id and placeable_agent(draft, row.owner) is not None:
        raise StaleGroup(f"group {row.group_id!r} is coordinated by agent {row.owner}; locate it again")
    row = replace_row(row, owner=agent.broker_id, owner_epoch=agent.epoch, term=row.term + 1)
    draft.put(row)
    return convert(row, GroupState, from_attributes=True)


def _owned_group(draft: Draft, group_id: str, broker_id: int, lease_epoch: int) -> GroupRow:
    row = draft.get(GroupRow, group_id)
    agent = draft.get(AgentRow, broker_id)
    if row is None or (row.owner, row.owner_epoch) != (broker_id, lease_epoch):
        owner = "nobody" if row is None else f"agent {row.owner} with epoch {row.owner_epoch}"
        raise StaleGroup(
            f"group {group_id!r} is coordinated by {owner}, not by agent {broker_id} with {lease_epoch}"
        )
    if agent is None or agent.epoch != lease_epoch or agent.expires_ms == 0:
        raise StaleGroup(f"agent {broker_id}'s lease of epoch {lease_epoch} is over; register again")
    return row


def save_group(draft: Draft, request: SaveGroup, settings: SequencerSettings) -> Empty:
    """Store the owner's state of a group. A group that was never saved gets this agent as its owner."""
    state = request.group
    known = draft.get(GroupRow, state.group_id)
    is_untaken = known is None or (known.owner < 0 and known.generation == 0)
    if request.may_create and is_untaken:
        row = known or new_group(draft, state.group_id, settings)
        draft.put(replace_row(row, owner=request.broker_id, owner_epoch=request.lease_epoch))
    row = _owned_group(draft, state.group_id, request.broker_id, request.lease_epoch)
    if state.generation < row.generation:
        raise StaleGroup(f"group {row.group_id!r} is at generation {row.generation}, not {state.generation}")
    _check_turn(row, request.turn)
    if 0 < request.turn <= row.turn:
        return Empty()  # a state of a later turn arrived first
    _check_size(draft, len(state.blob) - len(row.blob), settings)
    draft.put(
        replace_row(
            row,
            turn=max(row.turn, request.turn),
            generation=state.generation,
            state=state.state,
            protocol_type=state.protocol_type,
            members=list(state.members),
            blob=state.blob,
            type=state.type,
            updated_ms=draft.now_ms,
        )
    )
    return Empty()


def _check_size(draft: Draft, more: int, settings: SequencerSettings) -> None:
    """Raise LimitReached if the group grows and all groups together exceed their limit. A group that does not grow is
    accepted."""
    if more > 0 and draft.grow_groups(more) > settings.max_group_bytes:
        raise LimitReached(
            f"{draft.durable.group_bytes} bytes of groups, {more} more; max_group_bytes is {settings.max_group_bytes}"
        )


def _check_turn(row: GroupRow, turn: int) -> None:
    """Raise StaleGroup for a turn of a later term: it belongs to a deleted group of the same name."""
    if turn >= first_turn(row.term + 1):
        raise StaleGroup(f"turn {turn} is of another group {row.group_id!r}, which was deleted")


def delete_group(draft: Draft, request: GroupRef) -> Steps[Empty]:
    """Delete an empty group, its offsets, and its state as a share group."""
    row = draft.get(GroupRow, request.group_id)
    if row is None:
        raise UnknownGroup(f"group {request.group_id!r} does not exist")
    if row.members:
        raise GroupNotEmpty(f"group {row.group_id!r} has {len(row.members)} members; stop them first")
    draft.delete(GroupRow, row.group_id)
    for count, _ in enumerate(draft.delete_positions_of(row.group_id)):
        if count % POSITIONS_AS_A_STEP == 0:
            yield 1
    draft.visible_change()
    return Empty()


def delete_some(draft: Draft, request: GroupRef, keys: Iterable[PositionKey]) -> Steps[bool]:
    """Delete these positions, which must have been looked up, of a group that is about to be deleted. Return False and
    delete nothing if `delete_group` would refuse the request or has already answered it."""
    if not _may_delete(draft, request):
        return False
    if (yield from delete_positions(draft, keys)):
        draft.visible_change()
    return True


def delete_some_shares(draft: Draft, request: GroupRef, keys: Iterable[Key]) -> Steps[bool]:
    """The same for partitions that a share group has read."""
    if not _may_delete(draft, request):
        return False
    for count, key in enumerate(keys):
        if count % POSITIONS_AS_A_STEP == 0:
            yield 1
        if draft.get(ShareRow, *key) is not None:
            draft.delete(ShareRow, *key)
            draft.visible_change()
    return True


def _may_delete(draft: Draft, request: GroupRef) -> bool:
    row = draft.get(GroupRow, request.group_id)
    return row is not None and not row.members and not repeats.is_answered(draft, request.request_id)


def _check_committer(draft: Draft, request: CommitOffsets, settings: SequencerSettings) -> GroupRow:
    row = draft.get(GroupRow, request.group_id)
    if row is not None and row.type == SHARE_GROUP:
        raise UnknownGroup(f"{request.group_id!r} is a share group, which has no positions to commit")
    if request.generation < 0 and not request.member_id:
        if row is None:
            return new_group(draft, request.group_id, settings)
        if row.members and request.transaction is None:
            raise StaleGroup(
                f"group {row.group_id!r} has {len(row.members)} members; commit as one of them, or stop them"
            )
        return row
    row = _owned_group(draft, request.group_id, request.broker_id, request.lease_epoch)
    if row.generation != request.generation:
        raise StaleGroup(
            f"group {row.group_id!r} is at generation {row.generation}, not {request.generation}"
        )
    if request.member_id not in row.members:
        raise StaleGroup(f"{request.member_id!r} is no member of group {row.group_id!r}; join again")
    _check_turn(row, request.turn)
    return row


def commit_offsets(draft: Draft, request: CommitOffsets, settings: SequencerSettings) -> Steps[OffsetErrors]:
    """Store positions for a member of the current generation or for an empty group; positions of a transaction stay
    pending."""
    if any(position.leader_epoch not in INT32 for position in request.offsets):
        raise InvalidRequest(f"a leader epoch in positions of group {request.group_id!r} is not an int32")
    row = _check_committer(draft, request, settings)
    producer_id: int | None = None
    if request.transaction is not None:
        producer_id = transaction_for_offsets(draft, request, request.transaction, settings).producer_id
    errors: list[PartitionError] = []
    group = row
    for count, position in enumerate(request.offsets):
        if count % POSITIONS_AS_A_STEP == 0:
            yield 1
        if draft.live_partition(position.topic_id, position.partition) is None:
            errors.append(PartitionError.UNKNOWN_TOPIC_OR_PARTITION)
            continue
        errors.append(PartitionError.NONE)
        before = draft.get(GroupOffsetRow, row.group_id, position.topic_id, position.partition)
        if _is_older_than_stored(request, before):
            continue
        if producer_id is None:
            group = put_position(draft, group, _position_row(draft, request, position, before), before)
        else:
            pending = _pending_row(_position_row(draft, request, position, before=None), producer_id)
            _put_pending(draft, request, pending)
    if PartitionError.NONE not in errors:
        return OffsetErrors(draft.counter(COMMIT_NUMBER), errors)
    if producer_id is None and draft.may_have_pending(row.group_id):
        yield 1 + len(errors) // POSITIONS_AS_A_STEP
        _overtake(draft, request)
    if group is not row or draft.get(GroupRow, row.group_id) is None:
        draft.put(group)
    return OffsetErrors(draft.visible_change(), errors)


def positions_committed(request: CommitOffsets) -> Iterable[PositionKey]:
    """Return the keys of the positions that `commit_offsets` reads."""
    return ((request.group_id, position.topic_id, position.partition) for position in request.offsets)


def _is_older_than_stored(request: CommitOffsets, known: GroupOffsetRow | PendingOffsetRow | None) -> bool:
    """Whether a later commit arrived before this one and stored this position."""
    return known is not None and 0 < request.turn <= known.turn


def _overtake(draft: Draft, request: CommitOffsets) -> None:
    """Drop pending positions that open transactions sent before this commit: as in Kafka, the later one wins."""
    keys = dict.fromkeys(
        (request.group_id, position.topic_id, position.partition) for position in request.offsets
    )
    for pending in draft.pending_at(request.group_id, keys):
        if not 0 < request.turn < pending.turn:
            draft.delete(PendingOffsetRow, *key_of(pending))


def _put_pending(draft: Draft, request: CommitOffsets, position: PendingOffsetRow) -> None:
    if not _is_older_than_stored(request, draft.get(PendingOffsetRow, *key_of(position))):
        draft.put(position)


def _position_row(
    draft: Draft, request: CommitOffsets, position: OffsetPosition, before: GroupOffsetRow | None
) -> GroupOffsetRow:
    return GroupOffsetRow(
        group_id=request.group_id,
        topic_id=position.topic_id,
        partition=position.partition,
        offset=position.offset,
        leader_epoch=position.leader_epoch,
        metadata=position.metadata,
        commit_ms=draft.now_ms if position.commit_ms < 0 else position.commit_ms,
        expires_ms=None if request.retention_ms < 0 else later(draft.now_ms, request.retention_ms),
        turn=request.turn if before is None else max(request.turn, before.turn),
    )


def _pending_row(position: GroupOffsetRow, producer_id: int) -> PendingOffsetRow:
    return PendingOffsetRow(producer_id=producer_id, **asdict(position))


def delete_offsets(draft: Draft, request: DeleteOffsets) -> Steps[OffsetErrors]:
    """Delete some of a group's positions, which must have been looked up, and the pending ones of open transactions, as
    Kafka does. A position that does not exist is ignored."""
    if draft.get(GroupRow, request.group_id) is None:
        raise UnknownGroup(f"group {request.group_id!r} does not exist")
    errors: list[PartitionError] = []
    known: list[PositionKey] = []
    for count, (topic_id, partition) in enumerate(request.partitions):
        if count % POSITIONS_AS_A_STEP == 0:
            yield 1
        if draft.live_partition(topic_id, partition) is None:
            errors.append(PartitionError.UNKNOWN_TOPIC_OR_PARTITION)
            continue
        errors.append(PartitionError.NONE)
        known.append((request.group_id, topic_id, partition))
    count = yield from delete_positions(draft, known)
    pending = draft.pending_at(request.group_id, dict.fromkeys(known))
    for row in pending:
        draft.delete(PendingOffsetRow, *key_of(row))
    if count or pending:
        draft.visible_change()
    return OffsetErrors(draft.counter(COMMIT_NUMBER), errors)


def positions_deleted(request: DeleteOffsets) -> Iterable[PositionKey]:
    """Return the keys of the positions that `delete_offsets` reads."""
    return ((request.group_id, *partition) for partition in request.partitions)


@dataclass(frozen=True, slots=True)
class ExpiredGroups:
    """The result of one expiry step: how many of the groups are done, and how many share partitions were deleted."""

    groups: int
    partitions: int


def due_ms(
    state: HotState,
    row: GroupRow,
    now_ms: int,
    settings: SequencerSettings,
    *,
    positions_ms: int = 0,
) -> int:
    """Return when something of the group may expire next.

    `positions_ms`: none of the positions that were read expires before this; the row alone gives another bound. A group
    with members and a live coordinator is examined again before its members could be forgotten.
    """
    if row.members:
        if row.owner < 0:
            return row.updated_ms + settings.orphaned_members_ms
        is_owned = _is_owned(row, state.get(AgentRow, row.owner))
        return now_ms + max(1, settings.orphaned_members_ms // LOOKS_AT_MEMBERS) if is_owned else now_ms
    due: list[int] = []
    if row.positions:
        by_row_ms = now_ms if row.has_expiries else row.updated_ms + settings.offsets_retention_ms
        due.append(max(by_row_ms, positions_ms))
    if row.group_id in state.shares_of:
        due.append(shares_over_ms(row, settings))
    return min(due, default=row.updated_ms + settings.empty_group_ms)


def _is_owned(row: GroupRow, owner: AgentRow | None) -> bool:
    """Whether the group's coordinator is live under the lease with which it loaded the group."""
    return owner is not None and owner.expires_ms > 0 and owner.epoch == row.owner_epoch


def expire_groups(
    draft: Draft, group_ids: Sequence[str], settings: SequencerSettings, max_partitions: int
) -> Steps[ExpiredGroups]:
    """Delete what has expired, apart from positions (sequencer.rules.positions): members without a coordinator, the
    share partitions of groups without members, and empty groups.

    Stops after about `max_partitions` share partitions; a group may take several steps.
    """
    expired = 0
    for done, group_id in enumerate(group_ids):
        if expired >= max_partitions:
            return ExpiredGroups(done, expired)
        row = draft.get(GroupRow, group_id)
        if row is None:
            continue
        if row.members:
            _expire_members(draft, row, settings)
            yield 1
            continue
        shares = draft.shares_of(group_id, max_partitions - expired + 1)
        yield 2 + len(shares) // POSITIONS_AS_A_STEP
        over = shares if shares_over_ms(row, settings) <= draft.now_ms else []
        some = over[: max_partitions - expired]
        for share in some:
            draft.delete(ShareRow, *key_of(share))
            draft.visible_change()
        expired += len(some)
        if len(some) < len(over):
            return ExpiredGroups(done, expired)
        is_empty = len(over) == len(shares) and row.positions == 0 and not draft.may_have_pending(group_id)
        if is_empty and row.updated_ms <= draft.now_ms - settings.empty_group_ms:
            draft.delete(GroupRow, group_id)
    return ExpiredGroups(len(group_ids), expired)


def shares_over_ms(row: GroupRow, settings: SequencerSettings) -> int:
    """Return when a share group without members is forgotten with its share partitions."""
    return row.updated_ms + settings.share_offsets_retention_ms


def _expire_members(draft: Draft, row: GroupRow, settings: SequencerSettings) -> None:
    """Remove the members of a group whose coordinator is gone, if none of them has looked for another coordinator.

    Only a coordinator notices that members leave. The time is counted from when the group was first seen without one.
    """
    if _is_owned(row, draft.get(AgentRow, row.owner)):
        return
    if row.owner >= 0:
        draft.put(replace_row(row, owner=-1, owner_epoch=-1, updated_ms=draft.now_ms))
    elif row.updated_ms <= draft.now_ms - settings.orphaned_members_ms:
        draft.put(
            replace_row(
                row,
                generation=row.generation + 1,
                state=EMPTY_GROUP,
                members=[],
                blob=b"",
                updated_ms=draft.now_ms,
            )
        )


def list_groups(state: HotState, request: ListGroups) -> GroupListings:
    """Return a page of groups, ordered by id."""
    budget = PageBudget()
    listed: list[GroupListing] = []
    for group_id in state.group_ids.after(request.after):
        row = state.get(GroupRow, group_id)
        assert row is not None, "nothing changes meanwhile"
        if not budget.takes(16 + text_bytes(group_id, row.state, row.protocol_type)):
            return GroupListings(listed, listed[-1].group_id)
        listed.append(
            GroupListing(
                group_id=group_id,
                state=row.state,
                protocol_type=row.protocol_type,
                owner=row.owner,
                type=row.type,
            )
        )
    return GroupListings(listed)


def groups_asked(state: HotState, request: LagsRequest) -> Iterable[GroupRow]:
    """Yield the requested groups in order, from the first one of the page. Neither groups of other coordinators nor
    those of other pages are read."""
    least = "" if request.after is None else request.after[0]
    if request.owner < 0:
        ids: Iterable[str] = state.group_ids.starting_at(least)
    else:
        owners = dict.fromkeys([request.owner] if request.owner in state.groups_of else [])
        if request.with_orphans:
            owners.update((owner, None) for owner in state.groups_of if not _is_live(state, owner))
        ids = merge(*(state.groups_of[owner].starting_at(least) for owner in owners))
    rows = (state.get(GroupRow, group_id) for group_id in ids)
    return (row for row in rows if row is not None)


def _is_live(state: HotState, owner: int) -> bool:
    row = state.get(AgentRow, owner)
    return row is not None and row.expires_ms > 0
