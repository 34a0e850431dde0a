"""The whole job on a Spark of this machine: one session for all tests here."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import StreamingQueryException

from compactor.columns.derive import ValueFormat
from compactor.columns.spark import DeriveFailed
from compactor.cycle import CompactionSettings, run_cycle
from compactor.on_spark.job import SparkRunner, compact, run_task
from compactor.on_spark.session import spark_session
from compactor.on_spark.spark_failures import cause_of_death
from compactor.plan import PlanSettings
from compactor.rewrite import OutputLocation
from compactor.tables.iceberg import IcebergTables, open_catalog
from compactor.tables.sync import DesiredTable, TableSync
from sequencer.api.retention import DeleteRecords, DeleteRecordsPartition
from sequencer.api.topics import CreatePartitions, DeleteTopic
from sequencer.engine.committer import Committer
from sequencer.store.memory import MemoryRowStore
from sequencer.store.sql.store import SqlRowStore
from tailrace.batches.record_batch import Compression
from tailrace.clock import SystemClock, SystemEntropy
from tailrace.object_store.open import object_url, open_store
from tests.support.compaction import Log, batch_of, change_log, unreadable_batch

ALL = CompactionSettings(min_bytes=1, min_age_ms=0, merges=False, plan=PlanSettings(1 << 10, 4 << 10))


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    session = spark_session("local[2]")
    yield session
    session.stop()


def flight(number: int) -> bytes:
    return json.dumps({"carrier": "UA" if number % 2 else "AA", "delay": number}).encode()


def test_a_log_on_sqlite_and_a_folder_is_compacted_merged_replayed_and_queried(
    spark: Any, tmp_path: Path
) -> None:
    async def scenario() -> tuple[list[str], int]:
        clock, entropy = SystemClock(), SystemEntropy()
        rows = SqlRowStore(f"sqlite:///{tmp_path}/rows.db", clock=clock, entropy=entropy)
        sequencer = Committer(rows, clock, entropy)
        await sequencer.start()
        store = open_store(str(tmp_path / "objects"), clock=clock)
        try:
            log = Log(sequencer, store, clock)
            await log.topic("flights", 3)
            await log.topic("planes", 1)
            number = 0
            for _ in range(12):
                batches = []
                for partition in range(3):
                    values = [flight(number + each) for each in range(10)]
                    number += 10
                    codec = Compression.ZSTD if partition == 1 else Compression.NONE
                    batches.append(("flights", partition, batch_of(values, codec=codec)))
                await log.produce(*batches, ("planes", 0, batch_of([b"{}"])))
            places = [("flights", 0), ("planes", 0)]
            exact = [await log.replay(*place) for place in places]
            records = [await log.records("flights", partition) for partition in range(3)]

            summary = await compact(
                sequencer, str(tmp_path / "objects"), spark=spark, settings=ALL, clock=clock, entropy=entropy
            )

            assert (summary.failures, summary.refused) == ([], [])
            assert (summary.records, summary.partitions, summary.runs_replaced) == (number + 12, 4, 48)
            made = [key for key in summary.keys if "/flights/" in key]
            merging = CompactionSettings(min_bytes=1 << 40, min_age_ms=1 << 40)
            merged = await compact(
                sequencer,
                str(tmp_path / "objects"),
                spark=spark,
                settings=merging,
                clock=clock,
                entropy=entropy,
            )
            assert (merged.failures, merged.refused, merged.objects) == ([], [], 0)
            assert merged.merged_objects == len(made) > 1 and len(merged.keys) == 1
            assert {run.key for run in await log.runs("flights", 2)} == set(merged.keys)
            assert [await log.replay(*place) for place in places] == exact
            assert [await log.records("flights", partition) for partition in range(3)] == records
            for partition in range(3):
                values = [flight(number + 10 * partition + each) for each in range(10)]
                await log.produce(("flights", partition, batch_of(values)))
            return [str(tmp_path / "objects" / key) for key in merged.keys], number
        finally:
            await sequencer.close()
            await rows.close()
            await store.close()

    paths, number = asyncio.run(scenario())
    table = (
        spark.read.format("tailrace")
        .options(store=f"{tmp_path}/objects", database=f"sqlite:///{tmp_path}/rows.db", subscribe="flights")
        .option("includeHeaders", True)
        .load()
    )
    of_one_query = (
        spark.read.format("tailrace")
        .options(store=f"{tmp_path}/objects", database=f"sqlite:///{tmp_path}/rows.db", subscribe="flights")
        .option("pushFilters", True)
        .load()
    )
    rows = table.selectExpr("partition", "offset", "cast(value as string) as value").collect()
    # The last objects came after the compaction: Parquet and hot tail are one table.
    assert sorted((row.partition, row.offset) for row in rows) == [
        (partition, offset) for partition in range(3) for offset in range(number // 3 + 10)
    ]
    assert sum(json.loads(row.value)["delay"] for row in rows) == sum(range(number + 30))
    assert table.columns == [
        "key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"
    ]  # fmt: skip
    few = of_one_query.where("partition = 1 and offset >= 20 and timestamp > timestamp '2020-01-01'")
    plan = few._jdf.queryExecution().optimizedPlan().toString()
    assert plan.startswith("RelationV2") and "Filter" not in plan, "the source takes all of it over"
    assert sorted(row.offset for row in few.collect()) == list(range(20, number // 3 + 10))
    assert table.first().headers[0].key == "h"
    spark.read.parquet(*paths).createOrReplaceTempView("flights")
    found = spark.sql(
        "select f.carrier, sum(f.delay) as total from"
        " (select from_json(cast(value as string), 'carrier string, delay int') as f from flights)"
        " group by f.carrier order by f.carrier"
    ).collect()
    assert [(row.carrier, row.total) for row in found] == [
        ("AA", sum(range(0, number, 2))),
        ("UA", sum(range(1, number, 2))),
    ]


def test_a_stream_reads_each_record_once_across_compaction_and_restarts_and_fails_where_records_are_lost(
    spark: Any, tmp_path: Path
) -> None:
    store_url, database = str(tmp_path / "objects"), f"sqlite:///{tmp_path}/rows.db"

    def on_the_log(change: Callable[[Log], Awaitable[None]]) -> None:
        change_log(database, store_url, change)

    def streamed(**options: str) -> list[tuple[int, str]]:
        """All that has come since the stream began."""
        source = spark.readStream.format("tailrace").options(
            store=store_url, database=database, subscribe="t", startingOffsets="earliest", **options
        )
        values = source.load().selectExpr("partition", "cast(value as string) as value")
        query = (
            values.writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "out"))
        )
        query.awaitTermination()
        return sorted(
            (row.partition, row.value) for row in spark.read.parquet(str(tmp_path / "out")).collect()
        )

    async def begin(log: Log) -> None:
        await log.topic("t", 1)
        await log.produce(("t", 0, batch_of([b"a", b"b"])))
        await log.produce(("t", 0, batch_of([b"c"])))

    async def compact_and_grow(log: Log) -> None:
        summary = await compact(log.sequencer, store_url, spark=spark, settings=ALL)
        assert summary.records == 3
        await log.sequencer.create_partitions(CreatePartitions(log.topics["t"].topic_id, 2))
        await log.produce(("t", 0, batch_of([b"d"])), ("t", 1, batch_of([b"e"])))

    async def send_unreadable(log: Log) -> None:
        await log.produce(("t", 0, unreadable_batch([b"?"])))
        await log.produce(("t", 0, batch_of([b"behind"])))

    async def lose(log: Log) -> None:
        await log.produce(("t", 0, batch_of([b"f", b"g"])))
        unread = DeleteRecordsPartition(log.topics["t"].topic_id, 0, 7)
        await log.sequencer.delete_records(DeleteRecords([unread]))

    async def make_again(log: Log) -> None:
        await log.sequencer.delete_topic(DeleteTopic(log.topics["t"].topic_id))
        await log.topic("t", 2)
        await log.produce(("t", 0, batch_of([b"another"] * 9)))

    on_the_log(begin)
    assert streamed() == [(0, "a"), (0, "b"), (0, "c")]
    on_the_log(compact_and_grow)
    assert streamed() == [(0, "a"), (0, "b"), (0, "c"), (0, "d"), (1, "e")]
    on_the_log(send_unreadable)
    with pytest.raises(StreamingQueryException, match="partition 0: offsets 4 to 4 can't be decoded"):
        streamed()
    read = [(0, "a"), (0, "b"), (0, "behind"), (0, "c"), (0, "d"), (1, "e")]
    assert streamed(failOnUnreadable="false") == read
    on_the_log(lose)
    with pytest.raises(StreamingQueryException, match="partition 0: offsets 6 to 6 are lost"):
        streamed()
    on_the_log(make_again)
    with pytest.raises(StreamingQueryException, match="lost, as the topic or the partition was deleted"):
        streamed()


@pytest.mark.parametrize(
    ("trace", "cause"),
    [
        (
            "Job aborted due to stage failure: Task 0 in stage 6.0 failed 1 times, most recent failure: Lost task 0.0"
            " (TID 6): org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n"
            '  File "worker.py", line 1, in main\n    raise MemoryError("no room")\nMemoryError: no room\n\n'
            "\tat org.apache.spark.api.python.PythonRunner.read(PythonRunner.scala:1)\nDriver stacktrace:\n",
            "MemoryError: no room",
        ),
        (
            "An error occurred.\n: org.apache.spark.SparkException: Job aborted: most recent failure: Lost task 0.0"
            " (executor 1): ExecutorLostFailure (killed)\nDriver stacktrace:\n\tat org.apache",
            "Lost task 0.0 (executor 1): ExecutorLostFailure (killed)",
        ),
        ("SparkContext was shut down", "SparkContext was shut down"),
        ("", "no reason was given"),
    ],
)
def test_the_cause_of_a_dead_task_is_one_line_of_sparks_report(trace: str, cause: str) -> None:
    assert cause_of_death(trace) == cause


async def test_a_task_that_dies_costs_its_own_item_and_is_reported_in_one_line(
    spark: Any, tmp_path: Path
) -> None:
    """Twenty items, on Spark's workers: one worker is killed as for its memory, another raises MemoryError."""

    clock, entropy = SystemClock(), SystemEntropy()
    sequencer = Committer(MemoryRowStore(clock), clock, entropy)
    await sequencer.start()
    store = open_store(str(tmp_path / "objects"), clock=clock)

    def task(payloads: Sequence[bytes], store_url: str, output: OutputLocation) -> list[bytes]:
        for payload in payloads:
            if b"killed" in payload:
                os.kill(os.getpid(), signal.SIGKILL)
            if b"greedy" in payload:
                raise MemoryError("no room for it")
        return run_task(payloads, store_url, output)

    with ThreadPoolExecutor(4) as executor:
        try:
            log = Log(sequencer, store, clock)
            for name in ["killed", "greedy", *(f"t{number}" for number in range(18))]:
                await log.topic(name)
                await log.produce((name, 0, batch_of([b"{}"])))
            url = str(tmp_path / "objects")
            deadly = SparkRunner(spark, url, executor, task=task)
            summary = await run_cycle(
                sequencer, deadly, clock=clock, entropy=entropy, settings=ALL, holder="this one"
            )
            assert (summary.objects, summary.refused) == (18, [])
            reasons = {failure.topic_name: failure.reason for failure in summary.failures}
            assert reasons["greedy"] == "the task died: MemoryError: no room for it"
            assert "Python worker exited unexpectedly" in reasons["killed"]
            assert len(reasons) == 2 and not any("\n" in reason for reason in reasons.values())
            runner = SparkRunner(spark, url, executor)
            again = await run_cycle(
                sequencer, runner, clock=clock, entropy=entropy, settings=ALL, holder="this one"
            )
            assert (again.objects, again.failures) == (2, [])
        finally:
            await sequencer.close()
            await store.close()


def test_a_compacted_topic_keeps_the_last_value_of_each_key_for_clients_and_in_spark(
    spark: Any, tmp_path: Path
) -> None:
    """As a changelog is restored: the table that is read is the one before compaction."""
    database, url = f"sqlite:///{tmp_path}/rows.db", str(tmp_path / "objects")

    async def scenario() -> dict[bytes, bytes]:
        clock, entropy = SystemClock(), SystemEntropy()
        sequencer = Committer(SqlRowStore(database, clock=clock, entropy=entropy), clock, entropy)
        store = open_store(url, clock=clock)
        await sequencer.start()
        try:
            log = Log(sequencer, store, clock)
            await log.topic("changes", 2, {"cleanup.policy": "compact"})
            for number in range(40):
                batches = [
                    ("changes", part, batch_of([b"%d" % number], key=b"k%d" % (number % 7)))
                    for part in (0, 1)
                ]
                await log.produce(*batches)
            before = {record.key: record.value for record in await log.consumed("changes", 1)}
            summary = await compact(log.sequencer, url, spark=spark, settings=ALL)
            assert (summary.failures, summary.refused) == ([], [])
            assert (summary.keyed.passes, summary.keyed.dropped) == (2, 66)
            after = await log.consumed("changes", 1)
            assert len(after) == 7
            assert {record.key: record.value for record in after} == before
            return {key: value for key, value in before.items() if key and value}
        finally:
            await sequencer.close()
            await store.close()

    expected = asyncio.run(scenario())
    rows = (
        spark.read.format("tailrace")
        .options(store=url, database=database, subscribe="changes", startingOffsets="earliest")
        .load()
        .collect()
    )
    assert {bytes(row.key): bytes(row.value) for row in rows if row.partition == 1} == expected
    assert len(rows) == 14


def test_a_view_keeps_kafkas_types_and_no_filter_of_another_query_whatever_sparks_settings(
    spark: Any, tmp_path: Path
) -> None:
    """With `filterPushdown`, Spark 4.1 runs a query with the filters that the source accepted from another one."""
    url, database = str(tmp_path / "objects"), f"sqlite:///{tmp_path}/rows.db"

    async def begin(log: Log) -> None:
        await log.topic("t", 2)
        await log.produce(*(("t", number, batch_of([b"a", b"b"])) for number in range(2)))

    change_log(database, url, begin)
    session = spark.newSession()
    session.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    session.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    options = f"OPTIONS (STORE '{url}', database '{database}', subscribe 't')"
    session.sql(f"CREATE TEMPORARY VIEW t USING tailrace {options}")
    assert session.sql("SELECT count(*) FROM t WHERE partition = 1").first()[0] == 2
    assert session.table("t").count() == 4
    halves = "SELECT * FROM t WHERE partition = 0 UNION ALL SELECT * FROM t WHERE partition = 1"
    assert sorted(row.partition for row in session.sql(halves).collect()) == [0, 0, 1, 1]
    assert dict(session.table("t").dtypes)["timestamp"] == "timestamp"
    with pytest.raises(Exception, match=r"'provider' .*use CREATE TEMPORARY VIEW"):
        session.sql(f"CREATE TABLE permanent USING tailrace {options}")


async def test_typed_columns_are_made_by_tasks_and_what_does_not_fit_is_in_quarantine(
    spark: Any, tmp_path: Path
) -> None:
    url = str(tmp_path / "objects")

    clock, entropy = SystemClock(), SystemEntropy()
    sequencer = Committer(MemoryRowStore(clock), clock, entropy)
    await sequencer.start()
    store = open_store(url, clock=clock)
    with ThreadPoolExecutor(4) as executor:
        try:
            log = Log(sequencer, store, clock)
            topic = await log.topic("flights", 2)
            for number in range(4):
                await log.produce(("flights", number % 2, batch_of([flight(number), b"?"])))
            summary = await compact(log.sequencer, url, spark=spark, settings=ALL)
            catalog = open_catalog(f"sqlite:///{tmp_path}/catalog.db", url)
            tables = IcebergTables(catalog, namespace="n", store_url=url, cluster_id="c")
            syncing = TableSync(
                log.sequencer, store, tables,
                path_of=lambda key: object_url(url, key), executor=executor, folder="c/tables",
            )  # fmt: skip
            syncing.derive_by(SparkRunner(spark, url, executor).deriver)
            wanted = DesiredTable(topic.topic_id, "flights", 60_000, values=ValueFormat("json"))
            assert (await syncing.sync(wanted)).quarantined == summary.objects
            typed = catalog.load_table("n.flights").scan().to_arrow()
            assert sorted(typed["delay"].to_pylist()) == [0, 1, 2, 3]
            unfit = catalog.load_table("n.flights__quarantine").scan().to_arrow()
            assert unfit["value"].to_pylist() == [b"?"] * 4

            await log.produce(("flights", 0, batch_of([flight(4)])))
            await compact(log.sequencer, url, spark=spark, settings=ALL)
            await store.delete([object.key async for object in store.list("") if "/parquet/" in object.key])
            with pytest.raises(DeriveFailed, match=r"typed columns: FileNotFoundError"):
                await syncing.sync(wanted)
        finally:
            await sequencer.close()
            await store.close()
