"""Idempotent producers: whether a batch is new, a duplicate, early or of an old epoch.

A producer numbers its records per partition from 0, and wraps from 2^31 - 1 to 0. The state of one producer in one
partition is its epoch and the last five stored batches, because a client keeps at most five in flight.

Invariants:
- a batch is stored once: a retry gets its first offset, as long as the batch is remembered;
- within an epoch the stored sequences increase without gaps, except before a batch that may skip (it was acknowledged
  on receipt, and the batches before it may be lost);
- an epoch never decreases, and a higher epoch starts at sequence 0 or at a batch that may skip.

Pure: the caller supplies the rows with the states, and writes the changed rows.
"""

from __future__ import annotations

from functools import partial
from uuid import UUID

import msgspec

from sequencer.api.commits import BatchError
from sequencer.store.rows import ProducerRow, RememberedBatch
from tailrace.batches.mixed_object import BatchCoordinates

SEQUENCES = 1 << 31
"""Sequence numbers wrap here (Kafka's DefaultRecordBatch.incrementSequence)."""
REMEMBERED_BATCHES = 5
"""Kafka's NUM_BATCHES_TO_RETAIN: a client has at most five batches in flight per connection."""


class ProducerState(msgspec.Struct, frozen=True, gc=False):
    """One producer in one partition. `recent`: the last batches stored in this epoch, oldest first.

    `resumes_at`: the next sequence, if it does not follow from the last batch (see `resume_at`).
    """

    epoch: int
    recent: list[RememberedBatch]
    resumes_at: int | None = None


class SequenceCheck(msgspec.Struct, frozen=True, gc=False):
    """The result of a check. NONE: store the batch. DUPLICATE: it is stored at `base_offset`. Any other error: refuse
    it. UNKNOWN_PRODUCER_ID with an offset: an earlier transaction stored its sequences at that offset."""

    error: BatchError
    base_offset: int = -1


STORE = SequenceCheck(BatchError.NONE)
_remembered = partial(tuple.__new__, RememberedBatch)
"""Makes a `RememberedBatch` from a tuple without a Python-level call; there is one per batch."""


def last_sequence(base_sequence: int, record_count: int) -> int:
    """Return the sequence of a batch's last record."""
    return (base_sequence + record_count - 1) % SEQUENCES


def check_sequence(
    state: ProducerState | None,
    epoch: int,
    base_sequence: int,
    record_count: int,
    *,
    may_skip: bool = False,
) -> SequenceCheck:
    """Check the sequence of one batch of an idempotent producer.

    Without a state only sequence 0 is accepted. A batch ahead of the expected sequence leaves a gap that may still
    close. A batch behind it that is not remembered can never be stored in order. `may_skip`: treat missing sequences
    before the batch as lost, so that it leaves no gap.
    """
    if not 0 <= base_sequence < SEQUENCES or record_count < 1 or epoch < 0:
        return SequenceCheck(BatchError.OUT_OF_ORDER_SEQUENCE)
    if state is None:
        return STORE if base_sequence == 0 or may_skip else SequenceCheck(BatchError.UNKNOWN_PRODUCER_ID)
    if epoch < state.epoch:
        return SequenceCheck(BatchError.INVALID_PRODUCER_EPOCH)
    if epoch > state.epoch:
        return STORE if base_sequence == 0 or may_skip else SequenceCheck(BatchError.SEQUENCE_GAP)
    resumed = state.resumes_at
    expected = (state.recent[-1].last_sequence + 1) % SEQUENCES if resumed is None else resumed
    if (
        base_sequence == expected
    ):  # no remembered batch begins here: five hold far fewer records than SEQUENCES
        return STORE
    last = last_sequence(base_sequence, record_count)
    for remembered in state.recent:
        if remembered.base_sequence == base_sequence and remembered.last_sequence == last:
            return SequenceCheck(BatchError.DUPLICATE, remembered.base_offset)
    is_ahead = (base_sequence - expected) % SEQUENCES < SEQUENCES // 2
    if is_ahead and may_skip:
        return STORE
    return SequenceCheck(BatchError.SEQUENCE_GAP if is_ahead else BatchError.OUT_OF_ORDER_SEQUENCE)


def advance(
    state: ProducerState | None, epoch: int, base_sequence: int, record_count: int, base_offset: int
) -> ProducerState:
    """Return the state after the batch was stored at `base_offset`."""
    stored = _remembered((base_sequence, (base_sequence + record_count - 1) % SEQUENCES, base_offset))
    if state is None or state.epoch != epoch:
        return ProducerState(epoch, [stored])
    return ProducerState(epoch, [*state.recent[1 - REMEMBERED_BATCHES :], stored])


def advance_in_order(state: ProducerState, batch: BatchCoordinates, base_offset: int) -> bool:
    """Add the batch to this state if it follows the last one there: `check_sequence` would store it. Return False for
    any other batch.

    This changes the state's list, so the state must be one that `advance` has returned and nobody else has.
    """
    recent = state.recent
    base_sequence = batch.base_sequence
    if base_sequence != (recent[-1][1] + 1) % SEQUENCES or batch.producer_epoch != state.epoch:
        return False
    last = (base_sequence + batch.record_count - 1) % SEQUENCES
    recent.append(_remembered((base_sequence, last, base_offset)))
    if len(recent) > REMEMBERED_BATCHES:
        del recent[0]
    return True


def resume_at(state: ProducerState | None, epoch: int, base_sequence: int) -> ProducerState:
    """Return the state as if all batches before this sequence had been stored. A recovery uses it when it can't read
    some of them."""
    recent = state.recent if state is not None and state.epoch == epoch else []
    return ProducerState(epoch, recent, base_sequence)


def state_of(row: ProducerRow | None) -> ProducerState | None:
    """Return the state that a row holds. It shares the row's list, which must not be changed."""
    return None if row is None else ProducerState(row.producer_epoch, row.recent)


def producer_row(
    state: ProducerState,
    *,
    topic_id: UUID,
    partition: int,
    producer_id: int,
    last_timestamp: int,
    updated_ms: int,
) -> ProducerRow:
    return ProducerRow(
        topic_id=topic_id,
        partition=partition,
        producer_id=producer_id,
        producer_epoch=state.epoch,
        recent=[*state.recent],
        last_timestamp=last_timestamp,
        updated_ms=updated_ms,
    )
