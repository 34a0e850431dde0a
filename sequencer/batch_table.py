"""A run's batch table as bytes, and a run put together from its two rows."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from sequencer.api import ObjectKind, Run, RunBatch
from sequencer.rows import ObjectRow, RunRow

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[RunBatch])

EMPTY_TABLE = _encoder.encode([])
"""The table of a Parquet run: its object's own index tells more."""


def encode_table(batches: Sequence[RunBatch]) -> bytes:
    """The batch table as a run's row stores it."""
    return _encoder.encode(batches)


def decode_table(table: bytes) -> list[RunBatch]:
    """The batch table of a run's row."""
    return _decoder.decode(table)


def join_run(row: RunRow, stored: ObjectRow) -> Run:
    """The run that readers get: its row and that of the object it stands in."""
    assert row.object_id == stored.object_id, f"run of {row.object_id} joined with {stored.object_id}"
    return Run(
        row.topic_id,
        row.partition,
        row.base_offset,
        row.end_offset,
        row.object_id,
        ObjectKind.PARQUET if row.is_parquet else ObjectKind.MIXED,
        stored.key,
        stored.size,
        stored.index_start,
        row.start,
        row.length,
        row.max_timestamp,
        row.running_max_timestamp,
        row.commit_number,
        row.created_ms,
        decode_table(row.batches),
    )
