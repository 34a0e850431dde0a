"""The parts of a snapshot: rows that are read page by page while commits continue, stored as objects of bounded
size."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Protocol, TypeVar
from uuid import UUID

from fastcrc.crc32 import iscsi as crc32c

from sequencer.checkpoint import format as checkpoint
from sequencer.checkpoint.format import HeadId, Part
from sequencer.store.row_store import RowStore
from sequencer.store.rows import LOOKED_UP, ObjectRow, Row, RunRow, key_of
from sequencer.store.state import HotState
from tailrace.object_store.api import ObjectStore
from tailrace.turns import Turns, in_turns

T = TypeVar("T")

PAGE_ROWS = 2_000
"""Rows that one query of a snapshot reads from the database."""
PART_ROWS = 10_000
"""Rows in one part. Up to this many hot rows are in the snapshot's head itself, and are encoded in one turn: some 20
ms."""


class Patience(Protocol):
    """Repeats a step of a snapshot until it succeeds."""

    async def __call__(self, step: Callable[[], Awaitable[T]]) -> T: ...


class PartWriter:
    """Stores the parts of the snapshot that is replayed from `head_id`, one after the other."""

    def __init__(self, store: ObjectStore, cluster_id: str, head_id: HeadId, turns: Turns) -> None:
        self._store = store
        self._cluster_id = cluster_id
        self._turns = turns
        self.head_id = head_id
        self.parts: list[Part] = []
        """The parts that are stored."""
        self._attempts = 0

    async def put(self, rows: Mapping[type[Row], Sequence[Row]], *, is_hot: bool = False) -> None:
        """Store one part. Raises StoreError. Each attempt has its own key, because a failed one may still arrive."""
        key = checkpoint.part_key(self._cluster_id, self.head_id, self._attempts)
        self._attempts += 1
        data = await in_turns(checkpoint.encode_part(rows), self._turns)
        await self._store.put(key, [data])
        count = sum(map(len, rows.values()))
        self.parts.append(Part(key, size=len(data), crc=crc32c(data), rows=count, is_hot=is_hot))


async def write_cold_rows(rows: RowStore, writer: PartWriter, patiently: Patience) -> None:
    """Store all objects, runs, and rows that are looked up, as parts."""
    objects: list[Row] = []
    key = ""
    while page := await patiently(partial(rows.objects_after, key, PAGE_ROWS)):
        objects += page
        key = page[-1].key
        if len(objects) >= PART_ROWS:
            await patiently(partial(writer.put, {ObjectRow: objects}))
            objects = []
    for kind in LOOKED_UP:
        await _write_all(rows, kind, writer, patiently)
    runs: list[Row] = []
    last: tuple[UUID, int, int] | None = None
    while run_page := await patiently(partial(rows.run_rows_after, last, PAGE_ROWS)):
        runs += run_page
        last = (run_page[-1].topic_id, run_page[-1].partition, run_page[-1].base_offset)
        if len(runs) + len(objects) >= PART_ROWS:
            await patiently(partial(writer.put, {ObjectRow: objects, RunRow: runs}))
            objects, runs = [], []
    if objects or runs:
        await patiently(partial(writer.put, {ObjectRow: objects, RunRow: runs}))


async def _write_all(rows: RowStore, kind: type[Row], writer: PartWriter, patiently: Patience) -> None:
    last: tuple[object, ...] | None = None
    while page := await patiently(partial(rows.rows_after, kind, last, PART_ROWS)):
        await patiently(partial(writer.put, {kind: page}))
        last = key_of(page[-1])


def has_many_hot_rows(state: HotState) -> bool:
    """Whether there are too many hot rows to encode in one turn; they are then stored as parts."""
    return sum(state.count(kind) for kind in checkpoint.KEPT_HOT) > PART_ROWS


async def write_hot_rows(state: HotState, writer: PartWriter) -> None:
    """Store the current hot rows as parts, in place of those of an earlier attempt. The changes in the head contain
    what is written meanwhile. Raises StoreError."""
    writer.parts = [part for part in writer.parts if not part.is_hot]
    rows = {kind: list(state.all(kind)) for kind in checkpoint.KEPT_HOT}
    for kind, of_kind in rows.items():
        for first in range(0, len(of_kind), PART_ROWS):
            await writer.put({kind: of_kind[first : first + PART_ROWS]}, is_hot=True)
