"""What a reader over HTTP sees of fetched batches: as Java's consumer."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent.gateway.fetched import visible
from sequencer.api import AbortedTransaction as Aborted
from tailrace.kafka.messages.fetch import AbortedTransaction
from tailrace.record_batch import MarkerKind, control_batch, split
from tailrace.records import NewRecord, encode_batch
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
    found = visible(data, [AbortedTransaction(*each) for each in aborted], start, most)
    assert found.records == java.records[:most]
    if len(java.records) > most:
        assert found.next_offset == java.records[most].offset
    else:
        assert found.next_offset == max(start, end)
