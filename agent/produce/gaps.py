"""Sequence gaps: batches of idempotent producers that arrived before the batches that precede them. Pure.

When a producer moves to another agent, its next batch may be committed there before its last one here. The sequencer
answers such a batch with SEQUENCE_GAP (or UNKNOWN_PRODUCER_ID, if it is the producer's first batch there). The batch's
bytes are already stored, so the lane commits it again by reference until the missing sequences arrive or its deadline
passes.

A producer that was answered on receipt never learns that a batch was refused, and the batches before it may be lost.
Then the sequencer would refuse all later batches, too. So after its deadline such a batch is committed again with
permission to skip the missing sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agent.produce.active_buffer import BufferedBatch, transactions_of
from sequencer.api.commits import BatchError, BatchOutcome, ObjectDescription, RunProposal
from tailrace.ids import TopicPartition

_ERRORS_OF_GAPS = (BatchError.SEQUENCE_GAP, BatchError.UNKNOWN_PRODUCER_ID)
MAX_RETRIED = 1_000
"""The most batches in one commit by reference."""


def may_close(outcome: BatchOutcome) -> bool:
    """Whether another agent's commit may change the outcome: it may be about to commit the batches before this one.
    False if an earlier transaction stored the batch's sequences."""
    return outcome.error in _ERRORS_OF_GAPS and outcome.base_offset < 0


@dataclass(slots=True, eq=False)
class Gap:
    """A batch at byte `start` of a stored object, to be committed once the sequence before it is stored.

    `deadline`: monotonic seconds; after it the producer gets `error`. `error`, `log_start_offset`: from the answer to
    the last attempt. `may_skip`: the sequencer treats the missing sequences as lost.
    """

    partition: TopicPartition
    start: int
    object: ObjectDescription
    batch: BufferedBatch
    deadline: float
    error: BatchError
    log_start_offset: int = -1
    may_skip: bool = False

    def proposal(self) -> RunProposal:
        """Return a run that holds only this batch."""
        return RunProposal(
            topic_id=self.partition.topic_id,
            partition=self.partition.partition,
            start=self.start,
            length=self.batch.coordinates.length,
            batches=[self.batch.coordinates],
            transactions=transactions_of([self.batch]),
            may_skip=self.may_skip,
        )

    def is_over(self, now: float, skip_seconds: float) -> bool:
        """Whether the deadline has passed. A batch that was answered on receipt gets `skip_seconds` more once, to be
        committed without the missing sequences."""
        if now < self.deadline:
            return False
        if not self.batch.is_answered_on_receipt or self.may_skip:
            return True
        self.may_skip = True
        self.deadline = now + skip_seconds
        return False


def gaps_to_retry(gaps: Sequence[Gap]) -> list[Gap]:
    """Return the gaps that one commit can name: gaps of one object, the first gap of each partition.

    A gap closes only after the gaps before it in its partition.
    """
    first_of: dict[TopicPartition, Gap] = {}
    for gap in gaps:
        first_of.setdefault(gap.partition, gap)
    return [gap for gap in first_of.values() if gap.object is gaps[0].object][:MAX_RETRIED]
