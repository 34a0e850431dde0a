"""A few bytes that declare, or unpack to, very much are refused before they cost memory."""

from __future__ import annotations

import base64
import contextlib
import tracemalloc
from collections.abc import Callable
from struct import pack

import cramjam
import msgspec
import pytest
from fastcrc.crc32 import iscsi as crc32c

from tailrace.batches import mixed_object
from tailrace.batches.compression import CannotUnpack, UnpackedTooLarge, compress, decompress
from tailrace.batches.record_batch import Compression, InvalidBatch, assemble, validate_produced
from tailrace.batches.records import InvalidRecords, decode_records, keyless_records
from tailrace.kafka import MalformedRequest, decode_request, encode_request
from tailrace.kafka.apis import APIS
from tailrace.parquet_object.header import InvalidParquetObject, unpack_header
from tailrace.rpc.errors import ProtocolViolation
from tailrace.rpc.frames import decode_body, decode_frame
from tailrace.rpc.hello import Hello
from tests.tailrace.kafka.message_samples import declared

ZSTD = b"\x28\xb5\x2f\xfd"
XERIAL = b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"


def cost(action: Callable[[], object], error: type[Exception]) -> int:
    """Bytes that Python allocated at the peak of an action that must raise."""
    tracemalloc.start()
    try:
        with pytest.raises(error):
            action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("codec", "bomb"),
    [
        pytest.param(Compression.SNAPPY, b"\x80\xca\xb5\xee\x01" + bytes(3), id="snappy: 500 MB declared"),
        pytest.param(Compression.SNAPPY, b"\xff\xff\xff\xff\x0f\x00", id="snappy: 4 GiB declared"),
        pytest.param(
            Compression.SNAPPY, XERIAL + b"\x00\x00\x00\x05\xff\xff\xff\xff\x01" * 60, id="xerial: 60 blocks of 512 MiB"
        ),
        pytest.param(Compression.SNAPPY, XERIAL + b"\x7f\xff\xff\xff\x00", id="xerial: a block of 2 GiB"),
        pytest.param(
            Compression.ZSTD, ZSTD + b"\xe0" + pack("<Q", 1 << 40) + b"\x01\x00\x00\x00", id="zstd: 1 TiB declared"
        ),
        pytest.param(Compression.ZSTD, ZSTD + b"\xa0" + pack("<I", 500 << 20) + bytes(6), id="zstd: 500 MiB"),
        pytest.param(Compression.ZSTD, b"\x50\x2a\x4d\x18\xff\xff\xff\xff" + bytes(8), id="zstd: 4 GiB to be skipped"),
        pytest.param(
            Compression.GZIP, bytes(cramjam.gzip.compress(b"a"))[:-4] + b"\xff\xff\xff\x1f", id="gzip: 512 MiB declared"
        ),
    ],
)  # fmt: skip
def test_a_declared_size_costs_nothing(codec: Compression, bomb: bytes) -> None:
    assert cost(lambda: decompress(codec, bomb), CannotUnpack) < 64 << 10


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD])
def test_data_that_decompresses_beyond_the_limit_costs_the_limit(codec: Compression) -> None:
    bomb = compress(codec, bytes(40 << 20))
    bound = 2 << 20

    assert cost(lambda: decompress(codec, bomb, max_bytes=bound), UnpackedTooLarge) < bound + (1 << 20)


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.LZ4, Compression.ZSTD])
def test_no_buffer_is_larger_than_the_bytes_could_fill(codec: Compression) -> None:
    content = bytes(3 << 20)

    assert decompress(codec, compress(codec, content)) == content
    assert cost(lambda: decompress(codec, b"\x1f\x8b\x08\x00" + b"\xff" * 60), CannotUnpack) < 64 << 10


def test_declared_sizes_of_footers_and_headers_cost_nothing() -> None:
    packed = bytes(cramjam.zstd.compress(b"\x90"))
    declares = pack(">IIHH", len(packed), 128 << 20, mixed_object.VERSION, 0)
    crc = pack(">I", crc32c(declares, crc32c(packed)))
    mixed = pack(">4sHH", mixed_object.MAGIC, 1, 0) + packed + declares + crc + mixed_object.MAGIC
    value = b"1:" + base64.b64encode(pack(">II", 256 << 20, crc32c(packed)) + packed)

    assert cost(lambda: mixed_object.read_footer(mixed, len(mixed)), mixed_object.InvalidObject) < 64 << 10
    assert cost(lambda: unpack_header(value), InvalidParquetObject) < 64 << 10


def test_a_batch_that_declares_two_billion_records_costs_nothing() -> None:
    count = 2**31 - 1
    batch = assemble(
        b"\x0c\x00\x00\x00\x01\x01\x00" * 3,
        attributes=0,
        record_count=count,
        last_offset_delta=count - 1,
        base_timestamp=0,
        max_timestamp=0,
    )

    assert cost(lambda: validate_produced(memoryview(batch), max_message_bytes=1000), InvalidBatch) < 64 << 10
    assert cost(lambda: decode_records(batch), InvalidRecords) < 64 << 10


def test_empty_blocks_of_snappy_cost_no_more_than_their_bytes() -> None:
    many = XERIAL + bytes(4) * 20_000
    tracemalloc.start()
    try:
        assert len(decompress(Compression.SNAPPY, many)) == 0
        assert tracemalloc.get_traced_memory()[1] < 64 << 10
    finally:
        tracemalloc.stop()


def test_records_without_a_key_are_counted_and_only_the_first_are_named() -> None:
    count = 50_000
    batch = assemble(
        compress(Compression.ZSTD, b"\x0c\x00\x00\x00\x01\x01\x00" * count),
        attributes=Compression.ZSTD,
        record_count=count,
        last_offset_delta=count - 1,
        base_timestamp=0,
        max_timestamp=0,
    )
    tracemalloc.start()
    try:
        found = keyless_records(batch, most=3, max_bytes=1 << 20, did=lambda: None)
        assert found == (count, [0, 1, 2])
        assert tracemalloc.get_traced_memory()[1] < 4 * 7 * count  # the buffer grows fourfold
    finally:
        tracemalloc.stop()


def test_a_batch_that_declares_two_gibibytes_costs_nothing() -> None:
    batch = bytearray(
        assemble(b"", attributes=0, record_count=1, last_offset_delta=0, base_timestamp=0, max_timestamp=0)
    )
    batch[8:12] = b"\x7f\xff\xff\xff"

    assert (
        cost(lambda: validate_produced(memoryview(batch), max_message_bytes=1 << 31), InvalidBatch) < 64 << 10
    )


@pytest.mark.parametrize("declares", [b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x0f"])
def test_counts_and_lengths_of_requests_cost_nothing(declares: bytes) -> None:
    """At every place of every request of every version, a count or length of two billion."""
    tracemalloc.start()
    try:
        for key, version in declared():
            whole = b"".join(encode_request(1, key, version, APIS[key].request()))[4:]
            for at in range(10, len(whole)):
                frame = whole[:at] + declares + whole[at + len(declares) :]
                with contextlib.suppress(MalformedRequest):
                    decode_request(key, version, frame, 10)
        assert tracemalloc.get_traced_memory()[1] < 24 << 20  # the compiled codecs themselves
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"\x95\xa1a\xdd" + pack(">I", 2**31), id="a list of 2 billion"),
        pytest.param(
            b"\x96\xa1a\x90\xa0\x00\xc4\x00" + b"\x91" * 100_000 + b"\xc0", id="nested 100,000 deep"
        ),
        pytest.param(b"\x96\xa1a\x90\xa0\x00\xc4\x00\xdf" + pack(">I", 2**31), id="a map of 2 billion"),
        pytest.param(b"\x95\xdb" + pack(">I", 2**31), id="text of 2 GiB"),
        pytest.param(b"\x95\xa1\xff", id="text that is no UTF-8"),
    ],
)
def test_messagepack_bombs_are_refused_with_the_declared_error(body: bytes) -> None:
    assert cost(lambda: decode_body(body, Hello), msgspec.DecodeError) < 256 << 10
    header = pack(">HI", len(body) & 0xFFFF, 0) + body[: len(body) & 0xFFFF]
    assert cost(lambda: decode_frame(memoryview(header)), ProtocolViolation) < 256 << 10
