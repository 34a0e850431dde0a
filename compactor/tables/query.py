"""A topic in DuckDB: its live Parquet files, and its tail as a table in memory, as one relation.

Filters and columns reach the files; the tail is read whole, so it is bounded. The tail is what no Parquet file has: its
records are read as a consumer with read_committed sees them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from uuid import UUID

import pyarrow as pa
from pyarrow import dataset

from compactor.spark_source.columns import COLUMNS
from compactor.spark_source.log_index import AskedIndex
from compactor.spark_source.log_reader import LogPartition, LogReader, OffsetRange
from compactor.tables.live import LiveRange, TopicFiles, list_live_files
from sequencer.api.interface import Sequencer
from tailrace.object_store.api import ObjectStore
from tailrace.object_store.open import object_url

MAX_TAIL_BYTES = 1 << 30
"""Records of one topic that are in no Parquet file, in memory."""


STORED = [column.stored for column in COLUMNS.values()]
"""The columns of a view: named as in the files."""


class _Frugal(dataset.FileSystemDataset):  # type: ignore[misc]
    """A dataset that DuckDB scans without pyarrow's read-ahead of 64 row groups, which takes a gigabyte."""

    def scanner(self, **options: Any) -> Any:
        return super().scanner(**options, batch_readahead=4, fragment_readahead=1)


class TailTooLarge(Exception):
    """Too much of the topic is not compacted; the message says what to do."""


async def add_topic(
    database: Any, name: str, topic_id: UUID, *, sequencer: Sequencer, store: ObjectStore, store_url: str
) -> TopicFiles:
    """Make the topic a view of the DuckDB connection, under its name; what is in it. Raises TailTooLarge."""
    files = await list_live_files(sequencer, topic_id)
    reader = LogReader(AskedIndex(sequencer), store, list(COLUMNS), passes_over_unreadable=True)
    tail = await _tail(reader, name, files)
    database.register(f"{name} tail", tail)
    live = pa.table(
        {
            "file": [_file_name(file.object.key) for file in files.files for _ in file.ranges],
            "partition": pa.array(
                [live.partition for file in files.files for live in file.ranges], pa.int32()
            ),
            "first": pa.array([live.start for file in files.files for live in file.ranges], pa.int64()),
            "until": pa.array([live.end for file in files.files for live in file.ranges], pa.int64()),
        }
    )
    database.register(f"{name} live", live)
    parts = [f"select {', '.join(map(_quoted, STORED))} from {_quoted(f'{name} tail')}"]
    if files.files:
        paths = [object_url(store_url, file.object.key) for file in files.files]
        if store_url.startswith("s3:"):
            database.register(f"{name} files", await asyncio.to_thread(_on_s3, store_url, paths))
            rows = _quoted(f"{name} files")
        else:
            rows = f"(select *, parse_filename(filename) file from read_parquet([{_texts(paths)}], filename = true))"
        parts.append(
            f"select {', '.join(f'r.{_quoted(column)}' for column in STORED)}"
            f" from {rows} r semi join {_quoted(f'{name} live')} l on r.file = l.file"
            ' and r.partition = l.partition and r."offset" >= l.first and r."offset" < l.until'
        )
    database.execute(f"create view {_quoted(name)} as {' union all by name '.join(parts)}")
    return files


def add_records(database: Any, name: str, records: Any) -> None:
    """Make these records the view of the topic, in place of the one that there may be."""
    held = f"{name} part"
    database.register(held, records)
    database.execute(f"create or replace view {_quoted(name)} as select * from {_quoted(held)}")


def add_functions(database: Any) -> None:
    """`header(headers, name)`: the value of a record's first header of that name; `field(value, path)`: what a value of
    JSON has at a path, null where it is no JSON. Both as text. One record's bytes never fail a query."""
    database.execute(
        "create macro header(headers, name) as"
        " decode(list_filter(headers, lambda each: each.key = name)[1].value, 'replace')"
    )
    database.execute(
        "create macro field(value, path) as"
        " case when json_valid(decode(value, 'replace')) then decode(value, 'replace')->>path end"
    )


def named_tables(database: Any, sql: str, names: Iterable[str]) -> list[str]:
    """Which of the names a statement reads. Raises duckdb.Error."""
    import duckdb

    try:
        mentioned = database.get_table_names(sql)
    except duckdb.BinderException:  # a join by `using` is bound, and the tables are not there yet
        return [name for name in names if name in sql]
    return [name for name in names if name in mentioned]


def tail_ranges(name: str, files: TopicFiles) -> Iterator[OffsetRange]:
    """The offsets of a topic that are stable and in no Parquet file. Pure."""
    by_partition: dict[int, list[LiveRange]] = {}
    for file in files.files:
        for live in file.ranges:
            by_partition.setdefault(live.partition, []).append(live)
    for bounds in files.partitions:
        yield from _gaps(
            LogPartition(name, files.topic_id, bounds.partition),
            bounds.log_start_offset,
            bounds.last_stable_offset,
            sorted(by_partition.get(bounds.partition, ())),
        )


def _gaps(
    partition: LogPartition, start: int, end: int, covered: Iterable[LiveRange]
) -> Iterator[OffsetRange]:
    for live in covered:
        if start < live.start:
            yield OffsetRange(partition, start, live.start)
        start = live.end
    if start < end:
        yield OffsetRange(partition, start, end)


async def _tail(reader: LogReader, name: str, files: TopicFiles) -> Any:
    batches: list[Any] = []
    size = 0
    async for batch in reader.read_all(list(tail_ranges(name, files))):
        batches.append(batch)
        size += batch.nbytes
        if size > MAX_TAIL_BYTES:
            raise TailTooLarge(
                f"topic {name!r} has more than {MAX_TAIL_BYTES >> 20} MiB that are not compacted; run"
                " `tailrace compact` first"
            )
    schema = pa.schema([(name, column.arrow) for name, column in COLUMNS.items()])
    return pa.Table.from_batches(batches, schema=schema).rename_columns(STORED)


def _on_s3(store_url: str, urls: Sequence[str]) -> Any:
    """The Parquet files on S3, with a column `file`: DuckDB passes columns and filters on to the dataset."""
    from pyiceberg.io.pyarrow import PyArrowFileIO

    from compactor.tables.iceberg import store_properties

    paths = [url.removeprefix("s3://") for url in urls]
    bucket, _, _ = paths[0].partition("/")
    files = PyArrowFileIO(store_properties(store_url)).fs_by_scheme("s3", bucket)
    parquet = dataset.ParquetFileFormat()
    fragments = [
        parquet.make_fragment(path, files, partition_expression=dataset.field("file") == _file_name(path))
        for path in paths
    ]
    schema = fragments[0].physical_schema.append(pa.field("file", pa.string()))
    return _Frugal(fragments, schema, parquet, files)


def _texts(values: Iterable[str]) -> str:
    return ", ".join(f"'{value.replace(chr(39), chr(39) * 2)}'" for value in values)


def _file_name(key: str) -> str:
    return key.rpartition("/")[2]


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
