"""The audit finds nothing in a sound cluster, and names each kind of fault that is planted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from uuid import UUID

import pytest

from sequencer.api.commits import CommitRequest, ObjectKind, OpenSession, SessionRef
from sequencer.api.groups import CommitOffsets, OffsetPosition
from sequencer.api.producers import InitProducer
from sequencer.api.topics import DeleteTopic
from sequencer.api.transactions import AddToTransaction, EndTransaction, TransactionRef
from sequencer.api.values import Empty
from sequencer.checkpoint.checkpointer import write_cluster_file
from sequencer.recovery.audit import AuditReport, AuditSettings, audit
from sequencer.recovery.invariants import check_partition
from sequencer.store.batch_table import decode_table, encode_table
from sequencer.store.row_store import DatabaseIdentity
from sequencer.store.rows import (
    AbortedRow,
    CommitRow,
    CounterRow,
    GroupOffsetRow,
    GroupRow,
    LogEpoch,
    ObjectRow,
    OpenRangeRow,
    PartitionRow,
    ProducerRow,
    RememberedBatch,
    RunRow,
    SessionRow,
    TopicRow,
)
from sequencer.store.state import HotState, replace_row
from tailrace.background_tasks import cancel_and_wait
from tests.support.clocks import ManualClock, SeededEntropy
from tests.support.losable_cluster import AGENT, Batch, LosableCluster
from tests.support.patience import PATIENCE_SECONDS
from tests.support.row_samples import TOPIC, changes, marker_row, object_row, run_row


class QuickClock(ManualClock):
    """Nobody waits."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


Use = Callable[[LosableCluster], Awaitable[None]]


async def look(world: LosableCluster, sample: float = 1.0) -> AuditReport:
    return await audit(
        world.rows, world.bucket, QuickClock(world.clock.wall_ms()), SeededEntropy(1), AuditSettings(sample)
    )


async def kinds(world: LosableCluster) -> set[str]:
    return {finding.kind for finding in (await look(world)).findings}


@asynccontextmanager
async def started_world() -> AsyncIterator[LosableCluster]:
    """Lead a cluster with a bit of everything in it."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        world = LosableCluster()
        await world.lead()
        topic = await world.make_topic("t", 2)
        await world.write("t", Batch("a", 3), Batch("b", 2, 7, 0))
        await world.write("t", Batch("b", 2, 7, 0), Batch("c", 1, 7, 2))
        await world.write("t", Batch("d"), partition=1)
        grant = await world.sequencer.init_producer(InitProducer(transactional_id="x", timeout_ms=60_000))
        asked = TransactionRef("x", grant.producer_id, grant.producer_epoch)
        for number, is_commit in ((1, True), (2, False), (3, True)):
            await world.sequencer.add_to_transaction(AddToTransaction(asked, [(topic.topic_id, 0)]))
            batch = Batch(f"x{number}", 2, grant.producer_id, 2 * (number - 1), grant.producer_epoch, True)
            await world.write("t", batch, transactions=[number])
            if number < 3:
                await world.sequencer.end_transaction(EndTransaction(asked, is_commit, False))
        position = OffsetPosition(topic.topic_id, 0, 2, 0, "")
        await world.sequencer.commit_offsets(CommitOffsets("g", -1, -1, -1, "", [position]))
        await world.checkpoint()
        yield world


async def partition(world: LosableCluster, number: int = 0) -> PartitionRow:
    rows = (await world.rows.load())[PartitionRow]
    return next(row for row in rows if isinstance(row, PartitionRow) and row.partition == number)


async def objects(world: LosableCluster) -> list[ObjectRow]:
    return await world.rows.objects_after("", 100)


async def runs(world: LosableCluster) -> list[RunRow]:
    return await world.rows.run_rows_after(None, 100)


async def test_a_sound_cluster_has_no_findings() -> None:
    async with started_world() as world:
        report = await look(world)
        assert report.findings == [] and report.is_clean
        assert report.checked["objects opened"] == report.checked["objects"] == 6
        assert report.checked["runs"] == 8 and report.commit_number > 0


async def test_a_recovered_cluster_has_no_findings() -> None:
    async with started_world() as world:
        await world.write("t", Batch("later", 3), partition=1)
        await world.lose_database()
        await world.recover()
        assert (await look(world)).findings == []
        await world.lead()
        await world.write("t", Batch("new"))
        await world.checkpoint()
        assert (await look(world)).findings == []


async def test_objects_in_progress_and_garbage_are_counted_and_no_findings() -> None:
    async with started_world() as world:
        await world.upload([("t", 0, [Batch("young")])])
        assert (await look(world)).checked["uploads under way"] == 1
        await world.sequencer.close_session(SessionRef(world.session.session_id))
        topic = world.topics["t"]
        await world.sequencer.delete_topic(DeleteTopic(topic.topic_id))
        await world.sequencer.apply_retention(Empty())
        report = await look(world)
        assert report.findings == []
        assert report.garbage == {"retired objects": 6, "of ended sessions": 1}
        world.clock.advance(3 * 24 * 3600)
        assert await kinds(world) == {"overdue_garbage"}


async def test_a_missing_object_is_named_with_the_offsets_that_are_gone() -> None:
    async with started_world() as world:
        key = (await objects(world))[0].key
        await world.bucket.delete([key])
        report = await look(world)
        assert {finding.kind for finding in report.findings} == {"missing_object", "missing_bytes"}
        assert any(finding.subject == key for finding in report.findings)
        assert any(
            finding.subject == "t-0" and "offsets 0 to 4" in finding.detail for finding in report.findings
        )


async def test_corrupt_bytes_are_found_by_reading_all_and_a_wrong_size_without() -> None:
    async with started_world() as world:
        key = (await objects(world))[1].key
        data = bytearray(await world.bucket.get(key))
        data[75] ^= 1
        await world.bucket.delete([key])
        await world.bucket.put(key, [data])
        [finding] = (await look(world)).findings  # one object, one finding
        assert (finding.kind, finding.subject) == ("corrupt_object", key)
        assert "CRC" in finding.detail
        await world.bucket.delete([key])
        await world.bucket.put(key, [data, b"more"])
        assert "wrong_size" in await kinds(world)


async def test_an_object_that_nobody_will_ever_delete_is_named() -> None:
    async with started_world() as world:
        agent = await world.sequencer.register_agent(AGENT)  # ends its sessions
        ended = world.session
        _, key = await world.upload([("t", 0, [Batch("orphan")])])
        world.session = await world.sequencer.open_session(OpenSession(agent.broker_id, agent.epoch))
        assert (await look(world)).garbage["of ended sessions"] == 1
        gone = changes()
        gone.delete(SessionRow, (ended.session_id,))
        for number in range(10):
            gone.delete(CommitRow, (ended.session_id, number))
        await world.rows.write(gone, 1)
        [finding] = (await look(world)).findings
        assert (finding.kind, finding.subject) == ("stray_object", key)
        await world.bucket.delete([key])
        await world.bucket.put("c/mixed/what", [b"is this"])
        assert await kinds(world) == {"stray_object"}


async def test_a_gap_in_the_log_is_named() -> None:
    async with started_world() as world:
        [_, second, *_] = await runs(world)
        gone = changes(
            *(
                replace_row(row, live_runs=0, retired_ms=1)
                for row in await objects(world)
                if row.object_id == second.object_id
            )
        )
        gone.delete(RunRow, (second.topic_id, second.partition, second.base_offset))
        await world.rows.write(gone, 1)
        found = (await look(world)).findings
        assert any((one.kind, one.subject, one.detail) == ("gap", "t-0", "no run of [5, 6)") for one in found)


Plant = Callable[[LosableCluster], Awaitable[None]]


async def wrong_live_runs(world: LosableCluster) -> None:
    await world.plant(replace_row((await objects(world))[0], live_runs=2))


async def retired_with_runs(world: LosableCluster) -> None:
    await world.plant(replace_row((await objects(world))[0], retired_ms=world.clock.wall_ms()))


async def overlap(world: LosableCluster) -> None:
    first = (await runs(world))[0]
    await world.plant(replace_row(first, end_offset=first.end_offset + 1))


async def end_too_far(world: LosableCluster) -> None:
    row = await partition(world, 1)
    await world.plant(replace_row(row, end_offset=row.end_offset + 5))


async def log_start_past_the_end(world: LosableCluster) -> None:
    row = await partition(world, 1)
    await world.plant(replace_row(row, log_start_offset=row.end_offset + 5))


async def running_maximum_falls(world: LosableCluster) -> None:
    await world.plant(replace_row((await runs(world))[1], running_max_timestamp=1))


async def commit_from_the_future(world: LosableCluster) -> None:
    await world.plant(replace_row((await runs(world))[1], commit_number=10_000))


async def lower_commit_number(world: LosableCluster) -> None:
    await world.plant(CounterRow("commit_number", 1))


async def table_of_other_bytes(world: LosableCluster) -> None:
    first = (await runs(world))[0]
    await world.plant(replace_row(first, batches=encode_table(decode_table(first.batches)[:1])))


async def run_of_other_bytes(world: LosableCluster) -> None:
    rows = await runs(world)
    other = next(run for run in rows if run.partition == 1)
    await world.plant(replace_row(rows[0], start=other.start + 1))


async def run_without_object(world: LosableCluster) -> None:
    first = (await objects(world))[0]
    gone = changes()
    gone.delete(ObjectRow, (first.object_id,))
    await world.rows.write(gone, 1)


async def epochs_out_of_order(world: LosableCluster) -> None:
    await world.plant(
        replace_row(await partition(world), epochs=[LogEpoch(0, 0), LogEpoch(2, 3), LogEpoch(1, 4)])
    )


async def open_range_without_transaction(world: LosableCluster) -> None:
    await world.plant(OpenRangeRow(world.topics["t"].topic_id, 1, 99, 0))


async def aborted_range_without_marker(world: LosableCluster) -> None:
    await world.plant(AbortedRow(world.topics["t"].topic_id, 0, 99, 0, 2))


async def group_offset_past_the_end(world: LosableCluster) -> None:
    await world.plant(GroupOffsetRow("g", world.topics["t"].topic_id, 0, 999, 0, "", 1, None))


async def group_that_miscounts_its_positions(world: LosableCluster) -> None:
    await world.plant(GroupRow("g", -1, -1, 0, "Empty", "", [], b"", 1, positions=3))


async def group_that_knows_of_no_expiry(world: LosableCluster) -> None:
    await world.plant(GroupRow("h", -1, -1, 0, "Empty", "", [], b"", 1, positions=1))
    await world.plant(GroupOffsetRow("h", world.topics["t"].topic_id, 0, 0, 0, "", 1, 7))


async def group_offset_of_nothing(world: LosableCluster) -> None:
    await world.plant(GroupOffsetRow("g", UUID(int=5), 0, 0, 0, "", 1, None))


async def producer_past_the_end(world: LosableCluster) -> None:
    await world.plant(ProducerRow(world.topics["t"].topic_id, 0, 7, 0, [RememberedBatch(0, 0, 999)], 0, 0))


async def answer_of_no_session(world: LosableCluster) -> None:
    await world.plant(CommitRow(UUID(int=4), 0, b""))


async def topic_without_partition(world: LosableCluster) -> None:
    gone = changes()
    gone.delete(PartitionRow, (world.topics["t"].topic_id, 1))
    await world.rows.write(gone, 1)


async def corrupt_checkpoint(world: LosableCluster) -> None:
    world.checkpointer._begin_scan()
    await world.checkpoint()
    keys = [info.key async for info in world.bucket.list("c/meta/") if info.key.endswith(".part")]
    await world.bucket.delete([keys[-1]])
    await world.bucket.put(keys[-1], [b"corrupt"])


async def older_database(world: LosableCluster) -> None:
    await world.plant(CounterRow("commit_number", 1))


async def checkpoint_of_deleted_object(world: LosableCluster) -> None:
    first = (await objects(world))[0]
    gone = changes()
    gone.delete(ObjectRow, (first.object_id,))
    for one in await runs(world):
        if one.object_id == first.object_id:
            gone.delete(RunRow, (one.topic_id, one.partition, one.base_offset))
    await world.rows.write(gone, 1)
    await world.bucket.delete([first.key])


async def another_incarnation(world: LosableCluster) -> None:
    await write_cluster_file(world.bucket, DatabaseIdentity("c", 7))


async def half_recovered(world: LosableCluster) -> None:
    await world.rows.adopt("c", 0, 1)


@pytest.mark.parametrize(
    ("plant", "kind"),
    [
        (wrong_live_runs, "live_runs"),
        (retired_with_runs, "live_runs"),
        (overlap, "overlap"),
        (end_too_far, "gap"),
        (log_start_past_the_end, "bounds"),
        (running_maximum_falls, "running_maximum"),
        (commit_from_the_future, "commit_number"),
        (lower_commit_number, "commit_number"),
        (table_of_other_bytes, "batch_table"),
        (run_of_other_bytes, "row_and_object"),
        (run_without_object, "object_row"),
        (epochs_out_of_order, "epochs"),
        (open_range_without_transaction, "open_range"),
        (aborted_range_without_marker, "aborted_range"),
        (group_offset_past_the_end, "group_offset"),
        (group_offset_of_nothing, "group_offset"),
        (group_that_miscounts_its_positions, "group_offset"),
        (group_that_knows_of_no_expiry, "group_offset"),
        (producer_past_the_end, "producer"),
        (answer_of_no_session, "session"),
        (topic_without_partition, "topic"),
        (topic_without_partition, "unknown_partition"),
        (corrupt_checkpoint, "checkpoint"),
        (older_database, "checkpoint"),
        (checkpoint_of_deleted_object, "checkpoint"),
        (another_incarnation, "cluster"),
        (half_recovered, "cluster"),
    ],
)
async def test_each_planted_fault_is_named(plant: Plant, kind: str) -> None:
    async with started_world() as world:
        await plant(world)
        assert kind in await kinds(world)


async def test_a_change_during_the_audit_is_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits, swaps' like, and the collector go on between any two reads."""
    monkeypatch.setattr("sequencer.recovery.audit.PAGE_ROWS", 2)

    async with started_world() as world:
        written = 0

        async def write_on() -> None:
            nonlocal written
            while True:
                await world.write("t", Batch(f"w{written}"), partition=written % 2)
                written += 1
                if written % 5 == 0:
                    await world.checkpointer.export()

        writer = asyncio.ensure_future(write_on())
        for _ in range(30):
            assert (await look(world)).findings == []
            if written > 5:
                break
        assert written > 5 and not writer.done()
        await cancel_and_wait(writer)


async def test_a_sample_opens_a_few_and_all_opens_all() -> None:
    async with started_world() as world:
        for number in range(30):
            await world.write("t", Batch(f"m{number}"))
        few = await look(world, 0.0)
        assert few.checked["objects opened"] == 10
        assert (await look(world, 1.0)).checked["objects opened"] == few.checked["objects"]
        assert all(row.kind is ObjectKind.MIXED for row in await objects(world))
        await world.sequencer.commit(CommitRequest(world.session.session_id, world.number, 0, None, []))


def test_an_aborted_range_may_be_no_more_than_its_marker() -> None:
    """A swap took its records, and another one will take the marker."""
    state = HotState(
        {
            TopicRow: [TopicRow(topic_id=TOPIC, name="t", partitions=1, configs={}, created_ms=1)],
            PartitionRow: [
                PartitionRow(
                    topic_id=TOPIC, partition=0, log_start_offset=0, end_offset=2, running_max_timestamp=0,
                    epochs=[LogEpoch(0, 0)],
                )
            ],
            AbortedRow: [AbortedRow(TOPIC, 0, 7, 1, 1)],
            CounterRow: [CounterRow(name="commit_number", value=9)],
        }
    )  # fmt: skip
    runs = [run_row(0, 1, object_row(0)), marker_row(1, running_max=0)]
    assert check_partition(state, (TOPIC, 0), runs) == []
