"""Groups: which agent coordinates one, its stored state, its committed positions and its lags."""

from __future__ import annotations

from uuid import UUID

from sequencer.api.reads import PartitionError
from sequencer.api.transactions import TransactionRef
from sequencer.api.values import Value
from tailrace.limits import Int64


class LocateGroup(Value, frozen=True):
    """Requests the agent that coordinates the group. If the group has no live owner, the answer is the first live agent
    of `candidates`."""

    group_id: str
    candidates: list[Int64]


class GroupOwner(Value, frozen=True):
    broker_id: int
    host: str
    port: int


class LoadGroup(Value, frozen=True):
    """Sent by an agent that begins to coordinate a group. `lease_epoch` is the epoch of the agent's lease."""

    group_id: str
    broker_id: Int64
    lease_epoch: Int64


CLASSIC_GROUP, CONSUMER_GROUP, SHARE_GROUP = "classic", "consumer", "share"
"""Group types. In a classic group a member computes the assignment; in a consumer group the coordinator does (KIP-848).
The members of a share group share partitions record by record (KIP-932)."""


class GroupState(Value, frozen=True):
    """`blob` is the coordinator's own encoding (empty for a new group); `generation` and `members` repeat what the
    sequencer checks. `term`: how many times a coordinator has loaded the group, including this time."""

    group_id: str
    generation: Int64
    state: str
    protocol_type: str
    members: list[str]
    blob: bytes
    term: Int64 = 0
    type: str = CLASSIC_GROUP


def first_turn(term: int) -> int:
    """Return the turn that precedes the first turn of the coordinator of this `term`. It is higher than all turns of
    earlier coordinators."""
    return term << 40


class SaveGroup(Value, frozen=True):
    """`may_create`: the group had no state when this agent loaded it, and was not saved since. If the group has no row
    it is created, once per `request_id`. `turn`: as in CommitOffsets; a state of an earlier turn than the stored one
    changes nothing."""

    broker_id: Int64
    lease_epoch: Int64
    group: GroupState
    may_create: bool = True
    turn: Int64 = 0
    request_id: UUID | None = None


class OffsetPosition(Value, frozen=True):
    """`has_pending`: an open transaction will change this position if it commits. `is_unknown`: there is no such
    partition. Only `fetch_offsets` sets these two."""

    topic_id: UUID
    partition: Int64
    offset: Int64
    leader_epoch: Int64
    metadata: str
    commit_ms: Int64 = -1
    has_pending: bool = False
    is_unknown: bool = False


class CommitOffsets(Value, frozen=True):
    """Commit offsets of a group. `generation` -1 with `member_id` '' is only allowed for an empty group, and needs no
    owner.

    With a `transaction` the positions are pending until it ends; generation -1 with member '' then means a client that
    does not send them (before KIP-447), whatever the group's state. `joins`: this request adds the group to the
    transaction (transaction version 2); otherwise `add_to_transaction` must have added it. `number`: the transaction
    that the client means, as in AddToTransaction.

    `turn`: numbers a coordinator's commits for a group in the order in which it sends them, see `first_turn`; 0: no
    turn. A commit of an earlier turn does not overwrite a position of a later one, but is answered as if it had arrived
    in time. Without turns, retries with the same `request_id` get the first answer.
    """

    group_id: str
    broker_id: Int64
    lease_epoch: Int64
    generation: Int64
    member_id: str
    offsets: list[OffsetPosition]
    retention_ms: Int64 = -1
    transaction: TransactionRef | None = None
    joins: bool = False
    turn: Int64 = 0
    number: Int64 = -1
    request_id: UUID | None = None


class OffsetErrors(Value, frozen=True):
    """One error per requested position."""

    commit_number: int
    errors: list[PartitionError]


class FetchOffsets(Value, frozen=True):
    """`partitions` None: all of the group's, in pages of at most `limit`; `after` is the `next` of the previous page.
    Offsets of deleted topics are gone."""

    group_id: str
    partitions: list[tuple[UUID, Int64]] | None
    after: tuple[UUID, Int64] | None = None
    limit: Int64 = 5_000


class OffsetPositions(Value, frozen=True):
    """Positions in the order of the request; offset -1 if there is none. There may be fewer than requested, but at
    least one: request the others again.

    If all partitions were requested, this is a page ordered by topic id and partition. `next`: the last entry if there
    are more pages.
    """

    positions: list[OffsetPosition]
    next: tuple[UUID, int] | None = None


class DeleteOffsets(Value, frozen=True):
    group_id: str
    partitions: list[tuple[UUID, Int64]]
    request_id: UUID | None = None


class GroupRef(Value, frozen=True):
    group_id: str
    request_id: UUID | None = None


class ListGroups(Value, frozen=True):
    """`after`: the `next` of the previous page."""

    after: str | None = None


class GroupListing(Value, frozen=True):
    group_id: str
    state: str
    protocol_type: str
    owner: int
    type: str = CLASSIC_GROUP


class GroupListings(Value, frozen=True):
    """A page, ordered by group id. `next`: the last entry if there are more pages."""

    groups: list[GroupListing]
    next: str | None = None


class LagsRequest(Value, frozen=True):
    """`after`: the `next` of the previous page. `owner`: only groups that this agent coordinates; -1 for all.
    `with_orphans`: also groups whose coordinator is gone or that never had one."""

    after: tuple[str, UUID, Int64] | None = None
    owner: Int64 = -1
    with_orphans: bool = False


class Lag(Value, frozen=True):
    group_id: str
    topic: str
    partition: int
    committed: int
    high_watermark: int


class Lags(Value, frozen=True):
    """A page, ordered by group id, topic id and partition. `next`: the last entry if there are more pages."""

    lags: list[Lag]
    next: tuple[str, UUID, int] | None = None
