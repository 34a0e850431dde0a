"""Sequence gaps: batches of idempotent producers that came before the batches which precede them. Pure.

A producer that moves to another agent may have its next batch committed there before the last one here. The sequencer
answers such a batch SEQUENCE_GAP (or UNKNOWN_PRODUCER_ID, if it is the first that the sequencer sees). Its bytes are
stored already, so the lane commits it again by reference, until the missing sequences have come or its time is over.

Nobody would hear that the batch of a producer who was answered on receipt is refused, and what precedes it may be lost:
then all that follow would be refused, too. So when the time of such a batch is over, it is committed as one that may
skip the missing sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agent.produce.active_buffer import BufferedBatch, transactions_of
from sequencer.api import BatchError, BatchOutcome, ObjectDescription, RunProposal
from tailrace.ids import TopicPartition

_ERRORS_OF_GAPS = (BatchError.SEQUENCE_GAP, BatchError.UNKNOWN_PRODUCER_ID)
MAX_RETRIED = 1_000
"""Batches of one commit by reference."""


def may_close(outcome: BatchOutcome) -> bool:
    """Whether another agent's commit may change the outcome: the batches before this one may be on their way there.
    Not if an earlier transaction stored its sequences."""
    return outcome.error in _ERRORS_OF_GAPS and outcome.base_offset < 0


@dataclass(slots=True, eq=False)
class Gap:
    """A batch at byte `start` of a stored object, to be committed once the sequence before it is stored.

    `deadline`: monotonic seconds; the producer is given `error` then, that of the last attempt. `may_skip`: the missing
    sequences are taken as lost.
    """

    partition: TopicPartition
    start: int
    object: ObjectDescription
    batch: BufferedBatch
    deadline: float
    error: BatchError
    may_skip: bool = False

    def proposal(self) -> RunProposal:
        """A run of just this batch."""
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
        """Whether its time is over. A batch that was answered on receipt then has `skip_seconds` more, to skip what is
        missing."""
        if now < self.deadline:
            return False
        if not self.batch.is_answered_on_receipt or self.may_skip:
            return True
        self.may_skip = True
        self.deadline = now + skip_seconds
        return False


def gaps_to_retry(gaps: Sequence[Gap]) -> list[Gap]:
    """Those that one commit can name: of one object, and of each partition the first.

    A gap behind a gap only closes after it.
    """
    first_of: dict[TopicPartition, Gap] = {}
    for gap in gaps:
        first_of.setdefault(gap.partition, gap)
    return [gap for gap in first_of.values() if gap.object is gaps[0].object][:MAX_RETRIED]
