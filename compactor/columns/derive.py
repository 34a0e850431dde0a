"""One task: reads a Parquet object of the log, and writes its records with typed columns in place of the value.

An object gives one or two files. The first has the rows whose values fit. If there are other rows, the second has them,
with the reason and the bytes of their values. Rows keep their order. The object itself does not change.

A file's name contains everything that its contents depend on, so a task that runs twice writes the same file twice.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from hashlib import blake2b
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from compactor.blocking_calls import Blocking, run_here
from compactor.columns.arrays import TAKEN_NAMES, column_names, table_fields
from compactor.columns.avro_values import AvroValues, avro_columns
from compactor.columns.json_values import JsonValues, ValueUnfit, inferred
from compactor.columns.protobuf_values import ProtobufValues, compiled, protobuf_columns, protobuf_key
from compactor.columns.registered import MAX_SCHEMAS, RegisteredSchema, SchemaKey, SchemaRefused, schema_id_of
from compactor.columns.values import ValueDecoder, fit
from sequencer.api.commits import ObjectDescription
from tailrace.configs.columns import Columns, columns_text, parse_columns, row_cells
from tailrace.grouping import in_groups
from tailrace.object_store.api import ObjectExists, ObjectStore
from tailrace.parquet_object.read import read_index
from tailrace.parquet_object.schema import LOG_SCHEMA, TIME_COLUMNS, within_microseconds

SAMPLED_ROWS = 10_000
SAMPLED_BYTES = 16 << 20
DECODED_BYTES = 16 << 20
ROW_BYTES = 64
"""The memory of a row, in addition to its key, value and headers. In a file, repeated values take almost nothing."""
ARRAY_BYTES = 1_000
"""The memory of an array, in addition to its values."""
HEAD_BYTES = 64
"""The first bytes of a value, which contain its schema's key."""
QUARANTINE = "__quarantine"
"""The suffix of a quarantine's name, and of its folder."""
QUARANTINE_COLUMNS = parse_columns("reason string")
"""The columns of a quarantine, in addition to those of the log."""
_QUARANTINE_SCHEMA = pa.schema([*LOG_SCHEMA, *table_fields(QUARANTINE_COLUMNS)])
_NAME = re.compile(r"([0-9a-f-]{36})\.([0-9a-f]{16})\.([0-9]+)\.parquet")


class ValueFormat(msgspec.Struct, frozen=True, array_like=True):
    """How a topic's values are encoded. `columns`: as set in its config; "" means those that its values have."""

    kind: str
    columns: str = ""


class ValuesName(NamedTuple):
    """The name of a file with typed columns and of its quarantine file. `unfit`: the number of rows in the
    quarantine."""

    object_id: UUID
    fingerprint: str
    unfit: int

    def __str__(self) -> str:
        return f"{self.object_id}.{self.fingerprint}.{self.unfit}.parquet"

    @classmethod
    def of(cls, path: str) -> ValuesName | None:
        """Parse the name at the end of a path; None if it is another file's."""
        match = _NAME.fullmatch(path.rpartition("/")[2])
        return None if match is None else cls(UUID(match[1]), match[2], int(match[3]))


class DeriveOrder(msgspec.Struct, frozen=True, array_like=True):
    """How the objects of a topic become files with typed columns.

    `prefix`: the key of the table's folder. `columns`: the table's typed columns, "" if none are known yet. `schema`:
    all of its columns, as a serialized Arrow schema. `replays`: how often a retry of the quarantine was requested.
    `schemas`: the registry's schemas that values are known to have.
    """

    prefix: str
    encoding: ValueFormat
    columns: str
    schema: bytes
    replays: int = 0
    schemas: list[RegisteredSchema] = []

    @property
    def is_ready(self) -> bool:
        """Whether the order has what most objects need."""
        return bool(self.columns) and (self.encoding.kind == "json" or bool(self.schemas))

    @property
    def fingerprint(self) -> str:
        """A digest of everything that the columns of a file depend on. A table that was dropped by hand and created
        again may have other field ids in `schema`."""
        depends_on = f"{self.encoding.kind}\n{self.encoding.columns}\n{self.columns}\n{self.replays}\n"
        return blake2b(depends_on.encode() + self.schema, digest_size=8).hexdigest()


class DeriveItem(msgspec.Struct, frozen=True, array_like=True):
    """An object of the log, with the order for its files."""

    object: ObjectDescription
    order: DeriveOrder


class DeriveOutcome(msgspec.Struct, frozen=True, array_like=True):
    """The outcome for an object: its file, or what the order lacks (columns to add to the table, or schemas)."""

    object_id: UUID
    unfit: int = 0
    columns: str = ""
    missing: list[SchemaKey] = []


def values_key(prefix: str, name: ValuesName) -> str:
    """Return the key of the file with the rows that fit."""
    return f"{prefix}/values/{name}"


def quarantine_key(prefix: str, name: ValuesName) -> str:
    """Return the key of the file with the rows that do not fit."""
    return f"{prefix}{QUARANTINE}/values/{name}"


class DerivedFiles(NamedTuple):
    """The outcome and the files to write, by key."""

    outcome: DeriveOutcome
    files: dict[str, memoryview]


async def derive(
    item: DeriveItem, store: ObjectStore, run: Blocking[DerivedFiles] = run_here
) -> DeriveOutcome:
    """Write the object's files. `run`: runs a blocking call. Raises StoreError, InvalidParquetObject."""
    data = await store.get(item.object.key)
    outcome, files = await run(lambda: derived_files(item, data))
    for key, written in files.items():
        with suppress(ObjectExists):
            await store.put(key, [written], if_absent=True)
    return outcome


def derived_files(item: DeriveItem, data: bytes) -> DerivedFiles:
    """Derive the files from the object's bytes. Raises InvalidParquetObject."""
    read_index(memoryview(data)[item.object.index_start :], item.object.size, crc=item.object.index_crc)
    file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
    missing_schemas = _missing_schemas(item, file)
    if missing_schemas is not None:
        return DerivedFiles(missing_schemas, {})
    outputs = _OutputFiles(item.order)
    for numbers in together(file.metadata):
        outputs.add(file.read_row_groups(numbers))
    name = ValuesName(item.object.object_id, item.order.fingerprint, outputs.unfit)
    files = {values_key(item.order.prefix, name): outputs.values.close()}
    if outputs.quarantine is not None:
        files[quarantine_key(item.order.prefix, name)] = outputs.quarantine.close()
    return DerivedFiles(DeriveOutcome(item.object.object_id, unfit=outputs.unfit), files)


class ResolvedSchema(NamedTuple):
    """A schema in the form that tasks need, and the columns that a table needs for its values."""

    schema: RegisteredSchema
    columns: Columns


def resolved(encoding: ValueFormat, schema: RegisteredSchema) -> ResolvedSchema:
    """Resolve a schema for tasks and return its columns. Blocks. Raises SchemaRefused."""
    if schema.refusal:
        return ResolvedSchema(schema, ())
    if schema.kind != encoding.kind:
        raise SchemaRefused(f"it is of {schema.kind}; the topic's values are of {encoding.kind}")
    if schema.kind == "avro":
        columns = avro_columns(schema)
    else:
        schema = msgspec.structs.replace(schema, compiled=compiled(schema))
        columns = protobuf_columns(schema)
    return ResolvedSchema(schema, () if encoding.columns else columns)


def _decoder_of(order: DeriveOrder, columns: Columns) -> ValueDecoder:
    if order.encoding.kind == "json":
        return JsonValues(columns, is_strict=not order.encoding.columns)
    kind = AvroValues if order.encoding.kind == "avro" else ProtobufValues
    return kind(columns, order.schemas)


def _missing_schemas(item: DeriveItem, file: pq.ParquetFile) -> DeriveOutcome | None:
    """Return what the order lacks to derive the object; None if it lacks nothing."""
    kind = item.order.encoding.kind
    if kind != "json":
        stored_keys = {schema.key for schema in item.order.schemas}
        room = max(0, MAX_SCHEMAS - len(stored_keys))
        missing = [key for key in _schema_keys(kind, file) if key not in stored_keys][:room]
        return DeriveOutcome(item.object.object_id, missing=missing) if missing else None
    columns = () if item.order.columns else inferred(_sample(file))
    return DeriveOutcome(item.object.object_id, columns=columns_text(columns)) if columns else None


def _schema_keys(kind: str, file: pq.ParquetFile) -> list[SchemaKey]:
    """Return the schemas that values refer to, the most frequent first."""
    counts: Counter[SchemaKey] = Counter()
    for batch in file.iter_batches(batch_size=65_536, columns=["value"]):
        # Only the start of each value, which is enough for an id and a path.
        for head in pc.binary_slice(batch.column(0), 0, HEAD_BYTES).to_pylist():
            with suppress(ValueUnfit):
                if head is not None:
                    counts[(schema_id_of(head),) if kind == "avro" else protobuf_key(head)[0]] += 1
    return [key for key, _ in counts.most_common()]


def _sample(file: pq.ParquetFile) -> Iterator[bytes]:
    """Yield the first values, without those for which SAMPLED_BYTES has no room."""
    left = SAMPLED_BYTES
    values = (
        value
        for batch in file.iter_batches(batch_size=1_000, columns=["value"])
        for value in batch.column(0).to_pylist()
        if value is not None
    )
    for value in itertools.islice(values, SAMPLED_ROWS):
        if len(value) <= left:
            left -= len(value)
            yield value


def together(metadata: pq.FileMetaData, max_bytes: int = DECODED_BYTES) -> Iterator[list[int]]:
    """Group row groups to read at once. Those of thin partitions are small, and each read has a cost. Pure."""

    def size_of(number: int) -> int:
        group = metadata.row_group(number)
        return max(int(group.total_byte_size), ROW_BYTES * int(group.num_rows))

    return in_groups(range(metadata.num_row_groups), size_of, max_bytes)


def parts(rows: pa.Table, columns: Columns, decoder: ValueDecoder) -> Iterator[pa.Table]:
    """Split rows into parts of about DECODED_BYTES bytes of values or as many cells.

    Decoded values need many times as much memory. A cell needs it even if a value has nothing for it.
    """
    lengths = pc.fill_null(pc.binary_length(rows["value"]), 0).to_numpy()
    cells = row_cells(columns) + decoder.cells_in_lists(rows["value"])
    part_of = np.cumsum(np.maximum(lengths, cells), dtype=np.int64) // DECODED_BYTES
    starts = [0, *(np.flatnonzero(np.diff(part_of)) + 1).tolist(), len(rows)]
    for start, end in itertools.pairwise(starts):
        yield rows.slice(start, end - start)


class _ParquetOutput:
    """Writes a file in memory, in row groups of about DECODED_BYTES."""

    def __init__(self, schema: pa.Schema) -> None:
        self._sink = pa.BufferOutputStream()
        self._schema = schema
        self._part_bytes = ARRAY_BYTES * sum(_arrays_of(field.type) for field in schema)
        self._waiting: list[pa.Table] = []
        self._waiting_bytes = 0
        self._writer = pq.ParquetWriter(
            self._sink,
            schema,
            compression="zstd",
            compression_level=1,
            write_page_index=True,
            write_page_checksum=True,
        )

    def add(self, columns: dict[str, Any], row_count: int) -> None:
        """Add rows; missing columns are null. Several small parts become one row group."""
        arrays = [
            columns[field.name].cast(field.type) if field.name in columns else pa.nulls(row_count, field.type)
            for field in self._schema
        ]
        self._waiting.append(pa.Table.from_arrays(arrays, schema=self._schema))
        self._waiting_bytes += self._waiting[-1].nbytes + self._part_bytes
        if self._waiting_bytes >= DECODED_BYTES:
            self._write()

    def _write(self) -> None:
        table = pa.concat_tables(self._waiting)
        self._writer.write_table(table, row_group_size=max(1, len(table)))
        self._waiting.clear()
        self._waiting_bytes = 0

    def close(self) -> memoryview:
        """Finish the file and return it."""
        if self._waiting:
            self._write()
        self._writer.close()
        return memoryview(self._sink.getvalue())


def _arrays_of(kind: pa.DataType) -> int:
    """Return how many arrays an array of this type consists of."""
    return 1 + sum(_arrays_of(kind.field(number).type) for number in range(kind.num_fields))


class _OutputFiles:
    """Writes the two files of an object."""

    def __init__(self, order: DeriveOrder) -> None:
        typed = parse_columns(order.columns) if order.columns else ()
        chosen = parse_columns(order.encoding.columns) if order.encoding.columns else typed
        chosen_names = {column.name for column in chosen}
        named = list(zip(typed, column_names(typed, TAKEN_NAMES), strict=True))
        self._columns = tuple(column for column, _ in named if column.name in chosen_names)
        self._names = [name for column, name in named if column.name in chosen_names]
        self._decoder = _decoder_of(order, self._columns)
        self.values = _ParquetOutput(pa.ipc.read_schema(pa.py_buffer(order.schema)))
        self.quarantine: _ParquetOutput | None = None
        self.unfit = 0

    def add(self, rows: pa.Table) -> None:
        for part in parts(rows, self._columns, self._decoder):
            self._add(part)

    def _add(self, rows: pa.Table) -> None:
        fitted = fit(self._columns, self._decoder, _joined(rows["value"]))
        reasons = pa.array(fitted.reasons, pa.string())
        unfit = rows.filter(reasons.is_valid()) if reasons.null_count < len(rows) else rows[:0]
        log = rows.drop_columns(["value"])
        kept = log.filter(reasons.is_null()) if len(unfit) else log
        typed = dict(zip(self._names, fitted.arrays, strict=True))
        self.values.add({**_columns_of(kept), **typed}, len(kept))
        if not len(unfit):
            return
        self.unfit += len(unfit)
        if self.quarantine is None:
            self.quarantine = _ParquetOutput(_QUARANTINE_SCHEMA)
        self.quarantine.add({**_columns_of(unfit), "reason": reasons.drop_null()}, len(unfit))


def _joined(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def _columns_of(table: pa.Table) -> dict[str, Any]:
    """Return the table's columns, with times clipped to microseconds, because older objects have times beyond them."""
    columns = dict(zip(table.column_names, table.columns, strict=True))
    return columns | {name: within_microseconds(columns[name]) for name in TIME_COLUMNS}
