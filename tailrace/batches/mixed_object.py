"""The mixed object: the record batches of many partitions in one object, as an agent uploads it.

    header  | magic "TRMX", version uint16, reserved uint16                                        8 bytes
    batches | grouped by (topic id, partition), in arrival order within
    footer  | msgspec MessagePack of `Footer`, zstd
    trailer | footer length uint32, its length unpacked uint32, version uint16, reserved uint16,  20 bytes
            | CRC-32C uint32 of the footer and the trailer up to here, magic "TRMX"

All integers are big-endian. An object can be read and audited by itself: the footer says where each partition's run is
and what each batch contains, and has the CRC-32C of all bytes before the footer.

Pure. Sizes read from an object are checked before anything is allocated, so corrupt or hostile bytes only cause an
error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from uuid import UUID

import cramjam
import msgspec
from fastcrc.crc32 import iscsi as crc32c

from tailrace import messagepack
from tailrace.batches.compression import CannotUnpack, decompress
from tailrace.batches.record_batch import (
    CONTROL_FLAG,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    Compression,
    InvalidBatch,
    TimestampType,
    check_crc,
    compression_of,
    split,
)
from tailrace.buffers import Buffer
from tailrace.ids import TopicPartition
from tailrace.limits import Int64

MAGIC = b"TRMX"
VERSION = 1
READABLE_VERSIONS = (VERSION - 1, VERSION)
"""A reader accepts the version that it writes and the one before (0 was never written)."""

HEADER_BYTES = 8
TRAILER_BYTES = 20
TAIL_BYTES = 64 << 10
"""A first read of this many bytes from the end contains most footers completely."""
MAX_FOOTER_BYTES = 32 << 20
MAX_FOOTER_UNPACKED_BYTES = 128 << 20
MAX_RUNS = 1 << 20
MAX_BATCHES = 1 << 22
_ZSTD_LEVEL = 1

_HEADER = Struct(">4sHH")
_TRAILER = Struct(">IIHHI4s")
_TRAILER_SUMMED = 12
assert _HEADER.size == HEADER_BYTES
assert _TRAILER.size == TRAILER_BYTES


class InvalidObject(Exception):
    """The bytes are not a mixed object that this version reads; the message says what was seen."""


class TailTooShort(InvalidObject):
    """The footer begins before the given bytes. Read the last `needed` bytes and try again."""

    def __init__(self, needed: int) -> None:
        super().__init__(
            f"the footer and its trailer take the last {needed} bytes of the object; read as many"
        )
        self.needed = needed


class BatchCoordinates(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What the sequencer must know about one batch. `flags`: the low seven bits of its attributes."""

    length: Int64
    record_count: Int64
    base_timestamp: Int64
    max_timestamp: Int64
    producer_id: Int64 = -1
    producer_epoch: Int64 = -1
    base_sequence: Int64 = -1
    flags: Int64 = 0

    @property
    def compression(self) -> Compression:
        """The codec of the batch's records. Raises UnknownCompression."""
        return compression_of(self.flags)

    @property
    def timestamp_type(self) -> TimestampType:
        """Whether the batch has its producer's timestamps or the broker's (LogAppendTime)."""
        return TimestampType((self.flags >> 3) & 1)

    @property
    def is_transactional(self) -> bool:
        """Whether the batch belongs to a transaction."""
        return bool(self.flags & TRANSACTIONAL_FLAG)

    @property
    def is_control(self) -> bool:
        """Whether the batch contains a transaction marker in place of records."""
        return bool(self.flags & CONTROL_FLAG)


class RunDescription(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A run: the adjacent batches of one partition, `length` bytes from byte `start` of the object."""

    topic_id: UUID
    topic_name: str
    partition: int
    start: int
    length: int
    batches: list[BatchCoordinates]

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic_id, self.partition)

    @property
    def record_count(self) -> int:
        """The number of records in all batches."""
        return sum(batch.record_count for batch in self.batches)


class Footer(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An object's description of itself. `number`: its place in its session. The CRC covers all bytes before the
    footer."""

    version: int
    object_id: UUID
    session_id: UUID
    number: int
    created_ms: int
    data_length: int
    data_crc: int
    runs: list[RunDescription]


@dataclass(frozen=True, slots=True)
class SealedObject:
    """An object ready for upload. Its `size` bytes are the concatenated `parts`, with CRC-32C `crc`."""

    parts: list[Buffer]
    size: int
    crc: int
    footer: Footer


RunInput = tuple[TopicPartition, str, Sequence[tuple[BatchCoordinates, Sequence[Buffer]]]]
"""A partition, its topic's name, and its batches. A batch is its coordinates and the buffers of its bytes."""

_encoder = msgspec.msgpack.Encoder(uuid_format="bytes")
_decoder = msgspec.msgpack.Decoder(Footer)


def coordinates(header: BatchHeader) -> BatchCoordinates:
    """Return the coordinates of the batch with this header."""
    return BatchCoordinates(
        header.length,
        header.record_count,
        header.base_timestamp,
        header.max_timestamp,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.attributes & 0x7F,
    )


def seal(
    runs: Sequence[RunInput], *, object_id: UUID, session_id: UUID, number: int, created_ms: int
) -> SealedObject:
    """Lay out the runs as one object, without copying the batches' buffers.

    Runs are sorted by (topic id, partition). A partition that occurs twice becomes one run in arrival order.
    """
    header = _HEADER.pack(MAGIC, VERSION, 0)
    parts: list[Buffer] = [header]
    crc = crc32c(header)
    position = HEADER_BYTES
    described: list[RunDescription] = []
    for partition, topic_name, batches in sorted(runs, key=_partition_of):
        start = position
        tables: list[BatchCoordinates] = []
        for batch, buffers in batches:
            end = position + batch.length
            for buffer in buffers:
                crc = crc32c(buffer, crc)
                position += len(buffer)
                parts.append(buffer)
            assert position == end, (
                f"buffers of {position - end + batch.length} bytes for a batch of {batch.length}"
            )
            tables.append(batch)
        if not tables:
            continue
        last = described[-1] if described else None
        if last is not None and last.topic_partition == partition:
            last.batches.extend(tables)
            described[-1] = msgspec.structs.replace(last, length=position - last.start)
        else:
            described.append(
                RunDescription(
                    topic_id=partition.topic_id,
                    topic_name=topic_name,
                    partition=partition.partition,
                    start=start,
                    length=position - start,
                    batches=tables,
                )
            )
    footer = Footer(
        version=VERSION,
        object_id=object_id,
        session_id=session_id,
        number=number,
        created_ms=created_ms,
        data_length=position,
        data_crc=crc,
        runs=described,
    )
    tail = _pack_footer(footer)
    parts.append(tail)
    return SealedObject(parts, position + len(tail), crc32c(tail, crc), footer)


def _partition_of(run: RunInput) -> tuple[int, int]:
    partition = run[0]
    return partition.topic_id.int, partition.partition


def _pack_footer(footer: Footer) -> bytes:
    unpacked = _encoder.encode(footer)
    packed = bytes(cramjam.zstd.compress(unpacked, level=_ZSTD_LEVEL))
    assert len(packed) <= MAX_FOOTER_BYTES, f"footer of {len(packed)} bytes; seal smaller buffers"
    assert len(unpacked) <= MAX_FOOTER_UNPACKED_BYTES, (
        f"footer of {len(unpacked)} bytes; seal smaller buffers"
    )
    # Packed twice: the second time with the CRC of the first fields.
    summed = _TRAILER.pack(len(packed), len(unpacked), VERSION, 0, 0, MAGIC)[:_TRAILER_SUMMED]
    crc = crc32c(summed, crc32c(packed))
    return packed + _TRAILER.pack(len(packed), len(unpacked), VERSION, 0, crc, MAGIC)


def read_footer(tail: Buffer, size: int) -> Footer:
    """Parse the footer from the last bytes of an object of `size` bytes.

    Read `min(size, TAIL_BYTES)` bytes first. If they are too few, TailTooShort says how many are needed.
    Raises InvalidObject for anything that is not a valid footer.
    """
    view = memoryview(tail)
    if size < HEADER_BYTES + TRAILER_BYTES:
        raise InvalidObject(
            f"{size} bytes; the smallest mixed object has more than {HEADER_BYTES + TRAILER_BYTES}"
        )
    if len(view) > size:
        raise InvalidObject(f"a tail of {len(view)} bytes of an object of {size}")
    if len(view) < TRAILER_BYTES:
        raise TailTooShort(min(size, TAIL_BYTES))
    trailer = view[-TRAILER_BYTES:]
    packed_length, unpacked_length, version, _, crc, magic = _TRAILER.unpack(trailer)
    if magic != MAGIC:
        raise InvalidObject(f"ends in {magic!r}; a mixed object ends in {MAGIC!r}")
    if version not in READABLE_VERSIONS:
        raise InvalidObject(f"format version {version}; this one reads {READABLE_VERSIONS}")
    if packed_length > min(MAX_FOOTER_BYTES, size - HEADER_BYTES - TRAILER_BYTES):
        raise InvalidObject(f"a footer of {packed_length} bytes in an object of {size}")
    if unpacked_length > MAX_FOOTER_UNPACKED_BYTES:
        raise InvalidObject(
            f"a footer of {unpacked_length} bytes unpacked; at most {MAX_FOOTER_UNPACKED_BYTES}"
        )
    needed = packed_length + TRAILER_BYTES
    if needed > len(view):
        raise TailTooShort(needed)
    packed = view[-needed:-TRAILER_BYTES]
    computed = crc32c(trailer[:_TRAILER_SUMMED], crc32c(packed))
    if computed != crc:
        raise InvalidObject(f"footer CRC {crc:#010x}, its bytes give {computed:#010x}")
    footer = _unpack_footer(packed, unpacked_length)
    _check_layout(footer, size - needed)
    return footer


def _unpack_footer(packed: memoryview, unpacked_length: int) -> Footer:
    try:
        unpacked = decompress(Compression.ZSTD, packed, max_bytes=unpacked_length)
        if len(unpacked) != unpacked_length:
            raise InvalidObject(
                f"footer of {len(unpacked)} bytes unpacked; the trailer says {unpacked_length}"
            )
        return messagepack.decode(_decoder, unpacked)
    except (CannotUnpack, msgspec.DecodeError) as error:
        raise InvalidObject(f"footer cannot be unpacked: {error}") from error


def _check_layout(footer: Footer, data_length: int) -> None:
    """Check that the runs are sorted, fill the bytes between header and footer, and are as long as their batches."""
    if footer.version not in READABLE_VERSIONS:
        raise InvalidObject(f"footer version {footer.version}; this one reads {READABLE_VERSIONS}")
    if footer.data_length != data_length:
        raise InvalidObject(f"footer begins at byte {data_length}; it says {footer.data_length}")
    if len(footer.runs) > MAX_RUNS or sum(len(run.batches) for run in footer.runs) > MAX_BATCHES:
        raise InvalidObject(f"more than {MAX_RUNS} runs or {MAX_BATCHES} batches")
    position = HEADER_BYTES
    before: tuple[int, int] | None = None
    for run in footer.runs:
        topic_partition = (run.topic_id.int, run.partition)
        if before is not None and topic_partition <= before:
            raise InvalidObject(f"run of {run.topic_partition} comes after the run of a later partition")
        if run.partition < 0 or run.start != position:
            raise InvalidObject(f"run of {run.topic_partition} at byte {run.start}, expected at {position}")
        lengths = 0
        for batch in run.batches:
            if batch.length <= 0 or batch.record_count < 0:
                raise InvalidObject(f"run of {run.topic_partition} has a batch of {batch.length} bytes")
            lengths += batch.length
        if lengths != run.length or not lengths:
            raise InvalidObject(f"run of {run.topic_partition} has {run.length} bytes, its batches {lengths}")
        position += run.length
        before = topic_partition
    if position != data_length:
        raise InvalidObject(f"runs end at byte {position}, the footer begins at {data_length}")


def audit(data: Buffer) -> list[str]:
    """Return one sentence per problem of a whole object; empty if every bit is correct."""
    try:
        footer = read_footer(data, len(data))
    except InvalidObject as error:
        return [str(error)]
    return audit_data(data, footer)


def audit_data(data: Buffer, footer: Footer) -> list[str]:
    """Audit like `audit` an object whose footer has been read."""
    view = memoryview(data)
    problems: list[str] = []
    magic, version, _ = _HEADER.unpack_from(view)
    if magic != MAGIC or version not in READABLE_VERSIONS:
        problems.append(f"begins with {magic!r}, version {version}")
    crc = crc32c(view[: footer.data_length])
    if crc != footer.data_crc:
        problems.append(
            f"bytes before the footer give CRC {crc:#010x}, the footer says {footer.data_crc:#010x}"
        )
    for run in footer.runs:
        problems.extend(_audit_run(run, view[run.start : run.start + run.length]))
    return problems


def _audit_run(run: RunDescription, data: memoryview) -> list[str]:
    problems: list[str] = []
    try:
        batches = list(split(data))
    except InvalidBatch as error:
        return [f"run of {run.topic_partition}: {error}"]
    if [coordinates(header) for header, _ in batches] != run.batches:
        problems.append(f"run of {run.topic_partition}: its batches are not those of the footer")
    for position, (_, batch) in enumerate(batches):
        try:
            check_crc(batch)
        except InvalidBatch as error:
            problems.append(f"run of {run.topic_partition}, batch {position}: {error}")
    return problems
