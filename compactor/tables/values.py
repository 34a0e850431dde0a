"""The files of a table with typed columns: which live objects have one, and which are to be derived (again).

A live object has one file in the table, named by what it depends on. An object whose file left rows out is derived
again when the columns have changed. All else follows by comparison (compactor.tables.sync): a merge, a pass over keys
and a crash leave live objects that have no file yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from compactor.columns.derive import (
    Blocking,
    DeriveItem,
    DeriveOrder,
    DeriveOutcome,
    ValueFormat,
    ValuesName,
    derive,
    quarantine_key,
    values_key,
)
from compactor.tables.live import LiveFile, RowRange
from compactor.tables.table import StoredFile, TopicTable
from tailrace.columns import Columns, ColumnsConflict, merged, parse_columns
from tailrace.object_store.api import ObjectStore
from tailrace.parquet_object.read import TAIL_BYTES

MAX_GROWTHS = 20
"""Changes of a table's columns in one comparison."""


@dataclass(frozen=True, slots=True)
class TableFile:
    """A data file that stands for a live object: the object itself, or one that was derived from it.

    `is_partial`: it does not have all rows of the object.
    """

    live: LiveFile
    key: str
    is_partial: bool = False

    @property
    def is_derived(self) -> bool:
        """Whether it is the table's own."""
        return self.key != self.live.object.key


class Deriver(Protocol):
    """Writes the files of objects, in any order and place."""

    async def derive(self, items: Sequence[DeriveItem]) -> list[DeriveOutcome]:
        """Each item's outcome."""
        ...


class DeriveHere:
    """Derives one after the other, in this process. `run`: calls what blocks."""

    def __init__(self, store: ObjectStore, run: Blocking[Any]) -> None:
        self._store = store
        self._run = run

    async def derive(self, items: Sequence[DeriveItem]) -> list[DeriveOutcome]:
        """See Deriver."""
        return [await derive(item, self._store, self._run) for item in items]


class ValueFiles:
    """Finds and makes the files of tables. `run`: calls what blocks."""

    def __init__(self, deriver: Deriver, run: Blocking[Any]) -> None:
        self.deriver = deriver
        self._run = run

    async def names(
        self, encoding: ValueFormat, table: TopicTable, files: Sequence[LiveFile], prefix: str
    ) -> dict[UUID, ValuesName]:
        """The derived file of each live object; what is not there yet is written, and the table's columns grow.

        `prefix`: the key of the table's folder. Raises ColumnsConflict, TableConflict, and as `derive`.
        """
        held = names_of(await self._run(table.named))
        await self._grow(table, parse_columns(encoding.columns) if encoding.columns else ())
        for _ in range(MAX_GROWTHS):
            schema = (await self._run(table.schema)).serialize().to_pybytes()
            columns = await self._run(table.columns) or ""
            found = await self._derive(
                DeriveOrder(prefix=prefix, encoding=encoding, columns=columns, schema=schema), files, held
            )
            if not found:
                return {file.object.object_id: held[file.object.object_id] for file in files}
            await self._grow(table, found)
        raise ColumnsConflict(f"the table's columns changed {MAX_GROWTHS} times; the next round goes on")

    async def _derive(
        self, order: DeriveOrder, files: Sequence[LiveFile], held: dict[UUID, ValuesName]
    ) -> Columns:
        """Write what is due, and note it in `held`, up to where columns are met that the table is to have first."""
        left = due(files, held, order.fingerprint)
        while left:
            # The first object with any columns says which there are.
            now, left = (left, []) if order.columns else (left[:1], left[1:])
            grown: Columns = ()
            for outcome in await self.deriver.derive(
                [DeriveItem(object=file.object, order=order) for file in now]
            ):
                if outcome.columns:
                    grown = merged(grown, parse_columns(outcome.columns))
                else:
                    name = ValuesName(outcome.object_id, order.fingerprint, outcome.unfit)
                    held[outcome.object_id] = name
            if grown:
                return grown
        return ()

    async def _grow(self, table: TopicTable, columns: Columns) -> None:
        text = await self._run(table.columns)
        known = parse_columns(text) if text else ()
        grown = merged(known, columns)
        if text is None or grown != known:
            await self._run(lambda: table.grow(grown))


def due(files: Iterable[LiveFile], held: dict[UUID, ValuesName], fingerprint: str) -> list[LiveFile]:
    """The objects to derive: without a file, or with one that left rows out under other columns."""

    def is_due(name: ValuesName | None) -> bool:
        return name is None or (name.unfit > 0 and name.fingerprint != fingerprint)

    return [file for file in files if is_due(held.get(file.object.object_id))]


def names_of(paths: Iterable[str]) -> dict[UUID, ValuesName]:
    """The derived files among these, by object."""
    names = filter(None, map(ValuesName.of, paths))
    return {name.object_id: name for name in names}


def table_files(
    files: Iterable[LiveFile], names: dict[UUID, ValuesName], prefix: str
) -> tuple[list[TableFile], list[TableFile]]:
    """What the table names, and what its quarantine names."""
    values: list[TableFile] = []
    quarantine: list[TableFile] = []
    for file in files:
        name = names[file.object.object_id]
        values.append(TableFile(file, values_key(prefix, name), is_partial=name.unfit > 0))
        if name.unfit:
            quarantine.append(TableFile(file, quarantine_key(prefix, name), is_partial=True))
    return values, quarantine


async def stored_file(store: ObjectStore, key: str) -> StoredFile:
    """The file's size and footer. Raises StoreError."""
    size = (await store.head(key)).size
    tail = await store.get_range(key, max(0, size - TAIL_BYTES), TAIL_BYTES)
    footer_bytes = int.from_bytes(tail[-8:-4], "little") + 8
    if footer_bytes > len(tail):
        tail = await store.get_range(key, size - footer_bytes, footer_bytes)
    return StoredFile(size, pq.read_metadata(pa.BufferReader(tail)))


async def dead_rows_of_part(store: ObjectStore, file: TableFile) -> list[RowRange]:
    """The rows of a derived file whose offsets are not live. Raises StoreError."""
    data = pa.BufferReader(await store.get(file.key))
    rows = pq.read_table(data, columns=["partition", "offset"])
    partitions, offsets = rows["partition"].to_numpy(), rows["offset"].to_numpy()
    is_live = np.zeros(len(offsets), bool)
    for each in file.live.ranges:
        is_live |= (partitions == each.partition) & (offsets >= each.start) & (offsets < each.end)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], ~is_live, [False]]).astype(np.int8)))
    return [RowRange(int(start), int(end)) for start, end in edges.reshape(-1, 2)]
