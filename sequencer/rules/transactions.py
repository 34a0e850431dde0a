"""Transactions: who may write under a transactional id, what its transaction contains, and how it ends.

The end of a transaction is one change: the markers of all its partitions, its group offsets and its own row become
durable and visible together or not at all. So there are no intermediate states.

Invariants:
- a transactional id has one producer id and epoch; a producer with an older one is fenced;
- the transactions of a producer are numbered. A batch is stored only in the transaction in which it was sent: the one
  that was open when an agent received it (by number), or the one of its epoch (if every end bumps the epoch);
- an open range begins at a producer's first stored batch in a partition, and ends with the marker's offset;
- a retried end gets its first answer and ends nothing else;
- a producer whose transaction was aborted for it (a time-out, an operator) is fenced. As in Kafka, it gets the next
  epoch by InitProducerId (KIP-588) or, if its ends bump the epoch, by an abort, unless another producer took the id;
- requests that a client sent in one transaction add nothing to a later one, however late they arrive;
- the end of a transaction skips topics and groups that were deleted meanwhile; it does not fail.

Work per partition of a transaction is `Steps`, with one unit per partition.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import cast
from uuid import UUID

from sequencer.api.commits import ANY_TRANSACTION, BatchError, BatchStatus, ObjectKind
from sequencer.api.errors import (
    InvalidProducerIdMapping,
    InvalidRequest,
    InvalidTransactionState,
    InvalidTransactionTimeout,
    LimitReached,
    ProducerFenced,
    UnknownPartition,
)
from sequencer.api.groups import CommitOffsets
from sequencer.api.producers import InitProducer, ProducerGrant
from sequencer.api.reads import Marker, PartitionError, RunBatch
from sequencer.api.transactions import (
    AbortedProducer,
    AbortProducer,
    AddToTransaction,
    CurrentTransaction,
    CurrentTransactionQuery,
    CurrentTransactionsAnswer,
    CurrentTransactionsRequest,
    EndTransaction,
    TransactionDescription,
    TransactionDescriptions,
    TransactionRef,
    TransactionsRequest,
    TransactionState,
)
from sequencer.api.values import Empty
from sequencer.bounds import PageBudget, text_bytes
from sequencer.rules.positions import put_position
from sequencer.settings import SequencerSettings
from sequencer.store.batch_table import NO_OBJECT, encode_markers, encode_table, join_run
from sequencer.store.draft import Draft
from sequencer.store.rows import (
    NO_PRODUCER,
    AbortedRow,
    EndedTransaction,
    GroupOffsetRow,
    GroupRow,
    OpenRangeRow,
    PartitionRow,
    PositionKey,
    ProducerRef,
    RunRow,
    TopicRow,
    TransactionRow,
)
from sequencer.store.state import PRODUCER_ID, HotState, replace_row
from tailrace.batches.mixed_object import BatchCoordinates
from tailrace.limits import INT16, MAX_NAME_BYTES, is_name
from tailrace.turns import Steps

LAST_EPOCH = 32766
"""The last epoch of a producer id; after it a new producer id is granted. An epoch is an int16, and Kafka never grants
the largest value."""
MARKER_LENGTH = 78
"""Bytes of a control batch with one marker (tailrace.batches.record_batch.control_batch)."""


# --- producers ------------------------------------------------------------------------------------------


MARKERS_OF_A_RUN = 32
LOOKUPS_AS_A_STEP = 100
"""The number of partition look-ups of a transaction that cost as much as ending one partition."""
FEW_PARTITIONS = 16
PartitionSets = dict[int, tuple[list[tuple[UUID, int]], frozenset[tuple[UUID, int]]]]
"""By producer id: the partitions of its transaction as a list and as a set."""
Joined = dict[int, list[tuple[UUID, int]]]
"""By producer id: partitions in which a commit stored batches of its open transaction."""


def init_producer(draft: Draft, request: InitProducer, settings: SequencerSettings) -> Steps[ProducerGrant]:
    """Grant the transactional id to the caller, with a new epoch and no open transaction."""
    name = request.transactional_id
    if name is None or not is_name(name):
        raise InvalidRequest(
            f"a transactional id of {len((name or '').encode())} bytes; 1 to {MAX_NAME_BYTES} are allowed"
        )
    if not 0 < request.timeout_ms <= settings.transaction_max_timeout_ms:
        raise InvalidTransactionTimeout(
            f"a transaction time-out of {request.timeout_ms} ms; allowed are 1 to"
            f" {settings.transaction_max_timeout_ms} (transaction_max_timeout_ms)"
        )
    row = draft.get(TransactionRow, name)
    if row is None:
        return _new_transactional_id(draft, name, request.timeout_ms, settings)
    named = ProducerRef(request.producer_id, request.producer_epoch)
    is_named = named != NO_PRODUCER
    if is_named and named != row.producer:
        if named == row.previous and row.state is not TransactionState.ONGOING:
            return ProducerGrant(*row.producer)
        raise ProducerFenced(
            f"transactional id {name!r} has producer {row.producer_id} with epoch {row.producer_epoch},"
            f" not {named.producer_id} with {named.producer_epoch}"
        )
    if row.state is TransactionState.ONGOING:
        row = yield from _finish(draft, row, is_commit=False)
    row = _bumped(draft, row)
    if not is_named:
        row = row.with_previous(None)
    draft.put(
        replace_row(row, state=TransactionState.EMPTY, timeout_ms=request.timeout_ms, updated_ms=draft.now_ms)
    )
    return ProducerGrant(*row.producer)


def _new_transactional_id(
    draft: Draft, name: str, timeout_ms: int, settings: SequencerSettings
) -> ProducerGrant:
    known = draft.count(TransactionRow)
    if known >= settings.max_transactional_ids:
        raise LimitReached(
            f"{known} transactional ids; max_transactional_ids is {settings.max_transactional_ids}"
        )
    producer_id = draft.next_value(PRODUCER_ID)
    row = TransactionRow.new(name, producer_id=producer_id, timeout_ms=timeout_ms, now_ms=draft.now_ms)
    draft.put(row)
    return ProducerGrant(*row.producer)


def _bumped(draft: Draft, row: TransactionRow) -> TransactionRow:
    """Return the row with the next epoch, or with epoch 0 of a new producer id."""
    producer_id, epoch = row.producer_id, row.producer_epoch + 1
    if epoch > LAST_EPOCH:
        producer_id, epoch = draft.next_value(PRODUCER_ID), 0
    return replace_row(row.with_previous(row.producer), producer_id=producer_id, producer_epoch=epoch)


def _current(draft: Draft, named: TransactionRef) -> TransactionRow:
    """Return the transactional id's row if the caller is its current producer."""
    row = draft.get(TransactionRow, named.transactional_id)
    if row is None or row.producer_id != named.producer_id:
        now = "unknown" if row is None else f"of producer {row.producer_id}"
        raise InvalidProducerIdMapping(
            f"transactional id {named.transactional_id!r} is {now}, not of {named.producer_id}"
        )
    if named.producer_epoch != row.producer_epoch:
        raise ProducerFenced(
            f"transactional id {row.transactional_id!r} is at epoch {row.producer_epoch}, not at"
            f" {named.producer_epoch}"
        )
    return row


# --- what a transaction holds ---------------------------------------------------------------------------


def add_to_transaction(draft: Draft, request: AddToTransaction, settings: SequencerSettings) -> Steps[Empty]:
    """Add the partitions and the group, all or none; begin the transaction if none is open."""
    row = _current(draft, request.transaction)
    if request.verify_only:
        _verify(row, request)
        return Empty()
    _check_number(
        row, request.number, row.number if row.state is TransactionState.ONGOING else row.number + 1
    )
    for count, (topic_id, partition) in enumerate(request.partitions):
        if draft.live_partition(topic_id, partition) is None:
            raise UnknownPartition(f"partition {topic_id}-{partition} does not exist")
        if count % LOOKUPS_AS_A_STEP == 0:
            yield LOOKUPS_AS_A_STEP // 10
    groups = [] if request.group_id is None else [request.group_id]
    _add(draft, row, partitions=request.partitions, groups=groups, settings=settings)
    return Empty()


def _check_number(row: TransactionRow, meant: int, now: int) -> None:
    """Raise InvalidTransactionState if a request was meant for another transaction than the one it would change now."""
    if meant not in (-1, now):
        raise InvalidTransactionState(
            f"transactional id {row.transactional_id!r} is at transaction {row.number}; this was sent in {meant}"
        )


def _verify(row: TransactionRow, request: AddToTransaction) -> None:
    known = set(row.partitions) if row.state is TransactionState.ONGOING else set()
    missing = [key for key in request.partitions if key not in known]
    if missing or (request.group_id is not None and request.group_id not in row.groups):
        raise InvalidTransactionState(
            f"transactional id {row.transactional_id!r} is {row.state} and its transaction has not"
            f" {missing[:3] or request.group_id!r}"
        )


def _add(
    draft: Draft,
    row: TransactionRow,
    partitions: list[tuple[UUID, int]],
    groups: list[str],
    settings: SequencerSettings,
) -> TransactionRow:
    begun = row if row.state is TransactionState.ONGOING else _begun(draft, row, settings)
    known = set(begun.partitions)
    added = [key for key in dict.fromkeys(partitions) if key not in known]
    joined = [group for group in groups if group not in begun.groups]
    if begun is row and not added and not joined:
        return row
    _check_groups(begun, joined, settings)
    begun = replace_row(
        begun,
        partitions=[*begun.partitions, *added],
        groups=[*begun.groups, *joined],
        updated_ms=draft.now_ms,
    )
    draft.put(begun)
    return begun


def _check_groups(row: TransactionRow, joined: list[str], settings: SequencerSettings) -> None:
    for group_id in joined:
        if not is_name(group_id):
            raise InvalidRequest(
                f"a group id of {len(group_id.encode())} bytes; 1 to {MAX_NAME_BYTES} are allowed"
            )
    if len(row.groups) + len(joined) > settings.max_groups_per_transaction:
        raise InvalidRequest(
            f"{len(row.groups) + len(joined)} groups in one transaction of {row.transactional_id!r};"
            f" max_groups_per_transaction is {settings.max_groups_per_transaction}"
        )


def _begun(draft: Draft, row: TransactionRow, settings: SequencerSettings) -> TransactionRow:
    if not may_begin(draft, settings):
        raise LimitReached(
            f"{len(draft.durable.open_transactions)} transactions are open;"
            f" max_open_transactions is {settings.max_open_transactions}"
        )
    return replace_row(
        row.with_previous(None),
        number=row.number + 1,
        state=TransactionState.ONGOING,
        started_ms=draft.now_ms,
        partitions=[],
        groups=[],
    )


def may_begin(draft: Draft, settings: SequencerSettings) -> bool:
    """Whether one more transaction may be opened."""
    return len(draft.durable.open_transactions) < settings.max_open_transactions


def transaction_of(state: Draft | HotState, producer_id: int) -> TransactionRow | None:
    """Return the row of the transactional id that currently has this producer id."""
    durable = state.durable if isinstance(state, Draft) else state
    name = durable.transactional_ids.get(producer_id)
    row = None if name is None else state.get(TransactionRow, name)
    return row if row is not None and row.producer_id == producer_id else None


def current_transactions(
    state: HotState, request: CurrentTransactionsRequest
) -> Steps[CurrentTransactionsAnswer]:
    """Return the number of the transaction that each batch belongs to. Each batch is a unit of work."""
    known: PartitionSets = {}
    current: list[CurrentTransaction] = []
    for query in request.batches:
        current.append(_current_transaction(state, query, known))
        yield 1
    return CurrentTransactionsAnswer(current)


def _current_transaction(
    state: HotState, query: CurrentTransactionQuery, known: PartitionSets
) -> CurrentTransaction:
    row = transaction_of(state, query.producer_id)
    if row is None:
        return CurrentTransaction(BatchError.TRANSACTION_CLOSED, -1)
    if query.producer_epoch != row.producer_epoch:
        return CurrentTransaction(BatchError.INVALID_PRODUCER_EPOCH, -1)
    if not _is_open_on(row, (query.topic_id, query.partition), known):
        return CurrentTransaction(BatchError.TRANSACTION_CLOSED, -1)
    return CurrentTransaction(BatchError.NONE, row.number)


def _is_open_on(row: TransactionRow, key: tuple[UUID, int], known: PartitionSets | None = None) -> bool:
    return row.state is TransactionState.ONGOING and key in _partitions_of(
        row, {} if known is None else known
    )


def _partitions_of(row: TransactionRow, known: PartitionSets) -> Collection[tuple[UUID, int]]:
    """Return the transaction's partitions. If they are many, return a set, which `known` keeps with the list that it
    was made from."""
    if len(row.partitions) <= FEW_PARTITIONS:
        return row.partitions
    kept = known.get(row.producer_id)
    if kept is None or kept[0] is not row.partitions:
        kept = known[row.producer_id] = (row.partitions, frozenset(row.partitions))
    return kept[1]


def admit(
    draft: Draft,
    topic_id: UUID,
    partition: int,
    batch: BatchCoordinates,
    number: int,
    settings: SequencerSettings,
) -> BatchError:
    """Whether transactions allow a producer's batch to be stored. Changes nothing."""
    if batch.is_control:
        return BatchError.TRANSACTION_CLOSED
    row = transaction_of(draft, batch.producer_id)
    if not batch.is_transactional:
        return BatchError.NONE if row is None else BatchError.TRANSACTION_CLOSED
    if row is None:
        return BatchError.TRANSACTION_CLOSED
    if batch.producer_epoch != row.producer_epoch:
        return BatchError.INVALID_PRODUCER_EPOCH
    if number == ANY_TRANSACTION:
        is_open = row.state is TransactionState.ONGOING or may_begin(draft, settings)
    else:
        is_open = row.number == number and _is_open_on(row, (topic_id, partition), draft.partition_sets)
    return BatchError.NONE if is_open else BatchError.TRANSACTION_CLOSED


def note_stored(
    draft: Draft,
    topic_id: UUID,
    partition: int,
    first_offsets: Mapping[int, int],
    joined: Joined,
    settings: SequencerSettings,
) -> None:
    """Store the first offset of each producer's transaction in a run.

    A transaction begins here if none is open; otherwise `join_partitions` must add the partition to it.
    """
    for producer_id, first_offset in first_offsets.items():
        row = transaction_of(draft, producer_id)
        assert row is not None, f"a batch of producer {producer_id} was admitted without a transactional id"
        if row.state is TransactionState.ONGOING:
            joined.setdefault(producer_id, []).append((topic_id, partition))
        else:
            _add(draft, row, partitions=[(topic_id, partition)], groups=[], settings=settings)
        if draft.get(OpenRangeRow, topic_id, partition, producer_id) is None:
            draft.put(
                OpenRangeRow(
                    topic_id=topic_id, partition=partition, producer_id=producer_id, first_offset=first_offset
                )
            )


def join_partitions(draft: Draft, joined: Joined, settings: SequencerSettings) -> None:
    """Add the partitions of one commit's runs to their transactions, with one change per transaction."""
    for producer_id, partitions in joined.items():
        row = transaction_of(draft, producer_id)
        assert row is not None and row.state is TransactionState.ONGOING, (
            "it was open when the run was stored"
        )
        _add(draft, row, partitions=partitions, groups=[], settings=settings)


def transaction_for_offsets(
    draft: Draft, request: CommitOffsets, named: TransactionRef, settings: SequencerSettings
) -> TransactionRow:
    """Return the open transaction that a group's positions wait for."""
    row = _current(draft, named)
    if request.joins:
        return _add(draft, row, partitions=[], groups=[request.group_id], settings=settings)
    if row.state is not TransactionState.ONGOING or request.group_id not in row.groups:
        raise InvalidTransactionState(
            f"transactional id {row.transactional_id!r} is {row.state} and group {request.group_id!r} was not"
            " added to its transaction"
        )
    _check_number(row, request.number, row.number)
    return row


# --- ends -------------------------------------------------------------------------------------------------


def end_transaction(draft: Draft, request: EndTransaction) -> Steps[ProducerGrant]:
    """Commit or abort the open transaction, or return the first answer if this is a retry."""
    named = request.transaction
    known = draft.get(TransactionRow, named.transactional_id)
    if known is not None:
        answered = _answer_before(known, request)
        if answered is not None:
            return answered
    row = _current(draft, named)
    is_open = row.state is TransactionState.ONGOING
    if not is_open and not (request.bumps_epoch and not request.is_commit):
        done = TransactionState.COMPLETE_COMMIT if request.is_commit else TransactionState.COMPLETE_ABORT
        if row.state is done and not request.bumps_epoch:
            return ProducerGrant(*row.producer)
        raise InvalidTransactionState(
            f"transactional id {row.transactional_id!r} is {row.state}; there is nothing to"
            f" {'commit' if request.is_commit else 'abort'}"
        )
    ended = (yield from _finish(draft, row, is_commit=request.is_commit)) if is_open else row
    if not is_open:
        ended = replace_row(ended, state=TransactionState.COMPLETE_ABORT)
    ended = _bumped(draft, ended) if request.bumps_epoch else ended
    end = EndedTransaction(
        producer=row.producer, number=row.number, is_commit=request.is_commit, granted=ended.producer
    )
    draft.put(replace_row(ended.with_last_end(end), updated_ms=draft.now_ms))
    return ProducerGrant(*ended.producer)


def positions_read(state: HotState, request: EndTransaction) -> Iterable[PositionKey]:
    """Return the keys of the positions that `end_transaction` reads, of those that are pending in this state. If a
    position becomes pending in the same group of requests, the commit that sends it has already looked it up."""
    row = state.get(TransactionRow, request.transaction.transactional_id)
    if row is None or not request.is_commit:
        return []
    pending = (state.pending_of.get(group_id, {}).get(row.producer_id, ()) for group_id in row.groups)
    return (cast("PositionKey", key[:3]) for keys in pending for key in keys)


def _answer_before(row: TransactionRow, request: EndTransaction) -> ProducerGrant | None:
    """Return the first answer to an end that is certainly a retry; None if it must be decided."""
    named = ProducerRef(request.transaction.producer_id, request.transaction.producer_epoch)
    is_current = named == row.producer
    if is_current and request.number in (-1, row.number):
        return None
    end = row.last_end
    is_last = end is not None and _is_end_of(end, row, named, request)
    if not is_last and not is_current:
        return None
    if end is None:
        raise InvalidTransactionState(
            f"transactional id {row.transactional_id!r} is at transaction {row.number}, not {request.number}"
        )
    if is_last and end.is_commit == request.is_commit:
        return ProducerGrant(*end.granted)
    raise InvalidTransactionState(
        f"transaction {end.number} of transactional id {row.transactional_id!r} was"
        f" {'committed' if end.is_commit else 'aborted'}"
    )


def _is_end_of(
    end: EndedTransaction, row: TransactionRow, named: ProducerRef, request: EndTransaction
) -> bool:
    """Whether the request of this producer means this end."""
    if named != end.producer:
        return False
    if not request.bumps_epoch and named != end.granted:
        return False  # the transaction was aborted for a client that can't learn the new epoch
    if request.number >= 0:
        return request.number == end.number
    # If the end granted no new epoch, a transaction begun since then (and aborted by a time-out) has the same producer
    # id and epoch.
    return named != end.granted or row.number == end.number


def _finish(draft: Draft, row: TransactionRow, *, is_commit: bool) -> Steps[TransactionRow]:
    """End the open transaction: markers, ranges, group offsets. Return its row; the caller puts it."""
    assert row.state is TransactionState.ONGOING, f"{row.transactional_id!r} is {row.state}"
    for topic_id, number in row.partitions:
        opened = draft.get(OpenRangeRow, topic_id, number, row.producer_id)
        if opened is not None:
            _end_range(draft, opened, row.producer_epoch, is_commit)
        yield 1
    for group_id in row.groups:
        yield from _end_offsets(draft, group_id, row.producer_id, is_commit)
    return replace_row(
        row,
        state=TransactionState.COMPLETE_COMMIT if is_commit else TransactionState.COMPLETE_ABORT,
        started_ms=-1,
        partitions=[],
        groups=[],
    )


def _end_range(draft: Draft, opened: OpenRangeRow, producer_epoch: int, is_commit: bool) -> None:
    topic_id, number, producer_id = opened.topic_id, opened.partition, opened.producer_id
    draft.delete(OpenRangeRow, topic_id, number, producer_id)
    partition = draft.live_partition(topic_id, number)
    if partition is None:
        return
    offset = partition.end_offset
    _append_marker(
        draft,
        partition,
        Marker(
            offset=offset,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            is_commit=is_commit,
            timestamp=draft.now_ms,
        ),
    )
    if not is_commit:
        draft.put(
            AbortedRow(
                topic_id=topic_id,
                partition=number,
                producer_id=producer_id,
                first_offset=opened.first_offset,
                last_offset=offset,
            )
        )


def _append_marker(draft: Draft, partition: PartitionRow, marker: Marker) -> None:
    """Append a marker at the partition's end. Up to MARKERS_OF_A_RUN markers that the same database transaction has
    just put there share one row, which is encoded again for each of them."""
    topic_id, number = partition.topic_id, partition.partition
    last = draft.last_published(topic_id, number)
    is_joined = (
        last is not None
        and last.kind is ObjectKind.MARKERS
        and last.end_offset == partition.end_offset
        and len(last.markers) < MARKERS_OF_A_RUN
    )
    markers = [*last.markers, marker] if last is not None and is_joined else [marker]
    row = RunRow(
        topic_id=topic_id,
        partition=number,
        base_offset=markers[0].offset,
        end_offset=marker.offset + 1,
        object_id=NO_OBJECT,
        start=0,
        length=MARKER_LENGTH * len(markers),
        max_timestamp=-1,
        running_max_timestamp=partition.running_max_timestamp,
        commit_number=draft.visible_change(),
        created_ms=draft.now_ms,
        kind=ObjectKind.MARKERS,
        batches=encode_table(
            [
                RunBatch(
                    length=MARKER_LENGTH,
                    record_count=1,
                    status=BatchStatus.STORED,
                    base_offset=stored.offset,
                    max_timestamp=-1,
                )
                for stored in markers
            ]
        ),
        markers=encode_markers(markers),
    )
    draft.put_run(row)
    draft.put(replace_row(partition, end_offset=row.end_offset))
    draft.publish(topic_id, number, join_run(row, None))


def _end_offsets(draft: Draft, group_id: str, producer_id: int, is_commit: bool) -> Steps[None]:
    group = before_it = draft.get(GroupRow, group_id)
    for pending in draft.pending_of(group_id, producer_id):
        yield 1
        draft.delete(type(pending), group_id, pending.topic_id, pending.partition, producer_id)
        draft.visible_change()
        if (
            is_commit
            and group is not None
            and draft.live_partition(pending.topic_id, pending.partition) is not None
        ):
            before = draft.get(GroupOffsetRow, group_id, pending.topic_id, pending.partition)
            if before is not None and 0 < pending.turn < before.turn:
                continue  # the position was committed later, by another transaction
            position = GroupOffsetRow(
                group_id=group_id,
                topic_id=pending.topic_id,
                partition=pending.partition,
                offset=pending.offset,
                leader_epoch=pending.leader_epoch,
                metadata=pending.metadata,
                commit_ms=pending.commit_ms,
                expires_ms=pending.expires_ms,
                turn=max(pending.turn, 0 if before is None else before.turn),
            )
            group = put_position(draft, group, position, before)
    if group is not None and group is not before_it:
        draft.put(group)


def _abort_and_fence(draft: Draft, row: TransactionRow) -> Steps[None]:
    fenced = _bumped(draft, (yield from _finish(draft, row, is_commit=False)))
    end = EndedTransaction(producer=row.producer, number=row.number, is_commit=False, granted=fenced.producer)
    draft.put(replace_row(fenced.with_last_end(end), updated_ms=draft.now_ms))


def abort_producer(draft: Draft, request: AbortProducer) -> Steps[AbortedProducer]:
    """Abort what a producer of this epoch has open in these partitions: its transaction, or a range without one."""
    if request.producer_epoch not in INT16:
        raise InvalidRequest(f"producer epoch {request.producer_epoch} is not an int16")
    row = transaction_of(draft, request.producer_id)
    errors: list[PartitionError] = []
    for topic_id, partition in request.partitions:
        yield 1
        if draft.live_partition(topic_id, partition) is None:
            errors.append(PartitionError.UNKNOWN_TOPIC_OR_PARTITION)
            continue
        errors.append(PartitionError.NONE)
        opened = draft.get(OpenRangeRow, topic_id, partition, request.producer_id)
        if opened is None:
            continue
        if row is None or not _is_open_on(row, (topic_id, partition)):
            _end_range(draft, opened, request.producer_epoch, is_commit=False)
        elif request.producer_epoch == row.producer_epoch:
            yield from _abort_and_fence(draft, row)
    return AbortedProducer(errors)


def has_timed_out(row: TransactionRow | None, now_ms: int) -> bool:
    """Whether a transactional id has an open transaction that has timed out."""
    return (
        row is not None
        and row.state is TransactionState.ONGOING
        and row.started_ms + row.timeout_ms <= now_ms
    )


def abort_timed_out(draft: Draft, names: Iterable[str] | None = None) -> Steps[int]:
    """Abort those of these transactional ids' transactions (None: of all) that have timed out, and fence their
    producers; return how many."""
    aborted = 0
    for count, name in enumerate(draft.durable.open_transactions if names is None else names):
        if count % LOOKUPS_AS_A_STEP == 0:
            yield LOOKUPS_AS_A_STEP // 10
        row = draft.get(TransactionRow, name)
        if row is not None and has_timed_out(row, draft.now_ms):
            yield from _abort_and_fence(draft, row)
            aborted += 1
    return aborted


# --- listing ----------------------------------------------------------------------------------------------


def describe(state: HotState, request: TransactionsRequest) -> TransactionDescriptions:
    """Return a page of the requested transactional ids that exist, or of all, ordered by id."""
    requested = request.transactional_ids
    ids = (
        state.transaction_names.after(request.after)
        if requested is None
        else _after(requested, request.after)
    )
    budget = PageBudget()
    descriptions: list[TransactionDescription] = []
    for transactional_id in ids:
        row = state.get(TransactionRow, transactional_id)
        if row is None:
            continue
        if not budget.takes(64 + text_bytes(transactional_id, *row.groups) + 28 * len(row.partitions)):
            return TransactionDescriptions(descriptions, descriptions[-1].transactional_id)
        descriptions.append(_description(state, row))
    return TransactionDescriptions(descriptions)


def _after(names: Iterable[str], after: str | None) -> list[str]:
    return sorted({name for name in names if after is None or name > after})


def _description(state: HotState, row: TransactionRow) -> TransactionDescription:
    known = [key for key in row.partitions if state.get(TopicRow, key[0]) is not None]
    return TransactionDescription(
        transactional_id=row.transactional_id,
        producer_id=row.producer_id,
        producer_epoch=row.producer_epoch,
        number=row.number,
        state=row.state,
        timeout_ms=row.timeout_ms,
        started_ms=row.started_ms,
        partitions=known,
        groups=row.groups,
    )
