"""Pieces and columns of a run, compared with its batches."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from cache.layout import LARGE_BATCH_BYTES, PIECE_BYTES, Layout
from sequencer.api.commits import BatchStatus
from sequencer.api.reads import Run, RunBatch
from tests.support.row_samples import sample_run

CHUNK_BYTES = 3 * PIECE_BYTES // 2
LENGTHS = st.integers(70, 3_000) | st.integers(LARGE_BATCH_BYTES - 10_000, LARGE_BATCH_BYTES + 10_000)


@st.composite
def runs(draw: st.DrawFn) -> Run:
    verdicts = draw(st.sampled_from([[BatchStatus.STORED], list(BatchStatus)]))
    rows = draw(st.lists(st.tuples(LENGTHS, st.integers(1, 9), st.sampled_from(verdicts)), max_size=60))
    start = draw(st.integers(8, 2 * CHUNK_BYTES))
    offset, table = 100, list[RunBatch]()
    for length, count, status in rows:
        is_stored = status is BatchStatus.STORED
        table.append(RunBatch(length, count, status, offset if is_stored else -1, 0))
        offset += count if is_stored else 0
    length = sum(batch.length for batch in table)
    return sample_run(
        100,
        offset,
        topic_id=UUID(int=5),
        object_id=UUID(int=1),
        key="m/1",
        object_size=start + length + 99,
        index_start=start + length,
        start=start,
        length=length,
        batches=table,
    )


@given(runs())
def test_the_columns_have_every_stored_batch_at_its_position_in_the_object(run: Run) -> None:
    layout = Layout(run, CHUNK_BYTES)

    expected, position = list[tuple[int, int, int, int]](), run.start
    for batch in run.batches:
        if batch.status is BatchStatus.STORED:
            end_offset = batch.base_offset + batch.record_count
            expected.append((batch.base_offset, end_offset, position, batch.length))
        position += batch.length
    lengths = [layout.length_of(number) for number in range(layout.count)]
    columns = zip(layout.base_offsets, layout.end_offsets, layout.starts, lengths, strict=True)
    assert list(columns) == expected
    assert layout.records[-1] == sum(end - base for base, end, _, _ in expected)


@given(runs())
def test_pieces_are_neighbours_of_one_chunk_and_large_batches_are_alone(run: Run) -> None:
    layout = Layout(run, CHUNK_BYTES)

    assert layout.pieces[-1] == layout.count and layout.pieces == sorted(set(layout.pieces))
    if layout.count:
        assert layout.pieces[0] == 0
    for piece, first in enumerate(layout.pieces[:-1]):
        batches = range(first, layout.pieces[piece + 1])
        start, end = layout.place_of(piece)
        assert end - start == sum(layout.length_of(batch) for batch in batches), "nothing lies between them"
        assert len({layout.starts[batch] // CHUNK_BYTES for batch in batches}) == 1
        assert all(layout.starts[batch] < start + PIECE_BYTES for batch in batches)
        assert len(batches) == 1 or not any(layout.is_large(batch) for batch in batches)
    large = [length for length in map(layout.length_of, range(layout.count)) if length >= LARGE_BATCH_BYTES]
    assert layout.copied_bytes == layout.sizes[-1] - sum(large)
