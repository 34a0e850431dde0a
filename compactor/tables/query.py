"""A topic in DuckDB: its live Parquet files and its tail, a table in memory, as one relation.

The tail is the part of the log that is not in Parquet files yet. Its records are read as a read_committed consumer sees
them. Filters and column selections are pushed down to the files. The tail is read completely, so its size is limited.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from uuid import UUID

import pyarrow as pa
from pyarrow import dataset

from compactor.spark_source.columns import COLUMNS
from compactor.spark_source.log_index import SequencerIndex
from compactor.spark_source.log_reader import LogPartition, LogReader, OffsetRange
from compactor.tables.live import LiveRange, TopicFiles, list_live_files
from sequencer.api.interface import Sequencer
from tailrace.object_store.api import ObjectStore
from tailrace.object_store.open import object_url

MAX_TAIL_BYTES = 1 << 30
"""The most bytes in memory of a topic's records that are not in Parquet files."""


STORED = [column.stored for column in COLUMNS.values()]
"""The columns of a view, with the files' names."""


class _WithoutReadAhead(dataset.FileSystemDataset):  # type: ignore[misc]
    """A dataset without pyarrow's read-ahead of 64 row groups, which takes a gigabyte in a scan by DuckDB."""

    def scanner(self, **options: Any) -> Any:
        return super().scanner(**options, batch_readahead=4, fragment_readahead=1)


class TailTooLarge(Exception):
    """Too much of the topic is not in Parquet files; the message says what to do."""


async def add_topic(
    database: Any, name: str, topic_id: UUID, *, sequencer: Sequencer, store: ObjectStore, store_url: str
) -> TopicFiles:
    """Create a view of the topic under its name in the DuckDB connection. Return its files. Raises TailTooLarge."""
    files = await list_live_files(sequencer, topic_id)
    reader = LogReader(SequencerIndex(sequencer), store, list(COLUMNS), passes_over_unreadable=True)
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
    """Create or replace the topic's view, so that it contains only these records."""
    held = f"{name} part"
    database.register(held, records)
    database.execute(f"create or replace view {_quoted(name)} as select * from {_quoted(held)}")


def add_functions(database: Any) -> None:
    """Add two functions to the connection. Both return text, and never fail because of one record's bytes.

    `header(headers, name)`: the value of a record's first header of that name. `field(value, path)`: the element of a
    JSON value at a path, null if the value is not JSON.
    """
    database.execute(
        "create macro header(headers, name) as"
        " decode(list_filter(headers, lambda each: each.key = name)[1].value, 'replace')"
    )
    database.execute(
        "create macro field(value, path) as"
        " case when json_valid(decode(value, 'replace')) then decode(value, 'replace')->>path end"
    )


def named_tables(database: Any, sql: str, names: Iterable[str]) -> list[str]:
    """Return which of the names a statement reads. Raises duckdb.Error."""
    import duckdb

    try:
        mentioned = database.get_table_names(sql)
    except duckdb.BinderException:  # a join with `using` is bound here, but the tables do not exist yet
        return [name for name in names if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", sql)]
    return [name for name in names if name in mentioned]


def tail_ranges(name: str, files: TopicFiles) -> Iterator[OffsetRange]:
    """Yield the stable offsets of a topic that are not in Parquet files. Pure."""
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
    """Return a dataset of Parquet files on S3, with a column `file`. DuckDB pushes columns and filters down to it."""
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
    return _WithoutReadAhead(fragments, schema, parquet, files)


def _texts(values: Iterable[str]) -> str:
    return ", ".join(f"'{value.replace(chr(39), chr(39) * 2)}'" for value in values)


def _file_name(key: str) -> str:
    return key.rpartition("/")[2]


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
