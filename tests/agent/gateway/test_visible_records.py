"""A reader over HTTP sees the same records of fetched batches as Java's consumer."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent.gateway.visible_records import ReadBudget, size_in_memory, visible
from sequencer.api.reads import AbortedTransaction as Aborted
from tailrace.batches.compression import MAX_LOOKED_INTO_BYTES
from tailrace.batches.record_batch import (
    HEADER_BYTES,
    Compression,
    MarkerKind,
    assemble_like,
    control_batch,
    read_header,
    split,
)
from tailrace.batches.records import NewRecord, encode_batch
from tailrace.kafka.messages.fetch import AbortedTransaction
from tests.support.consumer import JavaLikeConsumer

T0 = 1_700_000_000_000
STEPS = st.lists(
    st.tuples(st.sampled_from(["plain", "tx", "abort", "commit"]), st.integers(1, 3)), max_size=12
)


def log_of(steps: list[tuple[str, int]]) -> tuple[bytes, list[tuple[int, int]], int]:
    """The bytes, (producer, first offset) of aborted transactions, and the end."""
    data, offset = b"", 0
    began: dict[int, int] = {}
    aborted: list[tuple[int, int]] = []
    for kind, number in steps:
        if kind in ("abort", "commit"):
            marker = MarkerKind.ABORT if kind == "abort" else MarkerKind.COMMIT
            data += control_batch(
                marker, producer_id=number, producer_epoch=0, timestamp_ms=T0, base_offset=offset
            )
            first = began.pop(number, None)
            if kind == "abort" and first is not None:
                aborted.append((number, first))
            offset += 1
            continue
        is_tx = kind == "tx"
        if is_tx:
            began.setdefault(number, offset)
        records = [NewRecord(None, b"%d" % (offset + each)) for each in range(number)]
        data += encode_batch(
            records,
            base_offset=offset,
            timestamps=[T0] * number,
            producer_id=number if is_tx else -1,
            producer_epoch=0 if is_tx else -1,
            base_sequence=0 if is_tx else -1,
            is_transactional=is_tx,
        )
        offset += number
    return data, aborted, offset


@given(steps=STEPS, start=st.integers(0, 8), most=st.integers(1, 40))
def test_a_reader_over_http_sees_what_javas_consumer_sees(
    steps: list[tuple[str, int]], start: int, most: int
) -> None:
    data, aborted, end = log_of(steps)
    data = b"".join(batch for header, batch in split(memoryview(data)) if header.end_offset > start)
    java = JavaLikeConsumer(start)
    java.take(data, [Aborted(producer, first, end) for producer, first in aborted])
    budget = ReadBudget(most, MAX_LOOKED_INTO_BYTES)
    found = visible(data, [AbortedTransaction(*each) for each in aborted], start, budget)
    assert found.records == java.records[:most]
    if len(java.records) > most:
        assert found.next_offset == java.records[most].offset
    else:
        assert found.next_offset == max(start, end)


def test_a_read_ends_at_the_record_that_does_not_fit_and_has_one_at_least() -> None:
    bomb = NewRecord(None, bytes(1 << 20))
    data = b"".join(
        encode_batch([bomb] * 2, base_offset=2 * number, timestamps=[T0] * 2, compression=Compression.ZSTD)
        for number in range(8)
    )
    for limit, count in ((0, 1), (3 << 20, 2), (4 << 20, 3), (100 << 20, 16)):
        budget = ReadBudget(1_000, limit)
        found = visible(data, [], 0, budget)
        assert (len(found.records), found.next_offset) == (count, count)
        assert budget.used == sum(map(size_in_memory, found.records))
    budget = ReadBudget(1_000, 2 << 20)
    visible(data, [], 0, budget)
    assert visible(data, [], 5, budget).records == [], "all partitions share one budget"


def test_a_read_ends_before_a_record_that_is_too_large_and_the_next_one_names_it_alone() -> None:
    sizes = (1, 1_000, 2)
    data = encode_batch([NewRecord(None, bytes(size)) for size in sizes], timestamps=[T0] * 3)
    reads = [visible(data, [], start, ReadBudget(1_000, 0, largest=600)) for start in range(3)]
    assert [found.next_offset for found in reads] == [1, 2, 3]
    assert [[len(record.value or b"") for record in found.records] for found in reads] == [[1], [], [2]]
    assert [bool(found.unreadable) for found in reads] == [False, True, False]


def test_a_read_ends_before_what_cannot_be_read_and_the_next_one_names_it_and_goes_past_it() -> None:
    first, second, last = (
        encode_batch([NewRecord(None, b"v")] * 3, base_offset=3 * number, timestamps=[T0] * 3)
        for number in range(3)
    )
    cut = assemble_like(read_header(second), second[HEADER_BYTES:-1], 3)
    position, offsets, reads = 0, [], []
    for fetched in (first + cut + last, cut + last, last):
        found = visible(fetched, [], position, ReadBudget(1_000, 1_000_000))
        position = found.next_offset
        offsets += [record.offset for record in found.records]
        reads.append((position, bool(found.unreadable)))
    assert reads == [(5, False), (6, True), (9, False)]
    assert offsets == [0, 1, 2, 3, 4, 6, 7, 8]
