"""Idempotent producers: whether a batch is new, a repeat, early or from an epoch that is over.

A producer numbers its records per partition, from 0, wrapping from 2^31 - 1 to 0. The state of one (producer,
partition) is its epoch and the last five batches stored, which is as many as a client keeps in flight.

Invariants:
- a batch is stored once: asked again while remembered, it gets its first offset;
- within an epoch the stored sequences have no gap;
- an epoch never falls, and a higher one starts at sequence 0.

Pure: the caller keeps the states.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from sequencer.api import BatchError

SEQUENCES = 1 << 31
"""Sequence numbers wrap here (Kafka's DefaultRecordBatch.incrementSequence)."""
REMEMBERED_BATCHES = 5
"""Kafka's NUM_BATCHES_TO_RETAIN: a client has at most five batches in flight per connection."""


class RememberedBatch(NamedTuple):
    base_sequence: int
    last_sequence: int
    base_offset: int


@dataclass(frozen=True, slots=True)
class ProducerState:
    """One producer on one partition. `recent`: the last batches stored in this epoch, oldest first."""

    epoch: int
    recent: tuple[RememberedBatch, ...]


@dataclass(frozen=True, slots=True)
class Judgement:
    """NONE: store it. DUPLICATE: `base_offset` is the first answer's. Else: refuse it."""

    error: BatchError
    base_offset: int = -1


STORE = Judgement(BatchError.NONE)


def last_sequence(base_sequence: int, record_count: int) -> int:
    """The sequence of a batch's last record."""
    return (base_sequence + record_count - 1) % SEQUENCES


def judge(state: ProducerState | None, epoch: int, base_sequence: int, record_count: int) -> Judgement:
    """Decide about one batch of an idempotent producer.

    Without a state only sequence 0 is taken. What is ahead of the expected sequence is a gap that may still
    close; what is behind it and not remembered can never be stored in order.
    """
    if not 0 <= base_sequence < SEQUENCES or record_count < 1 or epoch < 0:
        return Judgement(BatchError.OUT_OF_ORDER_SEQUENCE)
    if state is None:
        return STORE if base_sequence == 0 else Judgement(BatchError.UNKNOWN_PRODUCER_ID)
    if epoch < state.epoch:
        return Judgement(BatchError.INVALID_PRODUCER_EPOCH)
    if epoch > state.epoch:
        return STORE if base_sequence == 0 else Judgement(BatchError.SEQUENCE_GAP)
    last = last_sequence(base_sequence, record_count)
    for remembered in state.recent:
        if remembered.base_sequence == base_sequence and remembered.last_sequence == last:
            return Judgement(BatchError.DUPLICATE, remembered.base_offset)
    expected = (state.recent[-1].last_sequence + 1) % SEQUENCES
    if base_sequence == expected:
        return STORE
    is_ahead = (base_sequence - expected) % SEQUENCES < SEQUENCES // 2
    return Judgement(BatchError.SEQUENCE_GAP if is_ahead else BatchError.OUT_OF_ORDER_SEQUENCE)


def advance(
    state: ProducerState | None, epoch: int, base_sequence: int, record_count: int, base_offset: int
) -> ProducerState:
    """The state after the batch was stored at `base_offset`."""
    stored = RememberedBatch(base_sequence, last_sequence(base_sequence, record_count), base_offset)
    if state is None or state.epoch != epoch:
        return ProducerState(epoch, (stored,))
    return ProducerState(epoch, (*state.recent[1 - REMEMBERED_BATCHES :], stored))
