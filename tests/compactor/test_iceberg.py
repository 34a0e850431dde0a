"""Iceberg tables over a compacted log, as pyiceberg and DuckDB read them."""

from __future__ import annotations

import asyncio
import io
import random
import socket
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit
from uuid import UUID

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import structlog
from pyiceberg.expressions import And, GreaterThanOrEqual, LessThan
from pyiceberg.manifest import DataFileContent
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import LongType, NestedField, StringType
from pyiceberg.utils.config import Config

from compactor.columns.derive import ValueFormat
from compactor.tables import iceberg as iceberg_module
from compactor.tables.iceberg import IcebergTables, open_catalog
from compactor.tables.iceberg_snapshot import SnapshotExchange, data_file, file_statistics
from compactor.tables.sync import DesiredTable, SyncResult, TableSync
from compactor.tables.table import CatalogSilent, CatalogUnavailable, TableConflict
from sequencer.api.compaction import TablePinsRequest
from sequencer.api.retention import DeleteRecords, DeleteRecordsPartition
from sequencer.api.topics import DeleteTopic
from sequencer.api.values import Empty
from sequencer.collector import collect
from sequencer.engine.committer import Committer
from sequencer.settings import SequencerSettings
from sequencer.store.memory import MemoryRowStore
from tailrace.batches.records import NewRecord, encode_batch
from tailrace.object_store.folder import FolderStore
from tailrace.object_store.open import object_url
from tailrace.parquet_object.schema import GREATEST_TIME_MS, LEAST_TIME_MS
from tests.compactor.test_erasure import erased
from tests.support.clocks import ManualClock, SeededEntropy
from tests.support.compaction import T0, Log, batch_of, compacted_here
from tests.support.registry import MemoryRegistry
from tests.support.rest_catalog import TOKEN, lost_catalog, rest_catalog

LIFE_MS = 600_000
NAMESPACE = "tailrace"


@dataclass(slots=True)
class World:
    """A log, its table `a`, and what reads it."""

    log: Log
    clock: ManualClock
    root: Path
    tables: IcebergTables
    syncing: TableSync
    catalog: str
    registry: MemoryRegistry

    async def sync(self, *, is_wanted: bool = True) -> SyncResult:
        self.clock.advance(1)
        return await self.syncing.sync(DesiredTable(self.log.topics["a"].topic_id, "a", LIFE_MS, is_wanted))

    def table(self) -> Any:
        return open_catalog(self.catalog, str(self.root)).load_table((NAMESPACE, "a"))

    def rows(self, **chosen: Any) -> list[tuple[int, int]]:
        """(partition, offset) of each row as pyiceberg scans it; DuckDB reads the same from that scan."""
        scanned = self.table().scan(selected_fields=("partition", "offset"), **chosen).to_arrow()
        found = sorted(zip(scanned["partition"].to_pylist(), scanned["offset"].to_pylist(), strict=True))
        counted = duckdb.sql('select count(*), count(distinct (partition, "offset")) from scanned').fetchall()
        assert counted == [(len(found), len(found))]
        return found

    async def delete_below(self, partition: int, offset: int) -> None:
        place = DeleteRecordsPartition(self.log.topics["a"].topic_id, partition, offset)
        await self.log.sequencer.delete_records(DeleteRecords([place]))


@asynccontextmanager
async def opened(root: Path, partitions: int = 2, catalog: str = "") -> AsyncIterator[World]:
    catalog = catalog or f"sqlite:///{root}/catalog.db"
    clock = ManualClock()
    settings = SequencerSettings(deletion_grace_ms=1_000)
    sequencer = Committer(MemoryRowStore(clock), clock, SeededEntropy(1), settings)
    await sequencer.start()
    with ThreadPoolExecutor(4) as executor:
        store = FolderStore(root, clock, executor)
        log = Log(sequencer, store, clock)
        await log.topic("a", partitions)
        tables = IcebergTables(
            open_catalog(catalog, str(root)),
            namespace=NAMESPACE, store_url=str(root), cluster_id="c",
        )  # fmt: skip
        registry = MemoryRegistry()
        syncing = TableSync(
            log.sequencer, store, tables,
            path_of=lambda key: object_url(str(root), key), executor=executor, folder="c/tables",
            registry=registry,
        )  # fmt: skip
        try:
            yield World(log, clock, root, tables, syncing, catalog, registry)
        finally:
            await sequencer.close()


def expected(*ranges: tuple[int, int, int]) -> list[tuple[int, int]]:
    return [(partition, offset) for partition, start, end in ranges for offset in range(start, end)]


async def test_the_table_follows_swaps_deletes_and_the_topics_end(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        for number in range(2):
            await world.log.produce(("a", 0, batch_of([b"%d" % number] * 5)), ("a", 1, batch_of([b"x"] * 5)))
            await compacted_here(world.log)
            await world.sync()
        assert world.rows() == expected((0, 0, 10), (1, 0, 10))
        assert (await world.sync()).change.added == frozenset()
        assert len(world.table().metadata.snapshots) == 2
        pinned = world.table().metadata.current_snapshot_id

        await world.delete_below(0, 7)  # one file whole in this partition, one inside
        await world.delete_below(1, 2)
        done = await world.sync()
        assert (len(done.change.removed), len(done.change.covered)) == (0, 2)
        assert world.rows() == expected((0, 7, 10), (1, 2, 10))
        await world.delete_below(1, 5)
        done = await world.sync()
        assert (len(done.change.removed), len(done.change.uncovered)) == (1, 1)
        await world.delete_below(0, 9)
        done = await world.sync()
        assert (len(done.change.covered), len(done.change.uncovered)) == (1, 1)
        assert world.rows() == expected((0, 9, 10), (1, 5, 10))

        await world.log.sequencer.apply_retention(Empty())
        world.clock.advance(60)
        await collect(world.log.sequencer, world.log.store, world.clock, pause_s=0)
        assert world.rows(snapshot_id=pinned) == expected((0, 0, 10), (1, 0, 10))

        world.clock.advance(LIFE_MS / 1000)
        await world.log.sequencer.apply_retention(Empty())
        assert (await world.sync()).expired == 4
        world.clock.advance(LIFE_MS / 1000)
        assert (await world.sync()).expired == 1
        assert [each.snapshot_id for each in world.table().metadata.snapshots] != [pinned]
        assert world.rows() == expected((0, 9, 10), (1, 5, 10))
        world.clock.advance(60)
        await collect(world.log.sequencer, world.log.store, world.clock, pause_s=0)
        data = [file async for file in world.log.store.list("") if "/parquet/" in file.key]
        assert len(data) == 1
        assert world.rows() == expected((0, 9, 10), (1, 5, 10))

        await world.log.sequencer.delete_topic(DeleteTopic(world.log.topics["a"].topic_id))
        await world.sync(is_wanted=False)
        assert world.rows() == []
        world.clock.advance(LIFE_MS / 1000)
        assert (await world.sync(is_wanted=False)).is_dropped
        assert (await world.log.sequencer.table_pins(TablePinsRequest())).pins == []
        left = [file.key async for file in world.log.store.list("") if "/tables/" in file.key]
        assert left == []


def _path_of(task: Any) -> Path:
    return _at(task.file.file_path)


def _at(url: str) -> Path:
    return Path(unquote(urlsplit(url).path))


async def test_a_pinned_snapshot_is_read_after_a_merge_has_replaced_its_files_until_it_expires(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as world:
        for _ in range(3):
            await world.log.produce(("a", 0, batch_of([b"v"] * 5)), ("a", 1, batch_of([b"x"] * 5)))
            await compacted_here(world.log)
        await world.sync()
        pinned = world.table().metadata.current_snapshot_id
        replaced = {_path_of(task) for task in world.table().scan().plan_files()}
        everything = expected((0, 0, 15), (1, 0, 15))

        summary = await compacted_here(world.log, merges=True)
        assert summary.failures == []
        await world.sync()
        (merged,) = world.table().scan().plan_files()
        assert len(replaced) == 3 and _path_of(merged) not in replaced
        world.clock.advance(60)
        await collect(world.log.sequencer, world.log.store, world.clock, pause_s=0)
        assert world.rows(snapshot_id=pinned) == world.rows() == everything
        assert all(path.exists() for path in replaced)

        world.clock.advance(LIFE_MS / 1000)
        await world.sync()
        world.clock.advance(60)
        await world.log.sequencer.apply_retention(Empty())
        await collect(world.log.sequencer, world.log.store, world.clock, pause_s=0)
        assert not any(path.exists() for path in replaced)
        assert world.rows() == everything


@pytest.mark.parametrize("schema", [None, ValueFormat("json")])
async def test_a_time_that_microseconds_do_not_hold_stops_no_table(
    tmp_path: Path, schema: ValueFormat | None
) -> None:
    async with opened(tmp_path, 1) as world:
        times = [T0, -(2**62), 2**62]
        for at in times:
            await world.log.produce(("a", 0, batch_of([b'{"id": 1}'], at=at)))
        await compacted_here(world.log)
        await world.syncing.sync(DesiredTable(world.log.topics["a"].topic_id, "a", LIFE_MS, values=schema))
        scanned = world.table().scan().to_arrow()
        found = scanned["timestamp"].cast(pa.int64()).to_pylist()
        assert found == [T0 * 1000, LEAST_TIME_MS * 1000, GREATEST_TIME_MS * 1000]
        for sign in ("<", ">"):
            where = f"timestamp {sign} '2023-01-01T00:00:00+00:00'"
            assert len(world.table().scan(row_filter=where).to_arrow()) == (1 if sign == "<" else 2)
        assert duckdb.sql("select count(timestamp) from scanned").fetchall() == [(3,)]
        assert [record.timestamp for record in await world.log.records("a", 0)] == times


async def test_files_that_cannot_be_deleted_are_reported_and_block_nothing_else(tmp_path: Path) -> None:
    async with opened(tmp_path) as world:
        await world.log.produce(("a", 0, batch_of([b"v"] * 5)))
        await compacted_here(world.log)
        await world.sync()
        kept = Path(world.table().metadata.metadata_log[0].metadata_file.removeprefix("file://"))
        kept.unlink()
        (kept / "no file").mkdir(parents=True)
        with structlog.testing.capture_logs() as logged:
            world.tables.drop(world.log.topics["a"].topic_id, "a")
        assert world.tables.find("a") is None
        assert [path for path in (tmp_path / "c/tables").rglob("*") if path.is_file()] == []
        (told,) = logged
        assert (told["log_level"], told["files"], told["first"]) == ("warning", 1, f"file://{kept}")


async def test_a_catalog_on_postgresql_names_the_same(tmp_path: Path, database: str) -> None:
    async with opened(tmp_path, catalog=database) as world:
        await world.log.produce(("a", 0, batch_of([b"v"] * 5)))
        await compacted_here(world.log)
        await world.sync()
        await world.delete_below(0, 2)
        await world.sync()
        assert world.rows() == expected((0, 2, 5))


async def test_deleted_records_of_a_batch_that_lost_others_before_leave_the_table(tmp_path: Path) -> None:
    async with opened(tmp_path, 1) as world:
        keys = [b"a", b"b", b"c", b"b", b"b", b"c", b"a", b"a"]
        records = [NewRecord(key, b"v", ()) for key in keys]
        await world.log.produce(("a", 0, encode_batch(records, timestamps=[T0] * len(keys))))
        await compacted_here(world.log)
        await world.sync()
        await erased(world.log, b"b", name="a")
        await world.sync()
        assert world.rows() == [(0, offset) for offset in (0, 2, 5, 6, 7)]
        await world.delete_below(0, 4)
        await world.sync()
        assert world.rows() == expected((0, 5, 8))
        await world.delete_below(0, 7)
        await world.sync()
        assert world.rows() == expected((0, 7, 8))


def test_a_rest_catalog_names_the_same_refuses_who_was_overtaken_and_forgets_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__TAILRACE__TOKEN", TOKEN)
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())  # as a new process reads it

    async def scenario(catalog: str) -> None:
        async with opened(tmp_path, catalog=catalog) as world:
            topic_id = world.log.topics["a"].topic_id
            await world.log.produce(("a", 0, batch_of([b"v"] * 5)))
            await compacted_here(world.log)
            late = world.tables.open(topic_id, "a", create=True)
            assert late is not None
            await world.sync()
            await world.delete_below(0, 2)
            await world.sync()
            assert world.rows() == expected((0, 2, 5))
            with pytest.raises(TableConflict):
                late.begin_search(1)

            await world.log.sequencer.delete_topic(DeleteTopic(topic_id))
            again = await world.log.topic("a")
            world.tables.open(again.topic_id, "a", create=True)  # the older one is put aside
            assert world.rows() == []
            for each in (topic_id, again.topic_id):
                world.tables.drop(each, "a")
                assert world.tables.open(each, "a", create=False) is None

    with rest_catalog(tmp_path) as address:
        asyncio.run(scenario(address))


HTML = b"<html><body>Please log in</body></html>"


@pytest.mark.parametrize(
    ("status", "answer"),
    [
        (404, HTML),
        (404, b""),
        (404, b'{"message": "no route"}'),
        (404, b'{"error": {"message": "gone", "type": "Proxy", "code": 502}}'),
        (200, HTML),
        (200, b"{}"),
    ],
)
def test_a_proxys_answer_does_not_mean_that_there_is_no_table(
    tmp_path: Path, status: int, answer: bytes
) -> None:
    async def scenario(address: str) -> None:
        async with opened(tmp_path) as world:
            topic_id = world.log.topics["a"].topic_id

            async def kept_from() -> list[int]:
                pins = (await world.log.sequencer.table_pins(TablePinsRequest())).pins
                return [pin.kept_from_ms for pin in pins]

            await world.log.produce(("a", 0, batch_of([b"v"] * 5)))
            await compacted_here(world.log)
            await world.sync()
            pinned = await kept_from()
            assert len(pinned) == 1
            lost = IcebergTables(
                open_catalog(address, str(tmp_path)),
                namespace=NAMESPACE, store_url=str(tmp_path), cluster_id="c",
            )  # fmt: skip
            world.syncing._tables = lost
            for is_wanted in (True, False):
                with pytest.raises(CatalogUnavailable, match=r"table 'a': .*tables\.catalog"):
                    await world.sync(is_wanted=is_wanted)
            assert await kept_from() == pinned
            with pytest.raises(CatalogUnavailable):
                lost.find_of(topic_id, "a")
            assert world.rows() == expected((0, 0, 5))

    with lost_catalog(status, answer) as address:
        asyncio.run(scenario(address))


def test_a_catalog_that_is_silent_or_gone_ends_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compactor.tables.rest_catalog.ANSWER_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(CatalogSilent, match=r"within 0\.05 s; check tables\.catalog"):
            open_catalog(address, "unused")
    with pytest.raises(CatalogUnavailable, match=r"can't be reached .*tables\.catalog"):
        open_catalog(address, "unused")


def test_a_silent_database_of_a_catalog_ends_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(iceberg_module.POSTGRES_LIMITS, "connect_timeout", "2")  # the least that libpq takes
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"postgresql://user:secret@127.0.0.1:{server.getsockname()[1]}/name"
        with pytest.raises(CatalogSilent, match=r"tables\.catalog") as raised:
            open_catalog(address, "unused")
    assert "secret" not in str(raised.value)


async def test_a_table_that_another_writer_has_just_created_stays_the_topics_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as world:
        await world.log.produce(("a", 0, batch_of([b"v"] * 5)))
        await compacted_here(world.log)
        await world.sync()
        with monkeypatch.context() as patched:
            patched.setattr(IcebergTables, "_find", lambda *_: None)  # it looked before that
            world.tables.open(world.log.topics["a"].topic_id, "a", create=True)
        assert world.rows() == expected((0, 0, 5))


async def test_an_hours_query_opens_a_tenth_of_the_files(tmp_path: Path) -> None:
    async with opened(tmp_path, 1) as world:
        hour_ms = 3_600_000
        for hour in range(24):
            await world.log.produce(("a", 0, batch_of([b"v"] * 3, at=T0 + hour * hour_ms)))
            await compacted_here(world.log)
        await world.sync()
        begin = datetime.fromtimestamp(T0 / 1000, UTC) + timedelta(hours=5)
        in_hour = And(
            GreaterThanOrEqual("timestamp", begin.isoformat()),
            LessThan("timestamp", (begin + timedelta(hours=1)).isoformat()),
        )
        planned = list(world.table().scan(row_filter=in_hour).plan_files())
        assert (len(planned), len(list(world.table().scan().plan_files()))) == (1, 24)


async def test_an_hours_query_opens_a_tenth_of_the_files_that_merges_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten days of hourly rounds. Files are whole at 64 KB here, which takes a few hours, as 64 MiB do of a topic of
    some hundred MiB a day."""
    monkeypatch.setattr("sequencer.rules.compaction.SMALL_BYTES", 64 << 10)

    luck = random.Random(1)
    async with opened(tmp_path) as world:
        begin = world.clock.wall_ms()
        for _ in range(240):
            for partition in (0, 1):
                values = [luck.randbytes(1_000) for _ in range(10)]
                batch = batch_of(values, at=world.clock.wall_ms())
                await world.log.produce(("a", partition, batch))
            world.clock.advance(3_600)
            await compacted_here(world.log, merges=True)
        await world.sync()
        files = len(list(world.table().scan().plan_files()))
        assert 60 <= files < 120
        table = world.table()
        for hour in range(240):
            start = datetime.fromtimestamp(begin / 1000, UTC) + timedelta(hours=hour)
            in_hour = And(
                GreaterThanOrEqual("timestamp", start.isoformat()),
                LessThan("timestamp", (start + timedelta(hours=1)).isoformat()),
            )
            scan = table.scan(row_filter=in_hour)
            assert 1 <= len(list(scan.plan_files())) <= files // 10
        assert scan.to_arrow().num_rows == 20


async def test_many_swaps_leave_few_manifests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compactor.tables.iceberg_snapshot.MOST_SMALL_MANIFESTS", 3)

    async with opened(tmp_path, 1) as world:
        for number in range(6):
            await world.log.produce(("a", 0, batch_of([b"%d" % number])))
            await compacted_here(world.log)
            await world.sync()
        table = world.table()
        assert len(table.current_snapshot().manifests(table.io)) <= 4
        assert world.rows() == expected((0, 0, 6))


async def test_a_writer_that_was_overtaken_changes_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path, 1) as world:
        await world.log.produce(("a", 0, batch_of([b"v"])))
        await compacted_here(world.log)
        late = world.tables.open(world.log.topics["a"].topic_id, "a", create=True)
        assert late is not None
        await world.sync()
        one = world.tables.open(world.log.topics["a"].topic_id, "a", create=False)
        assert one is not None
        (path,) = one.named()

        class Late:
            def open(self, *_: Any, **__: Any) -> Any:
                return late

        syncing = TableSync(
            world.log.sequencer, world.log.store, Late(),  # type: ignore[arg-type]
            path_of=lambda key: object_url(str(world.root), key), executor=ThreadPoolExecutor(1),
        )  # fmt: skip
        with pytest.raises(TableConflict):
            await syncing.sync(DesiredTable(world.log.topics["a"].topic_id, "a", LIFE_MS))
        assert world.rows() == [(0, 0)]
        assert list(one.named()) == [path]


async def test_a_compactor_that_dies_while_it_makes_a_table_leaves_one_that_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as world:
        await world.log.produce(("a", 0, batch_of([b"x"] * 5)))
        await compacted_here(world.log)
        with monkeypatch.context() as patched:
            patched.delattr(Table, "transaction")
            with pytest.raises(AttributeError):
                await world.sync()
        await world.sync()
        assert world.rows() == expected((0, 0, 5))


async def test_a_snapshot_with_a_tag_or_branch_stays_and_the_others_expire(tmp_path: Path) -> None:
    async with opened(tmp_path, 1) as world:
        named: list[int] = []
        for number in range(4):
            await world.log.produce(("a", 0, batch_of([b"v"])))
            await compacted_here(world.log, merges=True)
            await world.sync()
            named.append(world.table().metadata.current_snapshot_id)
            if number < 2:
                manage = world.table().manage_snapshots()
                create = manage.create_branch if number else manage.create_tag
                create(named[number], "kept" if number else "v1").commit()
        world.clock.advance(LIFE_MS / 1000)
        assert (await world.sync()).expired == 1
        left = [snapshot.snapshot_id for snapshot in world.table().metadata.snapshots]
        assert sorted(left[:3]) == sorted([*named[:2], named[3]])
        world.clock.advance(60)
        await world.log.sequencer.apply_retention(Empty())
        await collect(world.log.sequencer, world.log.store, world.clock, pause_s=0)
        assert world.rows(snapshot_id=named[0]) == [(0, 0)]
        assert world.rows() == expected((0, 0, 4))

        manage = world.table().manage_snapshots()
        manage.remove_tag("v1").remove_branch("kept").commit()
        assert (await world.sync()).expired == 2


async def test_no_other_program_may_delete_the_logs_objects(tmp_path: Path) -> None:
    async with opened(tmp_path, 1) as world:
        await world.sync()
        assert world.table().properties["gc.enabled"] == "false"
        with world.table().transaction() as transaction:  # as an older version made it
            transaction.remove_properties("gc.enabled")
        await world.sync()
        assert world.table().properties["gc.enabled"] == "false"


@pytest.mark.parametrize("kind", [DataFileContent.POSITION_DELETES, DataFileContent.EQUALITY_DELETES])
async def test_deletes_of_other_programs_are_removed(tmp_path: Path, kind: DataFileContent) -> None:
    async with opened(tmp_path, 1) as world:
        await world.log.produce(("a", 0, batch_of([b"v"] * 3)))
        await compacted_here(world.log)
        await world.sync()
        (file,) = world.table().scan().plan_files()
        path = f"{world.table().location()}/data/00000-deletes.parquet"
        position = pa.table({"file_path": [file.file.file_path], "pos": pa.array([1], pa.int64())})
        _at(path).parent.mkdir()
        pq.write_table(position, _at(path))
        deletes = data_file(
            world.table().metadata, content=kind, file_path=path,
            file_size_in_bytes=_at(path).stat().st_size, record_count=1,
        )  # fmt: skip
        with world.table().transaction() as transaction:
            SnapshotExchange(transaction, [deletes], [], {}).commit()
        if kind is DataFileContent.POSITION_DELETES:
            assert world.rows() == [(0, 0), (0, 2)]
        assert (await world.sync()).change.removed == {path}
        assert world.rows() == expected((0, 0, 3))
        assert not (await world.sync()).change


async def test_a_topic_made_again_has_a_table_of_its_own(tmp_path: Path) -> None:
    async with opened(tmp_path, 1) as world:
        await world.log.produce(("a", 0, batch_of([b"old"] * 3)))
        await compacted_here(world.log)
        await world.sync()
        old = world.log.topics["a"]
        await world.log.sequencer.delete_topic(DeleteTopic(old.topic_id))
        await world.log.topic("a")
        await world.log.produce(("a", 0, batch_of([b"new"])))
        await compacted_here(world.log)
        await world.sync()
        assert world.rows() == [(0, 0)]
        aside = world.tables.open(old.topic_id, "a", create=False)
        assert aside is not None
        assert len(aside.named()) == 1


def test_two_clusters_on_one_catalog_take_no_table_of_each_other(tmp_path: Path) -> None:
    catalog = f"sqlite:///{tmp_path}/shared.db"
    one, other = tmp_path / "one", tmp_path / "other"

    def tables(cluster_id: str, root: Path, namespace: str = NAMESPACE) -> IcebergTables:
        return IcebergTables(
            open_catalog(catalog, str(root)), namespace=namespace, store_url=str(root), cluster_id=cluster_id
        )

    first, second = UUID(int=1), UUID(int=2)
    assert tables("one", one).open(first, "a", create=True) is not None
    for topic_id in (second, first):
        with pytest.raises(TableConflict, match=r"of cluster one, .* is two: set tables\.namespace"):
            tables("two", other).open(topic_id, "a", create=True)
    mine = tables("two", other, "two").open(second, "a", create=True)
    assert mine is not None
    table = tables("one", one).find("a")
    assert table is not None
    assert table.properties["tailrace.cluster-id"] == "one"
    with table.transaction() as transaction:  # as an older version made it
        transaction.remove_properties("tailrace.cluster-id")
    with pytest.raises(TableConflict, match="of cluster unknown"):
        tables("two", other).open(second, "a", create=True)
    assert tables("one", one).open(first, "a", create=False) is not None
    again = tables("one", one).find("a")
    assert again is not None
    assert again.properties["tailrace.cluster-id"] == "one"


@pytest.mark.parametrize("is_quarantine_first", [False, True])
def test_a_topic_with_the_name_of_a_quarantine_has_a_table_of_its_own(
    tmp_path: Path, is_quarantine_first: bool
) -> None:
    root = str(tmp_path)
    tables = IcebergTables(
        open_catalog(f"sqlite:///{tmp_path}/c.db", root), namespace=NAMESPACE, store_url=root, cluster_id="c"
    )
    one, other = UUID(int=1), UUID(int=2)
    quarantine, named_like_it = (one, "a", True), (other, "a__quarantine", False)
    wanted = [quarantine, named_like_it] if is_quarantine_first else [named_like_it, quarantine]
    wanted += [(other, "a__quarantine", True), (one, "a", False)]
    for topic_id, name, is_quarantine in wanted:
        assert tables.open(topic_id, name, create=True, is_quarantine=is_quarantine) is not None
    found = [tables.find_of(topic_id, name, is_quarantine=kind) for topic_id, name, kind in wanted]
    assert len({table.location() for table in found if table is not None}) == 4
    named = {table.name()[1]: table.properties["tailrace.topic-id"] for table in found if table is not None}
    assert named == {
        "a": str(one),
        f"a__quarantine__{one.hex[:12]}": str(one),
        "a__quarantine": str(other),
        "a__quarantine__quarantine": str(other),
    }
    for topic_id, name, is_quarantine in wanted:
        tables.drop(topic_id, name, is_quarantine=is_quarantine)
    assert tables.find("a__quarantine") is None


@pytest.mark.parametrize("is_quarantine", [False, True])
def test_a_topic_with_the_name_of_a_table_that_was_set_aside_is_refused_and_moves_nothing(
    tmp_path: Path, is_quarantine: bool
) -> None:
    root = str(tmp_path)
    tables = IcebergTables(
        open_catalog(f"sqlite:///{tmp_path}/c.db", root), namespace=NAMESPACE, store_url=root, cluster_id="c"
    )
    old, new, like_it = (UUID(int=number << 100) for number in (1, 2, 3))
    for topic_id in (old, new):
        tables.open(topic_id, "a", create=True, is_quarantine=is_quarantine)
    set_aside = tables.find_of(old, "a", is_quarantine=is_quarantine)
    assert set_aside is not None
    with pytest.raises(TableConflict, match="is there until it is dropped"):
        tables.open(like_it, set_aside.name()[1], create=True)
    still = tables.find_of(old, "a", is_quarantine=is_quarantine)
    assert still is not None and still.name() == set_aside.name()


def test_a_column_with_a_value_of_unknown_bounds_has_none() -> None:
    schema = Schema(
        NestedField(1, "key", StringType()),
        NestedField(2, "number", LongType()),
        NestedField(3, "none", LongType()),
    )
    arrow = pa.schema([("key", pa.string()), ("number", pa.int64()), ("none", pa.int64())])
    file = io.BytesIO()
    with pq.ParquetWriter(file, arrow) as writer:
        for key, number in (("m", 1), ("z" * 5_000, None), ("a", 2)):
            writer.write_table(pa.table({"key": [key], "number": [number], "none": [None]}, schema=arrow))
    statistics = file_statistics(pq.read_metadata(file), schema, {})
    assert {*statistics["lower_bounds"]} == {*statistics["upper_bounds"]} == {2}
    assert statistics["null_value_counts"] == {1: 0, 2: 1, 3: 3}


@pytest.mark.parametrize("last", ["\ud7ff", "\U0010ffff"])
def test_the_upper_bound_of_text_is_not_below_it(last: str) -> None:
    schema = Schema(NestedField(1, "key", StringType()))
    file = io.BytesIO()
    pq.write_table(pa.table({"key": [15 * "a" + last + "b", 20 * last]}), file)
    statistics = file_statistics(pq.read_metadata(file), schema, {})
    upper = statistics["upper_bounds"].get(1)
    assert upper is None or upper.decode() >= 20 * last
