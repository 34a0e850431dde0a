"""Encodes and decodes the records of a batch in plain Python: for tests, the demo, and finding a time in a batch.

Each record (KIP-98): length varint, attributes int8 (0), timestamp delta varint, offset delta varint, key and value
(length varint, -1 for null, then bytes), then the number of headers, and each header's key and value likewise. Varints
are zigzag and little-endian. The compactor has a faster decoder (`parquet_object.decode`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from tailrace.batches.compression import MAX_UNPACKED_BYTES, CannotUnpack, compress, decompress
from tailrace.batches.record_batch import (
    HEADER_BYTES,
    LOG_APPEND_TIME_FLAG,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    Compression,
    TimestampType,
    TruncatedBatch,
    assemble,
    read_header,
)
from tailrace.buffers import Buffer

_INT64_MASK = (1 << 64) - 1
_MAX_HEADERS = 1 << 20

LOOKED_AT_TOGETHER = 500
"""Records that another thread looks at before it lets the event loop have the interpreter: 1 to 2 ms."""

Headers = Sequence[tuple[str, bytes | None]]


class InvalidRecords(Exception):
    """The batch's header is valid, but its records are not. (Kafka: CORRUPT_MESSAGE for a reader.)"""


class Record(NamedTuple):
    """One record as a consumer gets it. `timestamp`: ms since the Unix epoch, -1 for none. Keys of headers have U+FFFD
    in place of bytes that are not UTF-8, as in Kafka's consumer."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class NewRecord(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


def encode_batch(
    records: Sequence[NewRecord],
    *,
    base_offset: int = 0,
    timestamps: Sequence[int],
    compression: Compression = Compression.NONE,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    is_transactional: bool = False,
    log_append_time: int | None = None,
    leader_epoch: int = -1,
    offset_deltas: Sequence[int] | None = None,
) -> bytes:
    """Encode one batch as a producer sends it. With `offset_deltas` that have holes, as compaction leaves it.

    Args:
        timestamps: in ms, one per record. The first is the batch's base timestamp.
        log_append_time: the broker's time in ms, which all records then have.
    """
    assert records, "a batch has at least one record"
    assert len(records) == len(timestamps)
    deltas = range(len(records)) if offset_deltas is None else offset_deltas
    base_timestamp = timestamps[0]
    body = bytearray()
    for delta, timestamp, record in zip(deltas, timestamps, records, strict=True):
        one = _encode_record(record, delta, timestamp - base_timestamp)
        _put_varint(body, len(one))
        body += one
    attributes = int(compression)
    if is_transactional:
        attributes |= TRANSACTIONAL_FLAG
    if log_append_time is not None:
        attributes |= LOG_APPEND_TIME_FLAG
    return assemble(
        compress(compression, body),
        attributes=attributes,
        record_count=len(records),
        last_offset_delta=deltas[-1],
        base_timestamp=base_timestamp,
        max_timestamp=max(timestamps) if log_append_time is None else log_append_time,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )


def _encode_record(record: NewRecord, offset_delta: int, timestamp_delta: int) -> bytearray:
    out = bytearray(b"\x00")
    _put_varint(out, timestamp_delta)
    _put_varint(out, offset_delta)
    _put_bytes(out, record.key)
    _put_bytes(out, record.value)
    _put_varint(out, len(record.headers))
    for name, value in record.headers:
        _put_bytes(out, name.encode())
        _put_bytes(out, value)
    return out


def _put_varint(out: bytearray, value: int) -> None:
    rest = ((value << 1) ^ (value >> 63)) & _INT64_MASK
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)


def _put_bytes(out: bytearray, value: bytes | None) -> None:
    if value is None:
        out.append(1)
        return
    _put_varint(out, len(value))
    out += value


def keyless_records(
    batch: Buffer, *, most: int, max_bytes: int, did: Callable[[], None]
) -> tuple[int, list[int]]:
    """Return the number of records without a key, and the indexes, from 0, of the first `most` of them. `did` is called
    for each record. Else takes and raises the same as `decode_records`."""
    header, data = _unpacked(batch, max_bytes)
    count, places = 0, list[int]()
    position = 0
    try:
        for place in range(header.record_count):
            did()
            length, start = _varint(data, position)
            position = start + length
            if length < 6 or position > len(data):
                raise InvalidRecords(f"a record of {length} bytes at {start}; {len(data) - start} are left")
            _, after = _varint(data, start + 1)
            _, after = _varint(data, after)
            if _varint(data, after)[0] < 0:
                count += 1
                if count <= most:
                    places.append(place)
    except IndexError as error:
        raise InvalidRecords(f"batch at offset {header.base_offset}: a record ends early: {error}") from error
    return count, places


def decode_records(batch: Buffer, *, max_bytes: int = MAX_UNPACKED_BYTES) -> list[Record]:
    """Decode the records of one batch, with absolute offsets and timestamps.

    Args:
        batch: one whole batch. The caller has checked its CRC.
        max_bytes: bound on the decompressed records.

    Raises InvalidBatch for a bad header, InvalidRecords for anything wrong after it.
    """
    return list(iterate_records(batch, max_bytes=max_bytes))


def iterate_records(batch: Buffer, *, max_bytes: int = MAX_UNPACKED_BYTES) -> Iterator[Record]:
    """Decode the records one by one, for a caller that may not need all. Errors after the last one go unnoticed."""
    header, unpacked = _unpacked(batch, max_bytes)
    try:
        yield from _decode_each(header, unpacked)
    except IndexError as error:
        raise InvalidRecords(f"batch at offset {header.base_offset}: a record ends early: {error}") from error


def _unpacked(batch: Buffer, max_bytes: int) -> tuple[BatchHeader, memoryview]:
    header = read_header(batch)
    if header.length > len(batch):
        raise TruncatedBatch(f"batch says {header.length} bytes; {len(batch)} are there")
    body = memoryview(batch)[HEADER_BYTES : header.length]
    try:
        return header, memoryview(decompress(header.compression, body, max_bytes=max_bytes))
    except CannotUnpack as error:
        raise InvalidRecords(f"batch at offset {header.base_offset}: {error}") from error


def _decode_each(header: BatchHeader, data: memoryview) -> Iterator[Record]:
    fixed = header.max_timestamp if header.timestamp_type is TimestampType.LOG_APPEND_TIME else None
    position = 0
    last = -1
    if header.record_count * 7 > len(data):
        raise InvalidRecords(f"{header.record_count} records in {len(data)} bytes; each takes at least 7")
    for _ in range(header.record_count):
        length, position = _varint(data, position)
        end = position + length
        if length < 6 or end > len(data):
            raise InvalidRecords(f"a record of {length} bytes at {position}; {len(data) - position} are left")
        timestamp_delta, position = _varint(data, position + 1)
        offset_delta, position = _varint(data, position)
        if not last < offset_delta <= header.last_offset_delta:
            raise InvalidRecords(
                f"offset delta {offset_delta} after {last}; the batch's last is {header.last_offset_delta}"
            )
        last = offset_delta
        key, position = _bytes(data, position, end)
        value, position = _bytes(data, position, end)
        headers, position = _headers(data, position, end)
        if position != end:
            raise InvalidRecords(f"a record ends at {position}; its length says {end}")
        timestamp = _wrap(header.base_timestamp + timestamp_delta) if fixed is None else fixed
        yield Record(header.base_offset + offset_delta, timestamp, key, value, headers)
    if position != len(data):
        raise InvalidRecords(f"{len(data) - position} bytes after the last of {header.record_count} records")


def _headers(data: memoryview, position: int, end: int) -> tuple[Headers, int]:
    count, position = _varint(data, position)
    if not count:
        return (), position
    if not 0 < count <= min(_MAX_HEADERS, (end - position) // 2):
        raise InvalidRecords(f"{count} headers in {end - position} bytes")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        name, position = _bytes(data, position, end)
        if name is None:
            raise InvalidRecords("a header without a key")
        value, position = _bytes(data, position, end)
        headers.append((name.decode(errors="replace"), value))
    return tuple(headers), position


def _bytes(data: memoryview, position: int, end: int) -> tuple[bytes | None, int]:
    length, position = _varint(data, position)
    if length == -1:
        return None, position
    if length < 0 or position + length > end:
        raise InvalidRecords(f"a field of {length} bytes at {position}; {end - position} are left")
    return bytes(data[position : position + length]), position + length


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 63:
            raise InvalidRecords(f"a varint of more than ten bytes at {position}")
    value &= _INT64_MASK
    return (value >> 1) ^ -(value & 1), position


def _wrap(value: int) -> int:
    """Wrap to a signed 64-bit integer, as Kafka's arithmetic does if a hostile delta overflows."""
    value &= _INT64_MASK
    return value - (1 << 64) if value >> 63 else value
