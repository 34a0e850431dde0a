"""Offset assignment, by example and by property."""

from __future__ import annotations

import copy

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from sequencer.api.commits import BatchError, BatchStatus
from sequencer.rules.assign import RunChecks, assign_offsets
from sequencer.rules.producers import SEQUENCES, ProducerState
from sequencer.store.rows import RememberedBatch
from tailrace.batches.mixed_object import BatchCoordinates

BATCHES = st.lists(
    st.builds(
        BatchCoordinates,
        length=st.integers(61, 1000),
        record_count=st.integers(1, 5),
        base_timestamp=st.just(0),
        max_timestamp=st.integers(-1, 1000),
        producer_id=st.integers(-1, 1),
        producer_epoch=st.integers(0, 1),
        base_sequence=st.integers(0, 6),
        flags=st.sampled_from([0, 0, 0, 1, 16, 32]),
    ),
    max_size=20,
)


def no_producers() -> RunChecks:
    """Checks on a partition that knows no producer."""
    return RunChecks(lambda producer_id: None)


@settings(deadline=None, max_examples=200)
@given(st.integers(0, 1 << 40), BATCHES)
def test_stored_batches_tile_the_offsets_and_every_batch_has_an_outcome(
    end_offset: int, batches: list[BatchCoordinates]
) -> None:
    assigned = assign_offsets(end_offset, batches, no_producers)

    assert len(assigned.outcomes) == len(assigned.table) == len(batches)
    following = end_offset
    for batch, outcome, row in zip(batches, assigned.outcomes, assigned.table, strict=True):
        assert (row.length, row.record_count) == (batch.length, batch.record_count)
        if row.status is BatchStatus.STORED:
            assert outcome.error is BatchError.NONE
            assert outcome.base_offset == row.base_offset == following
            following += batch.record_count
        else:
            assert row.base_offset == -1
            is_duplicate = row.status is BatchStatus.DUPLICATE
            assert is_duplicate == (outcome.error is BatchError.DUPLICATE)
            assert is_duplicate == (outcome.base_offset >= 0)
    assert (assigned.base_offset, assigned.end_offset) == (end_offset, following)
    stored = [row.max_timestamp for row in assigned.table if row.status is BatchStatus.STORED]
    assert assigned.max_timestamp == max(stored, default=-1)
    assert assigned.has_stored == (following > end_offset)


@settings(deadline=None, max_examples=100)
@given(BATCHES)
def test_a_run_cut_in_two_gives_the_same_offsets(batches: list[BatchCoordinates]) -> None:
    whole = assign_offsets(10, batches, no_producers)
    middle = len(batches) // 2
    first = assign_offsets(10, batches[:middle], no_producers)
    states: dict[int, ProducerState] = first.producers
    second = assign_offsets(first.end_offset, batches[middle:], lambda: RunChecks(states.get))

    assert first.outcomes + second.outcomes == whole.outcomes
    assert states | second.producers == whole.producers


@st.composite
def in_flight(draw: st.DrawFn) -> list[BatchCoordinates]:
    """Batches of two producers. Most follow the producer's batch before, also across the wrap of sequences; the others
    repeat, skip or have another epoch."""
    following = {0: draw(st.sampled_from([0, SEQUENCES - 4])), 1: 0}
    batches = []
    for _ in range(draw(st.integers(0, 30))):
        producer_id, count = draw(st.integers(0, 1)), draw(st.integers(1, 3))
        moved = draw(st.sampled_from([0, 0, 0, 0, 0, 0, -count, -13, 2]))
        sequence = (following[producer_id] + moved) % SEQUENCES
        epoch = draw(st.sampled_from([0] * 8 + [1]))
        flags = draw(st.sampled_from([0] * 8 + [16]))
        batches.append(BatchCoordinates(100, count, 0, 0, producer_id, epoch, sequence, flags))
        if moved == 0:
            following[producer_id] = (sequence + count) % SEQUENCES
    return batches


@settings(deadline=None, max_examples=300)
@given(in_flight(), st.booleans())
def test_batches_of_one_run_are_checked_as_if_each_were_a_run_of_its_own(
    batches: list[BatchCoordinates], may_skip: bool
) -> None:
    states = {0: ProducerState(0, [RememberedBatch(SEQUENCES - 9, SEQUENCES - 5, 7)])}
    before = copy.deepcopy(states)

    def checks() -> RunChecks:
        return RunChecks(states.get, lambda index: BatchError.NONE, firsts.get, {1}, may_skip=may_skip)

    firsts: dict[int, int] = {}
    whole = assign_offsets(40, batches, checks)
    assert states == before, "the states of before are not changed"
    outcomes, end_offset = [], 40
    for batch in batches:
        alone = assign_offsets(end_offset, [batch], checks)
        outcomes += alone.outcomes
        end_offset = alone.end_offset
        states.update(alone.producers)
        firsts = {**alone.transactional, **firsts}

    assert whole.outcomes == outcomes
    assert {**before, **whole.producers} == states
    assert whole.transactional == firsts


@settings(deadline=None, max_examples=100)
@given(st.integers(0, 1 << 40), BATCHES)
def test_batches_of_no_producer_and_no_transaction_are_stored_unseen(
    end_offset: int, batches: list[BatchCoordinates]
) -> None:
    batches = [structs.replace(batch, producer_id=-1, flags=batch.flags & 7) for batch in batches]

    def no_checks() -> RunChecks:
        raise AssertionError("nothing is to be looked up")

    assigned = assign_offsets(end_offset, batches, no_checks)
    assert all(outcome.error is BatchError.NONE for outcome in assigned.outcomes)
    assert assigned.end_offset == end_offset + sum(batch.record_count for batch in batches)
    assert not assigned.producers and not assigned.transactional
    assert assigned == assign_offsets(end_offset, batches, no_producers)


def test_a_transactional_batch_is_refused_while_no_transaction_is_open() -> None:
    batch = BatchCoordinates(100, 1, 0, 0, 5, 0, 0, 16)
    assigned = assign_offsets(0, [batch], no_producers)
    assert assigned.outcomes[0].error is BatchError.TRANSACTION_CLOSED
    assert not assigned.has_stored and not assigned.producers


def test_missing_sequences_before_a_transactional_batch_are_never_counted_as_lost() -> None:
    known = ProducerState(3, [RememberedBatch(0, 4, 10)])
    batch = BatchCoordinates(100, 2, 0, 0, producer_id=7, producer_epoch=3, base_sequence=9, flags=16)
    assigned = assign_offsets(
        30,
        [batch],
        lambda: RunChecks(lambda producer_id: known, lambda index: BatchError.NONE, may_skip=True),
    )
    assert [outcome.error for outcome in assigned.outcomes] == [BatchError.SEQUENCE_GAP]


def test_a_transactional_batch_repeats_only_what_its_own_transaction_has_stored() -> None:
    """A client may give the sequences of records that it purged to the next transaction's: see `assign_offsets`."""
    batch = BatchCoordinates(100, 2, 0, 0, producer_id=7, producer_epoch=3, base_sequence=4, flags=16)
    before = ProducerState(3, (RememberedBatch(4, 5, 20),))

    def judged(first_offset: int | None) -> tuple[BatchError, int]:
        assigned = assign_offsets(
            30,
            [batch],
            lambda: RunChecks(
                lambda producer_id: before, lambda index: BatchError.NONE, lambda producer_id: first_offset
            ),
        )
        assert not assigned.has_stored
        return assigned.outcomes[0].error, assigned.outcomes[0].base_offset

    assert judged(18) == (BatchError.DUPLICATE, 20), "sent twice in one transaction"
    assert judged(20) == (BatchError.DUPLICATE, 20)
    assert judged(22) == (BatchError.UNKNOWN_PRODUCER_ID, 20), "the transaction of before stored it"
    assert judged(None) == (BatchError.UNKNOWN_PRODUCER_ID, 20), "this one has stored nothing here yet"
