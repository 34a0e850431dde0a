"""`spark.read.format("tailrace")` and `spark.readStream.format("tailrace")`.

Options: `store` (its URL), `sequencer` ('host:port', more by commas) or `database` (its URL), `topic`. If wanted:
- `columns`: names by commas (Spark prunes none for Python sources);
- `startingOffsets` and, of a batch, `endingOffsets`: "earliest", "latest", or the offset of each partition as JSON,
  {"0": 17, "1": -2}, where -2 is the earliest and -1 the latest. A stream takes them for its first start only. Default:
  earliest to latest;
- `failOnDataLoss` (true): whether records that were to be read and are gone fail the query;
- `minPartitions`: tasks that there are at least, as far as the log can be cut; else a task is 64 MiB.

What opens RPC, as in the settings: `rpc_secret` (Spark's logs don't show it) or `rpc_secret_file`; `rpc_cert_file`,
`rpc_key_file`, `rpc_ca_file`, `rpc_name`. Files must be there on each executor. A database's password: PGPASSWORD or
PGPASSFILE, not in the URL.

A stream's offset is the topic's id and the next offset of each partition, so that a topic that was made again under the
same name is noticed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

from compactor.spark_source.log_reader import (
    COLUMNS,
    DataLost,
    LogReader,
    OffsetRange,
    TopicBounds,
    open_index,
)
from tailrace.clock import SystemClock, SystemEntropy
from tailrace.object_store.open import open_store
from tailrace.rpc.opened_security import OpenedSecurity, SecurityFiles

T = TypeVar("T")
Position = str | dict[int, int]
"""Where to start or end: "earliest", "latest", or an offset of each partition."""

EARLIEST, LATEST = "earliest", "latest"
_EARLIEST_OFFSET, _LATEST_OFFSET = -2, -1
_OPTIONS = (
    "store", "sequencer", "database", "topic", "columns", "startingOffsets", "endingOffsets", "failOnDataLoss",
    "minPartitions", "rpc_secret", "rpc_secret_file", "rpc_cert_file", "rpc_key_file", "rpc_ca_file", "rpc_name",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options, checked."""

    store: str
    sequencers: tuple[str, ...]
    database: str
    topic: str
    columns: tuple[str, ...]
    starting: Position
    ending: Position
    fails_on_data_loss: bool
    min_tasks: int
    security: SecurityFiles

    @classmethod
    def of(cls, options: Mapping[str, str]) -> SourceOptions:
        """Raises ValueError that names the option, what was given and what is allowed."""
        known = {name.lower() for name in _OPTIONS}
        unknown_options = sorted(name for name in options if name.lower() not in known)
        if unknown_options:
            raise ValueError(
                f"options {', '.join(unknown_options)} are unknown; there are {', '.join(_OPTIONS)}"
            )
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
        return cls(
            store=options["store"],
            sequencers=sequencers,
            database=database,
            topic=options["topic"],
            columns=columns,
            starting=_position(options, "startingOffsets", EARLIEST),
            ending=_position(options, "endingOffsets", LATEST),
            fails_on_data_loss=_is_true(options, "failOnDataLoss", default=True),
            min_tasks=_count(options, "minPartitions", default=1),
            security=_security(options),
        )


def _position(options: Mapping[str, str], name: str, default: str) -> Position:
    given = options.get(name) or default
    if given.lower() in (EARLIEST, LATEST):
        return given.lower()
    expected = (
        f'expected is {EARLIEST!r}, {LATEST!r}, or the offset of each partition as JSON, such as {{"0": 17}}'
    )
    try:
        offsets = {int(partition): int(offset) for partition, offset in json.loads(given).items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"option {name!r}: {given!r}; {expected}") from error
    if any(offset < _EARLIEST_OFFSET for offset in offsets.values()):
        raise ValueError(f"option {name!r}: {given!r}; no offset is below -2 (the earliest)")
    return offsets


def _is_true(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    given = options.get(name, str(default)).lower()
    if given not in ("true", "false"):
        raise ValueError(f"option {name!r}: {given!r}; expected is true or false")
    return given == "true"


def _count(options: Mapping[str, str], name: str, *, default: int) -> int:
    given = options.get(name, str(default))
    if not given.isdecimal() or int(given) < 1:
        raise ValueError(f"option {name!r}: {given!r}; expected is a whole number from 1 on")
    return int(given)


def offsets_at(position: Position, bounds: TopicBounds, name: str) -> dict[int, int]:
    """The offset of each partition. Raises ValueError where the option does not fit the topic's partitions."""
    if isinstance(position, dict) and set(position) != set(bounds.ends):
        raise ValueError(
            f"option {name!r} names partitions {sorted(position)}, not each of the topic's: {sorted(bounds.ends)}"
        )
    offsets: dict[int, int] = {}
    for partition, (earliest, latest) in bounds.ends.items():
        if isinstance(position, str):
            asked = _EARLIEST_OFFSET if position == EARLIEST else _LATEST_OFFSET
        else:
            asked = position[partition]
        offsets[partition] = {_EARLIEST_OFFSET: earliest, _LATEST_OFFSET: latest}.get(asked, asked)
    return offsets


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


class TaskPartition(InputPartition):  # type: ignore[misc]
    """One Spark task: ranges of offsets of one topic id."""

    def __init__(self, topic_id: UUID, ranges: list[OffsetRange]) -> None:
        super().__init__((topic_id.hex, [(each.partition, each.start, each.end) for each in ranges]))

    @property
    def topic_id(self) -> UUID:
        """The topic as it was planned: another one of the same name is not read in its place."""
        return UUID(hex=self.value[0])

    @property
    def ranges(self) -> list[OffsetRange]:
        """What the task reads, in order."""
        return [OffsetRange(*each) for each in self.value[1]]


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
        yield LogReader(
            index,
            store,
            options.topic,
            options.columns,
            passes_over_lost=not options.fails_on_data_loss,
        )
    finally:
        await index.close()
        await store.close()


def _run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def _read(options: SourceOptions, partition: TaskPartition) -> Iterator[Any]:
    """The task's record batches, one at a time: the loop stands still between them."""
    with asyncio.Runner() as runner:

        async def batches() -> AsyncIterator[Any]:
            async with _reader(options) as reader:
                for wanted in partition.ranges:
                    async for batch in reader.read(partition.topic_id, wanted):
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


def _no_task(topic_id: UUID) -> list[TaskPartition]:
    """A task without work: Spark wants one."""
    return [TaskPartition(topic_id, [])]


class BatchSource(DataSourceReader):  # type: ignore[misc]
    """The records there are when the query is planned, between its offsets."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> list[TaskPartition]:
        return _run(self._plan())

    def read(self, partition: TaskPartition) -> Iterator[Any]:
        return _read(self._options, partition)

    async def _plan(self) -> list[TaskPartition]:
        options = self._options
        async with _reader(options) as reader:
            bounds = await reader.bounds()
            starts = offsets_at(options.starting, bounds, "startingOffsets")
            ends = offsets_at(options.ending, bounds, "endingOffsets")
            wanted = [OffsetRange(number, start, ends[number]) for number, start in starts.items()]
            for each in wanted:
                if each.start > each.end:
                    raise ValueError(
                        f"partition {each.partition}: startingOffsets {each.start} is after {each.end}"
                    )
            tasks = await reader.cut(bounds.topic_id, wanted, min_tasks=options.min_tasks)
        return [TaskPartition(bounds.topic_id, task) for task in tasks] or _no_task(bounds.topic_id)


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """How far a stream has come: the next offset of each partition. `topic_id` is None in a checkpoint of a version
    that did not keep it."""

    topic_id: UUID | None
    offsets: dict[int, int]

    @classmethod
    def of(cls, kept: Mapping[str, Any]) -> StreamOffset:
        """Out of a checkpoint."""
        if "topic_id" not in kept:
            return cls(None, {int(partition): offset for partition, offset in kept.items()})
        offsets = {int(partition): offset for partition, offset in kept["offsets"].items()}
        return cls(UUID(hex=kept["topic_id"]), offsets)

    def kept(self) -> dict[str, Any]:
        """As JSON, for Spark's checkpoint."""
        assert self.topic_id is not None, "a new offset is of a known topic"
        offsets = {str(partition): offset for partition, offset in self.offsets.items()}
        return {"topic_id": self.topic_id.hex, "offsets": offsets}


class StreamSource(DataSourceStreamReader):  # type: ignore[misc]
    """Records as they come; each is read once."""

    def __init__(self, options: SourceOptions) -> None:
        if options.ending != LATEST:
            raise ValueError("option 'endingOffsets': a stream has no end; give it to a batch query")
        self._options = options

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return self._offset_at(self._options.starting)

    def latestOffset(self) -> dict[str, Any]:  # noqa: N802
        return self._offset_at(LATEST)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[TaskPartition]:
        return _run(self._plan(StreamOffset.of(start), StreamOffset.of(end)))

    def read(self, partition: TaskPartition) -> Iterator[Any]:
        return _read(self._options, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: Spark keeps the progress."""

    def _offset_at(self, position: Position) -> dict[str, Any]:
        async def look() -> dict[str, Any]:
            async with _reader(self._options) as reader:
                bounds = await reader.bounds()
            return StreamOffset(bounds.topic_id, offsets_at(position, bounds, "startingOffsets")).kept()

        return _run(look())

    async def _plan(self, start: StreamOffset, end: StreamOffset) -> list[TaskPartition]:
        options = self._options
        async with _reader(options) as reader:
            topic_id = end.topic_id or (await reader.bounds()).topic_id
            wanted = ranges_between(start, end, options.topic, fails_on_data_loss=options.fails_on_data_loss)
            tasks = await reader.cut(topic_id, wanted, min_tasks=options.min_tasks)
        return [TaskPartition(topic_id, task) for task in tasks] or _no_task(topic_id)


def ranges_between(
    start: StreamOffset, end: StreamOffset, topic: str, *, fails_on_data_loss: bool
) -> list[OffsetRange]:
    """What a micro-batch reads of each partition; one that is new is read from 0 on.

    Raises DataLost where the topic is another than the one the stream has read, or has lost what was read already.
    """

    def lost(why: str) -> None:
        if fails_on_data_loss:
            raise DataLost(
                f"topic {topic!r}: {why}. Start the stream with a new checkpoint, or give option failOnDataLoss=false"
                " to read what there is now"
            )

    before = start.offsets
    if start.topic_id not in (None, end.topic_id):
        lost(f"it was deleted and made again since the stream read it ({start.topic_id}, now {end.topic_id})")
        before = {}
    for partition in sorted(set(before) - set(end.offsets)):
        lost(f"partition {partition} is gone")
    ranges: list[OffsetRange] = []
    for partition, upto in sorted(end.offsets.items()):
        begin = before.get(partition, 0)
        if begin > upto:
            lost(f"partition {partition} ends at {upto}, the stream has read it up to {begin}")
        ranges.append(OffsetRange(partition, begin, upto))
    return [each for each in ranges if each.start < each.end]
