"""Idempotent producers, by example and by property."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from sequencer.api.commits import BatchError
from sequencer.rules.producers import (
    REMEMBERED_BATCHES,
    SEQUENCES,
    ProducerState,
    advance,
    check_sequence,
    resume_at,
)
from sequencer.store.rows import RememberedBatch


def store(state: ProducerState | None, epoch: int, sequence: int, count: int, offset: int) -> ProducerState:
    assert check_sequence(state, epoch, sequence, count).error is BatchError.NONE
    return advance(state, epoch, sequence, count, offset)


def test_a_repeat_among_the_last_five_gets_its_first_offset() -> None:
    state: ProducerState | None = None
    for number in range(7):
        state = store(state, 0, number, 1, 100 + number)
    for number in range(2, 7):
        check = check_sequence(state, 0, number, 1)
        assert (check.error, check.base_offset) == (BatchError.DUPLICATE, 100 + number)
    assert check_sequence(state, 0, 1, 1).error is BatchError.OUT_OF_ORDER_SEQUENCE


def test_a_batch_ahead_is_a_gap_and_one_that_overlaps_is_out_of_order() -> None:
    state = store(None, 0, 0, 5, 0)
    assert check_sequence(state, 0, 6, 1).error is BatchError.SEQUENCE_GAP
    assert check_sequence(state, 0, 3, 4).error is BatchError.OUT_OF_ORDER_SEQUENCE
    assert check_sequence(state, 0, 0, 4).error is BatchError.OUT_OF_ORDER_SEQUENCE
    assert check_sequence(state, 0, 3, 2).error is BatchError.OUT_OF_ORDER_SEQUENCE


def test_a_batch_without_an_epoch_a_valid_sequence_or_records_is_refused() -> None:
    for epoch, base_sequence, record_count in ((-1, 0, 1), (0, -1, 1), (0, SEQUENCES, 1), (0, 0, 0)):
        check = check_sequence(None, epoch, base_sequence, record_count, may_skip=True)
        assert check.error is BatchError.OUT_OF_ORDER_SEQUENCE


def test_without_state_only_sequence_zero_is_taken() -> None:
    assert check_sequence(None, 3, 0, 1).error is BatchError.NONE
    assert check_sequence(None, 3, 1, 1).error is BatchError.UNKNOWN_PRODUCER_ID


def test_a_higher_epoch_starts_at_zero_and_a_lower_one_is_refused() -> None:
    state = store(None, 1, 0, 5, 0)
    assert check_sequence(state, 2, 5, 1).error is BatchError.SEQUENCE_GAP
    assert check_sequence(state, 0, 5, 1).error is BatchError.INVALID_PRODUCER_EPOCH
    bumped = store(state, 2, 0, 1, 5)
    assert bumped.recent == [RememberedBatch(0, 0, 5)], (
        "what an earlier epoch stored is no duplicate in this one"
    )
    assert check_sequence(bumped, 2, 0, 1).error is BatchError.DUPLICATE
    assert check_sequence(bumped, 1, 0, 5).error is BatchError.INVALID_PRODUCER_EPOCH


def test_sequences_wrap_to_zero() -> None:
    before = advance(None, 0, SEQUENCES - 3, 3, 0)
    assert check_sequence(before, 0, 0, 1).error is BatchError.NONE
    across = advance(None, 0, SEQUENCES - 1, 3, 0)
    assert check_sequence(across, 0, 2, 1).error is BatchError.NONE
    assert check_sequence(across, 0, 3, 1).error is BatchError.SEQUENCE_GAP
    assert check_sequence(across, 0, SEQUENCES - 1, 3).error is BatchError.DUPLICATE


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=12), st.data())
def test_whatever_comes_in_whatever_order_is_stored_once_and_in_order(
    counts: list[int], data: st.DataObject
) -> None:
    starts = [sum(counts[:index]) for index in range(len(counts))]
    asked = data.draw(st.lists(st.integers(0, len(counts) - 1), max_size=40))
    state: ProducerState | None = None
    stored: list[int] = []
    for index in asked:
        check = check_sequence(state, 0, starts[index], counts[index])
        if check.error is BatchError.NONE:
            state = advance(state, 0, starts[index], counts[index], starts[index])
            stored.append(index)
        elif check.error is BatchError.DUPLICATE:
            assert check.base_offset == starts[index]
            assert index in stored[-REMEMBERED_BATCHES:]
        else:
            assert index not in stored[-REMEMBERED_BATCHES:]
    assert stored == list(range(len(stored)))


def test_a_state_that_resumes_takes_the_named_sequence_and_remembers_only_what_was_stored() -> None:
    known = store(None, 0, 0, 2, 10)
    assert check_sequence(resume_at(known, 0, 7), 0, 7, 3).error is BatchError.NONE
    after = advance(resume_at(known, 0, 7), 0, 7, 3, 20)
    assert after == ProducerState(0, [*known.recent, RememberedBatch(7, 9, 20)])
    assert advance(resume_at(known, 1, 7), 1, 7, 3, 20).recent == [RememberedBatch(7, 9, 20)]


def test_a_batch_that_may_skip_leaves_no_gap_and_is_neither_stored_twice_nor_in_an_old_epoch() -> None:
    assert check_sequence(None, 3, 7, 1, may_skip=True).error is BatchError.NONE
    state = advance(store(None, 1, 0, 5, 0), 1, 8, 2, 5)
    assert check_sequence(state, 1, 12, 1).error is BatchError.SEQUENCE_GAP
    assert check_sequence(state, 1, 12, 1, may_skip=True).error is BatchError.NONE
    assert check_sequence(state, 2, 4, 1, may_skip=True).error is BatchError.NONE
    repeated = check_sequence(state, 1, 8, 2, may_skip=True)
    assert (repeated.error, repeated.base_offset) == (BatchError.DUPLICATE, 5)
    assert check_sequence(state, 1, 5, 3, may_skip=True).error is BatchError.OUT_OF_ORDER_SEQUENCE
    assert check_sequence(state, 0, 12, 1, may_skip=True).error is BatchError.INVALID_PRODUCER_EPOCH
