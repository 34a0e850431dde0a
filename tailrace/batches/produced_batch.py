"""A fast path for the batch that nearly every producer sends.

`plain_batch` accepts one whole batch without flags and returns its coordinates. It leaves any other batch to
`record_batch.validate_produced`, which accepts it or says what is wrong. So only one function refuses batches. The two
agree on all bytes: `validate_produced` accepts what `plain_batch` accepts, with the same coordinates. Pure.
"""

from __future__ import annotations

from fastcrc.crc32 import iscsi as crc32c

from tailrace.batches.mixed_object import BatchCoordinates
from tailrace.batches.record_batch import (
    CRC_START,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    MAX_RECORDS,
    PREFIX_BYTES,
    SMALLEST_RECORD,
    Compression,
)

_LAST_CODEC = int(Compression.ZSTD)


def plain_batch(
    buffer: memoryview, *, max_message_bytes: int, oldest_timestamp: int, newest_timestamp: int
) -> BatchCoordinates | None:
    """Return the coordinates of the batch that fills the buffer; None if `validate_produced` must check it."""
    size = len(buffer)
    if not HEADER_BYTES <= size <= max_message_bytes:
        return None
    (
        base_offset, tail_length, _, magic, crc, attributes, last_offset_delta, base_timestamp, max_timestamp,
        producer_id, producer_epoch, base_sequence, record_count,
    ) = HEADER.unpack_from(buffer)  # fmt: skip
    if (
        base_offset
        or tail_length + PREFIX_BYTES != size
        or magic != MAGIC
        or not 0 <= attributes <= _LAST_CODEC  # no flag is set
        or record_count != last_offset_delta + 1
        or not 0 < record_count <= MAX_RECORDS
        or (not attributes and record_count * SMALLEST_RECORD > size - HEADER_BYTES)
        or (producer_id >= 0 and (producer_epoch < 0 or base_sequence < 0))
        or base_timestamp < oldest_timestamp
        or max_timestamp > newest_timestamp
        or crc32c(buffer[CRC_START:]) != crc
    ):
        return None
    return BatchCoordinates(
        size, record_count, base_timestamp, max_timestamp,
        producer_id, producer_epoch, base_sequence, attributes,
    )  # fmt: skip
