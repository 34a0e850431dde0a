from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.batches import record_batch as rb
from tailrace.batches.record_batch import Compression, MarkerKind
from tailrace.batches.records import NewRecord, decode_records, encode_batch

PLAIN = settings(deadline=None, max_examples=200, derandomize=True)
BATCH = encode_batch(
    [NewRecord(b"k", b"v" * 9)] * 3, timestamps=[10, 20, 30], producer_id=4, producer_epoch=1, base_sequence=7
)


def changed(position: int, layout: str, value: int, *, batch: bytes = BATCH) -> memoryview:
    """The batch with one header field set, and a CRC that fits."""
    copy = bytearray(batch)
    struct.pack_into(layout, copy, position, value)
    if position >= rb.CRC_START:
        struct.pack_into(">I", copy, 17, rb.crc_of(copy))
    return memoryview(copy)


def validate(buffer: memoryview, max_message_bytes: int = 1 << 20) -> object:
    return rb.validate_produced(buffer, max_message_bytes=max_message_bytes)


def test_a_header_says_what_was_written() -> None:
    (header,) = rb.walk(memoryview(BATCH))

    assert (header.length, header.record_count, header.last_offset_delta) == (len(BATCH), 3, 2)
    assert (header.base_timestamp, header.max_timestamp) == (10, 30)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (4, 1, 7)
    assert header.compression is Compression.NONE
    assert not (header.is_transactional or header.is_control)
    assert header.end_offset == 3


@pytest.mark.parametrize(("attributes", "most"), [(0, 42 // 7), (4, rb.MAX_RECORDS)])
def test_a_batch_cannot_say_that_it_has_more_records_than_fit_into_it(attributes: int, most: int) -> None:
    def saying(count: int) -> memoryview:
        return memoryview(
            rb.assemble(
                b"r" * 42, attributes=attributes, record_count=count, last_offset_delta=count - 1,
                base_timestamp=1, max_timestamp=1,
            )
        )  # fmt: skip

    validate(saying(most))
    with pytest.raises(rb.CountMismatch, match=f"at most {most} can"):
        validate(saying(most + 1))


def test_batches_are_walked_and_split_in_order() -> None:
    views = [bytes(view) for _, view in rb.split(memoryview(BATCH + BATCH))]

    assert views == [BATCH, BATCH]


@pytest.mark.parametrize("end", [1, 16, 60, 61, len(BATCH) - 1])
def test_a_batch_that_ends_early_is_truncated(end: int) -> None:
    with pytest.raises(rb.TruncatedBatch):
        validate(memoryview(BATCH)[:end])


@pytest.mark.parametrize(
    ("buffer", "error"),
    [
        (memoryview(b""), rb.NoBatch),
        (changed(16, ">b", 0), rb.UnsupportedMagic),
        (changed(16, ">b", 1), rb.UnsupportedMagic),
        (changed(16, ">b", 3), rb.UnknownMagic),
        (changed(16, ">b", -1), rb.UnknownMagic),
        (changed(8, ">i", 48), rb.BadLength),
        (changed(8, ">i", -1), rb.BadLength),
        (changed(8, ">i", 2**31 - 1), rb.BatchTooLarge),
        (changed(57, ">i", 2), rb.CountMismatch),
        (changed(57, ">i", -1), rb.CountMismatch),
        (changed(57, ">i", 4), rb.CountMismatch),
        (changed(23, ">i", -1), rb.CountMismatch),
        (changed(21, ">h", 5), rb.UnknownCompression),
        (changed(21, ">h", rb.CONTROL_FLAG), rb.InvalidRecordBatch),
        (changed(21, ">h", rb.DELETE_HORIZON_FLAG), rb.InvalidRecordBatch),
        (changed(21, ">h", rb.LOG_APPEND_TIME_FLAG), rb.InvalidTimestamp),
        (changed(51, ">h", -1), rb.InvalidRecordBatch),
        (changed(53, ">i", -1), rb.InvalidRecordBatch),
        (changed(43, ">q", -1, batch=bytes(changed(21, ">h", rb.TRANSACTIONAL_FLAG))), rb.InvalidRecordBatch),
        (changed(17, ">I", 1), rb.CrcMismatch),
        (memoryview(BATCH + BATCH), rb.InvalidRecordBatch),
    ],
)
def test_batches_that_no_producer_may_send_are_refused_by_name(
    buffer: memoryview, error: type[rb.InvalidBatch]
) -> None:
    with pytest.raises(error):
        validate(buffer)


def test_a_batch_without_a_producer_may_say_sequence_zero_as_sarama_does() -> None:
    assert validate(changed(53, ">i", 0, batch=bytes(changed(43, ">q", -1))))


def test_sizes_and_times_are_held_to_the_topics_limits() -> None:
    assert validate(memoryview(BATCH), len(BATCH))
    with pytest.raises(rb.BatchTooLarge):
        validate(memoryview(BATCH), len(BATCH) - 1)
    for bounds in ({"oldest_timestamp": 11}, {"newest_timestamp": 29}):
        with pytest.raises(rb.InvalidTimestamp):
            rb.validate_produced(memoryview(BATCH), max_message_bytes=1 << 20, **bounds)


@PLAIN
@given(st.integers(0, len(BATCH) * 8 - 1))
def test_any_bit_that_the_crc_covers_is_missed_by_nobody(bit: int) -> None:
    rotten = bytearray(BATCH)
    rotten[bit // 8] ^= 1 << bit % 8

    if 8 <= bit // 8 < 12 or bit // 8 >= 16:
        with pytest.raises(rb.InvalidBatch):
            validate(memoryview(rotten))


@PLAIN
@given(st.binary(max_size=200))
def test_any_bytes_are_refused_without_a_crash(data: bytes) -> None:
    with pytest.raises(rb.InvalidBatch):
        validate(memoryview(data))


def test_framing_patches_what_is_outside_the_crc_and_copies_nothing_else() -> None:
    head, rest = rb.framed(memoryview(BATCH), 1_000, 7)
    header = rb.read_header(b"".join((head, rest)))

    assert (header.base_offset, header.leader_epoch, header.length) == (1_000, 7, len(BATCH))
    rb.check_crc(b"".join((head, rest)))
    assert isinstance(rest, memoryview) and rest.obj is BATCH
    own = bytearray(BATCH)
    rb.patch_base_offset_and_epoch(own, 1_000, 7)
    assert own == b"".join((head, rest))


def test_log_append_time_is_stamped_with_a_crc_that_fits() -> None:
    stamped = rb.with_log_append_time(memoryview(BATCH), 99)

    rb.check_crc(stamped)
    assert [record.timestamp for record in decode_records(stamped)] == [99] * 3


@pytest.mark.parametrize("kind", MarkerKind)
def test_markers_are_control_records_as_kafka_writes_them(kind: MarkerKind) -> None:
    marker = rb.control_batch(
        kind, producer_id=9, producer_epoch=2, timestamp_ms=5, base_offset=40, coordinator_epoch=3
    )
    header = rb.read_header(marker)
    (record,) = decode_records(marker)

    rb.check_crc(marker)
    assert header.is_control and header.is_transactional and header.base_sequence == -1
    assert record.key == struct.pack(">hh", 0, kind)
    assert record.value == struct.pack(">hi", 0, 3)
    assert record.offset == 40
