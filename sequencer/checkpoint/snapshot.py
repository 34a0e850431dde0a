"""The parts of a snapshot: rows that are read page by page while commits continue, stored as objects of bounded
size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

from fastcrc.crc32 import iscsi as crc32c

from sequencer.checkpoint import format as checkpoint
from sequencer.checkpoint.format import HeadId, Part
from sequencer.store.row_store import RowStore
from sequencer.store.rows import LOOKED_UP, ObjectRow, Row, RunRow, key_of
from sequencer.store.state import HotState
from tailrace.object_store.api import ObjectStore
from tailrace.turns import Turns, in_turns

PAGE_ROWS = 2_000
"""Rows that one query of a snapshot reads from the database."""
PART_ROWS = 10_000
"""Rows in one part. Up to this many hot rows are in the snapshot's head itself, and are encoded in one turn: some 20
ms."""


class PartWriter:
    """Stores the parts of the snapshot that is replayed from `place`, one after the other."""

    def __init__(self, store: ObjectStore, cluster_id: str, head_id: HeadId, turns: Turns) -> None:
        self._store = store
        self._cluster_id = cluster_id
        self._turns = turns
        self.head_id = head_id
        self.parts: list[Part] = []
        """The parts that are stored."""

    async def put(self, rows: Mapping[type[Row], Sequence[Row]], *, is_hot: bool = False) -> None:
        """Store one part. Raises StoreError."""
        key = checkpoint.part_key(self._cluster_id, self.head_id, len(self.parts))
        data = await in_turns(checkpoint.encode_part(rows), self._turns)
        await self._store.put(key, [data])
        count = sum(map(len, rows.values()))
        self.parts.append(Part(key, size=len(data), crc=crc32c(data), rows=count, is_hot=is_hot))


async def write_cold_rows(rows: RowStore, writer: PartWriter) -> None:
    """Store all objects, runs, and rows that are looked up, as parts. Raises StoreError, SequencerError."""
    objects: list[Row] = []
    key = ""
    while page := await rows.objects_after(key, PAGE_ROWS):
        objects += page
        key = page[-1].key
        if len(objects) >= PART_ROWS:
            await writer.put({ObjectRow: objects})
            objects = []
    for kind in LOOKED_UP:
        await _write_all(rows, kind, writer)
    runs: list[Row] = []
    last: tuple[UUID, int, int] | None = None
    while run_page := await rows.run_rows_after(last, PAGE_ROWS):
        runs += run_page
        last = (run_page[-1].topic_id, run_page[-1].partition, run_page[-1].base_offset)
        if len(runs) + len(objects) >= PART_ROWS:
            await writer.put({ObjectRow: objects, RunRow: runs})
            objects, runs = [], []
    if objects or runs:
        await writer.put({ObjectRow: objects, RunRow: runs})


async def _write_all(rows: RowStore, kind: type[Row], writer: PartWriter) -> None:
    last: tuple[object, ...] | None = None
    while page := await rows.rows_after(kind, last, PART_ROWS):
        await writer.put({kind: page})
        last = key_of(page[-1])


def has_many_hot_rows(state: HotState) -> bool:
    """Whether there are too many hot rows to encode in one turn; they are then stored as parts."""
    return sum(state.count(kind) for kind in checkpoint.KEPT_HOT) > PART_ROWS


async def write_hot_rows(state: HotState, writer: PartWriter) -> None:
    """Store the current hot rows as parts. The changes in the head contain what is written meanwhile."""
    rows = {kind: list(state.all(kind)) for kind in checkpoint.KEPT_HOT}
    for kind, of_kind in rows.items():
        for first in range(0, len(of_kind), PART_ROWS):
            await writer.put({kind: of_kind[first : first + PART_ROWS]}, is_hot=True)
