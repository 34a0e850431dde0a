"""The source in Spark's Python workers, step by step, without a JVM: plan, pickle, read, stream.

`test_job.py` runs the same on Spark.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.serializers import CloudPickleSerializer
from pyspark.sql.datasource import CaseInsensitiveDict, EqualTo, GreaterThanOrEqual, StringContains
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructType, TimestampType

from compactor.cycle import CompactionSettings, InProcess, run_cycle
from compactor.spark_source import source as source_module
from compactor.spark_source.columns import KAFKA_COLUMNS
from compactor.spark_source.log_reader import DamagedRecords, DataLost, UnreadableRecords
from compactor.spark_source.source import BatchSource, DefaultSource
from sequencer.api.topics import CreatePartitions
from sequencer.engine.committer import Committer
from sequencer.store.sql.store import SqlRowStore
from tailrace.clock import SystemClock, SystemEntropy
from tailrace.object_store.open import open_store
from tests.support.compaction import Log, batch_of, unreadable_batch

pickle = CloudPickleSerializer()
KAFKA_TYPES = (BinaryType, BinaryType, StringType, IntegerType, LongType, TimestampType, IntegerType)
KAFKA_SCHEMA = StructType()
for name, kind in zip(KAFKA_COLUMNS, KAFKA_TYPES, strict=True):
    KAFKA_SCHEMA.add(name, kind())


def sent(value: Any) -> Any:
    """As another process gets it."""
    return pickle.loads(pickle.dumps(value))


class Written:
    """A log on SQLite and a folder, written step by step."""

    def __init__(self, folder: Path) -> None:
        self.options = {"store": f"{folder}/objects", "database": f"sqlite:///{folder}/rows.db"}
        self._runner = asyncio.Runner()
        self._clock, self._entropy = SystemClock(), SystemEntropy()
        self._rows = SqlRowStore(self.options["database"], clock=self._clock, entropy=self._entropy)
        self._committer = Committer(self._rows, self._clock, self._entropy)
        self._store = open_store(self.options["store"], clock=self._clock)
        self._runner.run(self._committer.start())
        self._log = Log(self._committer, self._store, self._clock)

    def topic(self, name: str, partitions: int) -> None:
        self._runner.run(self._log.topic(name, partitions))

    def write(self, topic: str, *values: bytes, partition: int = 0) -> None:
        self.produce(topic, batch_of(list(values)), partition)

    def produce(self, topic: str, batch: bytes, partition: int = 0) -> None:
        self._runner.run(self._log.produce((topic, partition, batch)))

    def objects(self) -> list[Path]:
        """The files of all objects."""
        found = Path(self.options["store"]).rglob("*")
        return [path for path in found if path.is_file() and ".unfinished" not in path.parts]

    def widen(self, topic: str, partitions: int) -> None:
        topic_id = self._log.topics[topic].topic_id
        self._runner.run(self._log.sequencer.create_partitions(CreatePartitions(topic_id, partitions)))

    def compact(self) -> None:
        here = InProcess(self._store, self._clock, self._entropy)
        settings = CompactionSettings(min_bytes=1, min_age_ms=0)
        done = run_cycle(
            self._log.sequencer, here, clock=self._clock, entropy=self._entropy, settings=settings
        )
        assert self._runner.run(done).objects > 0

    def source(self, **options: str) -> DefaultSource:
        return DefaultSource(CaseInsensitiveDict(self.options | options))

    def close(self) -> None:
        self._runner.run(self._committer.close())
        self._runner.run(self._rows.close())
        self._runner.run(self._store.close())
        self._runner.close()


@pytest.fixture
def written(tmp_path: Path) -> Iterator[Written]:
    log = Written(tmp_path)
    yield log
    log.close()


def rows_of(reader: Any, partitions: list[Any]) -> list[dict[str, Any]]:
    reader = sent(reader)
    return [row for part in sent(partitions) for batch in reader.read(part) for row in batch.to_pylist()]


def checkpointed(offset: dict[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = json.loads(json.dumps(offset))
    return kept


def restarted_stream(written: Written, **always: str) -> Callable[..., Any]:
    """A driver's reader of the stream, each call after another restart."""

    def driver(**options: str) -> Any:
        given = {"subscribe": "a", "startingOffsets": "earliest"} | always | options
        return sent(written.source(**given)).streamReader(KAFKA_SCHEMA)

    return driver


def since(reader: Any, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[int, bytes]]:
    """Offset and value of what a batch has."""
    return [(row["offset"], row["value"]) for row in rows_of(reader, reader.partitions(start, end))]


def zero_the_middle(path: Path) -> None:
    data = bytearray(path.read_bytes())
    middle = slice(len(data) // 4, len(data) // 2)
    data[middle] = bytes(len(data[middle]))
    path.write_bytes(data)


def emptied(path: Path) -> None:
    os.truncate(path, 0)


def test_a_query_is_planned_sent_and_read_over_tail_and_parquet(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    written.topic("a", 2)
    written.topic("b", 1)
    written.write("a", b"1", b"2")
    written.write("b", b"3")
    written.compact()
    written.write("a", b"4", partition=1)
    source = sent(written.source(SUBSCRIBE="a,b"))
    reader = source.reader(KAFKA_SCHEMA)
    assert type(reader) is BatchSource, "Spark refuses a reader that takes filters while its setting is off"
    rows = rows_of(reader, reader.partitions())
    assert [tuple(row) for row in rows] == [KAFKA_COLUMNS] * 4
    assert sorted((row["topic"], row["partition"], row["offset"], row["value"]) for row in rows) == [
        ("a", 0, 0, b"1"), ("a", 0, 1, b"2"), ("a", 1, 0, b"4"), ("b", 0, 0, b"3")
    ]  # fmt: skip
    monkeypatch.setattr(source_module, "_spark_pushes_filters", lambda: True)
    assert type(source.reader(KAFKA_SCHEMA)) is BatchSource, "Spark would mix up the filters of queries"
    reader = sent(written.source(SUBSCRIBE="a,b", PUSHFILTERS="true")).reader(KAFKA_SCHEMA)
    of_spark = StringContains(("topic",), "a")
    filters = [EqualTo(("topic",), "a"), GreaterThanOrEqual(("offset",), 1), of_spark]
    assert reader.pushFilters(filters) == [of_spark]
    assert [row["value"] for row in rows_of(reader, reader.partitions())] == [b"2"]


def test_a_stream_continues_from_its_checkpoint_and_a_batch_that_is_planned_again_is_the_same(
    written: Written,
) -> None:
    """A driver that was killed leaves a batch in its log of offsets: the next one plans it again."""
    written.topic("a", 1)
    written.write("a", b"before")

    def driver() -> Any:
        return sent(written.source(subscribePattern="a.*", startingOffsets="latest")).streamReader(
            KAFKA_SCHEMA
        )

    first = driver()
    start = checkpointed(first.initialOffset())
    written.write("a", b"1", b"2")
    end = checkpointed(first.latestOffset())
    batch = rows_of(first, first.partitions(start, end))
    assert [row["value"] for row in batch] == [b"1", b"2"]
    written.compact()
    written.widen("a", 2)
    written.topic("ab", 1)
    written.write("a", b"3", partition=1)
    written.write("ab", b"4")
    again = driver()
    assert rows_of(again, again.partitions(start, end)) == batch
    latest = checkpointed(again.latestOffset())
    since = rows_of(again, again.partitions(end, latest))
    assert sorted((row["topic"], row["partition"], row["value"]) for row in since) == [
        ("a", 1, b"3"), ("ab", 0, b"4")
    ]  # fmt: skip
    assert rows_of(again, again.partitions(latest, latest)) == []
    with pytest.raises(DataLost, match="partition 0 ends at 3, the stream has read it up to 9"):
        ahead = checkpointed(latest)
        ahead["topics"]["a"]["offsets"]["0"] = 9
        again.partitions(ahead, latest)


@pytest.mark.parametrize("edge", ["earliest", "latest"])
def test_a_first_batch_that_is_made_again_begins_where_it_began(written: Written, edge: str) -> None:
    """Spark keeps where a batch ends; where the first one begins it asks again after a restart."""
    written.topic("a", 1)
    written.write("a", b"before")

    def driver() -> Any:
        return sent(written.source(subscribe="a", startingOffsets=edge)).streamReader(KAFKA_SCHEMA)

    first = driver()
    end = json.loads(json.dumps(first.latestOffset()))  # Spark asks for it first
    written.write("a", b"1", b"2")
    batch = rows_of(first, first.partitions(first.initialOffset(), end))
    assert [row["value"] for row in batch] == ([b"before"] if edge == "earliest" else [])
    written.widen("a", 2)
    written.write("a", b"3", partition=1)
    again = driver()
    assert rows_of(again, again.partitions(again.initialOffset(), end)) == batch
    latest = again.latestOffset()
    since = rows_of(again, again.partitions(end, latest))
    assert sorted(row["value"] for row in since) == [b"1", b"2", b"3"]
    assert again.latestOffset() == latest, "nothing new, so no batch"
    written.write("a", b"4")
    assert "began" not in again.latestOffset(), "only the first batch needs it"


def test_a_stream_that_continues_does_not_ask_where_it_would_begin(written: Written) -> None:
    written.topic("a", 1)
    starting = json.dumps({"a": {"0": 0}})
    source = written.source(subscribe="a", startingOffsets=starting)
    end = sent(source).streamReader(KAFKA_SCHEMA).latestOffset()
    written.widen("a", 2)  # the option does not name the new partition
    written.write("a", b"1", partition=1)
    again = sent(source).streamReader(KAFKA_SCHEMA)
    assert [row["value"] for row in rows_of(again, again.partitions(end, again.latestOffset()))] == [b"1"]


@pytest.mark.parametrize("is_compacted", [False, True])
def test_a_stream_stops_at_a_batch_that_cannot_be_decoded_until_it_is_restarted_without_it(
    written: Written, is_compacted: bool
) -> None:
    written.topic("a", 1)
    written.write("a", b"1")
    driver = restarted_stream(written)
    end = checkpointed(driver().latestOffset())
    written.write("a", b"2")
    written.produce("a", unreadable_batch([b"x", b"y"]))
    written.write("a", b"5")
    if is_compacted:
        written.compact()  # all but the run that can't be decoded
    bad_end = checkpointed(driver().latestOffset())
    for _ in range(2):  # as often as it is started
        with pytest.raises(
            UnreadableRecords, match=r"offsets 2 to 3 can't be decoded.*failOnUnreadable=false"
        ):
            since(driver(), end, bad_end)
    passing = driver(failOnUnreadable="false")
    assert since(passing, end, bad_end) == [(1, b"2"), (4, b"5")]
    written.write("a", b"6")
    latest = checkpointed(passing.latestOffset())
    assert since(driver(), bad_end, latest) == [(5, b"6")], "behind it, strict again"


@pytest.mark.parametrize("strict", ["true", "false"])
@pytest.mark.parametrize("is_compacted", [False, True])
def test_a_stream_that_met_a_damaged_object_continues_where_it_was_when_the_object_is_mended(
    written: Written, is_compacted: bool, strict: str
) -> None:
    written.topic("a", 1)
    written.write("a", b"1")
    driver = restarted_stream(written, failOnUnreadable=strict)
    start = checkpointed(driver().initialOffset())
    end = checkpointed(driver().latestOffset())
    assert since(driver(), start, end) == [(0, b"1")]
    written.write("a", b"2", b"3")
    if is_compacted:
        written.compact()
    written.write("a", b"4")
    latest = checkpointed(driver().latestOffset())
    whole = {path: path.read_bytes() for path in written.objects()}
    damage: list[Callable[[Path], object]] = [zero_the_middle, emptied, Path.unlink]
    for harm in damage:
        for path in whole:
            harm(path)
        with pytest.raises(
            DamagedRecords, match=r"topic 'a', partition 0: offsets 1 to .*[Rr]estore the object"
        ):
            since(driver(), end, latest)
        for path, data in whole.items():
            path.write_bytes(data)
    assert since(driver(), end, latest) == [(1, b"2"), (2, b"3"), (3, b"4")]
