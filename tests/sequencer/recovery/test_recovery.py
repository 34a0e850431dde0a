"""Recovery of a database that is gone: certain offsets stay, later records come back above what was ever assigned."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from uuid import UUID

import msgspec
import pytest

from sequencer.api.agents import AgentInfo, RenewAgent
from sequencer.api.commits import (
    CommitRequest,
    ObjectDescription,
    ObjectKind,
    OpenSession,
    RunProposal,
    WriteAnswer,
    WriteRequest,
    WrittenObject,
)
from sequencer.api.compaction import TakeLease
from sequencer.api.errors import IncarnationChanged, ProducerFenced
from sequencer.api.groups import CommitOffsets, FetchOffsets, OffsetPosition
from sequencer.api.producers import InitProducer
from sequencer.api.reads import FindPartition, FindRequest, PartitionError
from sequencer.api.retention import DeleteRecords, DeleteRecordsPartition
from sequencer.api.topics import CreateTopic, DeleteTopic, MetadataRequest, Topic
from sequencer.api.transactions import (
    AddToTransaction,
    EndTransaction,
    TransactionRef,
    TransactionsRequest,
    TransactionState,
)
from sequencer.checkpoint.chain import IDLE_INTERVAL_MS
from sequencer.checkpoint.checkpointer import read_cluster_file
from sequencer.checkpoint.format import ClusterFile
from sequencer.recovery.audit import AuditSettings, audit
from sequencer.recovery.bucket_scan import read_checkpoints
from sequencer.recovery.recover import RecoveryRefused, find_cluster, recover
from sequencer.rules.upload_sessions import WRITER_BROKER_ID
from sequencer.store.batch_table import EMPTY_TABLE, NO_OBJECT
from sequencer.store.rows import (
    AbortedRow,
    AgentRow,
    Changes,
    CounterRow,
    GroupOffsetRow,
    LeaseRow,
    ObjectRow,
    ProducerRow,
    RunRow,
    SessionRow,
    SmallObjectRow,
    TopicRow,
)
from sequencer.store.state import COMMIT_NUMBER, HotState
from sequencer.store.sums import statistics_of
from tailrace.object_store.keys import check_prefix
from tailrace.object_store.memory import MemoryStore
from tests.support.clocks import ManualClock, SeededEntropy
from tests.support.hooked_rows import HookedRowStore
from tests.support.losable_cluster import AGENT, RESERVATION, Batch, LosableCluster
from tests.support.patience import PATIENCE_SECONDS
from tests.support.row_samples import changes


@asynccontextmanager
async def started_world() -> AsyncIterator[LosableCluster]:
    async with asyncio.timeout(PATIENCE_SECONDS):
        world = LosableCluster()
        await world.lead()
        yield world


async def test_checkpointed_records_keep_offsets_and_later_ones_get_offsets_above_all_assigned() -> None:
    async with started_world() as world:
        await world.make_topic("t", 2)
        await world.write("t", Batch("a", 3), Batch("b", 2))
        await world.checkpoint()
        await world.write("t", Batch("c", 4))
        await world.write("t", Batch("d"), partition=1)
        before = dict(world.told)
        await world.lose_database()

        report = await world.recover()

        await world.lead()
        assert await world.read("t") == {"a": 0, "b": 3, "c": 5 + RESERVATION}
        assert await world.read("t", 1) == {"d": RESERVATION}
        assert before["t", 0, "c"] == 5, "where it was acknowledged another record is never put"
        assert (report.resequenced.objects, report.resequenced.records) == (2, 5)
        assert [(one.certain_end, one.resumed_at, one.end_offset) for one in report.partitions] == [
            (5, 1_005, 1_009),
            (0, 1_000, 1_001),
        ]
        assert [(one.batches, one.records) for one in report.partitions] == [(1, 4), (1, 1)]
        assert not report.is_exact and report.incarnation == 2
        await world.write("t", Batch("e"))
        assert world.told["t", 0, "e"] == 1_009


async def test_a_cluster_that_was_stopped_comes_back_exactly() -> None:
    async with started_world() as world:
        await world.make_topic("t")
        await world.write("t", Batch("a", 3))
        await world.checkpoint()
        await world.write("t", Batch("b", 3))
        await world.sequencer.close()
        await world.lose_database()

        report = await world.recover()

        assert report.is_exact and not report.lost
        await world.lead()
        assert await world.read("t") == {"a": 0, "b": 3}
        await world.write("t", Batch("c"))
        assert world.told["t", 0, "c"] == 6


async def test_the_logs_epoch_rises_where_it_continues() -> None:
    async with started_world() as world:
        topic = await world.make_topic("t")
        await world.write("t", Batch("a"))
        await world.checkpoint()
        await world.lose_database()
        await world.recover()
        await world.lead()
        found = await world.sequencer.find_batches(FindRequest([FindPartition(topic.topic_id, 0, 0, 1)]))
        assert found.partitions[0].leader_epoch == 1
        metadata = await world.sequencer.metadata(MetadataRequest())
        assert metadata.ring is not None and metadata.ring.generation > 1 << 16
        assert metadata.incarnation == 2 and metadata.cluster_id == "c"


async def test_an_idempotent_batch_that_was_sent_again_is_stored_once_and_order_is_kept() -> None:
    async with started_world() as world:
        await world.make_topic("t")
        await world.write("t", Batch("a", 2, 7, 0))
        await world.checkpoint()
        await world.write("t", Batch("b", 2, 7, 2))
        await world.upload([("t", 0, [Batch("b", 2, 7, 2), Batch("c", 2, 7, 4)])])  # its commit never came
        await world.lose_database()
        report = await world.recover()
        await world.lead()
        assert await world.read("t") == {"a": 0, "b": 1_002, "c": 1_004}
        assert report.resequenced.duplicates == 1
        await world.write("t", Batch("c", 2, 7, 4))
        assert world.told["t", 0, "c"] == 1_004


async def test_producers_that_are_not_in_memory_come_back_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sequencer.store.recent_rows.MOST", {ProducerRow: 1, GroupOffsetRow: 1})

    async with started_world() as world:
        await world.make_topic("t")
        for producer in (7, 8, 9):
            await world.write("t", Batch(f"{producer}", 1, producer, 0))
        await world.checkpoint()
        await world.lose_database()
        await world.recover()
        await world.lead()
        for offset, producer in enumerate((7, 8, 9)):
            await world.write("t", Batch(f"{producer}", 1, producer, 0))
            assert world.told["t", 0, f"{producer}"] == offset, "it is a duplicate"


async def test_a_batch_that_waits_for_one_of_another_session_is_put_after_it() -> None:
    async with started_world() as world:
        await world.make_topic("t")
        await world.checkpoint()
        first = world.session
        agent = await world.sequencer.register_agent(
            AgentInfo("other", 1, "h", 0, 0, "z", "1", SeededEntropy(2).uuid())
        )
        world.session = await world.sequencer.open_session(OpenSession(agent.broker_id, agent.epoch))
        await world.upload([("t", 0, [Batch("plain"), Batch("second", 1, 7, 1)])])
        world.clock.advance(1)
        world.session, world.number = first, 0
        await world.upload([("t", 0, [Batch("first", 1, 7, 0)])])
        await world.upload([("t", 0, [Batch("never", 1, 7, 9)])])
        await world.lose_database()
        report = await world.recover()
        await world.lead()
        assert await world.read("t") == {"plain": 1_000, "first": 1_001, "second": 1_002}
        assert report.resequenced.out_of_sequence == 1


async def test_a_batch_that_was_refused_at_the_checkpoint_and_stored_after_it_comes_back() -> None:
    """What had a gap before it is asked again by reference: its object has a row, and may have no run, by then."""

    async with started_world() as world:
        await world.make_topic("t")
        await world.write("t", Batch("here", 1, 8, 0), Batch("second", 1, 7, 1))
        sealed, key = await world.upload([("t", 0, [Batch("third", 2, 7, 2)])])
        described = ObjectDescription(
            sealed.footer.object_id, ObjectKind.MIXED, key, sealed.size, sealed.crc, sealed.footer.data_length,
            sealed.footer.created_ms,
        )  # fmt: skip
        [run_] = sealed.footer.runs
        again = RunProposal(run_.topic_id, 0, run_.start, run_.length, run_.batches)
        number = sealed.footer.number
        await world.sequencer.commit(CommitRequest(world.session.session_id, number, 0, described, [again]))
        assert list(world.told) == [("t", 0, "here")]
        await world.checkpoint()
        await world.write("t", Batch("first", 1, 7, 0), Batch("second", 1, 7, 1))
        number, world.number = world.number, world.number + 1
        answer = await world.sequencer.commit(
            CommitRequest(world.session.session_id, number, 0, described, [again])
        )
        assert answer.runs[0].outcomes[0].base_offset == 3
        await world.lose_database()
        report = await world.recover()
        await world.lead()
        found = await world.read("t")
        assert found == {"here": 0, "first": 1_001, "second": 1_002, "third": 1_003}
        assert not [note for note in report.notes if "live" in note]
        seen = await audit(world.rows, world.bucket, world.clock, SeededEntropy(1), AuditSettings(1.0))
        assert seen.findings == []


async def test_a_refused_batch_comes_back_after_the_one_that_it_waited_for_with_its_own_bytes() -> None:
    async with started_world() as world:
        await world.make_topic("t")
        await world.write("t", Batch("here", 1, 8, 0), Batch("second", 1, 7, 1))
        await world.checkpoint()
        await world.write("t", Batch("first", 1, 7, 0))
        await world.lose_database()
        await world.recover()
        await world.lead()
        assert await world.read("t") == {"here": 0, "first": 1_001, "second": 1_002}


async def test_batches_of_a_deleted_topic_stay_away_and_keep_no_other_away() -> None:
    async with started_world() as world:
        await world.make_topic("t")
        topic = await world.make_topic("u")
        await world.write("u", Batch("before"), Batch("refused", 1, 7, 5))
        await world.sequencer.delete_topic(DeleteTopic(topic.topic_id))
        await world.checkpoint()
        of_both = [("u", 0, [Batch("late"), Batch("later")]), ("t", 0, [Batch("kept")])]
        await world.upload(sorted(of_both, key=lambda run: world.topics[run[0]].topic_id))
        await world.lose_database()
        report = await world.recover()
        await world.lead()
        assert await world.read("t") == {"kept": RESERVATION}
        assert (report.resequenced.of_deleted_topics, report.resequenced.batches) == (2, 1)
        assert report.made_up_topics == []


async def test_a_topic_that_only_a_head_after_a_lost_one_has_is_kept() -> None:
    async with started_world() as world:
        await world.make_topic("t")
        await world.checkpoint()
        await world.write("t", Batch("a"))
        await world.checkpoint()
        lost = [info.key async for info in world.bucket.list("c/meta/") if info.key.endswith(".head")][-1]
        late = await world.make_topic("late", 2)
        await world.bucket.delete([lost])
        await world.bucket.put(lost, [b"corrupt"])
        await world.lose_database()
        report = await world.recover()
        await world.lead()
        assert any("'late'" in note for note in report.notes) and report.made_up_topics == []
        await world.write("late", Batch("b"), partition=1)
        assert world.told["late", 1, "b"] >= RESERVATION
        metadata = await world.sequencer.metadata(MetadataRequest())
        assert late.topic_id in [topic.topic_id for topic in metadata.topics]


async def test_no_lease_or_session_of_the_lost_database_is_alive_and_all_sums_are_those_of_the_rows() -> None:
    async with started_world() as world:
        await world.make_topic("t")
        await world.write("t", Batch("a", 3, 7, 0))
        await world.sequencer.take_lease(TakeLease("compactor", "me", 0, 60_000))
        await world.checkpoint()
        await world.write("t", Batch("b"))
        await world.lose_database()
        report = await world.recover()
        loaded = await world.rows.load()
        leases = [*loaded[AgentRow], *loaded[LeaseRow]]
        assert len(leases) == 2 and {lease.expires_ms for lease in leases} == {0}  # type: ignore[attr-defined]
        assert len(loaded[SessionRow]) == 1 and not HotState(loaded).open_sessions
        runs = await world.rows.run_rows_after(None, 9)
        numbers = {row.name: row.value for row in loaded[CounterRow]}  # type: ignore[attr-defined]
        assert len(runs) == 3
        assert all(run.commit_number <= numbers[COMMIT_NUMBER] for run in runs)
        assert {run.commit_number > report.commit_number for run in runs[1:]} == {True}
        summed = await world.rows.statistics()
        await world.lead()
        assert summed == statistics_of(HotState(loaded).counter) and summed.producers == 1


async def test_run_counts_and_the_list_of_small_objects_are_made_from_the_runs() -> None:
    async with started_world() as world:
        topic = await world.make_topic("t")
        for name in ("a", "b"):
            await world.write("t", Batch(name))
        await world.checkpoint()
        runs = await world.rows.run_rows_after(None, 2)
        objects = {
            row.object_id: row for row in await world.rows.object_rows([run.object_id for run in runs])
        }
        merged, lost = runs[0], msgspec.structs.replace(runs[1], object_id=UUID(int=99))
        merged = msgspec.structs.replace(merged, kind=ObjectKind.PARQUET, batches=EMPTY_TABLE)
        parquet = msgspec.structs.replace(objects[merged.object_id], kind=ObjectKind.PARQUET, live_runs=5)
        world.checkpointer.written(changes(merged, lost, parquet))
        await world.checkpoint()
        await world.lose_database()
        report = await world.recover()
        assert any("1 runs name it, its row said 5" in note for note in report.notes)
        assert any(str(lost.object_id) in loss for loss in report.lost)
        rows = {row.object_id: row for row in await world.rows.object_rows(objects)}
        assert (rows[merged.object_id].live_runs, rows[merged.object_id].retired_ms) == (1, None)
        assert (rows[runs[1].object_id].live_runs, rows[runs[1].object_id].retired_ms) == (
            0,
            world.clock.wall_ms(),
        )
        assert [run.object_id for run in await world.rows.run_rows_after(None, 9)] == [
            merged.object_id,
            NO_OBJECT,
        ]
        small = SmallObjectRow(topic.topic_id, merged.object_id, merged.created_ms, parquet.size)
        assert (await world.rows.load())[SmallObjectRow] == [small]


async def test_uploads_that_were_garbage_at_the_checkpoint_do_not_come_back() -> None:
    async with started_world() as world:
        await world.make_topic("t")
        await world.upload([("t", 0, [Batch("orphan")])])
        await world.sequencer.commit(CommitRequest(world.session.session_id, 0, 0, None, []))
        await world.write("t", Batch("a"))
        await world.checkpoint()
        await world.lose_database()
        report = await world.recover()
        await world.lead()
        assert await world.read("t") == {"a": 0}
        assert report.resequenced.records == 0


async def test_a_jobs_write_is_answered_once_a_checkpoint_has_it_and_is_written_again_otherwise() -> None:
    async with started_world() as world:
        await world.make_topic("t")
        asked = OpenSession(WRITER_BROKER_ID, 0, name=UUID(int=66))
        agents, world.session = world.session, await world.sequencer.open_session(asked)

        async def commit(epoch: int, name: str) -> asyncio.Future[WriteAnswer]:
            sealed, key = await world.upload([("t", 0, [Batch(name)])])
            [run] = sealed.footer.runs
            described = ObjectDescription(
                sealed.footer.object_id, ObjectKind.MIXED, key, sealed.size, sealed.crc, sealed.footer.data_length, 0
            )  # fmt: skip
            proposal = RunProposal(run.topic_id, run.partition, run.start, run.length, run.batches)
            written = WrittenObject(world.session.session_id, described, [proposal])
            request = WriteRequest(UUID(int=67), epoch, True, [written])
            answered = asyncio.ensure_future(world.sequencer.commit_write(request))
            for _ in range(20):
                await asyncio.sleep(0)
            return answered

        first = await commit(0, "a")
        assert await world.read("t") == {"a": 0} and not first.done()
        await world.checkpoint()
        assert not (await first).is_repeat
        lost = await commit(1, "b")
        await world.lose_database()
        report = await world.recover()
        lost.cancel()
        await world.lead()
        assert await world.read("t") == {"a": 0} and report.resequenced.records == 0
        world.session = await world.sequencer.open_session(
            OpenSession(WRITER_BROKER_ID, 0, name=UUID(int=66))
        )
        for epoch, name, is_repeat in ((0, "a", True), (1, "b", False)):
            answered = await commit(epoch, name)
            await world.checkpoint()
            assert (await answered).is_repeat is is_repeat
        assert await world.read("t") == {"a": 0, "b": 1 + RESERVATION}
        world.session = agents


async def test_group_offsets_are_those_of_the_checkpoint() -> None:
    async with started_world() as world:
        topic = await world.make_topic("t")
        await world.write("t", Batch("a", 5))

        async def commit(offset: int) -> None:
            position = OffsetPosition(topic.topic_id, 0, offset, 0, "")
            await world.sequencer.commit_offsets(CommitOffsets("g", -1, -1, -1, "", [position]))

        await commit(2)
        await world.checkpoint()
        await commit(4)
        await world.lose_database()
        report = await world.recover()
        await world.lead()
        found = await world.sequencer.fetch_offsets(FetchOffsets("g", None))
        assert [position.offset for position in found.positions] == [2]
        assert any("group offsets" in one for one in report.lost)


async def test_transactions_without_a_known_end_are_aborted_and_their_producers_fenced() -> None:
    async with started_world() as world:
        topic = await world.make_topic("t")
        grant = await world.sequencer.init_producer(InitProducer(transactional_id="x", timeout_ms=60_000))
        asked = TransactionRef("x", grant.producer_id, grant.producer_epoch)
        await world.sequencer.add_to_transaction(AddToTransaction(asked, [(topic.topic_id, 0)]))
        await world.write(
            "t", Batch("in", 2, grant.producer_id, 0, grant.producer_epoch, True), transactions=[1]
        )
        await world.checkpoint()
        await world.write(
            "t", Batch("more", 1, grant.producer_id, 2, grant.producer_epoch, True), transactions=[1]
        )
        await world.sequencer.end_transaction(EndTransaction(asked, True, False))
        await world.write("t", Batch("plain"))
        await world.lose_database()

        report = await world.recover()

        await world.lead()
        assert report.aborted_transactions == ["x"] and report.resequenced.transactional == 1
        assert await world.read("t") == {"in": 0, "plain": 1_002}
        found = await world.sequencer.find_batches(FindRequest([FindPartition(topic.topic_id, 0, 0, 1)]))
        [partition] = found.partitions
        assert partition.last_stable_offset == partition.high_watermark == 1_004
        [aborted] = partition.aborted
        assert (aborted.first_offset, aborted.last_offset) == (0, 1_003)
        told = await world.sequencer.transactions(TransactionsRequest(None))
        assert [one.state for one in told.transactions] == [TransactionState.COMPLETE_ABORT]
        with pytest.raises(ProducerFenced):
            await world.sequencer.init_producer(
                InitProducer(grant.producer_id, grant.producer_epoch, "x", 60_000)
            )
        again = await world.sequencer.init_producer(InitProducer(transactional_id="x", timeout_ms=60_000))
        assert again.producer_id > 1 << 32 and again.producer_epoch == 0


async def test_an_end_that_is_retried_is_not_answered_by_the_end_of_the_transaction_before_it() -> None:
    """Of a client that keeps its epoch from one transaction to the next."""

    async with started_world() as world:
        topic = await world.make_topic("t")
        grant = await world.sequencer.init_producer(InitProducer(transactional_id="x", timeout_ms=60_000))
        asked = TransactionRef("x", grant.producer_id, grant.producer_epoch)
        await world.sequencer.add_to_transaction(AddToTransaction(asked, [(topic.topic_id, 0)]))
        await world.sequencer.end_transaction(EndTransaction(asked, True, False, 1))
        await world.checkpoint()
        await world.sequencer.add_to_transaction(AddToTransaction(asked, [(topic.topic_id, 0)]))
        await world.write(
            "t", Batch("lost", 1, grant.producer_id, 0, grant.producer_epoch, True), transactions=[2]
        )
        await world.lose_database()
        await world.recover()
        await world.lead()
        [known] = (await world.sequencer.transactions(TransactionsRequest(["x"]))).transactions
        for number in (-1, known.number):
            with pytest.raises(ProducerFenced):
                await world.sequencer.end_transaction(EndTransaction(asked, True, False, number))


async def test_a_consumer_at_the_end_of_an_empty_log_reads_on() -> None:
    async with started_world() as world:
        topic = await world.make_topic("t")
        await world.write("t", Batch("read", 5))
        await world.sequencer.delete_records(DeleteRecords([DeleteRecordsPartition(topic.topic_id, 0, -1)]))
        await world.checkpoint()
        await world.write("t", Batch("later"))
        await world.lose_database()
        await world.recover()
        await world.lead()
        found = await world.sequencer.find_batches(
            FindRequest([FindPartition(topic.topic_id, 0, 5, 1 << 20)])
        )
        [partition] = found.partitions
        assert partition.error is PartitionError.NONE and partition.log_start_offset == 5
        assert await world.read("t") == {"later": 5 + RESERVATION}


async def test_a_topic_that_no_checkpoint_has_comes_back_by_its_objects() -> None:
    async with started_world() as world:
        await world.make_topic("t")
        await world.checkpoint()
        world.topics["lost"] = Topic(UUID(int=99), "lost", 3, {}, 0)
        world.topics["t2"] = Topic(UUID(int=98), "t", 1, {}, 0)
        await world.upload([("lost", 2, [Batch("a")])])
        sealed = await world.upload([("t2", 0, [Batch("b")])])
        assert sealed[0].footer.runs[0].topic_name == "t2"
        kept, taken = world.topics["t"], Topic(UUID(int=97), "t", 1, {}, 0)
        world.topics["t"] = taken
        await world.upload([("t", 0, [Batch("c")])])
        await world.lose_database()
        report = await world.recover()
        await world.lead()
        named = f"t.recovered-{taken.topic_id.hex[:8]}"
        assert report.made_up_topics == ["lost", "t2", named]
        assert all(any(repr(name) in note for note in report.notes) for name in report.made_up_topics)
        assert await world.read("lost", 2) == {"a": RESERVATION}
        assert await world.read("t") == {"c": RESERVATION}
        topics = (await world.sequencer.metadata(MetadataRequest())).topics
        assert {topic.name: (topic.topic_id, topic.partitions) for topic in topics} == {
            "t": (kept.topic_id, 1), "lost": (UUID(int=99), 3), "t2": (UUID(int=98), 1), named: (UUID(int=97), 1),
        }  # fmt: skip


async def test_partitions_that_no_checkpoint_has_come_back_by_their_objects() -> None:
    async with started_world() as world:
        await world.make_topic("t")
        await world.checkpoint()
        await world.upload([("t", 2, [Batch("a")])])
        await world.lose_database()
        report = await world.recover()
        await world.lead()
        assert await world.read("t", 2) == {"a": RESERVATION}
        [topic] = (await world.sequencer.metadata(MetadataRequest())).topics
        assert topic.partitions == 3 and [one.partition for one in report.partitions] == [0, 1, 2]
        await world.write("t", Batch("b"), partition=1)
        assert world.told["t", 1, "b"] == RESERVATION


async def test_a_batch_behind_a_gap_is_stored_if_an_object_is_missing() -> None:
    async with started_world() as world:
        await world.make_topic("t")
        await world.write("t", Batch("a"))
        [missing] = [info.key async for info in world.bucket.list("c/mixed/")]
        await world.checkpoint()
        await world.upload([("t", 0, [Batch("after", 1, 7, 4)])])
        await world.bucket.delete([missing])
        await world.lose_database()
        report = await world.recover()
        assert (report.resequenced.batches, report.resequenced.out_of_sequence) == (1, 0)


async def test_a_second_loss_starts_from_the_first_recovery() -> None:
    async with started_world() as world:
        await world.make_topic("t")
        await world.write("t", Batch("a"))
        await world.checkpoint()
        await world.write("t", Batch("b"))
        await world.lose_database()
        await world.recover()
        await world.lead()
        await world.write("t", Batch("c"))
        await world.lose_database()
        report = await world.recover()
        await world.lead()
        found = await world.read("t")
        assert found["a"] == 0 and found["b"] == 1_001 and found["c"] >= 2_002
        assert report.incarnation == 3
        assert await read_cluster_file(world.bucket, "c") == ClusterFile(
            "c", 3, 1, {"mixed": 1, "parquet": 1, "checkpoint": 3}
        )


async def test_missing_and_corrupt_objects_are_reported_and_all_else_is_there() -> None:
    async with started_world() as world:
        await world.make_topic("t")
        await world.write("t", Batch("a", 2))
        await world.write("t", Batch("b"))
        await world.checkpoint()
        await world.write("t", Batch("c"))
        await world.write("t", Batch("d"))
        keys = [info.key async for info in world.bucket.list("c/mixed/")]
        await world.bucket.delete([keys[0]])
        corrupt = bytearray(await world.bucket.get(keys[2]))
        corrupt[80] ^= 1
        await world.bucket.delete([keys[2]])
        await world.bucket.put(keys[2], [corrupt])
        await world.lose_database()
        report = await world.recover()
        assert any(keys[0] in one and "offsets 0 to 1" in one for one in report.lost)
        assert any(keys[2] in one for one in report.lost)
        assert report.resequenced.records == 1


async def test_a_batch_stored_though_the_one_before_it_is_lost_is_remembered_and_nothing_else_is() -> None:
    async with started_world() as world:
        await world.make_topic("t")
        await world.write("t", Batch("a", 2, 7, 0))
        await world.checkpoint()
        _, lost = await world.upload([("t", 0, [Batch("lost", 2, 7, 2)])])
        await world.upload([("t", 0, [Batch("after", 1, 7, 4)])])
        await world.bucket.delete([lost])
        await world.bucket.put(lost, [b"corrupt"])
        await world.lose_database()
        report = await world.recover()
        assert (report.resequenced.batches, report.resequenced.duplicates) == (1, 0)
        await world.lead()
        [producer] = await world.rows.rows_after(ProducerRow, None, 10)
        assert producer.recent == [(0, 1, 0), (4, 4, 1_002)]
        await world.write("t", Batch("after", 1, 7, 4), Batch("next", 1, 7, 5))
        assert (world.told["t", 0, "after"], world.told["t", 0, "next"]) == (1_002, 1_003)


async def test_a_commit_that_a_snapshots_pages_have_and_its_head_has_not_is_resequenced() -> None:
    """The database had it, and the committer was not told yet."""

    async with started_world() as world:
        await world.make_topic("t")
        await world.write("t", Batch("a"))
        await world.checkpoint()
        write, may_be_told = world.rows.write, asyncio.Event()

        async def written_and_not_told(changes: Changes, committer_epoch: int) -> None:
            await write(changes, committer_epoch)
            await may_be_told.wait()

        world.rows.write = written_and_not_told  # type: ignore[method-assign]
        writing = asyncio.ensure_future(world.write("t", Batch("b", 2), Batch("c")))
        for _ in range(20):
            await asyncio.sleep(0)
        world.checkpointer._begin_scan()
        for _ in range(50):
            await asyncio.sleep(0)
        await world.checkpointer.export()
        may_be_told.set()
        await writing
        assert world.told["t", 0, "c"] == 3
        await world.lose_database()
        report = await world.recover()
        await world.lead()
        assert await world.read("t") == {"a": 0, "b": 1_001, "c": 1_003}
        assert report.resequenced.batches == 2 and not [one for one in report.notes if "object" in one]


async def test_an_aborted_range_whose_marker_was_swapped_away_while_a_snapshot_was_read_is_dropped() -> None:
    """Its swap is in the pages, and in no head. Consumers would drop the producer's next transaction for it."""

    async with started_world() as world:
        topic = await world.make_topic("t")
        await world.write("t", Batch("a", 9))
        await world.checkpoint()
        [run_] = await world.rows.run_rows_after(None, 1)
        ranges = [AbortedRow(topic.topic_id, 0, 7, 2, 5), AbortedRow(topic.topic_id, 0, 8, 2, 9)]
        swapped = msgspec.structs.replace(run_, kind=ObjectKind.PARQUET, batches=EMPTY_TABLE)
        planted = changes(swapped, *ranges)
        world.checkpointer.written(planted)
        await world.checkpoint()
        found = await read_checkpoints(world.bucket, "c")
        assert found.rows.all(AbortedRow) == ranges[1:]


async def test_batches_the_checkpoint_lists_as_refused_are_not_stored_when_an_object_is_missing() -> None:
    async with started_world() as world:
        await world.make_topic("t")
        await world.write("t", Batch("a"))
        [key] = [info.key async for info in world.bucket.list("c/mixed/")]
        await world.write("t", Batch("first", 1, 7, 0), Batch("early", 1, 7, 5))
        await world.checkpoint()
        await world.bucket.delete([key])
        await world.lose_database()
        report = await world.recover()
        assert (report.resequenced.records, report.resequenced.out_of_sequence) == (0, 1)


async def test_a_head_that_cannot_be_read_costs_nothing_but_a_larger_hole() -> None:
    async with started_world() as world:
        await world.make_topic("t")
        await world.write("t", Batch("a"))
        await world.checkpoint()
        await world.write("t", Batch("b", 900))
        await world.checkpoint()
        await world.write("t", Batch("c", 900))
        found = await read_checkpoints(world.bucket, "c")
        key = [info.key async for info in world.bucket.list("c/meta/") if info.key.endswith(".head")][-1]
        assert len(found.heads) > 2
        await world.bucket.delete([key])
        await world.bucket.put(key, [b"corrupt"])
        await world.lose_database()
        report = await world.recover()
        await world.lead()
        read = await world.read("t")
        assert read["a"] == 0 and min(read["b"], read["c"]) >= 1_801
        assert any(key in note for note in report.notes)


async def test_a_dry_run_touches_nothing() -> None:
    async with started_world() as world:
        await world.make_topic("t")
        await world.write("t", Batch("a"))
        await world.checkpoint()
        before = [(info.key, info.size) async for info in world.bucket.list("")]
        report = await recover(world.bucket, None, world.clock, holder="r", is_watched=False)
        assert report.is_dry_run and report.certain["offsets"] == 1
        assert [(info.key, info.size) async for info in world.bucket.list("")] == before


async def test_only_an_empty_database_without_a_committer_is_touched() -> None:
    async with started_world() as world:
        await world.make_topic("t")
        await world.checkpoint()
        with pytest.raises(RecoveryRefused, match="not empty"):
            await world.recover()
        await world.lose_database()
        assert await world.rows.take_committer_lease("somebody", "there:1", 10_000)
        with pytest.raises(RecoveryRefused, match="there:1"):
            await world.recover()
        world.clock.advance(11)
        epoch = await world.rows.take_committer_lease("x", "", 1)
        assert epoch is not None
        await world.rows.write(changes(TopicRow(UUID(int=1), "t", 1, {}, 0)), epoch)
        world.clock.advance(1)
        with pytest.raises(RecoveryRefused, match="topic"):
            await world.recover()


async def test_a_cluster_that_lives_is_not_recovered() -> None:
    async with started_world() as world:
        await world.make_topic("t")
        await world.checkpoint()
        live = world.checkpointer
        await world.write("t", Batch("a"))
        world.rows = HookedRowStore(world.clock, cluster_id="new")
        recovery = asyncio.ensure_future(world.recover(is_watched=True))
        for _ in range(50):
            await asyncio.sleep(0)
        await live.export()
        world.clock.advance(3)
        with pytest.raises(RecoveryRefused, match="alive"):
            await recovery


async def test_a_cluster_that_is_alive_and_idle_is_not_recovered() -> None:
    async with started_world() as world:
        await world.make_topic("t")
        live, agent = world.sequencer, await world.sequencer.register_agent(AGENT)
        await world.checkpoint()
        world.rows = HookedRowStore(world.clock, cluster_id="new")
        recovery = asyncio.ensure_future(world.recover(is_watched=True))
        for _ in range(IDLE_INTERVAL_MS // 1000 + 5):
            if recovery.done():
                break
            for _ in range(50):
                await asyncio.sleep(0)
            world.clock.advance(1)
            await live.renew_agent(RenewAgent(agent.broker_id, agent.epoch))
            await world.checkpointer.export()
        with pytest.raises(RecoveryRefused, match="alive"):
            await recovery


async def test_a_cluster_that_has_been_dead_for_a_while_is_recovered_soon() -> None:
    async with started_world() as world:
        await world.make_topic("t")
        await world.checkpoint()
        await world.lose_database()
        world.clock.advance(IDLE_INTERVAL_MS / 1000)
        recovery = asyncio.ensure_future(world.recover(is_watched=True))
        for _ in range(3):
            for _ in range(50):
                await asyncio.sleep(0)
            world.clock.advance(1)
        assert (await recovery).certain["topics"] == 1


async def test_the_old_committer_is_refused_after_a_recovery_elsewhere() -> None:
    async with started_world() as world:
        await world.make_topic("t")
        await world.checkpoint()
        old, old_checkpointer = world.sequencer, world.checkpointer
        await world.write("t", Batch("a"))
        world.rows = HookedRowStore(world.clock, cluster_id="new")
        await world.recover()
        with pytest.raises(IncarnationChanged):
            await old_checkpointer.export()
        with pytest.raises(IncarnationChanged):
            await old.create_topic(CreateTopic("u", 1, {}))
        assert isinstance(old.lost, IncarnationChanged)


async def test_a_database_that_is_half_filled_serves_nobody() -> None:
    async with started_world() as world:
        await world.make_topic("t")
        await world.checkpoint()
        await world.lose_database()
        world.rows.fail_next_write("before")
        with pytest.raises(Exception, match="made to fail"):
            await world.recover()
        with pytest.raises(IncarnationChanged, match="recover"):
            await world.lead()


async def test_an_empty_bucket_and_an_unknown_cluster_are_refused() -> None:
    async with started_world() as world:
        nothing = MemoryStore(world.clock)
        with pytest.raises(RecoveryRefused):
            await recover(nothing, None, world.clock, holder="r")
        with pytest.raises(RecoveryRefused, match="'c'"):
            await recover(world.bucket, None, world.clock, holder="r", cluster_id="other")


async def test_counters_continue_above_all_that_was_given_out() -> None:
    async with started_world() as world:
        await world.make_topic("t")
        await world.checkpoint()
        given = [(await world.sequencer.init_producer(InitProducer())).producer_id for _ in range(3)]
        await world.lose_database()
        await world.recover()
        counters = {row.name: row.value for row in (await world.rows.load())[CounterRow]}  # type: ignore[attr-defined]
        assert counters["producer_id"] > max(given) and counters["commit_number"] > 1 << 32
        [hole] = await world.rows.run_rows_after(None, 2)
        assert hole.kind is ObjectKind.MARKERS and hole.object_id == NO_OBJECT
        assert (hole.start, hole.length, hole.max_timestamp) == (0, 0, -1)
        assert not [
            row for row in await world.rows.objects_after("", 9) if isinstance(row, RunRow | ObjectRow)
        ]


async def test_a_cluster_is_found_beside_objects_of_other_programs() -> None:
    class Shared(MemoryStore):
        """A bucket with keys that no object of ours may have."""

        async def list_prefixes(self, prefix: str) -> Sequence[str]:
            check_prefix(prefix)
            if not prefix:
                return ["/", "c/", "\u00fcbersicht/"]
            return await super().list_prefixes(prefix)

    bucket = Shared(ManualClock())
    await bucket.put("c/meta/1/head", [b"x"])
    assert await find_cluster(bucket, None) == await find_cluster(bucket, "c") == "c"
    with pytest.raises(RecoveryRefused, match="'d'; it has \\['c'\\]"):
        await find_cluster(bucket, "d")
