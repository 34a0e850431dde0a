"""Share groups: which member gets which record, and how it acknowledges the record (KIP-932).

Any agent may send requests for any partition. The committer decides them one after the other, so there is no leader of
a share partition that could lose its state or exist twice. An agent reads records first, and then requests to deliver
them; it delivers what the answer says and nothing else.

Invariants:
- what an answer says is durable: an accepted record is never delivered again, and an acquired record belongs to nobody
  else until its lock expires;
- locks end by themselves: the next request for the partition, from any agent, releases the expired ones;
- only members of the group acquire records; deleting a group deletes its state;
- above `max_share_spans`, the members of a partition get new records one at a time;
- a request that is retried with its id is carried out once, also by the next committer.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from msgspec import structs

from sequencer.api.errors import GroupNotEmpty, InvalidRequest, LimitReached, UnknownGroup
from sequencer.api.groups import SHARE_GROUP, OffsetErrors
from sequencer.api.reads import PartitionError
from sequencer.api.share_groups import (
    AcquiredRecords,
    AlterShareOffsets,
    ShareAnswer,
    ShareError,
    ShareLimits,
    ShareOffset,
    ShareOffsets,
    ShareOffsetsRequest,
    ShareOutcome,
    ShareRequest,
    ShareWork,
)
from sequencer.api.topics import ConfigScope
from sequencer.bounds import MAX_EDGES, MAX_WORKS, PageBudget, edges_of
from sequencer.rules.share_partition import NO_LIMITS, NotAcquired, SharePartition, Span, SpanState
from sequencer.settings import SequencerSettings
from sequencer.store.draft import Draft
from sequencer.store.ordered import NO_PARTITION_KEYS
from sequencer.store.rows import (
    ClientConfigRow,
    GroupRow,
    PartitionRow,
    ShareAnswered,
    ShareLock,
    ShareRow,
    ShareSpan,
)
from sequencer.store.state import COMMIT_NUMBER, HotState, replace_row
from tailrace.configs.group_config import DEAD_LETTER_TOPIC
from tailrace.limits import is_name
from tailrace.turns import Steps

MAX_LOCK_MS = 3_600_000
MAX_DELIVERIES = 100
MAX_IN_FLIGHT = 10_000
AN_AGENT = ""
"""The member id in the locks of records that an agent writes to a dead-letter topic; no member has it."""
KEPT_ANSWERS = 8
"""Answers kept per partition, for retries."""
SPANS_AS_A_STEP = 20
"""The number of spans that cost as much as one run of a commit."""
MAX_OFFSETS = 1_000
"""The most positions in a page: the state of each partition is examined for its lag."""
OFFSET_BYTES = 48
SPAN_BYTES = 100
"""A span takes no bytes of an answer, but as much time: a page examines at most 10,000 spans, or one partition."""


def share_records(draft: Draft, request: ShareRequest, settings: SequencerSettings) -> Steps[ShareAnswer]:
    """Apply a member's acknowledgements and acquire records for it. A failure in one partition does not affect the
    others."""
    _check(request)
    group = draft.get(GroupRow, request.group_id)
    is_member = group is not None and group.type == SHARE_GROUP and request.member_id in group.members
    configs = draft.get(ClientConfigRow, int(ConfigScope.GROUP), request.group_id)
    has_dead_letters = configs is not None and bool(configs.configs.get(DEAD_LETTER_TOPIC))
    room = _Room(draft, settings)
    if draft.durable.share_spans > settings.max_share_spans:
        request = structs.replace(request, limits=structs.replace(request.limits, max_in_flight=1))
    outcomes: list[ShareOutcome] = []
    for work in request.partitions:
        partition = draft.live_partition(work.topic_id, work.partition)
        if partition is None:
            outcomes.append(ShareOutcome(ShareError.UNKNOWN_TOPIC_OR_PARTITION))
            continue
        row = draft.get(ShareRow, request.group_id, work.topic_id, work.partition)
        yield 1 + (edges_of(work) + (0 if row is None else len(row.spans))) // SPANS_AS_A_STEP
        is_full = row is None and room.is_full
        if row is None and (is_full or not is_member):
            error = ShareError.LIMIT_REACHED if is_full else ShareError.NONE
            outcomes.append(ShareOutcome(ShareError.INVALID_RECORD_STATE if work.acknowledged else error))
            continue
        known = row or _new_row(draft, request, partition, work.start_offset)
        changed, outcome = _worked(
            now_ms=draft.now_ms,
            row=known,
            partition=partition,
            request=request,
            work=work,
            is_member=is_member,
            has_dead_letters=has_dead_letters,
        )
        if changed is not row:
            draft.put(changed)
            draft.visible_change()
            room.taken += row is None
        outcomes.append(outcome)
    return ShareAnswer(outcomes)


class _Room:
    """The room for more rows during one request. The rows are counted at most once, because that takes as long as the
    group of requests has changed rows."""

    def __init__(self, draft: Draft, settings: SequencerSettings) -> None:
        self._draft = draft
        self._most = settings.max_share_partitions
        self._before: int | None = None
        self.taken = 0
        """Rows that this request has added."""

    @property
    def is_full(self) -> bool:
        if self._before is None:
            self._before = self._draft.count(ShareRow) - self.taken
        return self._before + self.taken >= self._most


def _check(request: ShareRequest) -> None:
    limits = request.limits
    if not (
        0 < limits.lock_ms <= MAX_LOCK_MS
        and 0 < limits.max_deliveries <= MAX_DELIVERIES
        and 0 < limits.max_in_flight <= MAX_IN_FLIGHT
        and is_name(request.member_id)
        and len(request.partitions) <= MAX_WORKS
    ):
        raise InvalidRequest(f"a share request of {len(request.partitions)} partitions with {limits}")
    edges = 0
    for work in request.partitions:
        end = -1
        for part in work.acknowledged:
            length = part.last_offset - part.first_offset + 1
            if part.first_offset <= end or length < 1 or len(part.types) not in (1, length):
                raise InvalidRequest(
                    f"acknowledged {part.first_offset} to {part.last_offset} by {len(part.types)} types, after {end}"
                )
            end = part.last_offset
        edges += edges_of(work)
    if edges > MAX_EDGES:
        raise InvalidRequest(f"{edges} stretches in a share request; at most {MAX_EDGES}")


def _new_row(draft: Draft, request: ShareRequest, partition: PartitionRow, start: int) -> ShareRow:
    if start < 0:
        start = partition.log_start_offset if request.limits.from_earliest else partition.end_offset
    return ShareRow(
        group_id=request.group_id,
        topic_id=partition.topic_id,
        partition=partition.partition,
        start_offset=min(max(start, partition.log_start_offset), partition.end_offset),
        spans=[],
        locks=[],
        answered=[],
        updated_ms=draft.now_ms,
    )


def _worked(
    now_ms: int,
    row: ShareRow,
    partition: PartitionRow,
    request: ShareRequest,
    work: ShareWork,
    *,
    is_member: bool,
    has_dead_letters: bool,
) -> tuple[ShareRow, ShareOutcome]:
    """Do the work on one partition. Return its row (the same object if nothing changed that must be stored) and the
    outcome."""
    state = opened(row, request.limits, has_dead_letters=has_dead_letters)
    state.trim(partition.log_start_offset)
    state.expire(now_ms)
    answered = _answered(row, request.request_id)
    has_work = bool(work.acknowledged or work.releases or work.acquire or work.written)
    refused: list[AcquiredRecords] = []
    takes_refused = work.refused and has_dead_letters
    if answered is None and (has_work or takes_refused):
        if has_work:
            answered = _carry_out(
                now_ms=now_ms,
                state=state,
                partition=partition,
                request=request,
                work=work,
                is_member=is_member,
            )
        if takes_refused:
            refused = state.refused(ShareLock(AN_AGENT, now_ms + request.limits.lock_ms))
        changed = _closed(
            state, row, now_ms, [] if request.request_id is None or answered is None else [answered]
        )
        if (changed.start_offset, changed.spans, changed.locks) != (row.start_offset, row.spans, row.locks):
            row = changed
    outcome = ShareOutcome(
        error=ShareError.NONE if answered is None else ShareError(answered.error),
        acquired=[] if answered is None else [AcquiredRecords(*records) for records in answered.acquired],
        available=state.available() if is_member else None,
        refused=refused,
    )
    return row, outcome


def _answered(row: ShareRow, request_id: UUID | None) -> ShareAnswered | None:
    """Return the earlier answer to this request, if it is kept."""
    return next((answer for answer in row.answered if answer.request_id == request_id), None)


def _carry_out(
    now_ms: int,
    state: SharePartition,
    partition: PartitionRow,
    request: ShareRequest,
    work: ShareWork,
    *,
    is_member: bool,
) -> ShareAnswered:
    error, acquired = ShareError.NONE, list[AcquiredRecords]()
    lock = ShareLock(request.member_id, now_ms + request.limits.lock_ms, request.session)
    state.written(work.written)
    try:
        state.acknowledge(work.acknowledged, lock)
    except NotAcquired:
        error = ShareError.INVALID_RECORD_STATE
    if work.releases:
        state.release(request.member_id, request.session)
    if work.acquire is not None and is_member:
        asked = work.acquire
        if asked.end_offset > partition.end_offset or asked.max_records < 0:
            raise InvalidRequest(f"{asked} of a log that ends at {partition.end_offset}")
        acquired = state.acquire(asked, lock)
    return ShareAnswered(
        request.request_id or UUID(int=0),
        int(error),
        [(records.first_offset, records.last_offset, records.deliveries) for records in acquired],
    )


def opened(
    row: ShareRow, limits: ShareLimits = NO_LIMITS, *, has_dead_letters: bool = False
) -> SharePartition:
    """Return the state that a row stores."""
    spans: list[Span] = []
    first = row.start_offset
    for kept in row.spans:
        lock = None if kept.lock < 0 else row.locks[kept.lock]
        spans.append(
            Span(
                first=first,
                end=kept.end_offset,
                state=SpanState(kept.state),
                deliveries=kept.deliveries,
                lock=lock,
            )
        )
        first = kept.end_offset
    return SharePartition(
        start=row.start_offset, end=first, spans=spans, limits=limits, has_dead_letters=has_dead_letters
    )


def _closed(state: SharePartition, row: ShareRow, now_ms: int, answered: Sequence[ShareAnswered]) -> ShareRow:
    """Return the row that stores this state."""
    numbers: dict[ShareLock, int] = {}
    spans = [
        ShareSpan(
            span.end,
            int(span.state),
            span.deliveries,
            -1 if span.lock is None else numbers.setdefault(span.lock, len(numbers)),
        )
        for span in state.spans
    ]
    return replace_row(
        row,
        start_offset=state.start,
        spans=spans,
        locks=list(numbers),
        answered=[*row.answered, *answered][-KEPT_ANSWERS:],
        updated_ms=now_ms,
    )


def share_offsets(state: HotState, request: ShareOffsetsRequest) -> ShareOffsets:
    """Return a page of the group's positions in the partitions that it has read."""
    budget = PageBudget(MAX_OFFSETS)
    offsets: list[ShareOffset] = []
    for key in state.shares_of.get(request.group_id, NO_PARTITION_KEYS).after(request.after):
        _, topic_id, number = key
        partition, row = state.live_partition(topic_id, number), state.get(ShareRow, *key)
        if partition is None or row is None:
            continue
        if not budget.takes(OFFSET_BYTES + SPAN_BYTES * len(row.spans)):
            return ShareOffsets(offsets, (offsets[-1].topic_id, offsets[-1].partition))
        kept = opened(row)
        kept.trim(partition.log_start_offset)
        lag = max(0, partition.end_offset - kept.start - kept.done_after_start)
        offsets.append(ShareOffset(topic_id, number, kept.start, lag))
    return ShareOffsets(offsets)


def alter_share_offsets(
    draft: Draft, request: AlterShareOffsets, settings: SequencerSettings
) -> Steps[OffsetErrors]:
    """Restart a group without members at the given offsets of some partitions, or forget the partitions."""
    group = draft.get(GroupRow, request.group_id)
    if group is None or group.type != SHARE_GROUP:
        raise UnknownGroup(f"there is no share group {request.group_id!r}")
    if group.members:
        raise GroupNotEmpty(f"group {group.group_id!r} has {len(group.members)} members; stop them first")
    room = _Room(draft, settings)
    errors: list[PartitionError] = []
    for asked in request.offsets:
        yield 1
        partition = draft.live_partition(asked.topic_id, asked.partition)
        key = (request.group_id, asked.topic_id, asked.partition)
        if partition is None:
            errors.append(PartitionError.UNKNOWN_TOPIC_OR_PARTITION)
            continue
        errors.append(PartitionError.NONE)
        if asked.start_offset >= 0:
            start = min(max(asked.start_offset, partition.log_start_offset), partition.end_offset)
            is_new = draft.get(ShareRow, *key) is None
            if is_new and room.is_full:
                raise LimitReached(f"max_share_partitions is {settings.max_share_partitions}")
            draft.put(ShareRow(*key, start, [], [], [], draft.now_ms))
            draft.visible_change()
            room.taken += is_new
        elif draft.get(ShareRow, *key) is not None:
            draft.delete(ShareRow, *key)
            draft.visible_change()
            room.taken -= 1
    draft.put(replace_row(group, updated_ms=draft.now_ms))  # its retention starts again
    return OffsetErrors(draft.counter(COMMIT_NUMBER), errors)
