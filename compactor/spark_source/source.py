"""`spark.read.format("tailrace")` and `spark.readStream.format("tailrace")`.

Options: `store` (its URL), `sequencer` ('host:port', more by commas) or `database` (its URL), `topic`, and, if
wanted, `columns` (names by commas; Spark prunes none for Python sources). What opens RPC, as in the settings:
`rpc_secret` (Spark's logs don't show it) or `rpc_secret_file`; `rpc_cert_file`, `rpc_key_file`, `rpc_ca_file`,
`rpc_name`. Files must be there on each executor. A database's password: PGPASSWORD or PGPASSFILE, not in the URL.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

from compactor.spark_source.log_reader import COLUMNS, LogReader, OffsetRange, open_index
from tailrace.clock import SystemClock, SystemEntropy
from tailrace.object_store.open import open_store
from tailrace.rpc.opened_security import OpenedSecurity, SecurityFiles

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options, checked."""

    store: str
    sequencers: tuple[str, ...]
    database: str
    topic: str
    columns: tuple[str, ...]
    security: SecurityFiles

    @classmethod
    def of(cls, options: Mapping[str, str]) -> SourceOptions:
        """Raises ValueError that names the option, what was given and what is allowed."""
        for name in ("store", "topic"):
            if not options.get(name):
                raise ValueError(f"option {name!r} is missing")
        sequencers = _names(options.get("sequencer", ""))
        database = options.get("database", "")
        if bool(sequencers) == bool(database):
            raise ValueError("give one of the options 'sequencer' (host:port) and 'database' (a URL)")
        columns = _names(options.get("columns", "")) or tuple(COLUMNS)
        unknown = [name for name in columns if name not in COLUMNS]
        if unknown or len(set(columns)) != len(columns):
            raise ValueError(
                f"option 'columns': {','.join(columns)!r}; allowed, once each: {', '.join(COLUMNS)}"
            )
        return cls(options["store"], sequencers, database, options["topic"], columns, _security(options))


def _security(options: Mapping[str, str]) -> SecurityFiles:
    def path(name: str) -> Path | None:
        return Path(options[name]) if options.get(name) else None

    return SecurityFiles(
        options.get("rpc_secret", ""),
        path("rpc_secret_file"),
        path("rpc_cert_file"),
        path("rpc_key_file"),
        path("rpc_ca_file"),
        options.get("rpc_name", ""),
    )


def _names(value: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in value.split(",") if name.strip())


class RangePartition(InputPartition):  # type: ignore[misc]
    """One Spark task's range of offsets."""

    def __init__(self, wanted: OffsetRange) -> None:
        super().__init__((wanted.partition, wanted.start, wanted.end))


class DefaultSource(DataSource):  # type: ignore[misc]
    """The data source Spark finds under the name `tailrace`."""

    @classmethod
    def name(cls) -> str:
        return "tailrace"

    def schema(self) -> str:
        columns = SourceOptions.of(self.options).columns
        return ", ".join(f"{name} {COLUMNS[name][1]}" for name in columns)

    def reader(self, schema: Any) -> DataSourceReader:
        return BatchSource(SourceOptions.of(self.options))

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802
        return StreamSource(SourceOptions.of(self.options))


@asynccontextmanager
async def _reader(options: SourceOptions) -> AsyncIterator[LogReader]:
    """A process's edge: Spark makes its workers, so they make their own clock."""
    clock = SystemClock()
    store = open_store(options.store, clock=clock)
    index = open_index(
        options.sequencers,
        options.database,
        security=OpenedSecurity(options.security).rpc,
        clock=clock,
        entropy=SystemEntropy(),
    )
    try:
        yield LogReader(index, store, options.topic, options.columns)
    finally:
        await index.close()
        await store.close()


def _run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def _read(options: SourceOptions, partition: InputPartition) -> Iterator[Any]:
    """The range's record batches, one at a time: the loop stands still between them."""
    with asyncio.Runner() as runner:

        async def batches() -> AsyncIterator[Any]:
            async with _reader(options) as reader:
                async for batch in reader.read(OffsetRange(*partition.value)):
                    yield batch

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


async def _partitions(options: SourceOptions, wanted: list[OffsetRange] | None) -> list[RangePartition]:
    async with _reader(options) as reader:
        if wanted is None:
            wanted = [OffsetRange(number, *ends) for number, ends in (await reader.bounds()).items()]
        return [RangePartition(part) for whole in wanted for part in await reader.cut(whole)]


class BatchSource(DataSourceReader):  # type: ignore[misc]
    """All records there are when the query is planned."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> list[RangePartition]:
        return _run(_partitions(self._options, None)) or [RangePartition(OffsetRange(0, 0, 0))]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return _read(self._options, partition)


class StreamSource(DataSourceStreamReader):  # type: ignore[misc]
    """Records as they come; the progress is the next offset of each partition, so each is read once."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {str(number): ends[0] for number, ends in _run(self._bounds()).items()}

    def latestOffset(self) -> dict[str, int]:  # noqa: N802
        return {str(number): ends[1] for number, ends in _run(self._bounds()).items()}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[RangePartition]:
        wanted = [OffsetRange(int(number), start.get(number, 0), upto) for number, upto in end.items()]
        return _run(_partitions(self._options, [each for each in wanted if each.start < each.end]))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return _read(self._options, partition)

    def commit(self, end: dict[str, int]) -> None:
        """Nothing: Spark keeps the progress."""

    async def _bounds(self) -> dict[int, tuple[int, int]]:
        async with _reader(self._options) as reader:
            return await reader.bounds()
