"""Compaction by key: what goes and what stays, in columns, in the index that spills, and in a whole log."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Iterable, Sequence
from pathlib import Path
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compactor.by_key.keyed import (
    NO_HORIZON,
    Pass,
    RecordColumns,
    cleanable,
    fitting,
    is_due,
    kept,
    without_horizon,
)
from compactor.by_key.keyed_cycle import KeyedOutcomes, runs_within
from compactor.by_key.keyed_index import KeyIndex
from compactor.by_key.keyed_rewrite import KeyedItem
from compactor.cycle import CompactionSettings, CompactionSummary, InProcess, run_cycle
from compactor.plan import PlanSettings
from compactor.rewrite import OutputLocation
from sequencer.api.commits import ObjectKind
from sequencer.api.compaction import CleanPoint, CleanPointsRequest, SwapRequest
from sequencer.api.errors import SwapRefused
from sequencer.api.reads import OffsetQuery, OffsetsRequest, Run
from sequencer.api.retention import DeleteRecords, DeleteRecordsPartition
from sequencer.api.values import Value
from sequencer.methods import FunctionSequencer, Method
from tailrace.batches.record_batch import CRC_START, DELETE_HORIZON_FLAG, Compression, crc_of, read_header
from tailrace.batches.records import NewRecord, Record, encode_batch
from tailrace.configs.topic_config import topic_settings
from tailrace.object_store.memory import MemoryStore
from tests.support.clocks import ManualClock
from tests.support.compaction import T0, Log, batch_of, compacted_here, memory_log
from tests.support.row_samples import sample_run

COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "delete.retention.ms": "5000"}
SECRET = bytes(range(16))
DAY_MS = 86_400_000

Written = tuple[bytes | None, bytes | None]


def batch(*records: Written, at: int = T0, codec: Compression = Compression.NONE) -> bytes:
    made = [NewRecord(key, value) for key, value in records]
    return encode_batch(made, timestamps=[at + number for number in range(len(made))], compression=codec)


def table_of(records: Iterable[Record]) -> dict[bytes, bytes]:
    """What a client keeps that reads the log into a table."""
    table: dict[bytes, bytes] = {}
    for record in records:
        assert record.key is not None
        if record.value is None:
            table.pop(record.key, None)
        else:
            table[record.key] = record.value
    return table


# --- the rule


class ModelLog:
    """Runs of (offset, key, value or None, horizon of its batch), with a record a batch."""

    def __init__(self) -> None:
        self.runs: list[list[tuple[int, int, int | None, int]]] = []
        self.end = self.clean_end = 0
        self.cleaned: dict[int, int] = {}
        """When the partition became clean above each tombstone, by offset."""

    @property
    def records(self) -> list[tuple[int, int, int | None, int]]:
        return [record for run in self.runs for record in run]

    def table(self) -> dict[int, int]:
        last = {key: value for _, key, value, _ in self.records}
        return {key: value for key, value in last.items() if value is not None}

    def pass_over(self, end_run: int, now_ms: int, swapped: Iterable[int]) -> None:
        """A pass over the first runs, of which only some are swapped."""
        runs = self.runs[:end_run]
        end = runs[-1][-1][0] + 1 if runs and runs[-1] else self.clean_end
        of = Pass(max(end, self.clean_end), self.clean_end, now_ms, 10)
        dirty = [record for run in runs for record in run if record[0] >= of.clean_end]
        newest = {key: offset for offset, key, _, _ in dirty}
        head = max((offset for offset, *_ in dirty), default=-1)
        chosen = set(swapped)
        for number, run in enumerate(runs):
            if number in chosen:
                self.runs[number] = _filtered(run, of, newest, head)
        if chosen >= set(range(end_run)):
            for offset, _, value, _ in self.records:
                if of.clean_end <= offset < of.end and value is None:
                    self.cleaned[offset] = now_ms
            self.clean_end = of.end


def _filtered(
    run: list[tuple[int, int, int | None, int]], of: Pass, newest: dict[int, int], head: int
) -> list[tuple[int, int, int | None, int]]:
    offsets = np.array([record[0] for record in run], np.int64)
    rows = RecordColumns(
        offsets=offsets,
        newest=np.array([newest.get(record[1], -1) for record in run], np.int64),
        has_key=np.ones(len(run), bool),
        is_tombstone=np.array([record[2] is None for record in run], bool),
        batches=np.arange(len(run)),
        horizons_ms=np.array([record[3] for record in run], np.int64),
        base_offsets=offsets,
    )
    stays = kept(rows, of, head)
    new = without_horizon(rows, stays, of)
    return [
        (*record[:3], of.new_horizon_ms if is_new else record[3])
        for record, is_left, is_new in zip(run, stays, new, strict=True)
        if is_left
    ]


@settings(deadline=None)
@given(st.data())
def test_every_key_keeps_its_last_value_whichever_swaps_are_carried_out(data: st.DataObject) -> None:
    log, truth, now_ms = ModelLog(), dict[int, int](), 0
    for _ in range(data.draw(st.integers(1, 6))):
        for _ in range(data.draw(st.integers(0, 3))):
            run = []
            for _ in range(data.draw(st.integers(1, 4))):
                key, value = data.draw(st.integers(0, 3)), data.draw(st.none() | st.integers(0, 99))
                run.append((log.end, key, value, NO_HORIZON))
                log.end += 1
                truth.pop(key, None)
                if value is not None:
                    truth[key] = value
            log.runs.append(run)
        now_ms += data.draw(st.integers(0, 12))
        before = log.records
        upto = data.draw(st.integers(0, len(log.runs)))
        swapped = data.draw(st.sets(st.integers(0, upto)) | st.just(set(range(upto))))
        clean_at = dict(log.cleaned)
        log.pass_over(upto, now_ms, swapped)
        assert log.table() == truth
        gone = {record[0]: record for record in before if record[0] not in {each[0] for each in log.records}}
        for offset, key, value, _ in gone.values():
            is_last = not any(each[1] == key and each[0] > offset for each in before)
            if value is None and is_last:
                assert offset in clean_at and now_ms - clean_at[offset] >= 10, "a tombstone went too early"
        assert not log.end or log.records[-1][0] == log.end - 1, "the head went"


def test_after_a_pass_no_two_records_have_one_key() -> None:
    luck, log = random.Random(4), ModelLog()
    for _ in range(5):
        log.runs.append([(log.end + each, luck.randrange(9), 1, NO_HORIZON) for each in range(20)])
        log.end += 20
        log.pass_over(len(log.runs), 0, range(len(log.runs)))
        keys = [key for _, key, _, _ in log.records]
        assert len(keys) == len(set(keys)) <= 9


def test_a_record_without_a_key_goes_unless_it_is_the_newest() -> None:
    nothing = np.array([-1, -1])
    rows = RecordColumns(
        offsets=np.array([3, 4]),
        newest=nothing,
        has_key=np.array([False, False]),
        is_tombstone=np.array([False, False]),
        batches=np.array([0, 1]),
        horizons_ms=nothing,
        base_offsets=np.array([3, 4]),
    )
    assert kept(rows, Pass(5, 0, 0, 0), 4).tolist() == [False, True]


# --- which partitions


def parquet_run(
    base: int, end: int, *, length: int = 100, max_timestamp: int = T0, markers: bool = False
) -> Run:
    return sample_run(
        base,
        end,
        topic_id=UUID(int=5),
        object_id=UUID(int=base + 1),
        kind=ObjectKind.MARKERS if markers else ObjectKind.PARQUET,
        object_size=1,
        length=length,
        max_timestamp=max_timestamp,
        created_ms=T0,
    )


def point(clean_end: int = 0, clean: int = 0, stable: int = 1_000) -> CleanPoint:
    return CleanPoint(0, 0, stable, clean_end, clean, 0)


def test_a_pass_ends_at_the_last_stable_offset_at_mixed_runs_and_at_records_that_are_too_young() -> None:
    runs = [parquet_run(0, 10), parquet_run(10, 11, markers=True), parquet_run(11, 20, max_timestamp=T0 + 50)]
    any_age = topic_settings(COMPACTED)
    assert cleanable(runs, point(), any_age, T0) == runs
    assert cleanable(runs, point(stable=19), any_age, T0) == runs[:1]
    lagging = topic_settings(COMPACTED | {"min.compaction.lag.ms": "100"})
    assert cleanable(runs, point(), lagging, T0 + 120) == runs[:1]
    assert cleanable(runs, point(), lagging, T0 + 150) == runs
    mixed = [*runs[:1], parquet_run(30, 40)]
    assert cleanable(mixed, point(), any_age, T0) == runs[:1]


def test_a_partition_is_due_by_its_dirty_share_or_by_its_oldest_dirty_record() -> None:
    half = topic_settings(COMPACTED | {"min.cleanable.dirty.ratio": "0.5"})
    dirty = [parquet_run(10, 20)]
    assert is_due(dirty, point(10, 100), half, T0)
    assert not is_due(dirty, point(10, 101), half, T0)
    assert not is_due([], point(10, 0), half, T0)
    old = topic_settings(COMPACTED | {"min.cleanable.dirty.ratio": "1", "max.compaction.lag.ms": "60"})
    assert not is_due(dirty, point(10, 101), old, T0 + 59)
    assert is_due(dirty, point(10, 101), old, T0 + 60)
    timeless = [parquet_run(10, 20, max_timestamp=-1)]  # its age is that of its commit
    assert not is_due(timeless, point(10, 101), old, T0 + 59)
    assert is_due(timeless, point(10, 101), old, T0 + 60)


async def test_a_merge_makes_no_dirty_record_younger() -> None:
    """A merge has the age of its newest record, and the runs of a thin topic are merged every few days."""

    lag_days = 4
    configs = {"min.cleanable.dirty.ratio": "0.99", "max.compaction.lag.ms": str(lag_days * DAY_MS)}
    async with memory_log() as (log, clock):
        await log.topic("t", 1, COMPACTED | configs)
        many = [(b"k%d" % number, b"v" * 1_000) for number in range(100)]
        await log.produce(("t", 0, batch(*many, at=clock.wall_ms())))
        assert (await compacted(log)).keyed.passes == 1
        oldest_dirty_ms = 0
        for _ in range(32):
            clock.advance(DAY_MS / 1000)
            oldest_dirty_ms = oldest_dirty_ms or clock.wall_ms()
            await log.produce(("t", 0, batch((b"k0", b"new"), at=clock.wall_ms())))
            summary = await compacted(log)
            if summary.keyed.passes:
                oldest_dirty_ms = 0
            assert not oldest_dirty_ms or clock.wall_ms() - oldest_dirty_ms < lag_days * DAY_MS
        assert table_of(await log.consumed("t")) == dict(many) | {b"k0": b"new"}


async def test_a_merge_makes_no_record_wait_for_a_younger_one() -> None:
    lag_days = 8
    async with memory_log() as (log, clock):
        await log.topic("t", 1, COMPACTED | {"min.compaction.lag.ms": str(lag_days * DAY_MS)})
        written_ms: list[int] = []
        for _ in range(32):
            clock.advance(DAY_MS / 1000)
            written_ms.append(clock.wall_ms())
            await log.produce(("t", 0, batch((b"k", b"v"), at=clock.wall_ms())))
            await compacted(log)
            left = [record.timestamp for record in await log.consumed("t")]
            assert written_ms[-lag_days:] == left[-lag_days:], "younger than the lag"
            assert left[0] >= clock.wall_ms() - (lag_days + 1) * DAY_MS, "a superseded record stays"
        assert len(await log.runs("t")) <= lag_days + 2


def test_a_pass_takes_no_more_dirty_offsets_than_an_index_may_have() -> None:
    runs = [parquet_run(0, 100), parquet_run(100, 105), parquet_run(105, 110), parquet_run(110, 120)]
    assert fitting(runs, 100, 10) == runs[:3]
    assert fitting(runs, 0, 10) == runs[:1]


# --- the index


def keys_of(count: int) -> pa.Array:
    return pa.array([b"key-%d" % number for number in range(count)], pa.binary())


def test_hashes_are_siphash_as_its_authors_publish_it() -> None:
    with KeyIndex(2, memory_bytes=1 << 20, secret=SECRET) as index:
        keys = pa.array([b"", b"\0", bytes(range(63))], pa.binary())
        assert [row.tobytes().hex() for row in index.hashes(keys)] == [
            "a3817f04ba25a8e66df67214c7550293",
            "da87c1d86b99af44347659119b22fc45",
            "5150d1772f50834a503e069a973fbd7c",
        ]
        assert (index.hashes(keys.slice(1)) == index.hashes(keys)[1:]).all()
        assert index.hashes(pa.array([None, b"a"], pa.binary())).shape == (2, 2)


@pytest.mark.parametrize("rows", [5_000, 200_000])
def test_an_index_finds_what_a_dict_finds_in_memory_and_on_the_disk(tmp_path: Path, rows: int) -> None:
    luck = np.random.default_rng(rows)
    keys = keys_of(20_000)
    with KeyIndex(rows, memory_bytes=1 << 20, secret=SECRET, folder=tmp_path) as index:
        hashes = index.hashes(keys)
        expected = np.full(len(keys), -1, np.int64)
        for first in range(0, rows, 2_500):
            chosen = np.where(luck.random(2_500) < 0.3, 7, luck.integers(0, 15_000, 2_500))
            offsets = np.arange(first, first + 2_500)
            index.add(keys.take(pa.array(chosen)), offsets)
            np.maximum.at(expected, chosen, offsets)
        assert (index.find(hashes) == expected).all()
        assert (index.find(hashes[::-1]) == expected[::-1]).all()
        assert index.newest == rows - 1
        assert bool(index.spilled_bytes) == (rows > 5_000)
        assert bool(list(tmp_path.rglob("*"))) == (rows > 5_000)
    assert not list(tmp_path.iterdir())


def test_a_record_without_a_key_does_not_replace_one_with_an_empty_key() -> None:
    with KeyIndex(3, memory_bytes=1 << 20, secret=SECRET) as index:
        keys = pa.array([b"", b"a", None], pa.binary())
        index.add(keys, np.array([3, 4, 9]))
        assert index.find(index.hashes(keys)).tolist() == [3, 4, 3]
        assert index.newest == 9


def test_keys_whose_hashes_begin_alike_are_distinguished() -> None:
    with KeyIndex(3, memory_bytes=1 << 20, secret=SECRET) as index:
        hashes = np.array([[5, 1], [5, 2], [5, 3], [6, 1]], np.uint64)
        index._add_hashes(hashes[:3], np.array([10, 11, 12]))
        assert index.find(hashes).tolist() == [10, 11, 12, -1]


# --- a whole log


async def compacted(
    log: Log, plan: PlanSettings | None = None, memory_bytes: int = 1 << 20, runner: InProcess | None = None
) -> CompactionSummary:
    assert isinstance(log.clock, ManualClock)
    log.clock.advance(0.01)
    here = runner or InProcess(log.store, log.clock, log.entropy)
    return await run_cycle(
        log.sequencer,
        here,
        clock=log.clock,
        entropy=log.entropy,
        settings=CompactionSettings(
            min_bytes=1, min_age_ms=0, plan=plan or PlanSettings(), key_memory_bytes=memory_bytes
        ),
        keyed=here,
    )


async def clean_end(log: Log, name: str, partition: int = 0) -> int:
    page = await log.sequencer.clean_points(CleanPointsRequest(log.topics[name].topic_id))
    return page.points[partition].clean_end


async def test_a_log_keeps_the_last_value_of_each_key_at_its_offset_and_consumers_skip_the_rest() -> None:
    async with memory_log() as (log, _):
        await log.topic("t", 2, COMPACTED)
        await log.topic("kept")
        for number in range(6):
            records = [(b"k%d" % (each % 4), b"v%d-%d" % (number, each)) for each in range(5 + number)]
            codec = list(Compression)[number % 5]
            await log.produce(
                ("t", 0, batch(*records, at=T0 + 100 * number, codec=codec)),
                ("t", 1, batch((b"only", b"%d" % number))),
                ("kept", 0, batch(*records)),
            )
        before, everything = await log.consumed("t"), await log.consumed("kept")
        summary = await compacted(log)
        assert (summary.refused, summary.failures) == ([], [])
        assert (summary.keyed.passes, summary.keyed.dropped) == (2, 45 - 4 + 5)
        after = await log.consumed("t")
        assert after == [record for record in before if record.offset >= 41]
        assert [record.value for record in await log.consumed("t", 1)] == [b"5"]
        assert await log.consumed("kept") == everything
        assert await clean_end(log, "t") == 45
        again = await compacted(log)
        assert (again.keyed.passes, again.objects) == (0, 0)
        for at in (T0, T0 + 507, T0 + 600):
            asked = OffsetQuery(log.topics["t"].topic_id, 0, at)
            found = (await log.sequencer.list_offsets(OffsetsRequest([asked]))).results[0]
            assert (found.run is not None) == (at < T0 + 510), at
        (run,) = await log.runs("t")
        assert (run.base_offset, run.end_offset, run.max_timestamp) == (0, 45, T0 + 509)


async def test_a_batch_that_lost_records_keeps_its_offsets_its_producer_and_its_sequence() -> None:
    async with memory_log() as (log, _):
        await log.topic("t", 1, COMPACTED)
        made = [NewRecord(b"a", b"1"), NewRecord(b"b", b"2"), NewRecord(b"c", b"3")]
        sent = encode_batch(
            made, timestamps=[T0, T0 + 9, T0 + 5], producer_id=7, producer_epoch=2, base_sequence=0
        )
        await log.produce(("t", 0, sent))
        await log.produce(("t", 0, batch((b"b", b"new"), (b"c", b"new"))))
        await compacted(log)
        header = read_header((await log.replay("t"))[0])
        assert (header.base_offset, header.last_offset_delta, header.record_count) == (0, 2, 1)
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 2, 0)
        assert (header.max_timestamp, header.base_timestamp) == (T0, T0)
        assert [record.offset for record in await log.consumed("t")] == [0, 3, 4]


async def test_a_tombstone_stays_for_its_time_after_the_log_is_clean_and_then_goes() -> None:
    async with memory_log() as (log, clock):
        await log.topic("t", 1, COMPACTED)
        await log.produce(("t", 0, batch((b"a", b"1"), (b"b", b"1"))))
        await log.produce(("t", 0, batch((b"a", None))))
        await compacted(log)
        records = await log.consumed("t")
        assert [(record.key, record.value, record.timestamp) for record in records] == [
            (b"b", b"1", T0 + 1),
            (b"a", None, T0),
        ]
        headers = [read_header(each) for each in await log.replay("t")]
        assert [bool(header.attributes & DELETE_HORIZON_FLAG) for header in headers] == [False, True]
        for seconds, is_left in ((4.5, True), (1, False)):
            clock.advance(seconds)
            await log.produce(("t", 0, batch((b"c", b"%d" % is_left))))
            await compacted(log)
            assert (b"a" in [record.key for record in await log.consumed("t")]) == is_left
        assert table_of(await log.consumed("t")) == {b"b": b"1", b"c": b"0"}


async def test_records_of_open_transactions_replace_nothing_and_aborted_ones_neither() -> None:
    async with memory_log() as (log, _):
        await log.topic("t", 1, COMPACTED)
        await log.produce(("t", 0, batch((b"k", b"old"), (b"j", b"old"))))
        for is_commit, values in ((False, [b"old", b"old"]), (True, [b"new", b"old"])):
            writer = await log.producer("w")
            await log.produce(("t", 0, batch_of([b"new"], key=b"k", producer=writer)))
            await log.produce(("t", 0, batch((b"x", b"x"))))
            await compacted(log)
            assert table_of(await log.consumed("t"))[b"k"] == b"old"
            await log.finish(writer, is_commit=is_commit)
            await log.produce(("t", 0, batch((b"x", b"x"))))
            await compacted(log)
            table = table_of(await log.consumed("t"))
            assert [table[b"k"], table[b"j"]] == values


async def test_many_rounds_with_an_index_that_spills_keep_what_a_dict_keeps() -> None:
    async with memory_log() as (log, clock):
        await log.topic("t", 2, COMPACTED)
        luck, truth = random.Random(3), dict[bytes, bytes]()
        spilled = 0
        for number in range(4):
            for _ in range(2):
                records: list[Written] = []
                for each in range(4_000):
                    key, value = b"%d" % luck.randrange(3_000), b"%d.%d" % (number, each)
                    records.append((key, value if luck.random() < 0.9 else None))
                    truth[key] = value
                    if records[-1][1] is None:
                        del truth[key]
                await log.produce(("t", 0, batch(*records, at=T0 + number)))
            clock.advance(3)
            done = await compacted(log, PlanSettings(least_bytes=1_000, target_bytes=30_000))
            spilled += done.keyed.spilled_bytes
            assert (done.refused, done.failures) == ([], [])
            got = await log.consumed("t")
            assert table_of(got) == truth
            assert len({record.key for record in got}) == len(got)
        assert not spilled, "8,000 rows fit into a mebibyte"


async def test_a_pass_that_was_cut_off_is_made_again_and_loses_nothing() -> None:
    for lost in range(3):
        async with memory_log() as (log, clock):
            await log.topic("t", 1, COMPACTED)
            plan = PlanSettings(least_bytes=1, target_bytes=60)
            for value in (b"1", b"2", b"3"):
                await log.produce(("t", 0, batch((b"a", value), (b"b", value))))
                await log.produce(("t", 0, batch((b"z" + value, value))))
                await compacted(log, plan)
            await log.produce(("t", 0, batch((b"a", None), (b"c", b"3"))))
            refused = Refusing(log, lost)
            await compacted(refused.log, plan)
            clock.advance(20)
            expected = {b"b": b"3", b"c": b"3", b"z1": b"1", b"z2": b"2", b"z3": b"3"}
            assert table_of(await log.consumed("t")) == expected
            await compacted(log, plan)
            assert table_of(await log.consumed("t")) == expected


class Refusing:
    """A log whose sequencer refuses one of the swaps that drop records."""

    def __init__(self, log: Log, number: int) -> None:
        inner, self.seen = log.sequencer, 0

        class Proxy:
            def __getattr__(self, name: str) -> object:
                return getattr(inner, name)

            async def swap(proxy, request: SwapRequest) -> object:  # noqa: N805
                if any(run.drops for run in request.runs):
                    self.seen += 1
                    if self.seen - 1 == number:
                        raise SwapRefused("cut off")
                return await inner.swap(request)

        self.log = Log(Proxy(), log.store, log.clock, log.entropy, log.topics)  # type: ignore[arg-type]


async def test_a_batch_that_says_less_than_its_newest_time_holds_nothing_up() -> None:
    async with memory_log() as (log, _):
        await log.topic("t", configs=COMPACTED)
        lying = bytearray(batch((b"a", b"1"), (b"a", b"2"), (b"b", b"3")))
        lying[35:43] = T0.to_bytes(8, "big")  # its last record is two ms younger
        lying[CRC_START - 4 : CRC_START] = crc_of(lying).to_bytes(4, "big")
        await log.produce(("t", 0, bytes(lying)))
        summary = await compacted(log)
        assert (summary.refused, summary.failures) == ([], [])
        assert [record.offset for record in await log.consumed("t")] == [1, 2]
        assert read_header((await log.replay("t"))[0]).max_timestamp == T0


async def test_a_partition_that_cannot_be_read_costs_those_that_share_its_item_nothing() -> None:
    async with memory_log() as (log, _):
        await log.topic("t", 3, COMPACTED)
        for number in range(3):
            await log.produce(("t", number, batch((b"k", b"1"), (b"k", b"2"))))
            await compacted_here(log)  # an object each
        lost = (await log.runs("t", 1))[0].key
        await log.store.delete([lost])
        for number in range(3):
            await log.produce(("t", number, batch((b"k", b"3"))))
        summary = await compacted(log)
        assert summary.failures[0].partitions == [1]
        assert [await clean_end(log, "t", number) for number in range(3)] == [3, 2, 3]


async def test_an_object_that_retention_deleted_during_a_pass_is_not_missed() -> None:
    async with memory_log() as (log, _):
        topic = await log.topic("t", 2, COMPACTED)
        await log.produce(("t", 0, batch((b"k", b"1"))))
        await compacted_here(log)
        deleted = (await log.runs("t"))[0].key
        await log.produce(("t", 0, batch((b"k", b"2"), (b"k", b"3"))), ("t", 1, batch((b"k", b"4"))))

        class Late(InProcess):
            async def run_keyed(self, items: Sequence[KeyedItem], output: OutputLocation) -> KeyedOutcomes:
                place = DeleteRecordsPartition(topic.topic_id, 0, 1)
                await log.sequencer.delete_records(DeleteRecords([place]))
                await log.store.delete([deleted])
                async for outcome in super().run_keyed(items, output):
                    yield outcome

        summary = await compacted(log, runner=Late(log.store, log.clock, log.entropy))
        assert (summary.failures, await clean_end(log, "t", 1)) == ([], 1)
        assert (await compacted(log)).failures == []
        assert await clean_end(log, "t") == 3


async def test_records_not_in_parquet_yet_are_not_read_for_a_pass() -> None:
    async with memory_log() as (log, _):
        topic = await log.topic("t", configs=COMPACTED)
        await log.produce(("t", 0, batch((b"k", b"1"))))
        await compacted_here(log)
        for _ in range(100):
            await log.produce(*[("t", 0, batch((b"k", b"1")))] * 300)  # 30,000 batches are more than a page
        asked: list[str] = []

        def counted(method: Method, request: Value) -> Awaitable[Value]:
            asked.append(method.name)
            return log.sequencer.call(method, request)  # type: ignore[attr-defined, no-any-return]

        runs = await runs_within(FunctionSequencer(counted), topic, {0: 0}, {0: 30_001})
        assert [run.kind for run in runs[0]] == [ObjectKind.PARQUET]
        assert asked == ["find_batches"]


async def test_partitions_that_share_objects_share_their_requests() -> None:
    asked: list[str] = []

    class Counting(MemoryStore):
        async def get_range(self, key: str, start: int, length: int) -> bytes:
            asked.append(key)
            return await super().get_range(key, start, length)

    async with memory_log() as (log, clock):
        log.store = Counting(clock)
        await log.topic("t", 20, COMPACTED)
        here = InProcess(log.store, clock, log.entropy)
        no_merges = CompactionSettings(min_bytes=1, min_age_ms=0, merges=False)
        for key in (b"a", b"b", b"c", b"c"):  # the last round has a pass over four objects
            await log.produce(*[("t", number, batch((key, b"1"))) for number in range(20)])
            asked.clear()
            clock.advance(0.01)
            summary = await run_cycle(
                log.sequencer, here, clock=clock, entropy=log.entropy, settings=no_merges, keyed=here
            )
        assert (summary.keyed.passes, summary.keyed.dropped) == (20, 20)
        objects = [key for key in asked if key.endswith(".parquet")]
        assert len(set(objects)) == 4
        assert len(objects) == 2 * 4, "of each its footer and its only row group"
