"""`spark.read.format("tailrace")` and `spark.readStream.format("tailrace")`: Spark's Kafka source, without Kafka.

`compactor.spark_sink` has the sink. `options.py` has the options and `columns.py` the columns; docs/compactor.md
describes them.

The options for RPC are those of the settings: `rpc_secret` (Spark's logs don't show it) or `rpc_secret_file`;
`rpc_cert_file`, `rpc_key_file`, `rpc_ca_file`, `rpc_name`. The files must exist on each executor. Give a database's
password with PGPASSWORD or PGPASSFILE, not in the URL.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, TypeVar

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    Filter,
    InputPartition,
)

from compactor.on_spark.worker_process import settled
from compactor.spark_sink.options import SinkOptions
from compactor.spark_source.columns import spark_schema, with_kafkas_headers
from compactor.spark_source.log_index import LogIndex, open_index
from compactor.spark_source.log_reader import LogPartition, LogReader, OffsetRange
from compactor.spark_source.options import LATEST, Position, SourceOptions
from compactor.spark_source.positions import (
    StreamOffset,
    batch_ranges,
    chosen_bounds,
    offsets_at,
    ranges_between,
)
from compactor.spark_source.pushdown import Limits, push
from tailrace.clock import SystemClock, SystemEntropy
from tailrace.object_store.open import open_store
from tailrace.rpc.loaded_security import LoadedSecurity

T = TypeVar("T")

_PUSHING_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"


class TaskPartition(InputPartition):  # type: ignore[misc]
    """One Spark task: ranges of offsets."""

    def __init__(self, ranges: Sequence[OffsetRange]) -> None:
        super().__init__([(*unread.partition, unread.start, unread.end) for unread in ranges])

    @property
    def ranges(self) -> list[OffsetRange]:
        """The ranges that the task reads, in order."""
        return [OffsetRange(LogPartition(*fields[:3]), *fields[3:]) for fields in self.value]


class DefaultSource(DataSource):  # type: ignore[misc]
    """The data source that Spark finds under the name `tailrace`."""

    @classmethod
    def name(cls) -> str:
        return "tailrace"

    def schema(self) -> str:
        with settled():
            return spark_schema(SourceOptions.of(self.options).columns)

    def reader(self, schema: Any) -> DataSourceReader:
        options = self._source_options(schema)
        if options.pushes_filters and _spark_pushes_filters():
            return FilteredSource(options)
        return BatchSource(options)

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802
        return StreamSource(self._source_options(schema))

    def writer(self, schema: Any, overwrite: bool) -> DataSourceWriter:
        from compactor.spark_sink.sink import BatchSink

        return BatchSink(self._sink_options(schema, overwrite), SystemEntropy().uuid())

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        from compactor.spark_sink.sink import StreamSink

        return StreamSink(self._sink_options(schema, overwrite))

    def _source_options(self, schema: Any) -> SourceOptions:
        """Check the options, and that the schema is the source's own, even if the user has set one: Spark assigns our
        columns to it by position."""
        options = SourceOptions.of(self.options)
        own = spark_schema(options.columns)
        given = ",".join(f"{field.name} {field.dataType.simpleString()}" for field in schema.fields)
        if given.replace(" ", "") != own.replace("_ltz", "").replace(" ", ""):
            raise ValueError(
                f"the source has the columns {own}; read without a schema, and choose columns by option 'columns'"
            )
        return options

    def _sink_options(self, schema: Any, overwrite: bool) -> SinkOptions:
        if overwrite:
            raise ValueError(
                "a log is appended to: write with mode 'append', or output mode 'append' or 'update'"
            )
        with settled():
            options = SinkOptions.of(self.options)
            options.check_columns({field.name: field.dataType.simpleString() for field in schema.fields})
            return options


def _spark_pushes_filters() -> bool:
    """Whether this process plans with `spark.sql.python.filterPushdown.enabled`. Spark has a separate worker for it.
    Without the setting, Spark refuses a reader that accepts filters."""
    main = sys.modules["__main__"].__spec__
    return _PUSHING_WORKER in sys.modules or (main is not None and main.name == _PUSHING_WORKER)


@asynccontextmanager
async def _opened(options: SourceOptions, limits: Limits) -> AsyncIterator[tuple[LogReader, LogIndex]]:
    """Open a reader and its index. The edge of a process: Spark starts the workers, so they create their own clock."""
    clock = SystemClock()
    store = open_store(options.store, clock=clock)
    index = open_index(
        options.sequencers,
        options.database,
        security=LoadedSecurity(options.security).rpc,
        clock=clock,
        entropy=SystemEntropy(),
    )
    try:
        reader = LogReader(
            index,
            store,
            options.columns,
            limits=limits,
            passes_over_lost=not options.fails_on_data_loss,
            passes_over_unreadable=not options.fails_on_unreadable,
        )
        yield reader, index
    finally:
        await index.close()
        await store.close()


def _run(work: Coroutine[Any, Any, T]) -> T:
    with settled():
        return asyncio.run(work)


def _read(options: SourceOptions, limits: Limits, partition: TaskPartition) -> Iterator[Any]:
    """Yield the task's record batches one at a time. The loop does not run between them."""
    with settled(), asyncio.Runner() as runner:

        async def batches() -> AsyncIterator[Any]:
            async with _opened(options, limits) as (reader, _):
                async for batch in reader.read_all(partition.ranges):
                    yield with_kafkas_headers(batch)

        source = batches()
        try:
            while True:
                try:
                    yield runner.run(_next(source))
                except StopAsyncIteration:
                    return
        finally:
            runner.run(_close(source))


async def _next(source: AsyncIterator[Any]) -> Any:
    return await anext(source)


async def _close(source: Any) -> None:
    await source.aclose()


def _tasks(cut: Sequence[Sequence[OffsetRange]]) -> list[TaskPartition]:
    """Return the tasks. If there is no work, return one empty task, because Spark requires one."""
    return [TaskPartition(ranges) for ranges in cut] or [TaskPartition([])]


class BatchSource(DataSourceReader):  # type: ignore[misc]
    """Reads the records between the query's offsets that exist when Spark first plans a query of the DataFrame."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._limits = Limits()

    def partitions(self) -> list[TaskPartition]:
        return _run(self._plan())

    def read(self, partition: TaskPartition) -> Iterator[Any]:
        return _read(self._options, self._limits, partition)

    async def _plan(self) -> list[TaskPartition]:
        options = self._options
        async with _opened(options, self._limits) as (reader, index):
            bounds = await chosen_bounds(reader, await index.topics(), options.topics)
            ranges = await batch_ranges(options, bounds, reader, self._limits)
            return _tasks(await reader.cut(ranges, min_tasks=options.min_tasks))


class FilteredSource(BatchSource):
    """A `BatchSource` that applies Spark's filters where it can. Spark 4.1 keeps one plan per DataFrame, so another
    query of the same DataFrame would read what the filters of this one have left."""

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:  # noqa: N802
        self._limits, left = push(self._limits, filters)
        return left


class StreamSource(DataSourceStreamReader):  # type: ignore[misc]
    """Reads records as they arrive, each once."""

    def __init__(self, options: SourceOptions) -> None:
        if options.ending is not None:
            raise ValueError(
                f"option {options.ending.option!r}: a stream has no end; give it to a batch query"
            )
        self._options = options
        self._has_begun = False
        self._began: StreamOffset | None = None
        self._latest: StreamOffset | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return where the stream starts. Spark does not store it, so the end of the first batch contains it
        (`StreamOffset.began`)."""
        return replace(self._beginning(), is_initial=True).kept()

    def latestOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return where the next batch ends. Without new records, return the same text as before: Spark compares it."""
        began: StreamOffset | None = None
        if not self._has_begun:  # as far as we know: Spark calls this method first
            with suppress(ValueError):  # a wrong option; a new stream fails for it in initialOffset
                began = self._beginning()
        latest = self._offset_at(Position("", edge=LATEST))
        if self._latest is None or latest.offsets != self._latest.offsets:
            self._latest = replace(latest, began=None if began is None else began.offsets)
        return self._latest.kept()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[TaskPartition]:
        begin = StreamOffset.of(start)
        self._has_begun = not begin.is_initial
        return _run(self._plan(begin, StreamOffset.of(end)))

    def _beginning(self) -> StreamOffset:
        if self._began is None:
            starting = self._options.starting or Position("startingOffsets", edge=LATEST)
            self._began = self._offset_at(starting)
        return self._began

    def read(self, partition: TaskPartition) -> Iterator[Any]:
        return _read(self._options, Limits(), partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: Spark stores the progress."""

    def _offset_at(self, position: Position) -> StreamOffset:
        async def look() -> StreamOffset:
            async with _opened(self._options, Limits()) as (reader, index):
                bounds = await chosen_bounds(reader, await index.topics(), self._options.topics)
                if_none = "error" if self._options.fails_without_time else LATEST
                return StreamOffset(await offsets_at(position, bounds, reader, if_none=if_none))

        return _run(look())

    async def _plan(self, start: StreamOffset, end: StreamOffset) -> list[TaskPartition]:
        options = self._options
        ranges = ranges_between(start, end, fails_on_data_loss=options.fails_on_data_loss)
        async with _opened(options, Limits()) as (reader, _):
            return _tasks(await reader.cut(ranges, min_tasks=options.min_tasks))
