from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.batches.mixed_object import (
    InvalidObject,
    RunInput,
    SealedObject,
    TailTooShort,
    audit,
    coordinates,
    read_footer,
    seal,
)
from tailrace.batches.record_batch import framed, read_header
from tailrace.batches.records import NewRecord, encode_batch
from tailrace.ids import TopicPartition

PLAIN = settings(deadline=None, max_examples=60, derandomize=True)


def a_batch(value: bytes) -> bytes:
    return encode_batch([NewRecord(b"k", value)], timestamps=[1])


def run_of(topic: int, partition: int, *batches: bytes) -> RunInput:
    described = [(coordinates(read_header(batch)), framed(memoryview(batch), 0, 0)) for batch in batches]
    return TopicPartition(UUID(int=topic), partition), f"t{topic}", described


def sealed(*runs: RunInput) -> SealedObject:
    return seal(runs, object_id=UUID(int=7), session_id=UUID(int=8), number=3, created_ms=4)


def bytes_of(made: SealedObject) -> bytes:
    return b"".join(made.parts)


SMALL = bytes_of(sealed(run_of(2, 0, a_batch(b"a"), a_batch(b"b")), run_of(1, 1, a_batch(b"c"))))


@PLAIN
@given(
    st.lists(
        st.tuples(st.integers(1, 3), st.integers(0, 2), st.lists(st.binary(max_size=50), max_size=3)),
        max_size=8,
    )
)
def test_an_object_tells_by_itself_what_was_put_in(entries: list[tuple[int, int, list[bytes]]]) -> None:
    made = sealed(*(run_of(topic, part, *map(a_batch, values)) for topic, part, values in entries))
    data = bytes_of(made)

    assert (len(data), audit(data)) == (made.size, [])
    footer = read_footer(data, len(data))
    assert footer == made.footer
    expected: dict[tuple[int, int], bytes] = {}
    for topic, part, values in entries:
        for value in values:
            batch = b"".join(framed(memoryview(a_batch(value)), 0, 0))
            expected[topic, part] = expected.get((topic, part), b"") + batch
    found = {
        (run.topic_id.int, run.partition): data[run.start : run.start + run.length] for run in footer.runs
    }
    assert found == expected
    assert list(found) == sorted(found)


def test_a_short_tail_says_how_much_is_needed() -> None:
    with pytest.raises(TailTooShort) as first:
        read_footer(SMALL[-5:], len(SMALL))
    with pytest.raises(TailTooShort) as second:
        read_footer(SMALL[-30:], len(SMALL))

    assert first.value.needed <= len(SMALL)
    assert read_footer(SMALL[-second.value.needed :], len(SMALL)).number == 3


def test_every_single_bit_that_flips_is_found() -> None:
    for bit in range(len(SMALL) * 8):
        rotten = bytearray(SMALL)
        rotten[bit // 8] ^= 1 << bit % 8
        assert audit(rotten), f"bit {bit}"


def test_every_truncation_is_found() -> None:
    for size in range(len(SMALL)):
        assert audit(SMALL[:size])
        with pytest.raises(InvalidObject):
            read_footer(SMALL[:size], size)


@PLAIN
@given(st.binary(max_size=100))
def test_any_tail_is_an_error_and_nothing_worse(tail: bytes) -> None:
    with pytest.raises(InvalidObject):
        read_footer(tail + b"TRMX", len(tail) + 4)
