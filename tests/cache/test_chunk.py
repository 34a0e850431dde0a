"""Cutting objects into chunks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cache.chunk import ChunkBytes, chunks_of, cut


def bytes_of(chunk: ChunkBytes) -> bytes:
    return b"".join(chunk.views(0, chunk.size))


@given(st.integers(1, 500), st.integers(1, 64), st.data())
def test_the_chunks_of_a_range_cover_it_and_nothing_beyond_the_object(
    size: int, chunk_bytes: int, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, size))
    end = data.draw(st.integers(start, size))

    chunks = chunks_of("k", start, end, size, chunk_bytes)

    covered = [at for chunk in chunks for at in range(chunk.start, chunk.start + chunk.length)]
    assert covered == sorted(set(covered))
    assert set(range(start, end)) <= set(covered)
    assert all(0 <= at < size for at in covered)
    assert all(chunk.start == chunk.id.number * chunk_bytes for chunk in chunks)
    assert all(chunk.start < end and chunk.start + chunk.length > start for chunk in chunks)


@given(st.lists(st.binary(max_size=40), max_size=12), st.integers(1, 64), st.data())
def test_an_uploads_parts_are_cut_into_chunks_without_a_byte_lost(
    parts: list[bytes], chunk_bytes: int, data: st.DataObject
) -> None:
    whole = b"".join(parts)

    chunks = cut(parts, chunk_bytes)

    assert b"".join(map(bytes_of, chunks)) == whole
    assert [chunk.size for chunk in chunks] == [
        min(chunk_bytes, len(whole) - at) for at in range(0, len(whole), chunk_bytes)
    ]
    for number, chunk in enumerate(chunks):
        start = data.draw(st.integers(0, chunk.size))
        end = data.draw(st.integers(start, chunk.size))
        at = number * chunk_bytes
        assert b"".join(chunk.views(start, end)) == whole[at + start : at + end]
        assert chunk.is_trusted


def test_bytes_that_stand_together_are_one_view_and_no_copy() -> None:
    data = bytearray(b"0123456789")
    (view,) = ChunkBytes([data]).views(2, 5)

    assert view.obj is data
    assert view == b"234"


def test_a_chunk_that_fills_the_buffers_of_its_parts_stays_as_it_is() -> None:
    frames = [bytearray(16_500) for _ in range(10)]
    chunk = ChunkBytes([memoryview(frame)[60:] for frame in frames], is_trusted=True)

    assert chunk.without_waste() is chunk


def test_a_chunk_keeps_no_large_buffer_for_a_few_bytes_of_it() -> None:
    frames = [bytearray(16_500) for _ in range(10)]
    chunk = ChunkBytes([memoryview(frame)[100:1_100] for frame in frames], is_trusted=True)

    kept = chunk.without_waste()

    (view,) = kept.views(0, kept.size)
    assert isinstance(view.obj, bytes) and len(view.obj) == kept.size == 10_000
    assert bytes_of(kept) == bytes_of(chunk)
    assert kept.is_trusted


def test_many_parts_of_one_buffer_count_it_once() -> None:
    frame = bytearray(100_000)
    chunk = ChunkBytes([memoryview(frame)[at : at + 10_000] for at in range(0, 100_000, 10_000)])

    assert chunk.without_waste() is chunk


@given(st.lists(st.tuples(st.integers(1, 3_000), st.integers(0, 3_000)), min_size=1, max_size=30))
def test_a_cached_chunk_holds_at_most_an_eighth_more_than_its_bytes(
    sizes: list[tuple[int, int]],
) -> None:
    frames = [bytes(used + unused) for used, unused in sizes]
    parts = [memoryview(frame)[:used] for frame, (used, _) in zip(frames, sizes, strict=True)]

    kept = ChunkBytes(parts).without_waste()

    held = {id(view.obj): len(view.obj) for view in kept.views(0, kept.size)}
    assert sum(held.values()) <= kept.size * 9 / 8
    assert bytes_of(kept) == b"".join(parts)
