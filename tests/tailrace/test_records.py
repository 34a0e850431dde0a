from __future__ import annotations

import contextlib

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.batches.compression import CannotUnpack, UnpackedTooLarge, compress, decompress
from tailrace.batches.record_batch import Compression, InvalidBatch, check_crc, read_header, validate_produced
from tailrace.batches.records import InvalidRecords, NewRecord, decode_records, encode_batch

INT64 = st.integers(-(2**62), 2**62)
BYTES = st.none() | st.binary(max_size=40)
RECORDS = st.lists(
    st.tuples(
        INT64,
        st.builds(NewRecord, BYTES, BYTES, st.lists(st.tuples(st.text(max_size=5), BYTES), max_size=3)),
    ),
    min_size=1,
    max_size=20,
)
PLAIN = settings(deadline=None, max_examples=60, derandomize=True)


@PLAIN
@given(RECORDS, st.sampled_from(Compression), st.integers(0, 2**50))
def test_encoded_values_decode_to_themselves(
    timed: list[tuple[int, NewRecord]], codec: Compression, base_offset: int
) -> None:
    batch = encode_batch(
        [record for _, record in timed],
        timestamps=[timestamp for timestamp, _ in timed],
        compression=codec,
        base_offset=base_offset,
    )

    check_crc(batch)
    records = decode_records(batch)

    assert [record.offset - base_offset for record in records] == list(range(len(timed)))
    assert [
        (record.timestamp, NewRecord(record.key, record.value, list(record.headers))) for record in records
    ] == timed


@pytest.mark.parametrize("codec", list(Compression))
@PLAIN
@given(data=st.data())
def test_corrupt_records_cost_an_error_and_nothing_else(codec: Compression, data: st.DataObject) -> None:
    records = [NewRecord(b"k", b"v" * 30, [("h", b"x")])] * 3
    batch = bytearray(encode_batch(records, timestamps=[1, 2, 3], compression=codec))
    for _ in range(data.draw(st.integers(1, 3))):
        batch[data.draw(st.integers(61, len(batch) - 1))] ^= data.draw(st.integers(1, 255))

    with contextlib.suppress(InvalidRecords, InvalidBatch):
        decode_records(batch, max_bytes=1 << 16)


def test_log_append_time_is_every_records_time() -> None:
    batch = encode_batch([NewRecord(b"k", b"v")] * 2, timestamps=[5, 9], log_append_time=77)

    assert [record.timestamp for record in decode_records(batch)] == [77, 77]


def test_a_compacted_batch_keeps_its_offsets() -> None:
    batch = encode_batch(
        [NewRecord(None, b"v")] * 2, timestamps=[5, 9], base_offset=100, offset_deltas=[3, 8]
    )

    assert [record.offset for record in decode_records(batch)] == [103, 108]
    assert read_header(batch).end_offset == 109


@pytest.mark.parametrize("codec", [codec for codec in Compression if codec is not Compression.NONE])
@pytest.mark.parametrize("size", [0, 1, 100_000, 3_000_000])
def test_codecs_keep_the_bytes_within_the_bound(codec: Compression, size: int) -> None:
    data = bytes(size)
    packed = compress(codec, data)

    assert bytes(decompress(codec, packed, max_bytes=max(size, 1))) == data
    assert bytes(decompress(codec, packed)) == data
    if size:
        with pytest.raises(UnpackedTooLarge):
            decompress(codec, packed, max_bytes=size - 1)
        with pytest.raises(CannotUnpack):
            decompress(codec, packed[:-2])


def test_raw_and_framed_snappy_are_both_read() -> None:
    data = b"tailrace " * 9000

    assert bytes(decompress(Compression.SNAPPY, bytes(cramjam.snappy.compress_raw(data)))) == data
    assert compress(Compression.SNAPPY, data).startswith(b"\x82SNAPPY\x00")


def test_lz4_blocks_are_independent_for_javas_reader() -> None:
    assert compress(Compression.LZ4, bytes(200_000))[4] & 0x20, "the block independence bit of the frame"


@pytest.mark.parametrize("codec", list(Compression))
def test_aiokafka_reads_and_writes_the_same_batches(codec: Compression) -> None:
    from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

    builder = DefaultRecordBatchBuilder(2, codec, 0, 7, 1, 3, 1 << 20)
    for number in range(5):
        builder.append(number, 1000 + number, b"k%d" % number, b"v" * 50, [("h", b"1")])
    theirs = bytes(builder.build())
    ours = encode_batch(
        [NewRecord(b"k%d" % number, b"v" * 50, [("h", b"1")]) for number in range(5)],
        timestamps=list(range(1000, 1005)),
        compression=codec,
        producer_id=7,
        producer_epoch=1,
        base_sequence=3,
    )

    validate_produced(memoryview(theirs), max_message_bytes=1 << 20)
    assert decode_records(theirs) == decode_records(ours)
    assert [(record.offset, record.key) for record in DefaultRecordBatch(bytearray(ours))] == [
        (number, b"k%d" % number) for number in range(5)
    ]
    if codec is Compression.NONE:
        assert ours[12:16] != theirs[12:16] or ours == theirs
        assert ours[16:] == theirs[16:]
