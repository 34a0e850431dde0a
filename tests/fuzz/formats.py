"""Targets for stored and produced bytes: record batches, codecs, mixed objects, the Parquet object's own header."""

from __future__ import annotations

import base64
import random
from functools import cache
from struct import Struct
from uuid import UUID

import cramjam
import msgspec
from fastcrc.crc32 import iscsi as crc32c

from tailrace.batches import mixed_object
from tailrace.batches.compression import CannotUnpack, compress, decompress
from tailrace.batches.produced_batch import plain_batch
from tailrace.batches.record_batch import (
    CRC_START,
    HEADER_BYTES,
    Compression,
    InvalidBatch,
    MarkerKind,
    control_batch,
    read_header,
    validate_produced,
    walk,
)
from tailrace.batches.records import InvalidRecords, NewRecord, decode_records, encode_batch
from tailrace.ids import TopicPartition
from tailrace.parquet_object.header import InvalidParquetObject, unpack_header
from tests.fuzz.target import Target

MAX_MESSAGE_BYTES = 1 << 20
UNPACK_AT_MOST = 1 << 20
NOW = 1_700_000_000_000
_CRC = Struct(">I")
_LENGTH = Struct(">i")


@cache
def batches() -> list[bytes]:
    """Valid batches of every codec and kind."""
    rng = random.Random(5)
    found: list[bytes] = []
    for codec in Compression:
        for count in (1, 3, 40):
            records = [
                NewRecord(
                    None if number % 5 == 4 else b"key-%d" % number,
                    None if number % 7 == 6 else rng.randbytes(rng.choice((0, 5, 120))),
                    [("h", b"1"), ("ü", None)][: number % 3],
                )
                for number in range(count)
            ]
            times = [NOW + rng.randrange(-5, 1000) for _ in records]
            found.append(encode_batch(records, timestamps=times, compression=codec))
            found.append(
                encode_batch(
                    records,
                    timestamps=times,
                    compression=codec,
                    producer_id=9,
                    producer_epoch=1,
                    base_sequence=4,
                    is_transactional=count == 3,
                    log_append_time=NOW if count == 40 else None,
                )
            )
    found.append(control_batch(MarkerKind.ABORT, producer_id=9, producer_epoch=1, timestamp_ms=NOW))
    holes = [NewRecord(b"a", b"b"), NewRecord(b"c", None)]
    found.append(encode_batch(holes, timestamps=[NOW, NOW], offset_deltas=[2, 9]))
    return found


def check_produced(data: bytes) -> bool:
    """Validate as a Produce request does, then read the accepted batches as a reader does."""
    try:
        taken = validate_produced(
            memoryview(data), max_message_bytes=MAX_MESSAGE_BYTES, max_batches=2, newest_timestamp=NOW + 10**9
        )
    except InvalidBatch:
        taken = []
    plain = plain_batch(
        memoryview(data),
        max_message_bytes=MAX_MESSAGE_BYTES,
        oldest_timestamp=-1,
        newest_timestamp=NOW + 10**9,
    )
    assert plain is None or [plain] == [mixed_object.coordinates(header) for header, _ in taken]
    try:
        walk(memoryview(data))
    except InvalidBatch:
        assert not taken, "taken from a producer, and then no whole batches"
        return False
    for _, batch in taken:
        _read(bytes(batch))
    return bool(taken)


def check_sealed_batch(data: bytes) -> bool:
    """The same with a corrected length and CRC, to reach the code behind these checks."""
    return check_produced(sealed(data))


def sealed(data: bytes) -> bytes:
    """The bytes as one batch with the right length, magic and CRC."""
    out = bytearray(data.ljust(HEADER_BYTES, b"\x00"))
    _LENGTH.pack_into(out, 8, len(out) - 12)
    out[16] = 2
    _CRC.pack_into(out, 17, crc32c(memoryview(out)[CRC_START:]))
    return bytes(out)


def _read(batch: bytes) -> bool:
    try:
        records = decode_records(batch, max_bytes=UNPACK_AT_MOST)
    except (InvalidRecords, InvalidBatch):
        return False
    assert len(records) == read_header(batch).record_count
    return True


def check_codec(data: bytes) -> bool:
    """The first byte names the codec; the rest is its input."""
    if not data:
        return False
    codec = Compression(data[0] % 5)
    try:
        unpacked = decompress(codec, memoryview(data)[1:], max_bytes=UNPACK_AT_MOST)
    except CannotUnpack:
        return False
    assert len(unpacked) <= UNPACK_AT_MOST
    return True


def codec_seeds() -> list[bytes]:
    """Streams of each codec, ours and of other writers."""
    rng = random.Random(6)
    contents = (b"", b"a", b"ab" * 700, rng.randbytes(300), bytes(200_000))
    found = [bytes((codec,)) + compress(codec, content) for codec in Compression for content in contents]
    for content in contents:
        found.append(b"\x02" + bytes(cramjam.snappy.compress_raw(content)))
        found.append(b"\x03" + bytes(cramjam.lz4.compress(content)))
        found.append(b"\x04" + bytes(cramjam.zstd.compress(content, level=1)) * 2)
        found.append(b"\x01" + bytes(cramjam.gzip.compress(content)) * 3)
    # Declared sizes: a zstd frame of 1 TiB, one of 500 MiB, a window of 128 MiB; snappy of 4 GiB; skippable frames.
    zstd = b"\x04\x28\xb5\x2f\xfd"
    found.append(zstd + b"\xe0" + (1 << 40).to_bytes(8, "little") + b"\x01\x00\x00")
    found.append(zstd + b"\xa0" + (500 << 20).to_bytes(4, "little") + b"\x01\x00\x00")
    found.append(zstd + b"\x00" + bytes(((27 - 10) << 3,)) + b"\x03\xff\xff\x00")
    found.append(b"\x04\x50\x2a\x4d\x18\xff\xff\xff\xff")
    found.append(b"\x02\xff\xff\xff\xff\x0f\x00")
    found.append(
        b"\x02\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01\x00\x00\x00\x06\xff\xff\xff\x7f\x00\x00"
    )
    return found


def mixed_seeds() -> list[bytes]:
    """Whole mixed objects."""
    runs = [
        (
            TopicPartition(UUID(int=number), number % 3),
            f"topic-{number}",
            [(mixed_object.coordinates(read_header(batch)), [batch]) for batch in batches()[number::9]],
        )
        for number in range(9)
    ]
    return [
        b"".join(
            mixed_object.seal(
                runs[:count], object_id=UUID(int=1), session_id=UUID(int=2), number=3, created_ms=NOW
            ).parts
        )
        for count in (0, 1, 2, 9)
    ]


def check_mixed(data: bytes) -> bool:
    """Read a whole object as a reader does, and as `tailrace audit` does."""
    sound = _footer_is_read(data)
    problems = mixed_object.audit(data)
    assert sound or problems
    return not problems


def _footer_is_read(data: bytes) -> bool:
    tail = data[-512:]
    while True:
        try:
            mixed_object.read_footer(tail, len(data))
            return True
        except mixed_object.TailTooShort as error:
            assert len(tail) < error.needed <= len(data) or error.needed == 0, "asks for what was given"
            tail = data[-error.needed :]
        except mixed_object.InvalidObject:
            return False


def check_mixed_footer(data: bytes) -> bool:
    """A footer's MessagePack, packed and summed as a writer would: the CRC is right, the contents need not be."""
    packed = bytes(cramjam.zstd.compress(data, level=1))
    head = Struct(">IIHH").pack(len(packed), len(data), mixed_object.VERSION, 0)
    trailer = head + _CRC.pack(crc32c(head, crc32c(packed))) + mixed_object.MAGIC
    body = Struct(">4sHH").pack(mixed_object.MAGIC, mixed_object.VERSION, 0)
    return check_mixed(body + b"".join(batches()[:3]) + packed + trailer)


def footer_seeds() -> list[bytes]:
    """The MessagePack of the footers of `mixed_seeds`, for the three batches that `check_mixed_footer` puts before."""
    encoder = msgspec.msgpack.Encoder(uuid_format="bytes")
    found = [encoder.encode(mixed_object.read_footer(data, len(data))) for data in mixed_seeds()]
    run = (
        TopicPartition(UUID(int=1), 0),
        "t",
        [(mixed_object.coordinates(read_header(batch)), [batch]) for batch in batches()[:3]],
    )
    exact = mixed_object.seal(
        [run], object_id=UUID(int=1), session_id=UUID(int=2), number=3, created_ms=NOW
    ).footer
    return [*found, encoder.encode(exact)]


def check_parquet_header(data: bytes) -> bool:
    """MessagePack of our header in a Parquet object, packed and summed as a writer would."""
    packed = bytes(cramjam.zstd.compress(data, level=1))
    return _header_is_read(b"1:" + base64.b64encode(Struct(">II").pack(len(data), crc32c(packed)) + packed))


def check_parquet_metadata(data: bytes) -> bool:
    """The whole value of the metadata, including its CRC."""
    return _header_is_read(data)


def _header_is_read(value: bytes) -> bool:
    try:
        unpack_header(value)
    except InvalidParquetObject:
        return False
    return True


def targets() -> list[Target]:
    """All of this module."""
    from tests.fuzz.parquet_objects import header_seeds, metadata_seeds

    produced = [*batches(), b"".join(batches()[:2]), b""]
    return [
        Target("batch", 8, produced, check_produced),
        Target("batch behind its CRC", 12, produced, check_sealed_batch),
        Target("codec", 10, codec_seeds(), check_codec),
        Target("mixed object", 5, mixed_seeds(), check_mixed),
        Target("mixed footer behind its CRC", 7, footer_seeds(), check_mixed_footer),
        Target("Parquet header behind its CRC", 4, header_seeds(), check_parquet_header),
        Target("Parquet metadata", 2, metadata_seeds(), check_parquet_metadata),
    ]
