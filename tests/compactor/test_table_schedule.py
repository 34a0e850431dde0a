"""Tables that follow a log through swaps, deletes, crashes and writers that are overtaken.

The compactor may die before or after any call that it makes. At every moment a reader of any snapshot that has not
expired finds each record once, and all files; after a round that ends, the table and the mixed objects together are
the log.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import compactor.tables.sync as sync_module
import sequencer.rules.garbage as garbage_rules
from compactor.columns.derive import ValueFormat, ValuesName
from compactor.cycle import CompactionSettings, InProcess, run_cycle
from compactor.tables.live import list_live_files
from compactor.tables.schedule import MOST_SILENCES, TableSchedule, choose_tables
from compactor.tables.sync import DesiredTable, SyncResult, TableSync
from compactor.tables.table import CatalogSilent, TableConflict, TableSnapshot, change_of
from compactor.tables.values import table_files
from sequencer.api.commits import ObjectKind
from sequencer.api.compaction import TablePin
from sequencer.api.interface import Sequencer
from sequencer.api.retention import DeleteRecords, DeleteRecordsPartition
from sequencer.api.topics import (
    AlterConfig,
    ConfigChange,
    ConfigOperation,
    ConfigScope,
    CreateTopic,
    DeleteTopic,
    Topic,
)
from sequencer.api.values import Empty, Value
from sequencer.collector import collect
from sequencer.engine.committer import Committer
from sequencer.methods import FunctionSequencer, Method
from sequencer.settings import SequencerSettings
from sequencer.store.memory import MemoryRowStore
from tailrace.object_store.memory import MemoryStore
from tests.support.clocks import ManualClock, SeededEntropy
from tests.support.compaction import Log, batch_of, compacted_here
from tests.support.memory_tables import HeldSnapshot, MemoryTables

LIFE_MS = 100_000
PARTITIONS = 2


class Crash(Exception):
    """The compactor's process is gone."""


class Here(Executor):
    """Runs calls at once, in the caller."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except Exception as error:
            done.set_exception(error)
        return done


@dataclass(slots=True)
class Fate:
    """What happens at the compactor's call number `at`: it dies before it or after it, or waits for `may_go`."""

    at: int = 1 << 30
    after: bool = False
    may_go: asyncio.Event | None = None
    calls: int = 0

    def step(self, *, after: bool) -> None:
        if not after:
            self.calls += 1
        if self.calls >= self.at and self.may_go is None and (self.after == after or self.calls > self.at):
            raise Crash

    async def wait(self) -> None:
        if self.may_go is not None and self.calls == self.at:
            await self.may_go.wait()


class FatedTables:
    """Tables whose calls are counted by a fate."""

    def __init__(self, inner: Any, fate: Fate) -> None:
        self._inner = inner
        self._fate = fate

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            self._fate.step(after=False)
            answer = method(*args, **kwargs)
            self._fate.step(after=True)
            return FatedTables(answer, self._fate) if name == "open" and answer is not None else answer

        return call


@dataclass
class World:
    committer: Committer
    log: Log
    clock: ManualClock
    tables: MemoryTables = field(default_factory=MemoryTables)
    topics: list[Topic] = field(default_factory=list)
    schema: str = "raw"
    standing: TableSchedule | None = None
    """That of a compactor which does not die. Others are at work between its rounds."""

    def fated(self, fate: Fate) -> Sequencer:
        async def call(method: Method, request: Value) -> Value:
            fate.step(after=False)
            await fate.wait()
            answer: Value = await getattr(self.log.sequencer, method.name)(request)
            fate.step(after=True)
            return answer

        return FunctionSequencer(call)

    def syncing(self, fate: Fate) -> TableSync:
        return TableSync(
            self.fated(fate),
            self.log.store,
            FatedTables(self.tables, fate),  # type: ignore[arg-type]
            path_of=lambda key: key,
            executor=Here(),
        )

    async def round(self, fate: Fate) -> TableSchedule:
        self.clock.advance(10)  # the lease of a compactor that died has ended
        sequencer = self.fated(fate)
        following = TableSchedule(sequencer, self.syncing(fate), self.clock)
        if fate == Fate():
            following = self.standing = self.standing or following
        await run_cycle(
            sequencer,
            InProcess(self.log.store, self.clock, self.log.entropy),
            clock=self.clock,
            entropy=self.log.entropy,
            settings=CompactionSettings(min_bytes=1, min_age_ms=0),
            tables=following,
        )
        return following

    # --- what is checked

    async def offsets_of(self, held: HeldSnapshot) -> Counter[tuple[int, int]]:
        """(partition, offset) of each row that a reader of the snapshot gets."""
        found: Counter[tuple[int, int]] = Counter()
        for key, _, dead in held.files.values():
            data = await self.log.store.get(key)  # ObjectMissing where it was collected
            rows = pq.read_table(pa.BufferReader(data), columns=["partition", "offset"])
            gone = {row for rows in dead for row in range(rows.start, rows.end)}
            for row, place in enumerate(zip(*(column.to_pylist() for column in rows.columns), strict=True)):
                if row not in gone:
                    found[place] += 1
        return found

    async def check_readers(self) -> None:
        """Every snapshot can be read, each record once and none left out between two (of the log's own files)."""
        for table in self.tables.held.values():
            for held in table.snapshots:
                offsets = await self.offsets_of(held)
                assert set(offsets.values()) <= {1}, "a row was read twice"
                for partition in range(0 if self.schema != "raw" else PARTITIONS):
                    mine = sorted(offset for each, offset in offsets if each == partition)
                    assert mine == list(range(mine[0], mine[0] + len(mine))) if mine else True, "a gap"

    async def check_current(self) -> None:
        """Table, quarantine and mixed objects together are the log."""
        topic = self.log.topics["a"]
        offsets: Counter[tuple[int, int]] = Counter()
        for name in ("a", "a__quarantine"):
            table = self.tables.held.get((topic.topic_id, name))
            if table is not None and table.snapshots:
                offsets += await self.offsets_of(table.snapshots[-1])
        for partition in range(PARTITIONS):
            found = await self.log.found("a", partition)
            found = await self.log.found("a", partition, found.log_start_offset)
            for run in found.runs:
                if run.kind is ObjectKind.MIXED:
                    first = max(run.base_offset, found.log_start_offset)
                    offsets.update((partition, offset) for offset in range(first, run.end_offset))
            mine = sorted(offset for each, offset in offsets.elements() if each == partition)
            assert mine == list(range(found.log_start_offset, found.high_watermark))

    async def check_folder(self) -> None:
        """What is left of typed columns is named, or is of an object that is live."""
        named = {
            path for table in self.tables.held.values() for held in table.snapshots for path in held.files
        }
        listed = await list_live_files(self.log.sequencer, self.log.topics["a"].topic_id)
        live = {file.object.object_id for file in listed.files}
        for key in [info.key async for info in self.log.store.list("tables/")]:
            name = ValuesName.of(key)
            assert key in named or (name is not None and name.object_id in live), f"{key} is left"


async def made(schema: str) -> World:
    clock = ManualClock()
    rules = SequencerSettings(
        deletion_grace_ms=1_000, sweep_interval_ms=1_000, session_lease_ms=5_000, removal_step=2
    )
    committer = Committer(MemoryRowStore(clock), clock, SeededEntropy(1), rules)
    await committer.start()
    world = World(committer, Log(committer, MemoryStore(clock), clock), clock, schema=schema)
    await make_topic(world)
    return world


async def make_topic(world: World) -> None:
    world.topics.append(await world.log.topic("a", PARTITIONS))
    configs = {
        "tailrace.table": "iceberg",
        "tailrace.table.snapshot.ms": str(LIFE_MS),
        "tailrace.schema": world.schema,
    }
    for name, value in configs.items():
        change = ConfigChange(name, ConfigOperation.SET, value)
        await world.log.sequencer.alter_config(AlterConfig(ConfigScope.TOPIC, "a", [change]))


async def act(world: World, action: tuple[Any, ...], late: list[asyncio.Task[Any]]) -> None:
    """One step of a story. A round that ends leaves the table right."""
    match action:
        case ("produce", partition, count):
            await world.log.produce(("a", partition, batch_of(([b"v", b'{"id": 1}'] * count)[:count])))
        case ("round", at, after):
            if at is None:
                following = await world.round(Fate())
                assert following.failures == []
                await world.check_current()
            else:
                with suppress(Crash):
                    await world.round(Fate(at, after))
        case ("late", at):
            fate = Fate(at, may_go=asyncio.Event())
            assert fate.may_go is not None
            values = None if world.schema == "raw" else ValueFormat(world.schema)
            wanted = DesiredTable(world.log.topics["a"].topic_id, "a", LIFE_MS, values=values)
            late.append(asyncio.create_task(world.syncing(fate).sync(wanted)))
            late[-1].add_done_callback(lambda done: done.cancelled() or done.exception())
            GATES[late[-1]] = fate.may_go
            for _ in range(50):
                await asyncio.sleep(0)
        case ("let late go",):
            await let_go(late)
        case ("delete", partition, share):
            found = await world.log.found("a", partition)
            below = found.log_start_offset + int(share * (found.high_watermark - found.log_start_offset))
            place = DeleteRecordsPartition(world.log.topics["a"].topic_id, partition, below)
            await world.log.sequencer.delete_records(DeleteRecords([place]))
            await world.log.sequencer.apply_retention(Empty())
        case ("make again",):
            await world.log.sequencer.delete_topic(DeleteTopic(world.log.topics["a"].topic_id))
            await world.log.sequencer.apply_retention(Empty())
            await make_topic(world)
        case ("collect", seconds):
            world.clock.advance(seconds)
            await world.log.sequencer.apply_retention(Empty())
            await collect(world.log.sequencer, world.log.store, world.clock, pause_s=0)


ROUND = ("round", None, False)
A_DAY = ("collect", 100_000)
GATES: dict[asyncio.Task[Any], asyncio.Event] = {}


async def let_go(late: list[asyncio.Task[Any]]) -> None:
    for task in late:
        GATES.pop(task).set()
        with suppress(TableConflict, Exception):
            await task
    late.clear()


def told(story: list[tuple[Any, ...]], schema: str = "raw") -> None:
    """Carry a story out, and check what readers see after each step."""

    async def tell() -> None:
        world = await made(schema)
        late: list[asyncio.Task[Any]] = []
        try:
            for action in [*story, ("let late go",), ROUND, ("collect", 5), A_DAY, ROUND, A_DAY, ROUND]:
                await act(world, action, late)
                await world.check_readers()
            await world.check_folder()
        finally:
            await let_go(late)
            await world.committer.close()

    asyncio.run(tell())


partitions = st.integers(0, PARTITIONS - 1)
actions = st.one_of(
    st.tuples(st.just("produce"), partitions, st.integers(1, 5)),
    st.tuples(st.just("round"), st.none() | st.integers(1, 40), st.booleans()),
    st.tuples(st.just("delete"), partitions, st.sampled_from([0.3, 0.6, 1.0])),
    st.tuples(st.just("late"), st.integers(1, 5)),
    st.tuples(st.just("let late go")),
    st.tuples(st.just("make again")),
    st.tuples(st.just("collect"), st.sampled_from([2, 30, 2 * LIFE_MS // 1000])),
)

LONG = ("collect", 2 * LIFE_MS // 1000)
STORY = [
    ("produce", 0, 4), ("produce", 1, 3), ROUND, ("produce", 0, 2), ROUND, ("delete", 0, 0.6), ROUND,
    ("collect", 30), ("delete", 1, 1.0), ROUND, LONG, ROUND, LONG, ROUND, ("delete", 0, 1.0), ROUND,
    ("make again",), ("produce", 1, 5), ROUND, LONG, ROUND,
]  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.lists(actions, max_size=14))
def test_no_reader_misses_a_record_or_sees_one_twice(story: list[tuple[Any, ...]]) -> None:
    told(story)


@settings(max_examples=30, deadline=None)
@given(st.lists(actions, max_size=14))
def test_no_reader_of_typed_columns_sees_a_record_twice(story: list[tuple[Any, ...]]) -> None:
    told(story, "json")


@pytest.mark.parametrize("schema", ["raw", "json"])
@pytest.mark.parametrize("after", [False, True])
def test_a_crash_at_each_call_of_a_round_is_repaired_by_the_next(after: bool, schema: str) -> None:
    before = [("produce", 0, 4), ("produce", 1, 3), ROUND, ("produce", 0, 2), ("delete", 1, 0.6)]
    for at in range(1, 31 if schema == "raw" else 50):
        told([*before, ("round", at, after), ("collect", 30), ROUND], schema)


@pytest.mark.parametrize("schema", ["raw", "json"])
def test_an_overtaken_writer_at_each_of_its_calls_harms_nobody(schema: str) -> None:
    for at in range(1, 6):
        story = [
            ("produce", 0, 4), ROUND, ("delete", 0, 0.3), ("late", at), ("produce", 0, 2), ROUND, LONG, ROUND,
            ("collect", 30), ("let late go",), ROUND,
        ]  # fmt: skip
        told(story, schema)


def keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage_rules, "kept_from_ms", lambda _: 1 << 62)


def names_dead_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync_module, "dead_rows", lambda header, live: [])


def begins_life_at_birth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        sync_module, "expired", lambda snapshots, now_ms, life_ms: snapshots[:-1] if snapshots else []
    )
    monkeypatch.setattr(TableSync, "_expire", _forgets_no_snapshot)


async def _forgets_no_snapshot(self: TableSync, work: Any, table: Any) -> tuple[int, list[TableSnapshot]]:
    return 0, [TableSnapshot(0, work.now_ms)]


def never_takes_a_file_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from compactor.tables import table as table_module

    monkeypatch.setattr(
        sync_module,
        "change_of",
        lambda named, wanted: table_module.change_of(named, {**named, **wanted}),
    )


def forgets_the_quarantine(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(*_: Any) -> bool:
        return True

    monkeypatch.setattr(TableSync, "_sync_quarantine", nothing)


def takes_parts_for_whole_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    def whole(*given: Any) -> Any:
        return tuple([replace(file, is_partial=False) for file in files] for files in table_files(*given))

    monkeypatch.setattr(sync_module, "table_files", whole)


@pytest.mark.parametrize(
    ("bug", "schema"),
    [
        (keeps_nothing, "raw"),
        (names_dead_rows, "raw"),
        (begins_life_at_birth, "raw"),
        (never_takes_a_file_out, "raw"),
        (forgets_the_quarantine, "json"),
        (takes_parts_for_whole_objects, "json"),
    ],
)
def test_a_planted_bug_is_found(
    bug: Callable[[pytest.MonkeyPatch], None], schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(STORY, schema)
    bug(monkeypatch)
    with pytest.raises(Exception):  # noqa: B017 - an assertion, or ObjectMissing
        told(STORY, schema)


def test_tables_are_those_that_topics_want_and_those_that_are_left() -> None:
    entropy = SeededEntropy(3)
    ids = [entropy.uuid() for _ in range(4)]
    topics = [
        Topic(ids[0], "own", 1, {"tailrace.table": "iceberg", "tailrace.table.snapshot.ms": "5"}, 0),
        Topic(ids[1], "by default", 1, {}, 0),
        Topic(
            ids[2], "not any more", 1, {"tailrace.table": "none", "tailrace.table.snapshot.ms": "a week"}, 0
        ),
    ]
    pins = [
        TablePin(ids[0], "own", 0, 0),
        TablePin(ids[2], "not any more", 0, 0),
        TablePin(ids[3], "gone", 0, 0),
    ]
    cluster = {"tailrace.table": "iceberg", "tailrace.table.snapshot.ms": "7"}
    assert list(choose_tables(topics, cluster, pins)) == [
        DesiredTable(ids[0], "own", 5),
        DesiredTable(ids[1], "by default", 7),
        DesiredTable(ids[2], "not any more", 21_600_000, is_wanted=False),
        DesiredTable(ids[3], "gone", 7, is_wanted=False),
    ]


class SilentSync(TableSync):
    """The tables of a catalog that does not answer for as long as `is_silent`."""

    def __init__(self) -> None:
        self.asked = 0
        self.is_silent = True

    async def sync(self, wanted: DesiredTable) -> SyncResult:
        self.asked += 1
        if self.is_silent:
            raise CatalogSilent("no answer")
        return SyncResult(0, change_of({}, {}), 0)


async def test_a_round_does_not_wait_for_a_silent_catalog_once_for_each_table() -> None:
    clock = ManualClock()
    sequencer = Committer(MemoryRowStore(clock), clock, SeededEntropy(1))
    await sequencer.start()
    for name in "abcde":
        await sequencer.create_topic(CreateTopic(name, 1, {"tailrace.table": "iceberg"}))
    syncing = SilentSync()
    following = TableSchedule(sequencer, syncing, clock)
    await following.begin_round()
    assert syncing.asked == MOST_SILENCES == 3
    assert [line.partition(": ")[2] for line in following.failures] == [
        *["CatalogSilent: no answer"] * 3,
        *["left to the next round, because the catalog does not answer"] * 2,
    ]
    syncing.is_silent = False
    await following.begin_round()
    assert (syncing.asked, following.failures) == (8, [])
    await sequencer.close()


async def test_a_schedule_forgets_tables_that_are_gone() -> None:
    clock = ManualClock()
    sequencer = Committer(MemoryRowStore(clock), clock, SeededEntropy(1))
    await sequencer.start()
    syncing = SilentSync()
    syncing.is_silent = False
    following = TableSchedule(sequencer, syncing, clock)
    for number in range(3):
        topic = await sequencer.create_topic(CreateTopic(f"t{number}", 1, {"tailrace.table": "iceberg"}))
        await following.begin_round()
        await sequencer.delete_topic(DeleteTopic(topic.topic_id))
    await following.begin_round()
    assert (syncing.asked, following._not_before) == (3, {})
    await sequencer.close()


async def test_a_table_of_an_unchanged_log_costs_no_call_of_the_catalog() -> None:
    world = await made("raw")
    opened = 0

    class Counted(MemoryTables):
        def open(self, *args: Any, **chosen: Any) -> Any:
            nonlocal opened
            opened += 1
            return super().open(*args, **chosen)

    world.tables = Counted()
    schedule = TableSchedule(world.log.sequencer, world.syncing(Fate()), world.clock)

    async def opens() -> int:
        before = opened
        await schedule.begin_round()
        assert schedule.failures == []
        await world.check_readers()
        return opened - before

    async def keep_snapshots(life_ms: int) -> None:
        change = ConfigChange("tailrace.table.snapshot.ms", ConfigOperation.SET, str(life_ms))
        await world.log.sequencer.alter_config(AlterConfig(ConfigScope.TOPIC, "a", [change]))

    assert [await opens(), await opens()] == [1, 0]
    for number in range(2):
        await world.log.produce(("a", 0, batch_of([b"v"] * 3)))
        await compacted_here(world.log)
        assert [await opens(), await opens()] == [1, 0], number
    below = DeleteRecordsPartition(world.log.topics["a"].topic_id, 0, 2)
    await world.log.sequencer.delete_records(DeleteRecords([below]))
    assert [await opens(), await opens()] == [1, 0]
    world.clock.advance(LIFE_MS / 1000 + 1)  # snapshots expire
    assert [await opens(), await opens()] == [1, 0]
    await keep_snapshots(36_000_000)
    assert [await opens(), await opens()] == [1, 0]
    world.clock.advance(3_590)
    assert await opens() == 0
    world.clock.advance(10)
    assert [await opens(), await opens()] == [1, 0]
    await world.log.sequencer.delete_topic(DeleteTopic(world.log.topics["a"].topic_id))
    assert [await opens(), await opens()] == [1, 1], "until it is dropped"
    await world.committer.close()
