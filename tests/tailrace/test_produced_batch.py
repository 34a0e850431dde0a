"""The fast path accepts only batches that the whole check accepts, with the same result."""

from __future__ import annotations

from struct import pack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.batches.mixed_object import BatchCoordinates, coordinates
from tailrace.batches.produced_batch import plain_batch
from tailrace.batches.record_batch import (
    Compression,
    InvalidBatch,
    InvalidRecordBatch,
    crc_of,
    validate_produced,
)
from tailrace.batches.records import NewRecord, encode_batch

NOW = 1_700_000_000_000
RECORDS = [NewRecord(b"k", b"v" * 20)] * 3
BATCH = encode_batch(
    RECORDS, timestamps=[NOW, NOW + 5, NOW + 9], producer_id=7, producer_epoch=1, base_sequence=4
)
LIMITS = {"max_message_bytes": 1_000, "oldest_timestamp": NOW - 100, "newest_timestamp": NOW + 100}
FIELDS = {0: ">q", 8: ">i", 12: ">i", 16: ">b", 21: ">h", 23: ">i", 27: ">q", 35: ">q", 43: ">q", 51: ">h", 53: ">i",
          57: ">i"}  # fmt: skip
"""The header's fields, but the CRC, by their place."""
EDGES = [-(1 << 15), -2, -1, 0, 1, 2, 3, 4, 5, 8, 16, 32, 64, 127, NOW - 101, NOW - 100, NOW + 100, NOW + 101]


def checked(data: bytes, **limits: int) -> BatchCoordinates | None:
    """What the whole check takes: one batch that fills the bytes."""
    try:
        ((header, view),) = validate_produced(memoryview(data), **{**LIMITS, **limits})
    except InvalidBatch:
        return None
    assert len(view) == len(data)
    return coordinates(header)


def with_fields(values: dict[int, int], tail: bytes = b"") -> bytes:
    """The batch with other values in its header where they fit, and a CRC that is right."""
    data = bytearray(BATCH + tail)
    for place, value in values.items():
        bits = 8 * len(pack(FIELDS[place], 0))
        if -(1 << bits - 1) <= value < 1 << bits - 1:
            data[place : place + bits // 8] = pack(FIELDS[place], value)
    data[17:21] = pack(">I", crc_of(data))
    return bytes(data)


@pytest.mark.parametrize("codec", Compression)
@pytest.mark.parametrize("producer", [(-1, -1, -1), (7, 0, 0)])
def test_what_clients_send_is_taken_in_one_look(codec: Compression, producer: tuple[int, int, int]) -> None:
    producer_id, epoch, sequence = producer
    data = encode_batch(
        RECORDS, timestamps=[NOW] * 3, compression=codec,
        producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence,
    )  # fmt: skip
    found = plain_batch(memoryview(data), **LIMITS)
    assert found is not None and found == checked(data)


def test_a_batch_of_a_transaction_or_of_another_size_is_left_to_the_whole_check() -> None:
    transactional = encode_batch(
        RECORDS, timestamps=[NOW] * 3, producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True
    )
    for data in (transactional, BATCH + b"\0", BATCH[:-1], BATCH[:60], b""):
        assert plain_batch(memoryview(data), **LIMITS) is None
    assert plain_batch(memoryview(BATCH), **{**LIMITS, "max_message_bytes": len(BATCH) - 1}) is None


@settings(max_examples=400, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(sorted(FIELDS)), st.sampled_from(EDGES) | st.integers(-300, 300), max_size=4
    ),
    st.binary(max_size=3),
)
def test_the_fast_path_accepts_what_the_whole_check_accepts(values: dict[int, int], tail: bytes) -> None:
    data = with_fields(values, tail)
    found = plain_batch(memoryview(data), **LIMITS)
    assert found is None or found == checked(data)


def test_a_base_offset_is_refused_as_kafka_refuses_it() -> None:
    for base_offset in (1, -1, 1 << 62):
        data = base_offset.to_bytes(8, "big", signed=True) + BATCH[8:]
        assert plain_batch(memoryview(data), **LIMITS) is None
        with pytest.raises(InvalidRecordBatch, match="base offset"):
            validate_produced(memoryview(data), **LIMITS)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, len(BATCH) * 8 - 1))
def test_one_wrong_bit_is_not_taken_unless_the_whole_check_takes_it(bit: int) -> None:
    rotten = bytearray(BATCH)
    rotten[bit // 8] ^= 1 << bit % 8
    assert plain_batch(memoryview(rotten), **LIMITS) == checked(bytes(rotten))
