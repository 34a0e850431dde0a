"""Gaps: which of them the next commit by reference names."""

from __future__ import annotations

from uuid import UUID

from agent.produce.active_buffer import BufferedBatch
from agent.produce.gaps import MAX_RETRIED, Gap, gaps_to_retry
from sequencer.api.commits import BatchError, ObjectDescription, ObjectKind
from tailrace.batches.mixed_object import coordinates
from tailrace.batches.record_batch import read_header
from tailrace.ids import TopicPartition
from tests.support.agents import batch


def stored(number: int) -> ObjectDescription:
    return ObjectDescription(
        object_id=UUID(int=number),
        kind=ObjectKind.MIXED,
        key=f"o{number}",
        size=1,
        crc=0,
        index_start=0,
        created_ms=0,
    )


FIRST_OBJECT, SECOND_OBJECT = stored(1), stored(2)


def gap(partition: int, start: int = 0, *, of: ObjectDescription = FIRST_OBJECT) -> Gap:
    data = batch(b"v", producer=1, sequence=start)
    buffered = BufferedBatch(coordinates(read_header(data)), data, None, 0)  # type: ignore[arg-type]
    return Gap(
        TopicPartition(UUID(int=9), partition),
        start,
        of,
        buffered,
        deadline=1.0,
        error=BatchError.SEQUENCE_GAP,
    )


def test_the_first_gap_of_each_partition_is_retried() -> None:
    gaps = [gap(0, 10), gap(0, 20), gap(1, 30), gap(1, 40)]
    assert gaps_to_retry(gaps) == [gaps[0], gaps[2]]


def test_gaps_of_one_object_are_retried_together_and_no_others() -> None:
    gaps = [gap(0), gap(1, of=SECOND_OBJECT), gap(2)]
    assert gaps_to_retry(gaps) == [gaps[0], gaps[2]]


def test_one_commit_names_so_many_gaps_at_most() -> None:
    assert len(gaps_to_retry([gap(number) for number in range(MAX_RETRIED + 5)])) == MAX_RETRIED


def test_a_gap_is_committed_as_a_run_of_its_batch_alone() -> None:
    waiting = gap(3, start=700)
    proposal = waiting.proposal()
    assert (proposal.partition, proposal.start) == (3, 700)
    assert proposal.length == waiting.batch.coordinates.length
    assert proposal.batches == [waiting.batch.coordinates] and proposal.transactions == []
