from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path
from uuid import UUID

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.batches.compression import compress, decompress
from tailrace.batches.record_batch import Compression, assemble_like, crc_of, framed, read_header
from tailrace.batches.records import InvalidRecords, NewRecord, decode_records, encode_batch
from tailrace.ids import TopicPartition
from tailrace.parquet_object.header import InvalidParquetObject
from tailrace.parquet_object.read import (
    FooterNeedsMore,
    PlainBatch,
    plain_batches,
    read_index,
    record_batches,
    row_group_records,
)
from tailrace.parquet_object.verify import verify
from tailrace.parquet_object.write import (
    MAX_BATCH_BYTES,
    SourceBatch,
    SourceRun,
    WrittenParquet,
    write_parquet,
)

TOPIC = UUID(int=5)
PLAIN = settings(deadline=None, max_examples=40, derandomize=True)
BYTES = st.none() | st.binary(max_size=30)
RECORD = st.builds(NewRecord, BYTES, BYTES, st.lists(st.tuples(st.text(max_size=4), BYTES), max_size=3))
BATCHES = st.lists(
    st.tuples(
        st.lists(st.tuples(st.integers(-(2**60), 2**60), RECORD), min_size=1, max_size=8),
        st.sampled_from(Compression),
        st.none() | st.integers(0, 2**40),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=8,
)


def source(batches: list[bytes], *, gap: int = 0, partition: int = 0) -> SourceRun:
    placed: list[SourceBatch] = []
    offset = 100
    for batch in batches:
        placed.append(SourceBatch(batch, offset, 2))
        offset += read_header(batch).last_offset_delta + 1 + gap
    return SourceRun(TopicPartition(TOPIC, partition), "flights", placed)


def write(*runs: SourceRun, row_group_bytes: int = 1 << 20) -> WrittenParquet:
    return write_parquet(
        runs, object_id=UUID(int=1), cluster_id="c", created_ms=9, row_group_bytes=row_group_bytes
    )


def whole(written: WrittenParquet) -> bytes:
    assert written.data is not None
    return bytes(written.data)


def replay(written: WrittenParquet, partition: int = 0, offset: int = 0) -> list[bytes]:
    data = whole(written)
    where = TopicPartition(TOPIC, partition)
    return [
        stored.data
        for group in written.index.row_groups_for(TOPIC, partition, offset)
        for stored in record_batches(
            written.index, group.number, data[group.start : group.start + group.length]
        )
        if stored.partition == where and stored.end_offset > offset
    ]


def placed(batch: SourceBatch) -> bytes:
    return b"".join(framed(memoryview(batch.data), batch.base_offset, batch.leader_epoch))


def simple(count: int, compression: Compression = Compression.NONE, size: int = 100) -> list[bytes]:
    records = [NewRecord(b"k%d" % number, bytes([number]) * size, [("h", None)]) for number in range(5)]
    return [
        encode_batch(records, timestamps=list(range(number, number + 5)), compression=compression)
        for number in range(count)
    ]


@PLAIN
@given(BATCHES, st.integers(0, 3), st.sampled_from([1, 200, 1 << 20]))
def test_batches_come_back_as_they_went_in(
    made: list[tuple[list[tuple[int, NewRecord]], Compression, int | None, int]], gap: int, group: int
) -> None:
    batches = [
        encode_batch(
            [record for _, record in timed],
            timestamps=[timestamp for timestamp, _ in timed],
            compression=codec,
            log_append_time=stamp,
            offset_deltas=[place * (1 + holes) for place in range(len(timed))],
        )
        for timed, codec, stamp, holes in made
    ]
    run = source(batches, gap=gap)

    written = write(run, row_group_bytes=group)

    assert verify(whole(written), [run], size=written.size, crc=written.crc) == []
    for before, after in zip(run.batches, replay(written), strict=True):
        assert decode_records(after) == decode_records(placed(before))
        assert crc_of(after) == read_header(after).crc
        if read_header(after).compression is Compression.NONE:
            assert after == placed(before)


def test_an_offset_is_found_in_its_row_group_and_partition() -> None:
    runs = [source(simple(9), gap=2), source(simple(4), partition=1)]
    written = write(*runs, row_group_bytes=1200)

    assert len(written.row_groups) > 4
    for partition, run in enumerate(runs):
        batches = list(run.batches)
        for offset in range(95, 175):
            left = [batch for batch in batches if batch.base_offset + 5 > offset]
            assert replay(written, partition, offset) == [placed(batch) for batch in left]
    assert written.index.row_groups_for(UUID(int=6), 0, 0) == []
    assert [(run.partition, run.base_offset, run.end_offset) for run in written.runs] == [
        (0, 100, 161),
        (1, 100, 120),
    ]


def test_the_index_is_read_from_the_tail_in_two_steps() -> None:
    written = write(source(simple(3)))
    data = whole(written)

    with pytest.raises(FooterNeedsMore) as short:
        read_index(data[-100:], len(data))
    index = read_index(data[-short.value.needed :], len(data))

    assert index.header == written.index.header
    assert len(data) - short.value.needed == written.index_start


def test_non_canonical_records_come_back_record_for_record() -> None:
    batch = bytearray(simple(1)[0])
    batch[63] = 1  # a record attribute that Kafka ignores
    struct.pack_into(">I", batch, 17, crc_of(batch))
    run = source([bytes(batch)])

    written = write(run)

    assert written.index.header.exact == b"\x00"
    assert verify(whole(written), [run], size=written.size, crc=written.crc) == []
    assert decode_records(replay(written)[0]) == decode_records(placed(next(iter(run.batches))))


RAW_KEYS = {"k\xe9y": b"k\xe9\xffy", "\u2603\u2603": b"\xff\xfe\xe2\x98a\xed", "\xfc": b"\x80\xbf"}
"""By a text of as many bytes in UTF-8, keys of headers that are not UTF-8."""


def with_raw_keys(number: int, codec: Compression) -> bytes:
    """A batch of records with header keys in and not in UTF-8, as clients can send it that don't check them."""
    names = [*RAW_KEYS, "plain", "\u00df"]
    records = [
        NewRecord(
            b"k", b"%d" % place, [(names[(place + turn) % 5], b"%d" % turn) for turn in range(place % 5)]
        )
        for place in range(number, number + 7)
    ]
    batch = encode_batch(records, timestamps=range(7))
    for text, key in RAW_KEYS.items():
        batch = batch.replace(text.encode(), key)
    return assemble_like(
        msgspec.structs.replace(read_header(batch), attributes=int(codec)), compress(codec, batch[61:]), 7
    )


@pytest.mark.parametrize("codec", list(Compression))
def test_header_keys_that_are_not_utf_8_come_back_as_they_went_in(codec: Compression) -> None:
    batches = [batch for number in range(6) for batch in (with_raw_keys(number, codec), *simple(1, codec))]
    batches.append(with_raw_keys(9, codec))
    odd = bytearray(with_raw_keys(3, Compression.NONE))
    odd[62] = 1  # a record attribute: such a batch is given back in another form
    struct.pack_into(">I", odd, 17, crc_of(odd))
    runs = [source([*batches, bytes(odd)]), source([with_raw_keys(4, codec), *simple(1)], partition=1)]

    first = write(*runs, row_group_bytes=1200)
    assert len(first.row_groups) > 3
    assert verify(whole(first), runs, size=first.size, crc=first.crc) == []
    copies = [
        SourceRun(TopicPartition(TOPIC, number), "flights", copied(first, number)) for number in range(2)
    ]
    again = write(*copies)
    assert verify(whole(again), copies, size=again.size, crc=again.crc) == []
    for written in (first, again):
        for number, run in enumerate(runs):
            for before, after in zip(run.batches, replay(written, number), strict=True):
                assert unpacked(after)[2:] == unpacked(placed(before))[2:]

    texts = {key.decode(errors="replace") for key in RAW_KEYS.values()} | {"plain", "\u00df", "h"}
    read = pq.read_table(pa.BufferReader(whole(again))).column("headers").to_pylist()
    assert {header["key"] for headers in read for header in headers} == texts


def unpacked(batch: bytes) -> bytes:
    """The decompressed records."""
    return bytes(decompress(read_header(batch).compression, batch[61:], max_bytes=1 << 20))


def copied(written: WrittenParquet, partition: int = 0) -> list[PlainBatch]:
    """The partition's batches as another Parquet object gets them."""
    data, run = whole(written), written.index.run_of(TOPIC, partition)
    assert run is not None
    return [
        batch
        for group in written.row_groups
        for batch in plain_batches(
            written.index,
            group.number,
            row_group_records(written.index, group.number, data[group.start : group.start + group.length]),
            run,
        )
    ]


@pytest.mark.parametrize("codec", list(Compression))
def test_a_copy_of_parquet_batches_gives_the_same_bytes_as_the_first(codec: Compression) -> None:
    odd = bytearray(simple(1)[0])
    odd[63] = 1  # a record attribute: such a batch is given back in another form
    struct.pack_into(">I", odd, 17, crc_of(odd))
    first = write(
        source([*simple(9, codec), bytes(odd)]), source(simple(2), partition=1), row_group_bytes=1200
    )
    runs = [
        SourceRun(TopicPartition(TOPIC, partition), "flights", copied(first, partition))
        for partition in range(2)
    ]

    again = write(*runs)

    assert verify(whole(again), runs, size=again.size, crc=again.crc) == []
    assert [replay(again, partition) for partition in range(2)] == [
        replay(first, partition) for partition in range(2)
    ]
    assert again.index.header.exact == first.index.header.exact
    assert again.index.header.batch_headers == first.index.header.batch_headers


def test_verification_finds_a_copied_batch_that_differs() -> None:
    first = write(source(simple(2)))
    batches = copied(first)
    changed = batches[1]._replace(records=memoryview(bytes(len(batches[1].records))))
    run = SourceRun(TopicPartition(TOPIC, 0), "flights", batches)
    other = SourceRun(TopicPartition(TOPIC, 0), "flights", [batches[0], changed])

    again = write(run)

    (problem,) = verify(whole(again), [other], size=again.size, crc=again.crc)
    assert "offset 105: its records differ" in problem


def test_partitions_share_small_row_groups_only() -> None:
    """Twelve thin partitions and a thick one among them."""
    thin = [source(simple(4, size=40_000), partition=number) for number in range(13) if number != 6]
    thick = source(simple(20, size=60_000), partition=6)

    written = write(*thin, thick, row_group_bytes=4 << 20)

    header = written.index.header
    partitions_of = [
        {run.partition for run in header.runs if run.first_batch < group.first_batch + group.batch_count
         and group.first_batch < run.first_batch + run.batch_count}
        for group in header.row_groups
    ]  # fmt: skip
    assert [each for each in partitions_of if 6 in each] == [{6}, {6}]
    assert all(len(each) <= 2 for each in partitions_of), "of about 800 KB each"
    assert len(partitions_of) < 15
    for number in range(13):
        run = thick if number == 6 else thin[number - (number > 6)]
        assert replay(written, number) == [placed(batch) for batch in run.batches]


@PLAIN
@given(st.data())
def test_corrupt_records_raise_and_never_crash(data: st.DataObject) -> None:
    batch = bytearray(simple(1, size=10)[0])
    for _ in range(data.draw(st.integers(1, 3))):
        batch[data.draw(st.integers(61, len(batch) - 1))] = data.draw(st.integers(0, 255))
    struct.pack_into(">I", batch, 17, crc_of(batch))
    try:
        expected = decode_records(batch)
    except InvalidRecords:
        expected = None

    try:
        written = write(source([bytes(batch)]))
    except InvalidRecords:
        return
    after = decode_records(replay(written)[0])
    assert expected is not None
    assert [record[1:] for record in after] == [record[1:] for record in expected]


def test_a_corrupt_row_group_is_reported_never_served() -> None:
    written = write(source(simple(3)))
    data = whole(written)
    (group,) = written.row_groups
    good = data[group.start : group.start + group.length]
    batches = record_batches(written.index, 0, good)

    for place in range(0, len(good), 7):
        rotten = bytearray(good)
        rotten[place] ^= 0x10
        try:
            found = record_batches(written.index, 0, bytes(rotten))
        except InvalidParquetObject:
            continue
        assert found == batches


def test_verification_finds_a_batch_that_is_not_the_sources() -> None:
    written = write(source(simple(3)))
    other = source([*simple(2), simple(1, size=101)[0]])

    assert verify(whole(written), [other], size=written.size, crc=written.crc)
    assert verify(whole(written), [source(simple(2))], size=written.size, crc=written.crc)
    assert verify(whole(written), [source(simple(3))], size=written.size, crc=written.crc + 1)


def test_a_batch_that_unpacks_to_more_than_a_task_has_room_for_is_refused() -> None:
    zeros = encode_batch(
        [NewRecord(b"k", bytes(MAX_BATCH_BYTES))], timestamps=[0], compression=Compression.ZSTD
    )
    assert len(zeros) < 1 << 20
    with pytest.raises(InvalidRecords, match="at most"):
        write(source([zeros]))


def test_offsets_that_fall_are_refused() -> None:
    first, second = source(simple(2)).batches
    with pytest.raises(ValueError, match="after"):
        write(SourceRun(TopicPartition(TOPIC, 0), "t", [second, first]))


def test_analysts_read_plain_columns(tmp_path: Path) -> None:
    path = tmp_path / "one.parquet"
    written = write_parquet(
        [source(simple(2))], object_id=UUID(int=1), cluster_id="c", created_ms=9, path=str(path)
    )
    table = pq.read_table(pa.BufferReader(path.read_bytes()))

    assert path.stat().st_size == written.size
    assert table.column("offset").to_pylist() == list(range(100, 110))
    assert set(table.column("topic").to_pylist()) == {"flights"}
    assert table.column("headers")[0].as_py() == [{"key": "h", "value": None}]
    assert table.column("create_timestamp").null_count == 10


def test_the_package_alone_imports_no_pyarrow() -> None:
    script = (
        "import sys, tailrace.parquet_object, tailrace.parquet_object.header as h; "
        "assert not {'pyarrow', 'numba'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_no_flipped_byte_of_a_footer_gets_past_its_crc() -> None:
    """Arrow ends the process over some of them: 1 of 1,118 flips did."""
    written = write(source(simple(2)))
    data = whole(written)
    tail = data[written.index_start :]
    assert read_index(tail, written.size, crc=written.index_crc).header == written.index.header
    for place in range(len(tail)):
        for mask in (1, 0x80, 0xFF):
            flipped = bytearray(tail)
            flipped[place] ^= mask
            with pytest.raises(InvalidParquetObject, match="was written"):
                read_index(flipped, written.size, crc=written.index_crc)
    with pytest.raises(InvalidParquetObject, match="was written"):
        read_index(data[written.index_start - 1 :], written.size, crc=written.index_crc)


def test_the_crc_of_the_index_is_the_same_for_a_file_at_a_path(tmp_path: Path) -> None:
    options = {"object_id": UUID(int=1), "cluster_id": "c", "created_ms": 9}
    in_memory = write_parquet([source(simple(2))], **options)
    at_path = write_parquet([source(simple(2))], **options, path=str(tmp_path / "a.parquet"))
    assert at_path.index_crc == in_memory.index_crc != 0


def test_an_object_without_a_row_is_an_object(tmp_path: Path) -> None:
    run = SourceRun(TopicPartition(TOPIC, 0), "flights", [], 5, 9)
    written = write(run)
    assert verify(whole(written), [run], size=written.size, crc=written.crc) == []
    index = read_index(whole(written), written.size, crc=0)
    assert (index.header.row_count, index.row_groups) == (0, [])
    held = index.run_of(TOPIC, 0)
    assert held is not None and (held.base_offset, held.end_offset, held.max_timestamp) == (5, 9, -1)
    (tmp_path / "empty.parquet").write_bytes(whole(written))
    assert pq.read_table(tmp_path / "empty.parquet").num_rows == 0
