"""Offset assignment: which offsets the batches of a run receive.

Invariants:
- offsets of a partition are contiguous and never reused: stored batches tile
  [end_offset before, end_offset after), in their order in the object;
- a batch is stored whole or not at all, and has one outcome and one row in the batch table;
- a batch that is refused or a duplicate takes no offset and changes no producer's state;
- a duplicate of a batch of the same run gets that batch's offset;
- a batch that its transaction does not admit is not checked further;
- a transactional batch is a duplicate only of a batch of its own transaction.

Pure: the caller passes the partition's state in and writes the changes.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

import msgspec

from sequencer.api import BatchError, BatchOutcome, BatchStatus, RunBatch
from sequencer.rules.producers import STORE, ProducerState, SequenceCheck, advance, check_sequence
from tailrace.ids import NO_PRODUCER_ID
from tailrace.mixed_object import BatchCoordinates
from tailrace.record_batch import OF_TRANSACTIONS, TRANSACTIONAL_FLAG

_NO_ERROR, _STORED = BatchError.NONE, BatchStatus.STORED


class Assignment(msgspec.Struct, frozen=True, gc=False):
    """`outcomes` and `table` have one entry per batch, in order. `producers`: the states that changed.
    `transactional`: the first offset stored of each producer's transaction.

    `base_offset` is that of the first stored batch, `end_offset` is exclusive; they are equal when none is
    stored. `max_timestamp` is the largest of the stored batches', -1 when none is stored.
    """

    outcomes: list[BatchOutcome]
    table: list[RunBatch]
    base_offset: int
    end_offset: int
    max_timestamp: int
    producers: dict[int, ProducerState]
    transactional: dict[int, int]

    @property
    def has_stored(self) -> bool:
        return self.end_offset > self.base_offset


def assign_offsets(
    end_offset: int,
    batches: Sequence[BatchCoordinates],
    producer_state: Callable[[int], ProducerState | None],
    admit: Callable[[int], BatchError] | None = None,
    open_from: Callable[[int], int | None] = lambda producer_id: None,
    transactional_ids: Container[int] = (),
    *,
    may_skip: bool = False,
) -> Assignment:
    """Give each batch its base offset, in order.

    Args:
        end_offset: the partition's end offset before these batches.
        batches: in their order in the object.
        producer_state: the state of a producer id on this partition before these batches.
        admit: whether transactions allow the batch at an index to be stored. Without it, no transactional batch is.
            Asked of batches that have to do with transactions, and of producers that have a transactional id.
        open_from: the first offset of a producer's open transaction on this partition, None if it has none there.
        transactional_ids: the producer ids that belong to a transactional id.
        may_skip: whether the sequences before a batch of no transaction are taken as lost.
    """
    base_offset = end_offset
    max_timestamp = -1
    outcomes: list[BatchOutcome] = []
    table: list[RunBatch] = []
    changed: dict[int, ProducerState] = {}
    transactional: dict[int, int] = {}
    for index, batch in enumerate(batches):
        producer_id, record_count = batch.producer_id, batch.record_count
        known: ProducerState | None = None
        may_be_refused = batch.flags & OF_TRANSACTIONS or producer_id in transactional_ids
        if producer_id == NO_PRODUCER_ID and not may_be_refused:
            check = STORE
        elif may_be_refused and (refusal := _refusal(batch, index, admit)) is not BatchError.NONE:
            check = SequenceCheck(refusal)
        else:
            known = changed.get(producer_id) or producer_state(producer_id)
            check = check_sequence(
                known,
                batch.producer_epoch,
                batch.base_sequence,
                record_count,
                may_skip=may_skip and not batch.is_transactional,
            )
        if check is not STORE and check.error is not BatchError.NONE:
            if check.error is BatchError.DUPLICATE and batch.is_transactional:
                check = _unless_reused(check, transactional.get(producer_id, open_from(producer_id)))
            outcomes.append(BatchOutcome(check.error, check.base_offset))
            table.append(_not_stored(batch, check))
            continue
        latest = batch.max_timestamp
        outcomes.append(BatchOutcome(_NO_ERROR, end_offset))
        table.append(RunBatch(batch.length, record_count, _STORED, end_offset, latest))
        if producer_id != NO_PRODUCER_ID:
            changed[producer_id] = advance(
                known,
                batch.producer_epoch,
                base_sequence=batch.base_sequence,
                record_count=record_count,
                base_offset=end_offset,
            )
        if may_be_refused and batch.flags & TRANSACTIONAL_FLAG:
            transactional.setdefault(producer_id, end_offset)
        end_offset += record_count
        if latest > max_timestamp:
            max_timestamp = latest
    return Assignment(
        outcomes=outcomes,
        table=table,
        base_offset=base_offset,
        end_offset=end_offset,
        max_timestamp=max_timestamp,
        producers=changed,
        transactional=transactional,
    )


def assign_plain(end_offset: int, batches: Sequence[BatchCoordinates]) -> Assignment | None:
    """`assign_offsets` of batches that are stored without a look at anything: of no producer and of no transaction.
    None where one is not such."""
    base_offset = end_offset
    max_timestamp = -1
    outcomes: list[BatchOutcome] = []
    table: list[RunBatch] = []
    for batch in batches:
        if batch.producer_id != NO_PRODUCER_ID or batch.flags & OF_TRANSACTIONS:
            return None
        record_count, latest = batch.record_count, batch.max_timestamp
        outcomes.append(BatchOutcome(_NO_ERROR, end_offset))
        table.append(RunBatch(batch.length, record_count, _STORED, end_offset, latest))
        end_offset += record_count
        if latest > max_timestamp:
            max_timestamp = latest
    return Assignment(
        outcomes=outcomes,
        table=table,
        base_offset=base_offset,
        end_offset=end_offset,
        max_timestamp=max_timestamp,
        producers={},
        transactional={},
    )


def _not_stored(batch: BatchCoordinates, check: SequenceCheck) -> RunBatch:
    is_duplicate = check.error is BatchError.DUPLICATE
    status = BatchStatus.DUPLICATE if is_duplicate else BatchStatus.REFUSED
    return RunBatch(batch.length, batch.record_count, status, -1, batch.max_timestamp)


def _unless_reused(check: SequenceCheck, first: int | None) -> SequenceCheck:
    """The check of a duplicate in a transaction whose first offset on the partition is `first`, None if it has none.

    librdkafka (2.16) reuses the sequences of records that it purged at an abort in the next transaction, even if the
    purged records had been stored. Taken as duplicates, the new records would be acknowledged and lost. This error
    makes it raise its epoch; the offset says that no batch under way can change it.
    """
    if first is not None and check.base_offset >= first:
        return check
    return SequenceCheck(BatchError.UNKNOWN_PRODUCER_ID, check.base_offset)


def _refusal(batch: BatchCoordinates, index: int, admit: Callable[[int], BatchError] | None) -> BatchError:
    if admit is not None:
        return admit(index)
    is_plain = not batch.is_transactional and not batch.is_control
    return BatchError.NONE if is_plain else BatchError.TRANSACTION_CLOSED


def refuse_all(batches: Sequence[BatchCoordinates], error: BatchError) -> list[BatchOutcome]:
    """The same refusal for every batch of a run."""
    return [BatchOutcome(error, -1)] * len(batches)
