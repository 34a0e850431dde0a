"""Offset assignment: which offsets the batches of a run receive.

Invariants:
- offsets of a partition are contiguous and never reused: batches that are stored tile
  [end_offset before, end_offset after), in the order in which they stand in the object;
- a batch is stored whole or not at all, and has one outcome and one row in the batch table;
- what is refused or a duplicate takes no offset, and changes no producer's state;
- a duplicate of a batch of the same run gets that batch's offset.

Pure: the caller brings the partition's state in and carries the changes out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sequencer.api import BatchError, BatchOutcome, RunBatch, Verdict
from sequencer.producers import STORE, Judgement, ProducerState, advance, judge
from tailrace.ids import NO_PRODUCER_ID
from tailrace.mixed_object import BatchCoordinates


@dataclass(frozen=True, slots=True)
class Assignment:
    """`outcomes` and `table` have one entry per batch, in order. `producers`: the states that changed.

    `base_offset` is that of the first stored batch, `end_offset` is exclusive; they are equal when none is
    stored. `max_timestamp` is the largest of the stored batches', -1 when none is stored.
    """

    outcomes: list[BatchOutcome]
    table: list[RunBatch]
    base_offset: int
    end_offset: int
    max_timestamp: int
    producers: dict[int, ProducerState]

    @property
    def has_stored(self) -> bool:
        return self.end_offset > self.base_offset


def assign_offsets(
    end_offset: int,
    batches: Sequence[BatchCoordinates],
    producer_state: Callable[[int], ProducerState | None],
) -> Assignment:
    """Give each batch its base offset, in order.

    Args:
        end_offset: the partition's, before.
        batches: in the order in which they stand in the object.
        producer_state: the state of a producer id on this partition, before.
    """
    base_offset = end_offset
    max_timestamp = -1
    outcomes: list[BatchOutcome] = []
    table: list[RunBatch] = []
    changed: dict[int, ProducerState] = {}
    for batch in batches:
        producer_id = batch.producer_id
        known: ProducerState | None = None
        if batch.is_transactional or batch.is_control:
            judgement = Judgement(BatchError.TRANSACTION_CLOSED)
        elif producer_id == NO_PRODUCER_ID:
            judgement = STORE
        else:
            known = changed.get(producer_id) or producer_state(producer_id)
            judgement = judge(known, batch.producer_epoch, batch.base_sequence, batch.record_count)
        if judgement.error is BatchError.NONE:
            outcomes.append(BatchOutcome(BatchError.NONE, end_offset))
            table.append(
                RunBatch(batch.length, batch.record_count, Verdict.STORED, end_offset, batch.max_timestamp)
            )
            if producer_id != NO_PRODUCER_ID:
                changed[producer_id] = advance(
                    known, batch.producer_epoch, batch.base_sequence, batch.record_count, end_offset
                )
            end_offset += batch.record_count
            max_timestamp = max(max_timestamp, batch.max_timestamp)
            continue
        outcomes.append(BatchOutcome(judgement.error, judgement.base_offset))
        is_duplicate = judgement.error is BatchError.DUPLICATE
        verdict = Verdict.DUPLICATE if is_duplicate else Verdict.REFUSED
        table.append(RunBatch(batch.length, batch.record_count, verdict, -1, batch.max_timestamp))
    return Assignment(outcomes, table, base_offset, end_offset, max_timestamp, changed)


def refuse_all(batches: Sequence[BatchCoordinates], error: BatchError) -> list[BatchOutcome]:
    """The same refusal for every batch of a run."""
    return [BatchOutcome(error, -1)] * len(batches)
