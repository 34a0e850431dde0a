"""A Parquet object's description of itself: runs, row groups, and what replay needs per batch.

It is in the file's key-value metadata under `tailrace`: `1:` for the version, then base64 (other readers expect a
string) of unpacked length uint32, CRC-32C uint32, and zstd of MessagePack of `ParquetHeader`. Pure; does not use
pyarrow.
"""

from __future__ import annotations

import base64
import binascii
import itertools
from struct import Struct
from uuid import UUID

import cramjam
import msgspec
from fastcrc.crc32 import iscsi as crc32c

from tailrace import messagepack
from tailrace.batches.compression import CannotUnpack, decompress
from tailrace.batches.record_batch import HEADER_BYTES, Compression
from tailrace.ids import TopicPartition

METADATA_KEY = b"tailrace"
VERSION = 1
READABLE_VERSIONS = (VERSION - 1, VERSION)
"""A reader accepts the version that it writes and the one before (0 was never written)."""
MAX_HEADER_UNPACKED_BYTES = 256 << 20
_PREFIX = b"1:"
_SUMS = Struct(">II")


class InvalidParquetObject(Exception):
    """The bytes are corrupt or not a Tailrace Parquet object; the message says what was seen."""


class ParquetRun(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One partition's part of the file. Its offsets, `base_offset` to `end_offset` (exclusive), may have holes."""

    topic_id: UUID
    topic_name: str
    partition: int
    first_row: int
    row_count: int
    first_batch: int
    batch_count: int
    base_offset: int
    end_offset: int
    max_timestamp: int

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic_id, self.partition)


class RowGroupBatches(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The batches in a row group. A batch is never split over two row groups."""

    first_batch: int
    batch_count: int
    first_row: int
    row_count: int


class RawHeaderKeys(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The keys of record headers that are not UTF-8, which the columns have with U+FFFD in place of the wrong bytes.

    `rows`, `places` (uint32, little-endian): each key's row, and its number in this row from 0; both together ascend.
    `lengths` (uint32): the bytes of each key. `keys`: these bytes, concatenated.
    """

    rows: bytes = b""
    places: bytes = b""
    lengths: bytes = b""
    keys: bytes = b""


class ParquetHeader(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The object's own description.

    `batch_headers` are the 61 header bytes of each batch, concatenated. `record_counts` and `exact` (one byte per
    batch) are in the same order. `exact` is 1 if the decompressed records are canonical. Such a batch is rebuilt byte
    for byte if it was uncompressed; any other is rebuilt record for record. `beyond_rows` (uint32, little-endian,
    ascending) are the rows whose time does not fit into 64-bit microseconds. `beyond_times` (int64) are their times in
    milliseconds.
    """

    version: int
    cluster_id: str
    object_id: UUID
    created_ms: int
    row_count: int
    runs: list[ParquetRun]
    row_groups: list[RowGroupBatches]
    batch_headers: bytes
    record_counts: list[int]
    exact: bytes
    beyond_rows: bytes = b""
    beyond_times: bytes = b""
    raw_keys: RawHeaderKeys = RawHeaderKeys()

    @property
    def batch_count(self) -> int:
        """The number of batches in all runs."""
        return len(self.record_counts)


_encoder = msgspec.msgpack.Encoder(uuid_format="bytes")
_decoder = msgspec.msgpack.Decoder(ParquetHeader)


def pack_header(header: ParquetHeader) -> bytes:
    """Encode the value of the file's `tailrace` metadata. Raises ValueError if it is too large for readers."""
    unpacked = _encoder.encode(header)
    if len(unpacked) > MAX_HEADER_UNPACKED_BYTES:
        raise ValueError(f"a header of {len(unpacked)} bytes; at most {MAX_HEADER_UNPACKED_BYTES}")
    packed = bytes(cramjam.zstd.compress(unpacked, level=3))
    return _PREFIX + base64.b64encode(_SUMS.pack(len(unpacked), crc32c(packed)) + packed)


def unpack_header(value: bytes) -> ParquetHeader:
    """Decode a value of `pack_header`. Raises InvalidParquetObject."""
    if not value.startswith(_PREFIX):
        raise InvalidParquetObject(f"metadata begins with {value[:8]!r}; this version reads {_PREFIX!r}")
    try:
        packed = base64.b64decode(value[len(_PREFIX) :], validate=True)
        if len(packed) < _SUMS.size:
            raise InvalidParquetObject(f"metadata of {len(packed)} bytes")
        length, crc = _SUMS.unpack_from(packed)
        body = memoryview(packed)[_SUMS.size :]
        if crc32c(body) != crc:
            raise InvalidParquetObject(
                f"metadata carries CRC {crc:#010x}, its bytes give {crc32c(body):#010x}"
            )
        if length > MAX_HEADER_UNPACKED_BYTES:
            raise InvalidParquetObject(f"metadata of {length} bytes; at most {MAX_HEADER_UNPACKED_BYTES}")
        unpacked = decompress(Compression.ZSTD, body, max_bytes=length)
        if len(unpacked) != length:
            raise InvalidParquetObject(f"metadata unpacks to {len(unpacked)} bytes; it says {length}")
        header = messagepack.decode(_decoder, unpacked)
    except (binascii.Error, CannotUnpack, msgspec.DecodeError) as error:
        raise InvalidParquetObject(f"metadata cannot be unpacked: {error}") from error
    _check(header)
    return header


def _check(header: ParquetHeader) -> None:
    """Check the header's consistency: runs and row groups must each cover all batches and rows without a gap."""
    if header.version not in READABLE_VERSIONS:
        raise InvalidParquetObject(f"header version {header.version}; this one reads {READABLE_VERSIONS}")
    batches = len(header.record_counts)
    if len(header.batch_headers) != HEADER_BYTES * batches or len(header.exact) != batches:
        raise InvalidParquetObject(f"{len(header.batch_headers)} bytes of headers for {batches} batches")
    if any(count <= 0 for count in header.record_counts) or sum(header.record_counts) != header.row_count:
        raise InvalidParquetObject(f"the batches' record counts do not sum up to {header.row_count} rows")
    _check_beyond(header)
    _check_raw_keys(header)
    first_rows = [0]
    for count in header.record_counts:
        first_rows.append(first_rows[-1] + count)
    for pieces in (header.runs, header.row_groups):
        batch = 0
        for piece in pieces:
            end = piece.first_batch + piece.batch_count
            if piece.first_batch != batch or piece.batch_count < 0 or end > batches:
                raise InvalidParquetObject(f"batches do not tile: {piece.first_batch}, expected {batch}")
            if (piece.first_row, piece.row_count) != (first_rows[batch], first_rows[end] - first_rows[batch]):
                raise InvalidParquetObject(f"rows do not tile at batch {batch}")
            batch = end
        if batch != batches:
            raise InvalidParquetObject(f"{batches} batches, of which {batch} have a run and a row group")


def _check_beyond(header: ParquetHeader) -> None:
    """Check that the rows with times beyond microseconds exist, occur once and have a time."""
    if len(header.beyond_rows) % 4 or len(header.beyond_times) != 2 * len(header.beyond_rows):
        raise InvalidParquetObject(
            f"{len(header.beyond_times)} bytes of times beyond microseconds for {len(header.beyond_rows)} of rows"
        )
    rows = memoryview(header.beyond_rows).cast("I").tolist()
    is_rising = all(row < following for row, following in itertools.pairwise(rows))
    if not is_rising or (rows and rows[-1] >= header.row_count):
        raise InvalidParquetObject("rows with times beyond microseconds do not rise, or are not there")


def _check_raw_keys(header: ParquetHeader) -> None:
    """Check that the header keys that are not UTF-8 are complete, and that their rows exist and each occurs once."""
    raw = header.raw_keys
    sizes = {len(raw.rows), len(raw.places), len(raw.lengths)}
    if len(sizes) != 1 or len(raw.rows) % 4 or sum(memoryview(raw.lengths).cast("I")) != len(raw.keys):
        raise InvalidParquetObject(f"{len(raw.keys)} bytes of header keys that do not have their lengths")
    rows, places = (memoryview(numbers).cast("I") for numbers in (raw.rows, raw.places))
    is_rising = all(
        place < following for place, following in itertools.pairwise(zip(rows, places, strict=True))
    )
    if not is_rising or (len(rows) and rows[-1] >= header.row_count):
        raise InvalidParquetObject("rows with header keys that are not UTF-8 do not rise, or are not there")
