"""The files of a table with typed columns: finds live objects without one, and derives those files.

A live object has one file in the table, whose name contains everything that its contents depend on. An object whose
file omits rows is derived again when the columns have changed. Everything else follows from the comparison
(compactor.tables.sync): a merge, a pass over keys and a crash leave live objects that have no file yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol
from uuid import UUID

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from compactor.blocking_calls import Blocking
from compactor.columns.derive import (
    DeriveItem,
    DeriveOrder,
    DeriveOutcome,
    ValueFormat,
    ValuesName,
    derive,
    quarantine_key,
    resolved,
    values_key,
)
from compactor.columns.registered import (
    MAX_SCHEMAS,
    RegisteredSchema,
    Registry,
    RegistryUnavailable,
    SchemaKey,
    SchemaRefused,
)
from compactor.lru_cache import LruCache
from compactor.tables.live import LiveFile, RowRange
from compactor.tables.table import StoredFile, TopicTable
from tailrace.configs.columns import Columns, ColumnsConflict, merged, parse_columns
from tailrace.object_store.api import ObjectStore
from tailrace.parquet_object.read import TAIL_BYTES

DERIVED_AT_ONCE = 512
"""How many objects are derived before the table is updated, if the update would only add files."""
MAX_GROWTHS = 20
"""The most changes of a table's columns in one comparison."""
KEPT_SCHEMA_BYTES = 64 << 20
"""The most bytes of schemas to keep. Those of other tables are requested again when they are needed."""


@dataclass(frozen=True, slots=True)
class TableFile:
    """A data file for a live object: the object itself, or a file derived from it.

    `is_partial`: it does not have all rows of the object.
    """

    live: LiveFile
    key: str
    is_partial: bool = False

    @property
    def is_derived(self) -> bool:
        """Whether the file was derived from the object."""
        return self.key != self.live.object.key


class DerivedNames(NamedTuple):
    """The derived files by object. `is_complete`: all live objects have one, with the current columns."""

    names: dict[UUID, ValuesName]
    is_complete: bool


class Deriver(Protocol):
    """Derives the files of objects, in any order, in any process."""

    async def derive(self, items: Sequence[DeriveItem]) -> list[DeriveOutcome]:
        """Derive the items' files. Return each item's outcome."""


class InProcessDeriver:
    """Derives one item after another in this process. `run`: runs a blocking call."""

    def __init__(self, store: ObjectStore, run: Blocking[Any]) -> None:
        self._store = store
        self._run = run

    async def derive(self, items: Sequence[DeriveItem]) -> list[DeriveOutcome]:
        return [await derive(item, self._store, self._run) for item in items]


class ValueFiles:
    """Finds and derives the files of tables. `run`: runs a blocking call. `registry`: None if none is configured."""

    def __init__(self, deriver: Deriver, run: Blocking[Any], registry: Registry | None = None) -> None:
        self.deriver = deriver
        self._run = run
        self._registry = registry
        self._schemas = LruCache[str, dict[SchemaKey, RegisteredSchema]](KEPT_SCHEMA_BYTES)

    async def names(
        self, encoding: ValueFormat, table: TopicTable, files: Sequence[LiveFile], prefix: str
    ) -> DerivedNames:
        """Return the derived file of each live object. Writes missing files, and adds columns to the table.

        `prefix`: the key of the table's folder. Raises ColumnsConflict, TableConflict, RegistryUnavailable, and what
        the deriver raises.
        """
        paths = await self._run(table.named)
        held, live = names_of(paths), {file.object.object_id for file in files}
        # If the update would only add files, adding some of them is progress.
        most = DERIVED_AT_ONCE if len(held) == len(paths) and held.keys() <= live else None
        await self._grow(table, parse_columns(encoding.columns) if encoding.columns else ())
        cached = self._schemas.get(prefix) or {}
        schemas = {key: schema for key, schema in cached.items() if not schema.refusal}
        for _ in range(MAX_GROWTHS):
            order = await self._order(encoding, table, prefix, schemas)
            left = due(files, held, order.fingerprint)
            unanswered = await self._write(order, left[:most], held)
            if not unanswered:
                names = {object_id: name for object_id, name in held.items() if object_id in live}
                return DerivedNames(names, is_complete=most is None or len(left) <= most)
            await self._answer(unanswered, order, table, schemas)
        raise ColumnsConflict(f"the table's columns changed {MAX_GROWTHS} times; the next round continues")

    async def _order(
        self,
        encoding: ValueFormat,
        table: TopicTable,
        prefix: str,
        schemas: dict[SchemaKey, RegisteredSchema],
    ) -> DeriveOrder:
        return DeriveOrder(
            prefix=prefix,
            encoding=encoding,
            columns=await self._run(table.columns) or "",
            schema=(await self._run(table.schema)).serialize().to_pybytes(),
            replays=await self._run(table.replays),
            schemas=list(schemas.values()),
        )

    async def _write(
        self, order: DeriveOrder, files: Sequence[LiveFile], held: dict[UUID, ValuesName]
    ) -> list[DeriveOutcome]:
        """Write files, and add them to `held`. Return the outcomes of objects for which the order lacks something."""
        left = list(files)
        while left:
            # The first object tells the columns. Until they are known, derive one object at a time.
            now, left = (left, []) if order.is_ready else (left[:1], left[1:])
            unanswered: list[DeriveOutcome] = []
            for outcome in await self.deriver.derive(
                [DeriveItem(object=file.object, order=order) for file in now]
            ):
                if outcome.columns or outcome.missing:
                    unanswered.append(outcome)
                else:
                    name = ValuesName(outcome.object_id, order.fingerprint, outcome.unfit)
                    held[outcome.object_id] = name
            if unanswered:
                return unanswered
        return []

    async def _answer(
        self,
        outcomes: Sequence[DeriveOutcome],
        order: DeriveOrder,
        table: TopicTable,
        schemas: dict[SchemaKey, RegisteredSchema],
    ) -> None:
        """Add the columns that were found to the table, and fetch the schemas that were missing."""
        columns = parse_columns(order.columns) if order.columns else ()
        for outcome in outcomes:
            columns = merged(columns, parse_columns(outcome.columns) if outcome.columns else ())
        missing = sorted({key for outcome in outcomes for key in outcome.missing})
        for key in missing[: MAX_SCHEMAS - len(schemas)]:
            if self._registry is None:
                raise RegistryUnavailable("the values need a schema registry; set tables.registry")
            schema = await self._registry.schema(key[0])
            schema = msgspec.structs.replace(schema, path=key[1:])
            try:
                schema, more = await self._run(partial(resolved, order.encoding, schema))
                columns = merged(columns, more)
            except (SchemaRefused, ColumnsConflict) as error:
                schema = msgspec.structs.replace(schema, refusal=f"schema {key[0]}: {error}")
            schemas[key] = schema
        self._schemas.keep(order.prefix, schemas, sum(schema.held_bytes for schema in schemas.values()))
        await self._grow(table, columns)

    async def _grow(self, table: TopicTable, columns: Columns) -> None:
        text = await self._run(table.columns)
        stored = parse_columns(text) if text else ()
        grown = merged(stored, columns)
        if text is None or grown != stored:
            await self._run(lambda: table.grow(grown))


def due(files: Iterable[LiveFile], held: dict[UUID, ValuesName], fingerprint: str) -> list[LiveFile]:
    """Return the objects to derive: those without a file, or whose file omits rows and is of other columns."""

    def is_due(name: ValuesName | None) -> bool:
        return name is None or (name.unfit > 0 and name.fingerprint != fingerprint)

    return [file for file in files if is_due(held.get(file.object.object_id))]


def names_of(paths: Iterable[str]) -> dict[UUID, ValuesName]:
    """Return the derived files among these paths, by object."""
    names = filter(None, map(ValuesName.of, paths))
    return {name.object_id: name for name in names}


def table_files(
    files: Iterable[LiveFile], names: dict[UUID, ValuesName], prefix: str
) -> tuple[list[TableFile], list[TableFile]]:
    """Return the files of the table and those of its quarantine."""
    values: list[TableFile] = []
    quarantine: list[TableFile] = []
    for file in files:
        name = names[file.object.object_id]
        values.append(TableFile(file, values_key(prefix, name), is_partial=name.unfit > 0))
        if name.unfit:
            quarantine.append(TableFile(file, quarantine_key(prefix, name), is_partial=True))
    return values, quarantine


async def stored_file(store: ObjectStore, key: str) -> StoredFile:
    """Read a file's size and footer. Raises StoreError."""
    size = (await store.head(key)).size
    tail = await store.get_range(key, max(0, size - TAIL_BYTES), TAIL_BYTES)
    footer_bytes = int.from_bytes(tail[-8:-4], "little") + 8
    if footer_bytes > len(tail):
        tail = await store.get_range(key, size - footer_bytes, footer_bytes)
    return StoredFile(size, pq.read_metadata(pa.BufferReader(tail)))


async def dead_rows_of_part(store: ObjectStore, file: TableFile) -> list[RowRange]:
    """Return the rows of a file whose offsets are not live, by the offsets of its rows. Raises StoreError."""
    data = pa.BufferReader(await store.get(file.key))
    rows = pq.read_table(data, columns=["partition", "offset"])
    partitions, offsets = rows["partition"].to_numpy(), rows["offset"].to_numpy()
    is_live = np.zeros(len(offsets), bool)
    for live in file.live.ranges:
        is_live |= (partitions == live.partition) & (offsets >= live.start) & (offsets < live.end)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], ~is_live, [False]]).astype(np.int8)))
    return [RowRange(int(start), int(end)) for start, end in edges.reshape(-1, 2)]
