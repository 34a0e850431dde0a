"""The encoding of a run's batch table, and the join of a run with its object."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import msgspec

from sequencer.api.commits import ObjectKind
from sequencer.api.reads import Marker, Run, RunBatch
from sequencer.store.row_store import ObjectRowMissing
from sequencer.store.rows import ObjectRow, RunRow

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[RunBatch])
_marker_decoder = msgspec.msgpack.Decoder(list[Marker])

NO_OBJECT = UUID(int=0)
"""The object id of a run of markers, which is in no object."""

EMPTY_TABLE = _encoder.encode([])
"""The table of a Parquet run, whose object has its own index."""


def encode_table(batches: Sequence[RunBatch]) -> bytes:
    """Return the batch table as a run's row stores it."""
    return _encoder.encode(batches)


def decode_table(table: bytes) -> list[RunBatch]:
    """Return the batch table of a run's row."""
    return _decoder.decode(table)


def encode_markers(markers: Sequence[Marker]) -> bytes:
    """Return the markers as a run's row stores them."""
    return _encoder.encode(markers)


def decode_markers(markers: bytes) -> list[Marker]:
    """Return the markers of a run's row."""
    return _marker_decoder.decode(markers) if markers else []


def join_run(
    row: RunRow,
    stored: ObjectRow | None,
    batches: list[RunBatch] | None = None,
    *,
    may_lack_object: bool = False,
) -> Run:
    """Return the run that readers get, from its row and the row of its object (None for markers).

    `batches`: the row's batch table, if it is already decoded. Raises ObjectRowMissing unless `may_lack_object`.
    """
    if stored is None:
        if row.kind is not ObjectKind.MARKERS and not may_lack_object:
            raise ObjectRowMissing(
                f"the run at {row.base_offset} of {row.topic_id}-{row.partition} names object {row.object_id},"
                " which has no row"
            )
        key, size, index_start, index_crc = "", 0, 0, 0
    else:
        assert row.object_id == stored.object_id, f"run of {row.object_id} joined with {stored.object_id}"
        key, size, index_start, index_crc = stored.key, stored.size, stored.index_start, stored.index_crc
    return Run(
        row.topic_id,
        row.partition,
        row.base_offset,
        row.end_offset,
        row.object_id,
        row.kind,
        key,
        size,
        index_start,
        row.start,
        row.length,
        row.max_timestamp,
        row.running_max_timestamp,
        row.commit_number,
        row.created_ms,
        decode_table(row.batches) if batches is None else batches,
        decode_markers(row.markers) if row.markers else [],
        index_crc,
    )
