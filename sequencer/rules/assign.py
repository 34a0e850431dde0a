"""Offset assignment: which offsets the batches of a run get.

Invariants:
- offsets of a partition are contiguous and never reused: the stored batches fill [end_offset before, end_offset after)
  without gaps, in their order in the object;
- a batch is stored whole or not at all, and has one outcome and one row in the batch table;
- a refused or duplicate batch takes no offset and changes no producer's state;
- a duplicate of a batch of the same run gets that batch's offset;
- a batch that its transaction does not admit is not checked further;
- a transactional batch is a duplicate only of a batch of its own transaction.

Pure: the caller supplies the partition's state and writes the changes.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

import msgspec

from sequencer.api.commits import BatchError, BatchOutcome, BatchStatus
from sequencer.api.reads import RunBatch
from sequencer.rules.producers import (
    STORE,
    ProducerState,
    SequenceCheck,
    advance,
    advance_in_order,
    check_sequence,
)
from tailrace.batches.mixed_object import BatchCoordinates
from tailrace.batches.record_batch import OF_TRANSACTIONS, TRANSACTIONAL_FLAG
from tailrace.ids import NO_PRODUCER_ID

_NO_ERROR, _STORED = BatchError.NONE, BatchStatus.STORED


class Assignment(msgspec.Struct, frozen=True, gc=False):
    """The offsets of a run. `outcomes` and `table` have one entry per batch, in order. `producers`: the states that
    changed. `transactional`: the first stored offset of each producer's transaction.

    `base_offset` is the offset of the first stored batch and `end_offset` is exclusive; they are equal if no batch is
    stored. `max_timestamp` is the largest of the stored batches, or -1 if no batch is stored.
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


class RunChecks:
    """The checks that decide whether a run's batches of producers and transactions are stored. Make one for each run.

    Args:
        producer_state: returns the state of a producer id in this partition before these batches.
        admit: returns whether transactions allow the batch at an index to be stored; without it no transactional batch
            is stored. It is called for batches with a transactional or control flag, and for producers with a
            transactional id.
        open_from: returns the first offset of a producer's open transaction in this partition, or None if it has none.
        transactional_ids: the producer ids that belong to a transactional id.
        may_skip: whether missing sequences before a non-transactional batch count as lost.
    """

    __slots__ = (
        "_admit", "_may_skip", "_open_from", "_producer_state", "_transactional_ids", "changed", "transactional",
    )  # fmt: skip

    def __init__(
        self,
        producer_state: Callable[[int], ProducerState | None],
        admit: Callable[[int], BatchError] | None = None,
        open_from: Callable[[int], int | None] = lambda producer_id: None,
        transactional_ids: Container[int] = (),
        *,
        may_skip: bool = False,
    ) -> None:
        self._producer_state = producer_state
        self._admit = admit
        self._open_from = open_from
        self._transactional_ids = transactional_ids
        self._may_skip = may_skip
        self.changed: dict[int, ProducerState] = {}
        """The new states of the producers of stored batches."""
        self.transactional: dict[int, int] = {}
        """The first stored offset of each producer's transaction."""

    def check(self, index: int, batch: BatchCoordinates, end_offset: int) -> SequenceCheck:
        """Check the batch at an index. If it passes, it is stored at `end_offset`, and the next checks take that into
        account."""
        producer_id, record_count = batch.producer_id, batch.record_count
        may_be_refused = batch.flags & OF_TRANSACTIONS or producer_id in self._transactional_ids
        if may_be_refused and (refusal := _refusal(batch, index, self._admit)) is not BatchError.NONE:
            return SequenceCheck(refusal)
        changed = self.changed.get(producer_id)
        if changed is not None and advance_in_order(changed, batch, end_offset):
            check = STORE
        else:
            known = changed or self._producer_state(producer_id)
            epoch, base_sequence = batch.producer_epoch, batch.base_sequence
            may_skip = self._may_skip and not batch.is_transactional
            check = check_sequence(known, epoch, base_sequence, record_count, may_skip=may_skip)
            if check.error is _NO_ERROR:
                self.changed[producer_id] = advance(
                    known, epoch, base_sequence, record_count=record_count, base_offset=end_offset
                )
        if check.error is _NO_ERROR:
            if may_be_refused and batch.flags & TRANSACTIONAL_FLAG:
                self.transactional.setdefault(producer_id, end_offset)
        elif check.error is BatchError.DUPLICATE and batch.is_transactional:
            first = self.transactional.get(producer_id, self._open_from(producer_id))
            return _unless_reused(check, first)
        return check


def assign_offsets(
    end_offset: int, batches: Sequence[BatchCoordinates], checks: Callable[[], RunChecks]
) -> Assignment:
    """Give each batch its base offset, in order.

    Args:
        end_offset: the partition's end offset before these batches.
        batches: in their order in the object.
        checks: called at the first batch that has a producer, or a transactional or control flag. Other batches are
            stored without a check.
    """
    base_offset = end_offset
    max_timestamp = -1
    outcomes: list[BatchOutcome] = []
    table: list[RunBatch] = []
    checked: RunChecks | None = None
    for batch in batches:
        if batch.producer_id != NO_PRODUCER_ID or batch.flags & OF_TRANSACTIONS:
            if checked is None:
                checked = checks()
            check = checked.check(len(table), batch, end_offset)
            if check.error is not _NO_ERROR:
                outcomes.append(BatchOutcome(check.error, check.base_offset))
                table.append(_not_stored(batch, check))
                continue
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
        producers={} if checked is None else checked.changed,
        transactional={} if checked is None else checked.transactional,
    )


def _not_stored(batch: BatchCoordinates, check: SequenceCheck) -> RunBatch:
    is_duplicate = check.error is BatchError.DUPLICATE
    status = BatchStatus.DUPLICATE if is_duplicate else BatchStatus.REFUSED
    return RunBatch(batch.length, batch.record_count, status, -1, batch.max_timestamp)


def _unless_reused(check: SequenceCheck, first: int | None) -> SequenceCheck:
    """Return the check of a duplicate in a transaction whose first offset in the partition is `first` (None if it has
    none).

    When librdkafka (2.16) purges records at an abort, it reuses their sequences in the next transaction, even if the
    purged records had been stored. If the new records counted as duplicates, they would be acknowledged and lost. This
    error makes librdkafka bump its epoch. The offset tells the agent that no batch in flight can change the outcome.
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
    """Return the same refusal for every batch of a run."""
    return [BatchOutcome(error, -1)] * len(batches)
