"""Sequence gaps: batches of idempotent producers that arrived before the batches that precede them.

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

from agent.produce.active_buffer import BatchResult, BufferedBatch, FlushFailure, transactions_of
from sequencer.api.commits import BatchError, BatchOutcome, CommitAnswer, ObjectDescription, RunProposal
from tailrace.ids import TopicPartition

_ERRORS_OF_GAPS = (BatchError.SEQUENCE_GAP, BatchError.UNKNOWN_PRODUCER_ID)
MAX_RETRIED = 1_000
"""The most batches in one commit by reference."""

TOO_LATE = FlushFailure("timeout", "the sequencer did not answer in time")
_SEND_AGAIN = FlushFailure("timeout", "the batch before this one arrived too late: send it again")


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


def settle_closed(retried: list[Gap], answer: CommitAnswer) -> set[Gap]:
    """Settle the gaps that have closed or never will, and return them. The other gaps keep their latest error."""
    settled: set[Gap] = set()
    for gap, run in zip(retried, answer.runs, strict=True):
        outcome = run.outcomes[0]
        if may_close(outcome):
            gap.error, gap.log_start_offset = outcome.error, run.log_start_offset
        else:
            gap.batch.settle(_result_of_gap(outcome, run.log_start_offset))
            settled.add(gap)
    return settled


def _result_of_gap(outcome: BatchOutcome, log_start_offset: int) -> BatchResult:
    """Return the result for the producer of a gap. Its batch was ahead of its predecessors, so OUT_OF_ORDER_SEQUENCE
    means that its object is gone, or that the batch was sent again and stored meanwhile. The producer must not stop for
    either: it retries, and the retry tells which."""
    if outcome.error is BatchError.OUT_OF_ORDER_SEQUENCE:
        return BatchResult(failure=_SEND_AGAIN)
    return BatchResult(outcome.error, outcome.base_offset, log_start_offset)


def give_up_late(gaps: list[Gap]) -> None:
    """Give up the gaps whose producers wait, and keep those that were answered on receipt."""
    kept = [gap for gap in gaps if gap.batch.is_answered_on_receipt]
    give_up([gap for gap in gaps if not gap.batch.is_answered_on_receipt])
    gaps[:] = kept


def give_up(gaps: list[Gap]) -> None:
    """Tell the producers of these gaps to retry, and empty the list."""
    for gap in gaps:
        gap.batch.settle(BatchResult(failure=TOO_LATE))
    gaps.clear()
