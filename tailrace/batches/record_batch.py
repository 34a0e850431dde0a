"""Kafka's record batch, format v2: walk and check headers, and patch the fields outside the CRC. Records stay encoded.

A batch is 61 bytes of header and its records (compressed or not); all integers are big-endian:

    0  base offset     int64   | outside the CRC, so a broker may rewrite them without changing the rest
    8  length          int32   | bytes after this field
    12 leader epoch    int32   |
    16 magic           int8    |
    17 CRC-32C         uint32  | of everything from byte 21 on
    21 attributes      int16     0-2 codec, 3 LogAppendTime, 4 transactional, 5 control, 6 delete horizon
    23 last offset delta int32   35 max timestamp int64   51 producer epoch int16
    27 base timestamp  int64     43 producer id   int64   53 base sequence  int32    57 record count int32

Pure, and on the hot path of every produce request: takes views, returns views, copies only headers.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from struct import Struct

import msgspec
from fastcrc.crc32 import iscsi as crc32c

from tailrace.buffers import Buffer

HEADER_BYTES = 61
"""Bytes before the first record."""
PREFIX_BYTES = 12
"""Base offset and length field, which a batch's length field does not count."""
PATCHED_BYTES = 16
"""The first bytes, which a broker rewrites on reads: base offset, length, leader epoch."""
CRC_START = 21
MAGIC = 2

COMPRESSION_MASK = 0x07
LOG_APPEND_TIME_FLAG = 0x08
TRANSACTIONAL_FLAG = 0x10
CONTROL_FLAG = 0x20
DELETE_HORIZON_FLAG = 0x40
OF_TRANSACTIONS = TRANSACTIONAL_FLAG | CONTROL_FLAG
"""The flags of batches that belong to transactions."""

SMALLEST_RECORD = 7
"""Bytes of a record without key, value and headers: seven fields of one byte each."""
MAX_RECORDS = 4_000_000
"""The most records of one compressed batch, about a hundred times what clients put into one."""

NO_TIMESTAMP = -1

HEADER = Struct(">qiibIhiqqqhii")
_PREFIX = Struct(">qi")
_HEAD = Struct(">qii")
_CRC = Struct(">I")
_CHECKED = Struct(">i4xbI")  # from the length on, without the leader epoch: length, magic, CRC
_SEALED = Struct(">hiqqqhii")
_ATTRIBUTES = Struct(">h")
_TIMESTAMP = Struct(">q")
_MARKER = Struct(">bbbbbhhbhib")
assert HEADER.size == HEADER_BYTES


class Compression(enum.IntEnum):
    """Codec ids in a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class TimestampType(enum.IntEnum):
    """Whether the records' timestamps are the producer's or the broker's."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class MarkerKind(enum.IntEnum):
    """The outcome in a transaction's control record (the `type` of its key)."""

    ABORT = 0
    COMMIT = 1


class InvalidBatch(Exception):
    """The bytes are not acceptable record batches; the message says what was seen and expected."""


class TruncatedBatch(InvalidBatch):
    """The bytes end within a batch. (Kafka: CORRUPT_MESSAGE.)"""


class BadLength(InvalidBatch):
    """The batch's length is impossible. (Kafka: CORRUPT_MESSAGE.)"""


class UnsupportedMagic(InvalidBatch):
    """The magic is 0 or 1, a format before v2. (Kafka: INVALID_RECORD.)"""


class UnknownMagic(InvalidBatch):
    """No format has this magic. (Kafka: CORRUPT_MESSAGE, as for a flipped bit.)"""


class CrcMismatch(InvalidBatch):
    """The bytes do not match their CRC. (Kafka: CORRUPT_MESSAGE.)"""


class UnknownCompression(InvalidBatch):
    """The codec id is above that of zstd. (Kafka: UNSUPPORTED_COMPRESSION_TYPE.)"""


class BatchTooLarge(InvalidBatch):
    """The batch is larger than the topic allows. (Kafka: MESSAGE_TOO_LARGE.)"""


class InvalidTimestamp(InvalidBatch):
    """The timestamps are outside the topic's limits, or of a type that a producer must not set. (Kafka:
    INVALID_TIMESTAMP.)"""


class InvalidRecordBatch(InvalidBatch):
    """The batch is well-formed, but a producer may not send it. (Kafka: INVALID_RECORD.)"""


class CountMismatch(InvalidRecordBatch):
    """Record count and last offset delta contradict each other. (Kafka: INVALID_RECORD.)"""


class NoBatch(InvalidRecordBatch):
    """The produced bytes contain no batch. (Kafka: INVALID_RECORD.)"""


class BatchHeader(msgspec.Struct, frozen=True, gc=False):
    """The header of one batch. `length` counts the whole batch in bytes, including its prefix of 12 bytes."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def compression(self) -> Compression:
        """The codec of the records. Raises UnknownCompression."""
        return compression_of(self.attributes)

    @property
    def timestamp_type(self) -> TimestampType:
        """Whether records have their producer's timestamps, or all have `max_timestamp`."""
        return TimestampType((self.attributes >> 3) & 1)

    @property
    def is_transactional(self) -> bool:
        """Whether the batch belongs to a transaction."""
        return bool(self.attributes & TRANSACTIONAL_FLAG)

    @property
    def is_control(self) -> bool:
        """Whether the batch contains a transaction marker in place of records."""
        return bool(self.attributes & CONTROL_FLAG)

    @property
    def end_offset(self) -> int:
        """The offset after the batch's last offset (exclusive)."""
        return self.base_offset + self.last_offset_delta + 1


def compression_of(attributes: int) -> Compression:
    """Return the codec in a batch's attributes. Raises UnknownCompression."""
    codec = attributes & COMPRESSION_MASK
    if codec > Compression.ZSTD:
        raise UnknownCompression(f"codec id {codec} in the attributes; known are 0 (none) to 4 (zstd)")
    return Compression(codec)


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Read and check the header of the batch at `position`, without its records.

    The buffer needs only the header's 61 bytes. Raises InvalidBatch.
    """
    available = len(buffer) - position
    if available < HEADER_BYTES:
        if available > 16 and buffer[position + 16] != MAGIC:
            _refuse_magic(buffer[position + 16], position)
        raise TruncatedBatch(f"{available} bytes at {position}; a batch header has {HEADER_BYTES}")
    base_offset, tail_length, *rest = HEADER.unpack_from(buffer, position)
    header = BatchHeader(base_offset, tail_length + PREFIX_BYTES, *rest)
    if header.magic != MAGIC:
        _refuse_magic(header.magic, position)
    if header.length < HEADER_BYTES:
        raise BadLength(
            f"batch at {position} says it is {header.length} bytes long; the header alone has {HEADER_BYTES}"
        )
    record_count, last_offset_delta = header.record_count, header.last_offset_delta
    if record_count < 0 or last_offset_delta < 0 or record_count > last_offset_delta + 1:
        raise CountMismatch(
            f"batch at {position}: record count {record_count} with last offset delta {last_offset_delta}"
        )
    return header


def _refuse_magic(magic: int, position: int) -> None:
    kind = UnsupportedMagic if magic in (0, 1) else UnknownMagic
    raise kind(f"batch at {position} has magic {magic}; only format v2 (magic {MAGIC}) is taken")


def walk(buffer: memoryview) -> list[BatchHeader]:
    """Return the headers of the batches that fill `buffer`, in order.

    Works for stored and produced bytes: a compacted batch may have fewer records than offsets. Raises InvalidBatch if
    the bytes are not whole batches.
    """
    headers: list[BatchHeader] = []
    position, size = 0, len(buffer)
    while position < size:
        header = read_header(buffer, position)
        position += header.length
        if position > size:
            raise TruncatedBatch(
                f"batch at {position - header.length} says {header.length} bytes; "
                f"{size - position + header.length} are left"
            )
        headers.append(header)
    return headers


def split(buffer: memoryview) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yield the header and a view of the bytes of each batch in `buffer`. Raises like `walk`, before the first."""
    position = 0
    for header in walk(buffer):
        yield header, buffer[position : position + header.length]
        position += header.length


def crc_of(batch: Buffer) -> int:
    """Compute the CRC-32C that the batch should have."""
    view = batch if isinstance(batch, memoryview) else memoryview(batch)
    return int(crc32c(view[CRC_START:]))


def check_crc(batch: Buffer) -> None:
    """Raise InvalidBatch unless `batch` is one whole batch with a correct CRC.

    Also checks the length and the magic, which the CRC does not cover.
    """
    if len(batch) < HEADER_BYTES:
        raise TruncatedBatch(f"{len(batch)} bytes; a batch header has {HEADER_BYTES}")
    tail_length, magic, stored = _CHECKED.unpack_from(batch, 8)
    if tail_length + PREFIX_BYTES != len(batch):
        raise BadLength(f"batch of {len(batch)} bytes says that it has {tail_length + PREFIX_BYTES}")
    if magic != MAGIC:
        _refuse_magic(magic, 0)
    computed = crc_of(batch)
    if stored != computed:
        raise CrcMismatch(
            f"batch of {len(batch)} bytes carries CRC {stored:#010x}, its bytes give {computed:#010x}"
        )


def patched_if_sound(
    memory: memoryview, start: int, lengths: Sequence[int], base_offsets: Sequence[int], *, leader_epoch: int
) -> bool:
    """Check and patch adjacent batches from byte `start` on. Return False at the first that `check_crc` refuses.

    The batches before that one are patched. If any batch is shorter than a header, none is.
    """
    if min(lengths) < HEADER_BYTES:
        return False
    unpack, pack, crc, prefix, crc_start = (
        _CHECKED.unpack_from,
        _HEAD.pack_into,
        crc32c,
        PREFIX_BYTES,
        CRC_START,
    )
    for length, base_offset in zip(lengths, base_offsets, strict=True):
        end, tail_length = start + length, length - prefix
        if unpack(memory, start + 8) != (tail_length, MAGIC, crc(memory[start + crc_start : end])):
            return False
        pack(memory, start, base_offset, tail_length, leader_epoch)
        start = end
    return True


def _crc_mismatch(length: int, stored: int, computed: int) -> CrcMismatch:
    return CrcMismatch(f"batch of {length} bytes carries CRC {stored:#010x}, its bytes give {computed:#010x}")


def validate_produced(
    buffer: memoryview,
    *,
    max_message_bytes: int,
    max_batches: int = 1,
    log_append_time: bool = False,
    oldest_timestamp: int | None = None,
    newest_timestamp: int | None = None,
) -> list[tuple[BatchHeader, memoryview]]:
    """Check the bytes that a producer sent for one partition, in one pass. The CRC is checked last.

    Args:
        buffer: the `records` field of a Produce request.
        max_message_bytes: the topic's `max.message.bytes`, applied to each whole batch as Kafka does.
        max_batches: since v3 of Produce, Kafka allows one batch per partition and request.
        log_append_time: whether the topic uses the broker's time. If so, the client's timestamps are not checked.
        oldest_timestamp: inclusive lower bound in ms (`message.timestamp.before.max.ms` from now).
        newest_timestamp: inclusive upper bound in ms (`message.timestamp.after.max.ms` from now).

    Returns:
        Each batch's header and a view of all its bytes.

    Raises a subclass of InvalidBatch, which tells the Kafka error code.
    """
    batches: list[tuple[BatchHeader, memoryview]] = []
    position, size = 0, len(buffer)
    if not size:
        raise NoBatch("no bytes; a produce request carries at least one batch a partition")
    while position < size:
        header = read_header(buffer, position)
        end = position + header.length
        if header.length > max_message_bytes:
            raise BatchTooLarge(f"batch of {header.length} bytes; max.message.bytes is {max_message_bytes}")
        if end > size:
            raise TruncatedBatch(
                f"batch at {position} says {header.length} bytes; {size - position} are left"
            )
        if len(batches) == max_batches:
            raise InvalidRecordBatch(f"more than {max_batches} batch(es) for one partition in one request")
        _check_producers_claims(header)
        if not log_append_time:
            _check_timestamps(header, oldest_timestamp, newest_timestamp)
        view = buffer[position:end]
        computed = crc32c(view[CRC_START:])
        if computed != header.crc:
            raise _crc_mismatch(header.length, header.crc, computed)
        batches.append((header, view))
        position = end
    return batches


def _check_producers_claims(header: BatchHeader) -> None:
    attributes = header.attributes
    if attributes & COMPRESSION_MASK > Compression.ZSTD:
        compression_of(attributes)
    if header.base_offset:  # as Kafka's UnifiedLog.analyzeAndValidateRecords
        raise InvalidRecordBatch(f"base offset {header.base_offset}; a producer's batch begins at 0")
    if attributes & CONTROL_FLAG:
        raise InvalidRecordBatch("a control batch; only the broker writes transaction markers")
    if attributes & DELETE_HORIZON_FLAG:
        raise InvalidRecordBatch("a delete horizon is set; only the broker's compaction sets it")
    if header.record_count != header.last_offset_delta + 1 or header.record_count == 0:
        raise CountMismatch(
            f"record count {header.record_count} with last offset delta {header.last_offset_delta}; "
            "a producer's batch has one record for each of its offsets, and at least one"
        )
    most = _most_records(header)
    if header.record_count > most:
        raise CountMismatch(
            f"{header.record_count} records in a batch of {header.length} bytes; at most {most} can be in it"
        )
    if header.producer_id >= 0:
        if header.producer_epoch < 0 or header.base_sequence < 0:
            raise InvalidRecordBatch(
                f"producer {header.producer_id} with epoch {header.producer_epoch} and base sequence "
                f"{header.base_sequence}; neither may be negative"
            )
    elif attributes & TRANSACTIONAL_FLAG:
        raise InvalidRecordBatch(f"a transactional batch with producer id {header.producer_id}")


def _most_records(header: BatchHeader) -> int:
    """Return the most records that the batch can contain, without decompressing it.

    Every record takes an offset, and offsets are never reused, so a false count would waste offsets.
    """
    if header.attributes & COMPRESSION_MASK:
        return MAX_RECORDS
    return min(MAX_RECORDS, (header.length - HEADER_BYTES) // SMALLEST_RECORD)


def _check_timestamps(header: BatchHeader, oldest: int | None, newest: int | None) -> None:
    if header.attributes & LOG_APPEND_TIME_FLAG:
        raise InvalidTimestamp("timestamp type is LogAppendTime; only the broker sets it")
    if newest is not None and header.max_timestamp != NO_TIMESTAMP and header.max_timestamp > newest:
        raise InvalidTimestamp(f"max timestamp {header.max_timestamp} ms; the topic takes up to {newest}")
    if oldest is not None and header.base_timestamp != NO_TIMESTAMP and header.base_timestamp < oldest:
        raise InvalidTimestamp(f"base timestamp {header.base_timestamp} ms; the topic takes from {oldest} on")


def framed(batch: memoryview, base_offset: int, leader_epoch: int) -> list[Buffer]:
    """Return the batch as readers get it: 16 patched bytes and a view of the rest. The CRC stays valid."""
    return [_HEAD.pack(base_offset, len(batch) - PREFIX_BYTES, leader_epoch), batch[PATCHED_BYTES:]]


def framed_views(
    views: Sequence[memoryview], length: int, base_offset: int, leader_epoch: int
) -> list[Buffer]:
    """Do the same as `framed` for a batch of `length` bytes in several buffers."""
    if len(views[0]) < PATCHED_BYTES:
        return framed(memoryview(b"".join(views)), base_offset, leader_epoch)
    return [
        _HEAD.pack(base_offset, length - PREFIX_BYTES, leader_epoch),
        views[0][PATCHED_BYTES:],
        *views[1:],
    ]


def patch_base_offset_and_epoch(batch: bytearray | memoryview, base_offset: int, leader_epoch: int) -> None:
    """Do the same as `framed` in place, for a batch that the caller owns."""
    _HEAD.pack_into(batch, 0, base_offset, len(batch) - PREFIX_BYTES, leader_epoch)


def with_log_append_time(batch: memoryview, timestamp_ms: int) -> bytearray:
    """Return a copy of the batch in which all records have the broker's time. Its CRC is computed again."""
    stamped = bytearray(batch)
    (attributes,) = _ATTRIBUTES.unpack_from(stamped, 21)
    _ATTRIBUTES.pack_into(stamped, 21, attributes | LOG_APPEND_TIME_FLAG)
    _TIMESTAMP.pack_into(stamped, 35, timestamp_ms)
    _CRC.pack_into(stamped, 17, crc_of(stamped))
    return stamped


def assemble_like(header: BatchHeader, records: Buffer, record_count: int) -> bytes:
    """Build a batch from these records and the fields of a header, except its length and CRC."""
    return b"".join((head_like(header, records, record_count), records))


def head_like(header: BatchHeader, records: Buffer, record_count: int) -> bytes:
    """Build the header of the batch that `assemble_like` builds, without a copy of the records."""
    sealed = _SEALED.pack(
        header.attributes,
        header.last_offset_delta,
        header.base_timestamp,
        header.max_timestamp,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        record_count,
    )
    crc = crc32c(records, crc32c(sealed))
    head = _HEAD.pack(header.base_offset, HEADER_BYTES - PREFIX_BYTES + len(records), header.leader_epoch)
    return b"".join((head, b"\x02", _CRC.pack(crc), sealed))


def assemble(
    records: Buffer,
    *,
    attributes: int,
    record_count: int,
    last_offset_delta: int,
    base_timestamp: int,
    max_timestamp: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
) -> bytes:
    """Build one batch from `records`, which are encoded, and compressed if `attributes` says so."""
    header = BatchHeader(
        base_offset=base_offset,
        length=0,
        leader_epoch=leader_epoch,
        magic=MAGIC,
        crc=0,
        attributes=attributes,
        last_offset_delta=last_offset_delta,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=record_count,
    )
    return assemble_like(header, records, record_count)


def control_batch(
    kind: MarkerKind,
    *,
    producer_id: int,
    producer_epoch: int,
    timestamp_ms: int,
    base_offset: int = 0,
    coordinator_epoch: int = 0,
) -> bytes:
    """Build the marker that ends a transaction in one partition: one control record, 78 bytes in all.

    Key: version int16 (0), type int16. Value: version int16 (0), coordinator epoch int32 (KIP-98).
    """
    # Zigzag varints of one byte each: record length 16, deltas 0, key length 4, value length 6, no headers.
    record = _MARKER.pack(16 << 1, 0, 0, 0, 4 << 1, 0, kind, 6 << 1, 0, coordinator_epoch, 0)
    return assemble(
        record,
        attributes=TRANSACTIONAL_FLAG | CONTROL_FLAG,
        record_count=1,
        last_offset_delta=0,
        base_timestamp=timestamp_ms,
        max_timestamp=timestamp_ms,
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
    )


MARKER_BYTES = HEADER_BYTES + _MARKER.size
"""The length of every control batch that Tailrace writes."""


def hole_batch(end_offset: int) -> bytes:
    """Build a batch without data at the last offset of a hole, so that a reader's position moves past the hole.

    It is a commit marker without a producer, which clients skip at any isolation level. A batch without records, which
    Kafka's cleaner leaves in a hole, would work for most clients. But librdkafka takes a response with neither records
    nor control batches as truncated, doubles its fetch size and in the end reports an error.
    """
    return control_batch(
        MarkerKind.COMMIT,
        producer_id=-1,
        producer_epoch=-1,
        timestamp_ms=NO_TIMESTAMP,
        base_offset=end_offset - 1,
    )
