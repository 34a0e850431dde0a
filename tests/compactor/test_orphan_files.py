"""Orphan files of compactors that died or were overtaken: which are deleted, and when."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from uuid import UUID

import pytest
import structlog
from pyiceberg.table.statistics import PartitionStatisticsFile
from pyiceberg.table.update import SetPartitionStatisticsUpdate

from compactor.blocking_calls import run_here
from compactor.columns.derive import ValuesName, values_key
from compactor.tables.iceberg import IcebergTable
from compactor.tables.orphan_files import OrphanFiles, may_go
from compactor.tables.sync import LISTED_MS
from compactor.tables.table import NewFile, ReferencedFile, TableConflict, change_of
from tailrace.object_store.api import ObjectInfo, StoreRefused
from tailrace.object_store.memory import MemoryStore
from tests.compactor.test_iceberg import LIFE_MS, opened
from tests.compactor.test_typed_tables import Typed
from tests.support.clocks import ManualClock
from tests.support.compaction import compacted_here
from tests.support.memory_tables import MemoryTables

DAY_S = 86_400


def files_of(typed: Typed) -> set[str]:
    """The files in the folders of tables, from the topic's on."""
    root = typed.world.root / "c/tables"
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def grow_old(typed: Typed) -> None:
    """What is in the folders gets the clock's time, and two days pass."""
    at_s = typed.world.clock.wall_ms() / 1000
    for path in (typed.world.root / "c/tables").rglob("*"):
        os.utime(path, (at_s, at_s))
    typed.world.clock.advance(2 * DAY_S)


async def settle(typed: Typed) -> None:
    """Let the snapshots expire that are not the current one."""
    for _ in range(2):
        await typed.sync()
        typed.world.clock.advance(LIFE_MS / 1000)
    await typed.sync()


@asynccontextmanager
async def with_a_row(folder: Path) -> AsyncIterator[Typed]:
    """A table with one row."""
    async with opened(folder, 1) as world:
        typed = Typed(world)
        await typed.produce({"id": 1})
        await typed.round()
        yield typed


@asynccontextmanager
async def crashed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Typed, set[str]]]:
    """A table whose compactor died between its files and its commit, then a merge; what it left."""
    async with with_a_row(folder) as typed:
        before = files_of(typed)
        await typed.produce({"id": 2}, b"bad")
        with monkeypatch.context() as dying, suppress(SystemExit):
            dying.setattr(IcebergTable, "exchange", lambda *_: (_ for _ in ()).throw(SystemExit))
            await typed.round()
        left = files_of(typed) - before
        assert {path.split("/")[1] for path in left if path.endswith(".parquet")} == {"values"}
        assert len([path for path in left if path.endswith(".parquet")]) == 2, "fitting, and not"
        await compacted_here(typed.world.log, merges=True)
        yield typed, {path for path in left if path.endswith(".parquet")}


async def test_files_of_a_crash_are_deleted_a_day_later_and_referenced_files_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with crashed(tmp_path, monkeypatch) as (typed, left):
        await settle(typed)
        assert left <= files_of(typed), "no snapshot ever named it"
        grow_old(typed)
        await settle(typed)
        assert not left & files_of(typed)
        assert typed.rows("offset", "id") == [(0, 1), (1, 2)]
        assert typed.rows("offset", table="a__quarantine") == [(2,)]


async def test_files_of_a_crash_are_deleted_with_the_table_at_any_age(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with crashed(tmp_path, monkeypatch) as (typed, left):
        assert left <= files_of(typed)
        for _ in range(3):
            done = await typed.sync(is_wanted=False)
            typed.world.clock.advance(LIFE_MS / 1000)
        assert done.is_dropped
        assert files_of(typed) == set()


async def test_manifests_of_a_snapshot_that_was_never_committed_go(tmp_path: Path) -> None:
    async with with_a_row(tmp_path) as typed:
        world = typed.world
        topic_id = world.log.topics["a"].topic_id
        await settle(typed)
        before = files_of(typed)
        stray = Path(tmp_path / f"c/tables/{topic_id}/metadata/left-m0.avro")
        stray.write_bytes(b"keys")
        grow_old(typed)
        await settle(typed)
        assert not stray.exists()
        assert len([path for path in files_of(typed) if path.endswith(".avro")]) <= 2 * len(before)
        assert typed.rows("offset", "id") == [(0, 1)]


async def test_a_writer_that_opened_the_table_before_a_search_commits_nothing_after_it(
    tmp_path: Path,
) -> None:
    async with with_a_row(tmp_path) as typed:
        world = typed.world
        late = world.tables.open(world.log.topics["a"].topic_id, "a", create=False)
        assert late is not None
        world.clock.advance(2 * DAY_S)
        one = world.tables.open(world.log.topics["a"].topic_id, "a", create=False)
        assert one is not None
        one.begin_search(world.clock.wall_ms())
        with pytest.raises(TableConflict):
            late.exchange(change_of({}, {}), {}, {LISTED_MS: "0"})


async def test_a_store_that_refuses_to_list_or_delete_is_reported_and_the_table_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with crashed(tmp_path, monkeypatch) as (typed, left):
        await settle(typed)
        grow_old(typed)

        async def refused(keys: list[str]) -> None:
            raise StoreRefused("no right to delete")

        monkeypatch.setattr(typed.world.log.store, "delete", refused)
        with structlog.testing.capture_logs() as logged:
            await typed.sync()
        assert any("no right to delete" in line.get("reason", "") for line in logged)
        assert left <= files_of(typed)
        assert typed.rows("offset", "id") == [(0, 1), (1, 2)]


async def test_where_a_catalog_keeps_its_tables_in_another_place_nothing_is_deleted() -> None:
    clock = ManualClock()
    store, tables = MemoryStore(clock), MemoryTables()
    table = tables.open(UUID(int=1), "a", create=True)
    assert table is not None
    new = NewFile(ReferencedFile("s3://other/1.parquet", None), "1.parquet", ())
    change = change_of({}, {new.named.path: None})
    table.exchange(change, {new.named.path: new}, {LISTED_MS: "0"})
    await store.put("t/1.parquet", [b"x"])
    clock.advance(2 * DAY_S)
    orphan_files = OrphanFiles(store, run_here)
    assert await orphan_files.delete(table, None, "t/", live=(), now_ms=clock.wall_ms()) == 0
    assert [info.key async for info in store.list("t/")] == ["t/1.parquet"]


async def test_a_file_is_named_however_the_catalog_spells_the_place_of_its_table() -> None:
    clock = ManualClock()
    store, tables = MemoryStore(clock), MemoryTables()
    table = tables.open(UUID(int=1), "a", create=True)
    assert table is not None
    paths = ["s3://here/c/t/1.parquet", "s3a://here/c/t/metadata/1.avro"]
    news = {path: NewFile(ReferencedFile(path, None), path, ()) for path in paths}
    table.exchange(change_of({}, dict.fromkeys(paths)), news, {LISTED_MS: "0"})
    for key in ("c/t/1.parquet", "c/t/2.parquet", "c/t/metadata/1.avro"):
        await store.put(key, [b"x"])
    clock.advance(2 * DAY_S)
    assert await OrphanFiles(store, run_here).delete(table, None, "c/t", live=(), now_ms=clock.wall_ms()) == 1
    assert [info.key async for info in store.list("c/t")] == ["c/t/1.parquet", "c/t/metadata/1.avro"]


async def test_statistics_that_another_program_added_to_a_table_are_named(tmp_path: Path) -> None:
    async with with_a_row(tmp_path) as typed:
        world = typed.world
        topic_id = world.log.topics["a"].topic_id
        found = world.tables.open(topic_id, "a", create=False)
        assert found is not None
        table = found._table
        path = f"{table.location()}/metadata/partitions.parquet"
        snapshot_id = table.current_snapshot().snapshot_id
        added = PartitionStatisticsFile(snapshot_id=snapshot_id, statistics_path=path, file_size_in_bytes=1)
        update = SetPartitionStatisticsUpdate(partition_statistics=added)
        table.catalog.commit_table(table, (), (update,))
        again = world.tables.open(topic_id, "a", create=False)
        assert again is not None and path in again.paths()


def test_young_files_files_of_live_objects_and_files_of_others_are_spared() -> None:
    live, gone = UUID(int=1), UUID(int=2)

    def info(key: str, modified_ms: int = 10) -> ObjectInfo:
        return ObjectInfo(key, 1, modified_ms)

    of_live, of_gone = (values_key("t", ValuesName(each, "0" * 16, 0)) for each in (live, gone))
    files = [
        info(of_live), info(of_gone), info(of_gone, 11), info("t/metadata/1.avro"), info("t/metadata/1.stats"),
        info("t/deletes/x.parquet", 12),
    ]  # fmt: skip
    gone_keys = [each.key for each in files if may_go(each, live={live}, before_ms=10)]
    assert gone_keys == [of_gone, "t/metadata/1.avro"]
