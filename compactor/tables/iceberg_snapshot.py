"""The parts of an Iceberg snapshot that pyiceberg does not write: an exchange of data files and position deletes, the
position deletes themselves, and statistics with only those bounds that every engine can trust."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from struct import Struct
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import (
    MetricModeTypes,
    MetricsMode,
    StatsAggregator,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
)
from pyiceberg.schema import Schema
from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _SnapshotProducer
from pyiceberg.typedef import Record

from compactor.tables.table import NewFile

SMALL_MANIFEST_ENTRIES = 2_000
MOST_SMALL_MANIFESTS = 16
"""With more small manifests, a snapshot combines them into one."""
ROWS_AT_ONCE = 1 << 20
_PATH_ID, _POSITION_ID = 2147483546, 2147483545  # reserved by Iceberg's specification
_INT64 = Struct("<q")
_DELETES_SCHEMA = pa.schema(
    [
        pa.field("file_path", pa.string(), nullable=False, metadata={"PARQUET:field_id": str(_PATH_ID)}),
        pa.field("pos", pa.int64(), nullable=False, metadata={"PARQUET:field_id": str(_POSITION_ID)}),
    ]
)


class SnapshotExchange(_SnapshotProducer["SnapshotExchange"]):  # type: ignore[misc]
    """A snapshot that adds and removes data files and position deletes."""

    def __init__(
        self,
        transaction: Transaction,
        added: Sequence[DataFile],
        removed: Iterable[str],
        properties: dict[str, str],
    ) -> None:
        io = transaction._table.io
        super().__init__(Operation.OVERWRITE, transaction, io, snapshot_properties=properties)
        self._added_data_files = list(added)
        self._removed = frozenset(removed)

    def _deleted_entries(self) -> list[ManifestEntry]:
        raise AssertionError("manifests are written by _manifests")

    def _existing_manifests(self) -> list[ManifestFile]:
        raise AssertionError("manifests are written by _manifests")

    def _manifests(self) -> list[ManifestFile]:
        return [
            *self._manifests_of(ManifestContent.DATA),
            *self._manifests_of(ManifestContent.DELETES),
        ]

    def _manifests_of(self, content: ManifestContent) -> list[ManifestFile]:
        """Return the manifests that stay, and one with the new entries and those of the manifests that do not."""
        entries = [
            ManifestEntry.from_args(
                status=ManifestEntryStatus.ADDED, snapshot_id=self._snapshot_id, data_file=file
            )
            for file in self._added_data_files
            if (file.content == DataFileContent.DATA) == (content == ManifestContent.DATA)
        ]
        kept: list[ManifestFile] = []
        small: list[tuple[ManifestFile, list[ManifestEntry]]] = []
        for manifest in self._parent_manifests(content):
            live = self.fetch_manifest_entry(manifest)
            if any(entry.data_file.file_path in self._removed for entry in live):
                entries += [self._carried(entry) for entry in live]
            elif len(live) < SMALL_MANIFEST_ENTRIES:
                small.append((manifest, live))
            else:
                kept.append(manifest)
        if len(small) > MOST_SMALL_MANIFESTS:
            entries += [self._carried(entry) for _, live in small for entry in live]
        else:
            kept += [manifest for manifest, _ in small]
        return [*self._written(content, entries), *kept]

    def _parent_manifests(self, content: ManifestContent) -> Iterator[ManifestFile]:
        parent = self._transaction.table_metadata.snapshot_by_id(self._parent_snapshot_id or -1)
        for manifest in [] if parent is None else parent.manifests(self._io):
            if manifest.content == content and (manifest.has_added_files() or manifest.has_existing_files()):
                yield manifest

    def _carried(self, entry: ManifestEntry) -> ManifestEntry:
        is_removed = entry.data_file.file_path in self._removed
        if is_removed:
            self._deleted_data_files.add(entry.data_file)
        return ManifestEntry.from_args(
            status=ManifestEntryStatus.DELETED if is_removed else ManifestEntryStatus.EXISTING,
            snapshot_id=self._snapshot_id if is_removed else entry.snapshot_id,
            sequence_number=entry.sequence_number,
            file_sequence_number=entry.file_sequence_number,
            data_file=entry.data_file,
        )

    def _written(self, content: ManifestContent, entries: Sequence[ManifestEntry]) -> list[ManifestFile]:
        if not entries:
            return []
        kind = ManifestWriterV2 if content == ManifestContent.DATA else _DeletesWriter
        metadata = self._transaction.table_metadata
        writer = kind(
            metadata.spec(),
            metadata.schema(),
            self.new_manifest_output(),
            self._snapshot_id,
            self._compression,
        )
        with writer:
            for entry in entries:
                writer.add_entry(entry)
        return [writer.to_manifest_file()]


class _DeletesWriter(ManifestWriterV2):  # type: ignore[misc]
    """Writes a manifest of delete files."""

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


def write_deletes(table: Table, path: str, new: NewFile) -> DataFile:
    """Write a file of position deletes for one data file, sorted as the specification requires. Return its entry."""
    output = table.io.new_output(path)
    with (
        output.create(overwrite=True) as sink,
        pq.ParquetWriter(
            sink, _DELETES_SCHEMA, compression="zstd", use_dictionary=["file_path"],
            column_encoding={"pos": "DELTA_BINARY_PACKED"},
        ) as writer,
    ):  # fmt: skip
        for rows in new.dead:
            for start in range(rows.start, rows.end, ROWS_AT_ONCE):
                positions = np.arange(start, min(rows.end, start + ROWS_AT_ONCE))
                paths = pa.repeat(pa.scalar(new.named.path), len(positions))
                writer.write_table(pa.Table.from_arrays([paths, pa.array(positions)], schema=_DELETES_SCHEMA))
    target = new.named.path.encode()
    first, last = new.dead[0].start, new.dead[-1].end - 1
    return data_file(
        table.metadata,
        content=DataFileContent.POSITION_DELETES,
        file_path=path,
        file_size_in_bytes=len(output),
        record_count=sum(rows.length for rows in new.dead),
        lower_bounds={_PATH_ID: target, _POSITION_ID: _INT64.pack(first)},
        upper_bounds={_PATH_ID: target, _POSITION_ID: _INT64.pack(last)},
    )


def file_statistics(
    metadata: pq.FileMetaData, schema: Schema, properties: Mapping[str, str]
) -> dict[str, Any]:
    """Return the fields of a data file's entry with the value counts and bounds of its columns.

    A column has no bounds if one of its row groups has non-null values but no bounds. The writer omits bounds above 4
    KiB, and an engine would otherwise skip a file that contains such values. A column with a time before the year 1 or
    after 9999 has no bounds either, because pyiceberg reads bounds as Python dates.
    """
    field_ids = parquet_path_to_id_mapping(schema)
    plan = compute_statistics_plan(schema, dict(properties))
    for field_id in _columns_of_unknown_bounds(metadata, field_ids):
        if plan[field_id].mode.type is not MetricModeTypes.NONE:
            plan[field_id] = replace(plan[field_id], mode=MetricsMode(MetricModeTypes.COUNTS))
    statistics = data_file_statistics_from_parquet_metadata(
        parquet_metadata=metadata, stats_columns=plan, parquet_column_mapping=field_ids
    )
    aggregates = statistics.column_aggregates
    for field_id in [field_id for field_id, bounds in aggregates.items() if not _has_bytes(bounds)]:
        del aggregates[field_id]
    return dict(statistics.to_serialized_dict())


def _columns_of_unknown_bounds(metadata: pq.FileMetaData, field_ids: Mapping[str, int]) -> set[int]:
    unknown: set[int] = set()
    for group, column in itertools.product(range(metadata.num_row_groups), range(metadata.num_columns)):
        chunk = metadata.row_group(group).column(column)
        statistics = chunk.statistics if chunk.is_stats_set else None
        is_all_null = (
            statistics is not None and statistics.has_null_count and statistics.null_count == chunk.num_values
        )
        if statistics is None or not (
            is_all_null or (statistics.has_min_max and _has_python_values(statistics))
        ):
            unknown.add(field_ids[chunk.path_in_schema])
    return unknown


def _has_python_values(bounds: pq.Statistics) -> bool:
    try:
        return bounds.min is not None and bounds.max is not None
    except (OverflowError, ValueError):
        return False


def _has_bytes(bounds: StatsAggregator) -> bool:
    """Whether the bounds can be encoded. The upper bound of truncated text ends with the next code point, which may be
    a surrogate, which UTF-8 can't encode."""
    try:
        bounds.max_as_bytes()
    except UnicodeEncodeError:
        return False
    return True


def data_file(metadata: TableMetadata, **fields: Any) -> DataFile:
    file = DataFile.from_args(
        file_format=FileFormat.PARQUET,
        partition=Record(),
        sort_order_id=None,
        equality_ids=None,
        key_metadata=None,
        **fields,
    )
    file.spec_id = metadata.default_spec_id
    return file


def target_of(deletes: DataFile) -> str:
    """Return the data file whose rows are deleted. It is both bounds of the path column."""
    return str(deletes.lower_bounds[_PATH_ID].decode())
