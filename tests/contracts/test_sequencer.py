"""The contract of every sequencer, over every row store and over RPC."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from uuid import UUID

import msgspec
import pytest

from sequencer.api.agents import AgentLease, AgentRef, RenewAgent
from sequencer.api.commits import (
    BatchError,
    BatchStatus,
    CommitAnswer,
    CommitRequest,
    ObjectDescription,
    ObjectKind,
    OpenSession,
    SessionRef,
    uploaded_key,
)
from sequencer.api.compaction import (
    CompactionRequest,
    PinTable,
    ReleaseTable,
    SwapRequest,
    TablePinsRequest,
    TakeLease,
)
from sequencer.api.errors import (
    CommitOutOfOrder,
    GroupNotEmpty,
    InvalidRequest,
    LeaseLost,
    LimitReached,
    NotTokenOwner,
    RequestFailed,
    SequencerUnavailable,
    SessionClosed,
    StaleGroup,
    SwapRefused,
    TokenExpired,
    TopicExists,
    UnknownGroup,
    UnknownToken,
    UnknownTopic,
)
from sequencer.api.groups import (
    SHARE_GROUP,
    CommitOffsets,
    DeleteOffsets,
    FetchOffsets,
    GroupRef,
    GroupState,
    LagsRequest,
    ListGroups,
    LoadGroup,
    LocateGroup,
    OffsetPosition,
    SaveGroup,
    first_turn,
)
from sequencer.api.objects import SizesRequest
from sequencer.api.producers import InitProducer
from sequencer.api.reads import (
    EpochQuery,
    EpochRequest,
    FeedRequest,
    OffsetSpec,
    PartitionError,
    Run,
    WatchRequest,
)
from sequencer.api.retention import (
    DeleteRecords,
    DeleteRecordsPartition,
    ForgetObjects,
    GarbageRequest,
    KnownKeys,
    SweptSession,
)
from sequencer.api.security import AlterToken, CreateToken, Tokens, TokensRequest
from sequencer.api.share_groups import (
    AcquireSpan,
    AlterShareOffsets,
    ShareLimits,
    ShareOffset,
    ShareOffsetsRequest,
    ShareRequest,
    ShareWork,
)
from sequencer.api.topics import (
    AlterConfig,
    ConfigChange,
    ConfigOperation,
    ConfigScope,
    CreatePartitions,
    CreateTopic,
    DeleteTopic,
    MetadataRequest,
)
from sequencer.api.values import Empty
from sequencer.engine.committer import Committer
from sequencer.rules.upload_sessions import COMPACTOR_BROKER_ID, COMPACTOR_LEASE
from sequencer.settings import SequencerSettings
from sequencer.store.rows import AnswerRow
from tests.support.clocks import SeededEntropy
from tests.support.hooked_rows import HookedRowStore
from tests.support.listings import all_tokens
from tests.support.sequencer_bench import (
    SETTINGS,
    STORED,
    T0,
    Bench,
    batch,
    info,
    opened_bench,
    outcomes,
    prepare_swap,
    settle,
)
from tests.support.sequencers import Factory, memory

DAY_MS = 24 * 3_600_000


async def _kept_answers(store: HookedRowStore) -> list[AnswerRow]:
    return [row for row in (await store.load())[AnswerRow] if isinstance(row, AnswerRow)]


async def test_batches_get_contiguous_offsets_and_are_found_again(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        assert await bench.commit(batch(3), batch(2)) == [(STORED, 0), (STORED, 3)]
        assert await bench.commit(batch(4)) == [(STORED, 5)]

        found = await bench.find(4)
        assert (found.log_start_offset, found.high_watermark, found.last_stable_offset) == (0, 9, 9)
        assert [(one.base_offset, one.end_offset) for one in found.runs] == [(0, 5), (5, 9)]
        assert [one.base_offset for one in found.runs[0].batches] == [0, 3]
        assert found.runs[0].key == uploaded_key(bench.session.prefix, 0)
        assert len((await bench.find(0, max_bytes=1)).runs) == 1


async def test_the_end_is_in_range_and_what_is_past_it_is_not(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        await bench.commit(batch(3))
        at_end, past = await bench.find(3), await bench.find(4)
        assert (at_end.error, at_end.runs) == (PartitionError.NONE, [])
        assert (past.error, past.high_watermark) == (PartitionError.OFFSET_OUT_OF_RANGE, 3)


async def test_a_commit_sent_twice_is_applied_once(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        request = bench.request(batch(3))
        first, second = await asyncio.gather(bench.sequencer.commit(request), bench.sequencer.commit(request))
        assert first == second == await bench.sequencer.commit(request)
        assert (await bench.find()).high_watermark == 3


async def test_an_object_without_a_stored_batch_is_garbage_and_has_no_run(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        unknown = [(BatchError.UNKNOWN_TOPIC_OR_PARTITION, -1)]
        assert await bench.commit(batch(), partition=7) == unknown
        statistics = await bench.sequencer.statistics(Empty())
        assert (statistics.runs, statistics.uncompacted_bytes, statistics.retired_objects) == (0, 0, 1)
        await bench.advance(SETTINGS.deletion_grace_ms + 1)
        (garbage,) = (await bench.sequencer.garbage(GarbageRequest(10))).objects
        await bench.sequencer.forget_objects(ForgetObjects([garbage[0]]))


async def test_an_answer_is_kept_until_the_caller_has_it(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        requests = [bench.request(batch()) for _ in range(2)]
        answers = [await bench.sequencer.commit(request) for request in requests]
        last = msgspec.structs.replace(bench.request(batch()), answered_below=1)
        await bench.sequencer.commit(last)
        assert await bench.sequencer.commit(requests[1]) == answers[1]
        with pytest.raises(CommitOutOfOrder):
            await bench.sequencer.commit(requests[0])


async def test_numbers_are_applied_in_order_whatever_order_they_come_in(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        first, second, third = (bench.request(batch(size)) for size in (1, 2, 3))
        late = [asyncio.create_task(bench.sequencer.commit(one)) for one in (third, second)]
        await settle()
        assert not any(task.done() for task in late)
        assert outcomes(await bench.sequencer.commit(first)) == [(STORED, 0)]
        assert [outcomes(await task) for task in late] == [[(STORED, 3)], [(STORED, 1)]]


async def test_an_early_number_waits_only_so_long(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        early = asyncio.create_task(bench.sequencer.commit(bench.request(batch(), number=1)))
        for _ in range(500):  # stores with threads need real time; leases must last
            if early.done():
                break
            await bench.advance(200)
            await asyncio.sleep(0.01)
        assert early.done()
        with pytest.raises(CommitOutOfOrder, match="expected 0"):
            await early


async def test_an_upload_that_failed_is_committed_empty(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        answer = await bench.sequencer.commit(CommitRequest(bench.session.session_id, 0, 0, None, []))
        assert answer.runs == []
        bench.numbers[bench.session.session_id] = 1
        assert await bench.commit(batch()) == [(STORED, 0)]


async def test_a_closed_session_takes_nothing_but_answers_what_it_knows(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        known = bench.request(batch())
        answer = await bench.sequencer.commit(known)
        await bench.sequencer.close_session(SessionRef(bench.session.session_id))
        assert await bench.sequencer.commit(known) == answer
        unknown = msgspec.structs.replace(bench.session, session_id=UUID(int=404))
        for session in (bench.session, unknown):
            with pytest.raises(SessionClosed):
                await bench.commit(batch(), session=session)


async def test_a_session_that_is_closed_again_or_unknown_stays_as_it_was(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        session = SessionRef(bench.session.session_id)
        await bench.sequencer.close_session(session)
        dead = (await bench.sequencer.garbage(GarbageRequest(10))).sessions
        await bench.advance(5)
        for again in (session, SessionRef(UUID(int=404))):
            await bench.sequencer.close_session(again)
        assert (await bench.sequencer.garbage(GarbageRequest(10))).sessions == dead


async def test_a_session_is_opened_only_under_a_live_lease_of_its_epoch(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        agent, compactor = bench.agent, COMPACTOR_BROKER_ID

        async def refused(broker_id: int, *epochs: int) -> None:
            for epoch in epochs:
                with pytest.raises(LeaseLost):
                    await bench.sequencer.open_session(OpenSession(broker_id, epoch))

        await refused(agent.broker_id, agent.epoch - 1, agent.epoch + 1)
        await refused(agent.broker_id + 7, agent.epoch)
        await refused(compactor, 0, 1)
        lease = await bench.sequencer.take_lease(TakeLease(COMPACTOR_LEASE, "me", 0, 60_000))
        await refused(compactor, lease.epoch - 1, lease.epoch + 1)
        await bench.sequencer.open_session(OpenSession(compactor, lease.epoch))
        await bench.advance(60_000)
        await refused(compactor, lease.epoch)
        await bench.sequencer.register_agent(msgspec.structs.replace(info("a"), instance=UUID(int=77)))
        await refused(agent.broker_id, agent.epoch)


async def test_an_expired_session_is_closed_for_good(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        bench.opened.clock.advance(SETTINGS.session_lease_ms / 1000)
        with pytest.raises(SessionClosed):
            await bench.commit(batch())  # though nothing has closed it yet
        await bench.advance(0)
        with pytest.raises(SessionClosed):
            await bench.commit(batch())
        with pytest.raises(SessionClosed):
            await bench.sequencer.renew_session(SessionRef(bench.session.session_id))


async def test_a_sessions_first_commit_closes_its_predecessor(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        await bench.commit(batch())
        later = await bench.open(bench.session.session_id)
        await bench.commit(batch())
        await bench.commit(batch(), session=later)
        with pytest.raises(SessionClosed):
            await bench.commit(batch())


async def test_an_idempotent_batch_is_stored_once_also_through_another_session(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        producer = (await bench.sequencer.init_producer(InitProducer())).producer_id
        other = await bench.open()
        first = batch(5, producer=producer, sequence=0)
        assert await bench.commit(first) == [(STORED, 0)]
        assert await bench.commit(first, session=other) == [(BatchError.DUPLICATE, 0)]
        mixed = await bench.commit(first, batch(2, producer=producer, sequence=5), session=other)
        assert mixed == [(BatchError.DUPLICATE, 0), (STORED, 5)]
        table = (await bench.find(5)).runs[0].batches
        assert [one.status for one in table] == [BatchStatus.DUPLICATE, BatchStatus.STORED]
        assert (await bench.find()).high_watermark == 7


async def test_a_gap_closes_when_the_missing_batch_comes_and_the_other_is_retried(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        producer = (await bench.sequencer.init_producer(InitProducer())).producer_id
        await bench.commit(batch(producer=producer, sequence=0))
        early = batch(producer=producer, sequence=2)
        stored = bench.stored(bench.session, 1)  # it is uploaded once: the retry names it again
        assert await bench.commit(early, stored=stored) == [(BatchError.SEQUENCE_GAP, -1)]
        assert (await bench.sequencer.statistics(Empty())).retired_objects == 1
        assert await bench.commit(batch(producer=producer, sequence=1)) == [(STORED, 1)]
        assert await bench.commit(early, stored=stored) == [(STORED, 2)]
        statistics = await bench.sequencer.statistics(Empty())
        assert (statistics.retired_objects, statistics.objects, statistics.runs) == (0, 3, 3)


async def test_a_gap_that_may_be_skipped_closes_by_itself_and_what_was_missing_is_not_stored_later(
    factory: Factory,
) -> None:
    async with opened_bench(factory) as bench:
        producer = (await bench.sequencer.init_producer(InitProducer())).producer_id
        await bench.commit(batch(producer=producer, sequence=0))
        early, stored = batch(producer=producer, sequence=2), bench.stored(bench.session)
        assert await bench.commit(early, stored=stored) == [(BatchError.SEQUENCE_GAP, -1)]
        request = bench.request(early, stored=stored)
        (run_,) = request.runs
        skipping = msgspec.structs.replace(request, runs=[msgspec.structs.replace(run_, may_skip=True)])
        (outcome,) = (await bench.sequencer.commit(skipping)).runs[0].outcomes
        assert (outcome.error, outcome.base_offset) == (STORED, 1)
        late = await bench.commit(batch(producer=producer, sequence=1))
        assert late == [(BatchError.OUT_OF_ORDER_SEQUENCE, -1)]
        assert await bench.commit(batch(producer=producer, sequence=3)) == [(STORED, 2)]


async def test_a_new_object_under_the_id_of_another_is_refused_alone(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        first = bench.stored(bench.session, 0)
        assert await bench.commit(batch(), stored=first) == [(BatchError.NONE, 0)]
        other = await bench.open()
        again = msgspec.structs.replace(first, key=uploaded_key(bench.session.prefix, 1))
        refused, stored = await asyncio.gather(
            bench.sequencer.commit(bench.request(batch(), stored=again)),
            bench.sequencer.commit(bench.request(batch(), session=other, number=0)),
            return_exceptions=True,
        )
        assert isinstance(refused, RequestFailed)
        assert isinstance(stored, CommitAnswer)
        for changed in ({"key": f"{first.key}0"}, {"size": first.size + 1, "key": first.key}):
            described = msgspec.structs.replace(first, **changed)
            with pytest.raises(InvalidRequest, match="is stored as"):
                await bench.sequencer.commit(bench.request(batch(), number=1, stored=described))
        assert [run.key for run in (await bench.find(0)).runs] == [first.key, uploaded_key(other.prefix, 0)]


@pytest.mark.parametrize("number", [0, 9], ids=["earlier", "later"])
async def test_an_object_of_another_commit_that_has_no_row_is_refused(factory: Factory, number: int) -> None:
    async with opened_bench(factory) as bench:
        await bench.sequencer.commit(CommitRequest(bench.session.session_id, 0, 0, None, []))
        gone = bench.stored(bench.session, number)
        refused = await bench.sequencer.commit(bench.request(batch(), number=1, stored=gone))
        assert outcomes(refused) == [(BatchError.OUT_OF_ORDER_SEQUENCE, -1)]
        other = await bench.open()
        refused = await bench.sequencer.commit(bench.request(batch(), session=other, number=0, stored=gone))
        assert outcomes(refused) == [(BatchError.OUT_OF_ORDER_SEQUENCE, -1)]
        assert (await bench.sequencer.statistics(Empty())).objects == 0
        assert await bench.commit(batch(), session=other, number=1) == [(STORED, 0)]


async def test_an_object_that_may_be_collected_while_its_row_is_written_is_not_revived(
    factory: Factory,
) -> None:
    async with opened_bench(factory) as bench:
        producer = (await bench.sequencer.init_producer(InitProducer())).producer_id
        await bench.commit(batch(producer=producer, sequence=0))
        early = batch(producer=producer, sequence=2)
        stored = bench.stored(bench.session)
        assert await bench.commit(early, stored=stored) == [(BatchError.SEQUENCE_GAP, -1)]
        assert await bench.commit(batch(producer=producer, sequence=1)) == [(STORED, 1)]

        for _ in range(2):
            await bench.advance(SETTINGS.deletion_grace_ms // 4 + 1)
            await bench.sequencer.renew_session(SessionRef(bench.session.session_id))

        refused = await bench.commit(early, stored=stored)
        assert refused == [(BatchError.OUT_OF_ORDER_SEQUENCE, -1)]
        assert (await bench.sequencer.statistics(Empty())).retired_objects == 1


async def test_producers_without_state_begin_at_zero_and_old_epochs_are_refused(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        assert await bench.commit(batch(producer=7, sequence=3)) == [(BatchError.UNKNOWN_PRODUCER_ID, -1)]
        assert await bench.commit(batch(producer=7, epoch=2, sequence=0)) == [(STORED, 0)]
        refused = await bench.commit(batch(producer=7, epoch=1, sequence=1))
        assert refused == [(BatchError.INVALID_PRODUCER_EPOCH, -1)]
        assert await bench.commit(batch(producer=7, epoch=1, sequence=0), partition=1) == [(STORED, 0)]


async def test_a_deleted_topic_made_again_starts_empty(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        old = bench.topic
        await bench.commit(batch(3))
        position = OffsetPosition(old.topic_id, 0, 2, -1, "")
        await bench.sequencer.commit_offsets(CommitOffsets("g", -1, -1, -1, "", [position]))
        with pytest.raises(TopicExists, match=r"^Topic 't' already exists\.$"):
            await bench.sequencer.create_topic(CreateTopic("t", 1, {}))
        await bench.sequencer.delete_topic(DeleteTopic(old.topic_id))
        bench.topic = await bench.sequencer.create_topic(CreateTopic("t", 1, {}))

        assert bench.topic.topic_id != old.topic_id
        assert (await bench.find()).high_watermark == 0
        unknown = BatchError.UNKNOWN_TOPIC_OR_PARTITION
        assert await bench.commit(batch(), topic=old) == [(unknown, -1)]
        assert (await bench.sequencer.fetch_offsets(FetchOffsets("g", None))).positions == []
        summary = await bench.sequencer.apply_retention(Empty())
        assert (summary.runs_removed, summary.objects_retired) == (1, 1)


async def test_times_are_found_also_behind_a_record_from_2099(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        far = 4_070_908_800_000
        for at in (T0, far, T0 + 10, T0 + 20):
            await bench.commit(batch(2, at=at))
        for timestamp, base in ((T0, 0), (T0 + 1, 2), (far, 2)):
            found = await bench.look_up(timestamp)
            assert found.run is not None and found.run.base_offset == base
        assert (await bench.look_up(far + 1)).run is None
        latest = await bench.look_up(OffsetSpec.MAX_TIMESTAMP)
        assert latest.run is not None and latest.run.base_offset == 2
        asked = DeleteRecordsPartition(bench.topic.topic_id, 0, 4)
        await bench.sequencer.delete_records(DeleteRecords([asked]))
        found = await bench.look_up(T0 + 15)
        assert found.run is not None and found.run.base_offset == 6
        assert (await bench.look_up(OffsetSpec.EARLIEST)).offset == 4
        assert (await bench.look_up(OffsetSpec.LATEST)).offset == 8


async def test_epochs_end_where_the_log_does(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        await bench.commit(batch(3))
        queries = [EpochQuery(bench.topic.topic_id, 0, epoch) for epoch in (0, 9)]
        results = (await bench.sequencer.offsets_for_epochs(EpochRequest(queries))).results
        assert [(one.leader_epoch, one.end_offset) for one in results] == [(0, 3), (-1, -1)]


async def test_retention_removes_old_runs_and_retires_their_objects(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        bench.topic = await bench.sequencer.create_topic(CreateTopic("short", 1, {"retention.ms": "1000"}))
        await bench.commit(batch(2, at=T0))
        await bench.commit(batch(2, at=T0 + 6_000))
        await bench.advance(5_000)
        summary = await bench.sequencer.apply_retention(Empty())
        assert (summary.runs_removed, summary.objects_retired, summary.partitions_moved) == (1, 1, 1)
        assert (await bench.find(2)).log_start_offset == 2
        assert (await bench.sequencer.garbage(GarbageRequest(10))).objects == []
        await bench.advance(SETTINGS.deletion_grace_ms + 1)
        objects = (await bench.sequencer.garbage(GarbageRequest(10))).objects
        assert len(objects) == 1
        await bench.sequencer.forget_objects(ForgetObjects([objects[0][0]]))
        assert (await bench.sequencer.known_keys(KnownKeys([objects[0][1]]))).keys == []


async def test_an_object_that_is_live_or_in_its_grace_period_is_not_forgotten(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        bench.topic = await bench.sequencer.create_topic(CreateTopic("short", 1, {"retention.ms": "1000"}))
        old, new = [bench.request(batch(2, at=at)) for at in (T0, T0 + 6_000)]
        await bench.sequencer.commit(old)
        await bench.sequencer.commit(new)
        assert old.object is not None and new.object is not None
        await bench.advance(5_000)
        await bench.sequencer.apply_retention(Empty())
        await bench.advance(SETTINGS.deletion_grace_ms - 1)
        keys = [old.object.key, new.object.key]
        for described in (old.object, new.object):
            with pytest.raises(InvalidRequest):
                await bench.sequencer.forget_objects(ForgetObjects([described.object_id]))
        assert (await bench.sequencer.known_keys(KnownKeys(keys))).keys == keys
        await bench.advance(1)
        with pytest.raises(InvalidRequest):
            await bench.sequencer.forget_objects(ForgetObjects([old.object.object_id, new.object.object_id]))
        assert (await bench.sequencer.known_keys(KnownKeys(keys))).keys == keys, "all or none"
        await bench.sequencer.forget_objects(ForgetObjects([old.object.object_id]))
        assert (await bench.sequencer.known_keys(KnownKeys(keys))).keys == keys[1:]


async def test_retention_by_bytes_keeps_what_was_promised(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        bench.topic = await bench.sequencer.create_topic(CreateTopic("small", 1, {"retention.bytes": "250"}))
        for _ in range(5):
            await bench.commit(batch())
        await bench.sequencer.apply_retention(Empty())
        size = (await bench.sequencer.sizes(SizesRequest([bench.topic.topic_id]))).sizes[0]
        assert (size.bytes, size.runs, size.log_start_offset) == (300, 3, 2)


async def test_a_token_is_found_until_it_expires(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        first = CreateToken("a" * 64, "one", "User:alice", "User:root", ["User:bob"], 2 * DAY_MS, DAY_MS)
        second = CreateToken("b" * 64, "two", "User:carol", "User:carol", [], 2 * DAY_MS, DAY_MS)
        created = [await bench.sequencer.create_token(each) for each in (first, second)]
        for principal, expected in ((None, created), ("User:bob", created[:1]), ("User:mallory", [])):
            assert await all_tokens(bench.sequencer, principal) == expected
        renewal = AlterToken("b" * 64, "User:carol", 2 * DAY_MS)
        renewed = await bench.sequencer.alter_token(renewal)
        assert renewed.expires_ms == created[1].max_ms
        with pytest.raises(NotTokenOwner):
            await bench.sequencer.alter_token(AlterToken("b" * 64, "User:bob", DAY_MS))
        with pytest.raises(UnknownToken):
            await bench.sequencer.alter_token(AlterToken("c" * 64, "User:bob", DAY_MS))
        await bench.advance(DAY_MS)
        with pytest.raises(TokenExpired):
            await bench.sequencer.alter_token(AlterToken("a" * 64, "User:bob", DAY_MS))
        assert await bench.sequencer.tokens(TokensRequest("a" * 64)) == Tokens([])
        left = msgspec.structs.replace(renewed, left_ms=DAY_MS)
        assert await bench.sequencer.tokens(TokensRequest("b" * 64)) == Tokens([left])
        assert await all_tokens(bench.sequencer, None) == [left]
        await bench.sequencer.apply_retention(Empty())
        assert await all_tokens(bench.sequencer, None) == [left]


async def test_a_dead_sessions_row_goes_after_two_empty_sweeps(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        session = bench.session.session_id
        await bench.sequencer.close_session(SessionRef(session))
        for _ in range(2):
            dead = (await bench.sequencer.garbage(GarbageRequest(10))).sessions
            assert [one.session_id for one in dead] == [session]
            await bench.sequencer.session_swept(SweptSession(session, True))
            assert (await bench.sequencer.garbage(GarbageRequest(10))).sessions == []
            await bench.advance(SETTINGS.sweep_interval_ms)
        assert (await bench.sequencer.statistics(Empty())).dead_sessions == 0


async def test_a_swap_puts_one_run_in_the_place_of_many_once(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        request = await prepare_swap(bench)
        answer = await bench.sequencer.swap(request)
        assert await bench.sequencer.swap(request) == answer
        runs = (await bench.find(3)).runs
        assert [(one.base_offset, one.end_offset, one.kind) for one in runs] == [(0, 6, ObjectKind.PARQUET)]
        assert (await bench.sequencer.statistics(Empty())).retired_objects == 3
        assert (await bench.sequencer.compaction_candidates(CompactionRequest(0, 0, 9))).candidates == []


async def test_a_swap_of_runs_that_have_changed_is_refused(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        request = await prepare_swap(bench)
        await bench.sequencer.swap(request)
        stored = ObjectDescription(
            UUID(int=998), ObjectKind.PARQUET, request.object.key + "q", 500, 0, 400, T0
        )
        again = SwapRequest(UUID(int=78), request.lease_epoch, request.session_id, stored, request.runs)
        with pytest.raises(SwapRefused):
            await bench.sequencer.swap(again)
        late = SwapRequest(UUID(int=79), request.lease_epoch + 1, request.session_id, stored, request.runs)
        with pytest.raises(SwapRefused):
            await bench.sequencer.swap(late)


async def test_a_swap_that_would_lose_or_misplace_records_is_refused(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        request = await prepare_swap(bench)
        other = await bench.sequencer.create_topic(CreateTopic("other", 1, {}))
        (run_,) = request.runs
        replaced = msgspec.structs.replace
        mixed_id = run_.replaced[0][1]
        for described in (
            replaced(request.object, kind=ObjectKind.MIXED),
            replaced(request.object, key=f"elsewhere/{request.object.key}"),
            replaced(request.object, object_id=mixed_id),
        ):
            with pytest.raises(InvalidRequest):
                await bench.sequencer.swap(replaced(request, object=described))
        for runs in (
            [replaced(run_, base_offset=1)],
            [replaced(run_, replaced=[])],
            [replaced(run_, max_timestamp=T0 + 1)],
            [run_, replaced(run_, topic_id=other.topic_id)],
        ):
            with pytest.raises(InvalidRequest):
                await bench.sequencer.swap(replaced(request, runs=runs))
        for end_offset in (5, 7):
            with pytest.raises(SwapRefused):
                await bench.sequencer.swap(replaced(request, runs=[replaced(run_, end_offset=end_offset)]))
        assert [run.base_offset for run in (await bench.find(0)).runs] == [0, 2, 4]
        await bench.sequencer.swap(request)
        assert [(run.base_offset, run.end_offset) for run in (await bench.find(0)).runs] == [(0, 6)]


async def test_running_maxima_do_not_fall_where_a_swap_puts_a_run(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        await bench.commit(batch(2, at=T0 + 9))
        request = await prepare_swap(bench)
        await bench.sequencer.swap(renamed(request, 998, (await bench.find(2)).runs[1:]))
        found = (await bench.find(0)).runs
        assert [(run.base_offset, run.max_timestamp, run.running_max_timestamp) for run in found] == [
            (0, T0 + 9, T0 + 9),
            (2, T0, T0 + 9),
            (4, T0, T0 + 9),
        ]


@pytest.mark.parametrize("log_start", [1, 2, 3, 6])
@pytest.mark.parametrize("is_removed", [False, True], ids=["still there", "removed"])
async def test_a_swap_over_the_log_start_takes_what_is_below_it_as_it_is(
    factory: Factory, log_start: int, is_removed: bool
) -> None:
    async with opened_bench(factory) as bench:
        request = await prepare_swap(bench)
        place = DeleteRecordsPartition(bench.topic.topic_id, 0, log_start)
        await bench.sequencer.delete_records(DeleteRecords([place]))
        if is_removed:
            await bench.sequencer.apply_retention(Empty())
        await bench.sequencer.swap(request)
        found = await bench.find(log_start)
        assert [(run.end_offset, run.kind) for run in found.runs] == [(6, ObjectKind.PARQUET)][
            : 6 - log_start
        ]
        assert (found.log_start_offset, found.high_watermark) == (log_start, 6)
        await bench.sequencer.apply_retention(Empty())
        statistics = await bench.sequencer.statistics(Empty())
        assert (statistics.runs, statistics.retired_objects) == ((0, 4) if log_start == 6 else (1, 3))


async def test_a_swap_over_runs_below_the_log_start_that_have_changed_is_refused(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        request = await prepare_swap(bench)
        (candidate,) = (await bench.sequencer.compaction_candidates(CompactionRequest(1, 0, 100))).candidates
        await bench.sequencer.swap(renamed(request, 998, candidate.runs[:2]))
        await bench.sequencer.delete_records(
            DeleteRecords([DeleteRecordsPartition(bench.topic.topic_id, 0, 4)])
        )
        with pytest.raises(SwapRefused):
            await bench.sequencer.swap(request)


async def two_small_objects(bench: Bench) -> SwapRequest:
    """Store two Parquet objects of one partition; returns the swap that would merge them."""
    first = await prepare_swap(bench)
    await bench.sequencer.swap(first)
    for _ in range(2):
        await bench.commit(batch(2))
    (candidate,) = (await bench.sequencer.compaction_candidates(CompactionRequest(1, 0, 100))).candidates
    second = renamed(first, 998, candidate.runs)
    await bench.sequencer.swap(second)
    (merge,) = (await bench.sequencer.compaction_candidates(MERGES)).merges
    assert [(run.base_offset, run.end_offset) for run in merge.runs] == [(0, 6), (6, 10)]
    return renamed(first, 997, merge.runs)


MERGES = CompactionRequest(0, 0, 100, is_of_merges=True)


def renamed(swap: SwapRequest, number: int, runs: Sequence[Run]) -> SwapRequest:
    """Make a swap by which another object replaces these runs of partition 0."""
    described = msgspec.structs.replace(
        swap.object, object_id=UUID(int=number), key=f"{swap.object.key}{number}"
    )
    replaced = [(run.base_offset, run.object_id) for run in runs]
    replacement = msgspec.structs.replace(
        swap.runs[0], base_offset=runs[0].base_offset, end_offset=runs[-1].end_offset, replaced=replaced
    )
    return msgspec.structs.replace(swap, swap_id=UUID(int=number), object=described, runs=[replacement])


async def test_a_merge_puts_one_parquet_run_in_the_place_of_many_and_makes_nothing_younger(
    factory: Factory,
) -> None:
    async with opened_bench(factory) as bench:
        merge = await two_small_objects(bench)
        before = (await bench.find(0)).runs
        answer = await bench.sequencer.swap(merge)
        assert await bench.sequencer.swap(merge) == answer
        (run,) = (await bench.find(0)).runs
        assert (run.base_offset, run.end_offset, run.object_id) == (0, 10, UUID(int=997))
        assert run.created_ms == before[-1].created_ms
        assert run.running_max_timestamp == before[-1].running_max_timestamp
        assert (await bench.sequencer.compaction_candidates(MERGES)).merges == []
        assert (await bench.sequencer.statistics(Empty())).retired_objects == 7


async def test_a_merge_of_other_runs_than_are_there_is_refused_as_a_whole(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        merge = await two_small_objects(bench)
        (replacement,) = merge.runs
        lost = msgspec.structs.replace(replacement, replaced=replacement.replaced[:1])
        with pytest.raises(SwapRefused):
            await bench.sequencer.swap(msgspec.structs.replace(merge, runs=[lost]))
        short = msgspec.structs.replace(replacement, end_offset=9)
        with pytest.raises(SwapRefused):
            await bench.sequencer.swap(msgspec.structs.replace(merge, runs=[short]))
        with pytest.raises(SwapRefused):
            await bench.sequencer.swap(msgspec.structs.replace(merge, lease_epoch=merge.lease_epoch + 1))
        elsewhere = msgspec.structs.replace(replacement, topic_id=UUID(int=5))
        with pytest.raises(InvalidRequest):
            await bench.sequencer.swap(msgspec.structs.replace(merge, runs=[replacement, elsewhere]))
        assert len((await bench.find(0)).runs) == 2
        await bench.sequencer.swap(merge)


async def test_a_merge_revives_nothing_that_retention_removed_meanwhile(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        merge = await two_small_objects(bench)
        asked = DeleteRecordsPartition(bench.topic.topic_id, 0, 6)
        await bench.sequencer.delete_records(DeleteRecords([asked]))
        await bench.sequencer.apply_retention(Empty())
        assert (await bench.sequencer.compaction_candidates(MERGES)).merges == []
        await bench.sequencer.swap(merge)
        assert (await bench.find(0)).error is PartitionError.OFFSET_OUT_OF_RANGE
        found = await bench.find(6)
        assert (found.log_start_offset, [one.object_id.int for one in found.runs]) == (6, [997])


async def test_a_swap_revives_nothing_that_was_deleted_meanwhile(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        request = await prepare_swap(bench)
        asked = DeleteRecordsPartition(bench.topic.topic_id, 0, 4)
        await bench.sequencer.delete_records(DeleteRecords([asked]))
        await bench.sequencer.apply_retention(Empty())
        await bench.sequencer.swap(request)
        found = await bench.find(4)
        assert (found.log_start_offset, [one.kind for one in found.runs]) == (4, [ObjectKind.PARQUET])
        assert (await bench.find(0)).error is PartitionError.OFFSET_OUT_OF_RANGE


async def test_a_swap_for_a_deleted_topic_leaves_only_garbage(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        request = await prepare_swap(bench)
        await bench.sequencer.delete_topic(DeleteTopic(bench.topic.topic_id))
        await bench.sequencer.swap(request)
        await bench.sequencer.apply_retention(Empty())
        statistics = await bench.sequencer.statistics(Empty())
        assert (statistics.runs, statistics.live_bytes, statistics.retired_objects) == (0, 0, 4)


async def test_a_process_keeps_its_broker_id_under_a_higher_epoch(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        again = await bench.sequencer.register_agent(info("a"))
        other = await bench.sequencer.register_agent(info("bb"))
        assert (again.broker_id, again.epoch) == (bench.agent.broker_id, bench.agent.epoch + 1)
        assert other.broker_id != again.broker_id


async def test_a_process_restarted_is_another_broker_and_fences_who_had_its_address(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        anew = await bench.sequencer.register_agent(msgspec.structs.replace(info("a"), instance=UUID(int=77)))
        assert anew.broker_id > bench.agent.broker_id
        ring = (await bench.sequencer.metadata(MetadataRequest())).ring
        assert ring is not None and [member.broker_id for member in ring.members] == [anew.broker_id]
        with pytest.raises(LeaseLost):
            await bench.sequencer.renew_agent(RenewAgent(bench.agent.broker_id, bench.agent.epoch))
        with pytest.raises(SessionClosed):
            await bench.commit(batch())


async def test_the_rings_generation_rises_with_every_change_of_it(factory: Factory) -> None:
    async with opened_bench(factory) as bench:

        async def generation() -> tuple[int, list[int]]:
            ring = (await bench.sequencer.metadata(MetadataRequest())).ring
            assert ring is not None
            return ring.generation, [member.broker_id for member in ring.members]

        before, members = await generation()
        other = await bench.sequencer.register_agent(info("bb"))
        joined, more = await generation()
        assert joined > before and more == [*members, other.broker_id]
        await bench.sequencer.release_agent(AgentRef(other.broker_id, other.epoch))
        left, fewer = await generation()
        assert left > joined and fewer == members
        for _ in range(3):
            await bench.advance(SETTINGS.agent_lease_ms // 3 + 1)
            await bench.sequencer.apply_retention(Empty())
        assert (await generation())[1] == []


async def with_group_and_another_agent(bench: Bench) -> tuple[AgentLease, LocateGroup]:
    """Register another agent, and store a group that the bench's agent coordinates. Return the other one's lease, and a
    look-up of the group."""
    mine, other = bench.agent, await bench.sequencer.register_agent(info("bb"))
    state = GroupState("g", 3, "Stable", "consumer", ["m"], b"x")
    await bench.sequencer.save_group(SaveGroup(mine.broker_id, mine.epoch, state))
    return other, LocateGroup("g", [mine.broker_id, other.broker_id])


async def test_a_lookup_of_a_silent_coordinator_waits_until_its_successor_is_known(
    factory: Factory,
) -> None:
    async with opened_bench(factory) as bench:
        sequencer, mine = bench.sequencer, bench.agent
        other, asked = await with_group_and_another_agent(bench)
        for lease in (mine, other):
            await sequencer.renew_agent(RenewAgent(lease.broker_id, lease.epoch))
        assert (await sequencer.locate_group(asked)).broker_id == mine.broker_id
        await bench.advance(mine.silence_ms // 2)
        await sequencer.renew_agent(RenewAgent(other.broker_id, other.epoch))
        with pytest.raises(SequencerUnavailable):
            await sequencer.locate_group(asked)
        fresh = await sequencer.locate_group(LocateGroup("new", [mine.broker_id, other.broker_id]))
        assert fresh.broker_id == other.broker_id, "nobody is sent to the one that is silent"
        await bench.advance(mine.silence_ms // 2)
        await sequencer.suspect_agent(AgentRef(mine.broker_id, mine.epoch))
        assert (await sequencer.locate_group(asked)).broker_id == other.broker_id
        ring = (await sequencer.metadata(MetadataRequest())).ring
        assert ring is not None and [member.broker_id for member in ring.departed] == [mine.broker_id]


async def test_a_lookup_of_a_coordinator_that_its_neighbour_suspects_waits_for_its_next_renewal(
    factory: Factory,
) -> None:
    async with opened_bench(factory) as bench:
        sequencer, mine = bench.sequencer, bench.agent
        other, asked = await with_group_and_another_agent(bench)
        renewal = RenewAgent(mine.broker_id, mine.epoch)
        await sequencer.renew_agent(renewal)
        await bench.advance(1)
        await sequencer.suspect_agent(AgentRef(mine.broker_id, mine.epoch - 1))
        assert (await sequencer.locate_group(asked)).broker_id == mine.broker_id, "that was another life"
        await sequencer.suspect_agent(AgentRef(mine.broker_id, mine.epoch))
        with pytest.raises(SequencerUnavailable):
            await sequencer.locate_group(asked)
        fresh = await sequencer.locate_group(LocateGroup("new", [mine.broker_id, other.broker_id]))
        assert fresh.broker_id == other.broker_id, "nobody is sent to the one that is suspected"
        await bench.advance(1)
        await sequencer.renew_agent(renewal)
        assert (await sequencer.locate_group(asked)).broker_id == mine.broker_id, (
            "only its neighbour can't reach it"
        )


async def test_a_suspected_agent_loses_its_place_once_it_is_silent_for_long(factory: Factory) -> None:
    async with opened_bench(factory) as bench:

        async def members() -> list[int]:
            ring = (await bench.sequencer.metadata(MetadataRequest())).ring
            assert ring is not None
            return [member.broker_id for member in ring.members]

        mine = AgentRef(bench.agent.broker_id, bench.agent.epoch)
        silence_ms = (await bench.sequencer.renew_agent(RenewAgent(mine.broker_id, mine.epoch))).silence_ms
        assert 0 < silence_ms <= SETTINGS.agent_lease_ms // 2
        await bench.advance(silence_ms - 1)
        await bench.sequencer.suspect_agent(mine)
        assert await members() == [mine.broker_id], "it was heard of not long ago"

        await bench.sequencer.renew_agent(RenewAgent(mine.broker_id, mine.epoch))
        await bench.advance(silence_ms - 1)
        await bench.sequencer.suspect_agent(mine)
        assert await members() == [mine.broker_id], (
            "a renewal starts its silence anew, also one that writes no row"
        )

        await bench.advance(1)
        for other in (AgentRef(mine.broker_id, mine.epoch - 1), AgentRef(mine.broker_id + 7, 1)):
            await bench.sequencer.suspect_agent(other)
        assert await members() == [mine.broker_id], "another life, another agent"
        await bench.sequencer.suspect_agent(mine)
        await bench.sequencer.suspect_agent(mine)
        assert await members() == []
        with pytest.raises(LeaseLost):
            await bench.sequencer.renew_agent(RenewAgent(mine.broker_id, mine.epoch))


async def test_a_group_keeps_its_owner_and_fences_every_other(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        sequencer, mine = bench.sequencer, bench.agent
        other = await sequencer.register_agent(info("bb"))
        owner = await sequencer.locate_group(LocateGroup("g", [mine.broker_id, other.broker_id]))
        assert owner.broker_id == mine.broker_id
        for agent in (mine, other):
            assert (await sequencer.load_group(LoadGroup("g", agent.broker_id, agent.epoch))).blob == b""
        state = GroupState("g", 3, "Stable", "consumer", ["m"], b"x")
        await sequencer.save_group(SaveGroup(mine.broker_id, mine.epoch, state))
        with pytest.raises(StaleGroup):
            await sequencer.save_group(SaveGroup(other.broker_id, other.epoch, state))
        with pytest.raises(StaleGroup):
            await sequencer.load_group(LoadGroup("g", other.broker_id, other.epoch))
        stays = await sequencer.locate_group(LocateGroup("g", [other.broker_id]))
        assert stays.broker_id == mine.broker_id
        position = OffsetPosition(bench.topic.topic_id, 0, 5, 0, "note")
        good = CommitOffsets("g", mine.broker_id, mine.epoch, 3, "m", [position])
        assert (await sequencer.commit_offsets(good)).errors == [PartitionError.NONE]
        for broker_id, epoch, generation, member in (
            (mine.broker_id, mine.epoch, 2, "m"),
            (mine.broker_id, mine.epoch, 3, "n"),
            (other.broker_id, other.epoch, 3, "m"),
            (mine.broker_id, mine.epoch + 1, 3, "m"),
            (-1, -1, -1, ""),
        ):
            with pytest.raises(StaleGroup):
                await sequencer.commit_offsets(
                    CommitOffsets("g", broker_id, epoch, generation, member, [position])
                )
        with pytest.raises(GroupNotEmpty):
            await sequencer.delete_group(GroupRef("g"))

        await sequencer.renew_agent(RenewAgent(mine.broker_id, mine.epoch, draining=True))
        moved = await sequencer.locate_group(LocateGroup("g", [mine.broker_id, other.broker_id]))
        assert moved.broker_id == other.broker_id
        taken = await sequencer.load_group(LoadGroup("g", other.broker_id, other.epoch))
        assert taken == msgspec.structs.replace(state, term=1)
        with pytest.raises(StaleGroup):
            await sequencer.save_group(SaveGroup(mine.broker_id, mine.epoch, state))
        found = (await sequencer.fetch_offsets(FetchOffsets("g", [(bench.topic.topic_id, 0)]))).positions[0]
        assert (found.offset, found.metadata) == (5, "note")
        assert [(lag.committed, lag.topic) for lag in (await sequencer.lags(LagsRequest())).lags] == [
            (5, "t")
        ]


async def test_looking_for_a_group_makes_none(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        sequencer, mine = bench.sequencer, bench.agent
        for number in range(SETTINGS.max_groups + 5):
            name = f"made-up-{number}"
            owner = await sequencer.locate_group(LocateGroup(name, [mine.broker_id]))
            assert owner.broker_id == mine.broker_id
            await sequencer.load_group(LoadGroup(name, mine.broker_id, mine.epoch))
            assert (await sequencer.fetch_offsets(FetchOffsets(name, None))).positions == []
        assert (await sequencer.list_groups(ListGroups())).groups == []
        assert (await sequencer.statistics(Empty())).groups == 0


async def test_a_group_that_is_gone_is_not_made_again_by_an_agent_that_still_holds_its_state(
    factory: Factory,
) -> None:
    async with opened_bench(factory) as bench:
        sequencer, mine = bench.sequencer, bench.agent
        empty = GroupState("g", 4, "Empty", "consumer", [], b"x")
        await sequencer.save_group(SaveGroup(mine.broker_id, mine.epoch, empty))
        await sequencer.delete_group(GroupRef("g"))
        with pytest.raises(StaleGroup):
            await sequencer.save_group(SaveGroup(mine.broker_id, mine.epoch, empty, may_create=False))
        with pytest.raises(StaleGroup):
            await sequencer.save_group(SaveGroup(mine.broker_id, mine.epoch - 1, empty))
        assert (await sequencer.list_groups(ListGroups())).groups == []


async def test_a_late_copy_of_a_groups_first_state_brings_no_deleted_group_back(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        sequencer, mine = bench.sequencer, bench.agent
        turn = first_turn((await sequencer.load_group(LoadGroup("g", mine.broker_id, mine.epoch))).term)
        stable = GroupState("g", 1, "Stable", "consumer", ["m"], b"x")
        save = SaveGroup(mine.broker_id, mine.epoch, stable, turn=turn + 1, request_id=UUID(int=1))
        await sequencer.save_group(save)
        empty = GroupState("g", 2, "Empty", "consumer", [], b"x")
        left = SaveGroup(mine.broker_id, mine.epoch, empty, may_create=False, turn=turn + 2)
        await sequencer.save_group(left)
        await sequencer.delete_group(GroupRef("g"))
        await sequencer.save_group(save)
        assert (await sequencer.list_groups(ListGroups())).groups == []


async def test_only_a_groups_first_state_keeps_an_answer() -> None:
    async with opened_bench(memory) as bench:
        sequencer, mine = bench.sequencer, bench.agent
        assert bench.opened.store is not None
        state = GroupState("g", 1, "Stable", "consumer", ["m"], b"x")
        await sequencer.save_group(SaveGroup(mine.broker_id, mine.epoch, state, request_id=UUID(int=1)))
        later = SaveGroup(mine.broker_id, mine.epoch, state, may_create=False, request_id=UUID(int=2))
        await sequencer.save_group(later)
        assert [row.request_id for row in await _kept_answers(bench.opened.store)] == [UUID(int=1)]


async def test_a_group_that_got_its_first_offset_meanwhile_is_still_its_first_coordinators(
    factory: Factory,
) -> None:
    async with opened_bench(factory) as bench:
        sequencer, mine = bench.sequencer, bench.agent
        await sequencer.load_group(LoadGroup("g", mine.broker_id, mine.epoch))
        position = OffsetPosition(bench.topic.topic_id, 0, 5, 0, "")
        await sequencer.commit_offsets(CommitOffsets("g", -1, -1, -1, "", [position]))
        state = GroupState("g", 1, "Stable", "consumer", ["m"], b"x")
        await sequencer.save_group(SaveGroup(mine.broker_id, mine.epoch, state))
        assert [each.owner for each in (await sequencer.list_groups(ListGroups())).groups] == [mine.broker_id]


async def test_a_group_that_nobody_comes_back_for_goes_step_by_step(factory: Factory) -> None:
    settings = SequencerSettings(removal_step=1, offsets_retention_ms=50_000, orphaned_members_ms=20_000)

    async with opened_bench(factory, settings) as bench:
        sequencer, mine, topic_id = bench.sequencer, bench.agent, bench.topic.topic_id

        async def passes(ms: int) -> tuple[int, list[str]]:
            await bench.advance(ms)
            expired = (await sequencer.apply_retention(Empty())).offsets_expired
            return expired, [each.state for each in (await sequencer.list_groups(ListGroups())).groups]

        state = GroupState("g", 3, "Stable", "consumer", ["m"], b"x")
        await sequencer.save_group(SaveGroup(mine.broker_id, mine.epoch, state))
        places = [
            OffsetPosition(topic_id, partition, 5, 0, "") for partition in range(bench.topic.partitions)
        ]
        await sequencer.commit_offsets(CommitOffsets("g", mine.broker_id, mine.epoch, 3, "m", places))

        await sequencer.release_agent(AgentRef(mine.broker_id, mine.epoch))
        assert await passes(5_000) == (0, ["Stable"]), "its members may look for another coordinator"
        assert await passes(19_999) == (0, ["Stable"])
        assert await passes(5_001) == (0, ["Empty"]), (
            "they did not; looked at a quarter of the time later at most"
        )
        assert await passes(49_999) == (0, ["Empty"])
        assert await passes(settings.empty_group_ms) == (len(places), [])


async def test_no_commit_keeps_a_group_for_longer_than_the_longest_retention(factory: Factory) -> None:
    settings = SequencerSettings(max_offsets_retention_ms=3 * DAY_MS)

    async with opened_bench(factory, settings) as bench:
        sequencer = bench.sequencer
        position = OffsetPosition(bench.topic.topic_id, 0, 5, 0, "")
        await sequencer.commit_offsets(
            CommitOffsets("ever", -1, -1, -1, "", [position], retention_ms=(1 << 63) - 1)
        )

        await bench.advance(settings.max_offsets_retention_ms - 1)
        assert (await sequencer.apply_retention(Empty())).offsets_expired == 0
        await bench.advance(settings.max_offsets_retention_ms)
        assert (await sequencer.apply_retention(Empty())).offsets_expired == 1
        assert (await sequencer.list_groups(ListGroups())).groups == []


async def test_a_share_group_without_members_goes_step_by_step_with_what_it_has_read(
    factory: Factory,
) -> None:
    settings = SequencerSettings(
        removal_step=1, agent_lease_ms=DAY_MS, share_offsets_retention_ms=DAY_MS // 4
    )

    async with opened_bench(factory, settings) as bench:
        sequencer, mine = bench.sequencer, bench.agent
        kept_ms = settings.share_offsets_retention_ms

        async def saved(number: int, state: str, members: list[str]) -> None:
            group = GroupState("sh", number, state, "share", members, b"x", type=SHARE_GROUP)
            await sequencer.save_group(SaveGroup(mine.broker_id, mine.epoch, group))

        async def passes(ms: int) -> tuple[int, list[str], int]:
            await bench.advance(ms)
            expired = (await sequencer.apply_retention(Empty())).offsets_expired
            groups = [each.group_id for each in (await sequencer.list_groups(ListGroups())).groups]
            known = (await sequencer.share_offsets(ShareOffsetsRequest("sh"))).offsets
            return expired, groups, len(known)

        await bench.commit(batch(5))
        await saved(1, "Stable", ["m"])
        works = [
            ShareWork(bench.topic.topic_id, 0, acquire=AcquireSpan(0, 5, 5)),
            ShareWork(bench.topic.topic_id, 1, acquire=AcquireSpan(0, 0, 5)),
        ]
        await sequencer.share_records(ShareRequest("sh", "m", ShareLimits(from_earliest=True), works))
        known = len((await sequencer.share_offsets(ShareOffsetsRequest("sh"))).offsets)
        assert await passes(2 * kept_ms) == (0, ["sh"], known), "it has a member"
        await saved(2, "Empty", [])
        assert await passes(kept_ms - 1) == (0, ["sh"], known)
        assert await passes(kept_ms) == (known, [], 0)


async def test_a_share_group_that_an_operator_sets_back_is_kept_from_then_on(factory: Factory) -> None:
    settings = SequencerSettings(share_offsets_retention_ms=3 * DAY_MS)

    async with opened_bench(factory, settings) as bench:
        sequencer, mine = bench.sequencer, bench.agent
        kept_ms = settings.share_offsets_retention_ms
        await bench.commit(batch(5))
        group = GroupState("sh", 1, "Empty", "share", [], b"x", type=SHARE_GROUP)
        await sequencer.save_group(SaveGroup(mine.broker_id, mine.epoch, group))
        await bench.advance(kept_ms - 1)
        await sequencer.alter_share_offsets(
            AlterShareOffsets("sh", [ShareOffset(bench.topic.topic_id, 0, 2)])
        )

        await bench.advance(kept_ms - 1)
        await sequencer.apply_retention(Empty())
        (offset,) = (await sequencer.share_offsets(ShareOffsetsRequest("sh"))).offsets
        assert offset.start_offset == 2
        await bench.advance(kept_ms)
        await sequencer.apply_retention(Empty())
        assert (await sequencer.list_groups(ListGroups())).groups == []


async def test_members_that_look_for_another_coordinator_stay(factory: Factory) -> None:
    settings = SequencerSettings(orphaned_members_ms=20_000)

    async with opened_bench(factory, settings) as bench:
        sequencer, mine = bench.sequencer, bench.agent
        state = GroupState("g", 3, "Stable", "consumer", ["m"], b"x")
        await sequencer.save_group(SaveGroup(mine.broker_id, mine.epoch, state))
        await sequencer.release_agent(AgentRef(mine.broker_id, mine.epoch))
        await sequencer.apply_retention(Empty())
        other = await sequencer.register_agent(info("bb"))
        taken = await sequencer.load_group(LoadGroup("g", other.broker_id, other.epoch))
        assert taken == msgspec.structs.replace(state, term=1)
        await bench.advance(9_000)
        await sequencer.renew_agent(RenewAgent(other.broker_id, other.epoch))
        await bench.advance(9_000)
        await sequencer.renew_agent(RenewAgent(other.broker_id, other.epoch))
        await bench.advance(9_000)
        await sequencer.apply_retention(Empty())
        assert [each.state for each in (await sequencer.list_groups(ListGroups())).groups] == ["Stable"]


async def test_a_change_that_is_repeated_gets_its_first_answer_and_changes_nothing(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        sequencer = bench.sequencer

        def configured(value: str, number: int) -> AlterConfig:
            change = ConfigChange("retention.ms", ConfigOperation.SET, value)
            return AlterConfig(ConfigScope.TOPIC, "u", [change], request_id=UUID(int=number))

        create = CreateTopic("u", 2, {}, request_id=UUID(int=1))
        topic = await sequencer.create_topic(create)
        assert await sequencer.create_topic(create) == topic
        grow = CreatePartitions(topic.topic_id, 3, request_id=UUID(int=2))
        grown = await sequencer.create_partitions(grow)
        await sequencer.alter_config(configured("1", 3))
        await sequencer.alter_config(configured("2", 4))
        await sequencer.alter_config(configured("1", 3))
        init = InitProducer(transactional_id="p", timeout_ms=60_000, request_id=UUID(int=5))
        first = await sequencer.init_producer(init)
        second = await sequencer.init_producer(msgspec.structs.replace(init, request_id=UUID(int=6)))
        assert second.producer_epoch == first.producer_epoch + 1
        assert await sequencer.init_producer(init) == first
        asked = await sequencer.init_producer(
            InitProducer(second.producer_id, second.producer_epoch, "p", 60_000)
        )
        assert asked.producer_epoch == second.producer_epoch + 1, "the repeat fenced nobody"
        assert await sequencer.create_partitions(grow) == grown
        known = {found.name: found for found in (await sequencer.metadata(MetadataRequest())).topics or []}
        assert (known["u"].partitions, known["u"].configs) == (3, {"retention.ms": "2"})
        delete = DeleteTopic(topic.topic_id, request_id=UUID(int=7))
        assert await sequencer.delete_topic(delete) == await sequencer.delete_topic(delete) == Empty()
        assert await sequencer.create_topic(create) == topic, "deleted since, and not made again"
        with pytest.raises(UnknownTopic):
            await sequencer.delete_topic(DeleteTopic(topic.topic_id, request_id=UUID(int=8)))

        await bench.advance(SETTINGS.request_answers_ms + 1)
        await sequencer.apply_retention(Empty())
        assert (await sequencer.create_topic(create)).topic_id != topic.topic_id, "forgotten after that time"


async def test_the_next_committer_knows_the_answers_to_repeats(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        store = bench.store
        create = CreateTopic("u", 2, {}, request_id=UUID(int=1))
        store.fail_next_write("after")
        with pytest.raises(SequencerUnavailable):
            await bench.sequencer.create_topic(create)
        await bench.sequencer.close()
        second = Committer(store, bench.opened.clock, SeededEntropy(2), SETTINGS)
        await second.start()
        assert (await second.create_topic(create)).name == "u"
        await second.close()


async def test_an_earlier_request_of_a_coordinator_replaces_nothing_of_a_later_one(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        sequencer, mine = bench.sequencer, bench.agent
        place = (bench.topic.topic_id, 0)
        await sequencer.locate_group(LocateGroup("g", [mine.broker_id]))
        first = await sequencer.load_group(LoadGroup("g", mine.broker_id, mine.epoch))
        state = GroupState("g", 3, "Stable", "consumer", ["m"], b"new")
        turn = first_turn(first.term)

        async def commit(offset: int, turn: int) -> int:
            position = OffsetPosition(*place, offset, 0, "")
            asked = CommitOffsets("g", mine.broker_id, mine.epoch, 3, "m", [position], turn=turn)
            assert (await sequencer.commit_offsets(asked)).errors == [PartitionError.NONE]
            return (await sequencer.fetch_offsets(FetchOffsets("g", [place]))).positions[0].offset

        await sequencer.save_group(SaveGroup(mine.broker_id, mine.epoch, state, turn=turn + 2))
        other_life = first_turn(first.term + 1) + 1
        with pytest.raises(StaleGroup):
            await sequencer.save_group(SaveGroup(mine.broker_id, mine.epoch, state, turn=other_life))
        late = msgspec.structs.replace(state, blob=b"old", members=[])
        await sequencer.save_group(SaveGroup(mine.broker_id, mine.epoch, late, turn=turn + 1))
        assert await commit(5, turn + 3) == 5
        assert await commit(9, turn + 5) == 9
        assert await commit(7, turn + 4) == 9, "it was under way for long"
        assert await commit(9, turn + 5) == 9
        assert await commit(4, turn + 6) == 4, "a client may go back"
        again = await sequencer.load_group(LoadGroup("g", mine.broker_id, mine.epoch))
        assert (again.blob, again.members, again.term) == (b"new", ["m"], first.term + 1)
        assert await commit(6, first_turn(again.term) + 1) == 6
        assert await commit(4, turn + 7) == 6


async def test_a_late_copy_of_a_commit_without_turns_replaces_nothing(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        place = (bench.topic.topic_id, 0)

        async def commit(offset: int, request_id: int) -> int:
            position = OffsetPosition(*place, offset, 0, "")
            asked = CommitOffsets("g", -1, -1, -1, "", [position], request_id=UUID(int=request_id))
            assert (await bench.sequencer.commit_offsets(asked)).errors == [PartitionError.NONE]
            return (await bench.sequencer.fetch_offsets(FetchOffsets("g", [place]))).positions[0].offset

        assert [await commit(5, 1), await commit(9, 2), await commit(5, 1), await commit(5, 3)] == [
            5,
            9,
            9,
            5,
        ]


async def test_a_late_copy_of_a_change_that_changed_nothing_changes_nothing(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        sequencer, place = bench.sequencer, (bench.topic.topic_id, 0)
        commit = CommitOffsets("g", -1, -1, -1, "", [OffsetPosition(*place, 5, 0, "")])
        other = OffsetPosition(bench.topic.topic_id, 1, 5, 0, "")
        await sequencer.commit_offsets(msgspec.structs.replace(commit, offsets=[other]))
        delete = DeleteOffsets("g", [place], request_id=UUID(int=1))
        assert (await sequencer.delete_offsets(delete)).errors == [PartitionError.NONE]
        await sequencer.commit_offsets(commit)
        assert (await sequencer.delete_offsets(delete)).errors == [PartitionError.NONE]
        found = await sequencer.fetch_offsets(FetchOffsets("g", [place]))
        assert [each.offset for each in found.positions] == [5]

        empty = DeleteRecords([DeleteRecordsPartition(*place, -1)], request_id=UUID(int=2))
        assert (await sequencer.delete_records(empty)).log_start_offsets == [0]
        await bench.commit(batch(2))
        assert (await sequencer.delete_records(empty)).log_start_offsets == [0], "it was empty"


async def test_a_late_copy_of_a_refused_deletion_deletes_no_later_group(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        sequencer, place = bench.sequencer, (bench.topic.topic_id, 0)
        group = GroupRef("g", request_id=UUID(int=1))
        positions = DeleteOffsets("g", [place], request_id=UUID(int=2))
        commit = CommitOffsets("g", -1, -1, -1, "", [OffsetPosition(*place, 5, 0, "")])
        for attempt in range(2):
            with pytest.raises(UnknownGroup):
                await sequencer.delete_group(group)
            with pytest.raises(UnknownGroup):
                await sequencer.delete_offsets(positions)
            if not attempt:
                await sequencer.commit_offsets(commit)
        found = await sequencer.fetch_offsets(FetchOffsets("g", [place]))
        assert [each.offset for each in found.positions] == [5]
        await sequencer.delete_group(GroupRef("g", request_id=UUID(int=3)))


async def test_a_long_answer_is_kept_short() -> None:
    async with opened_bench(memory) as bench:
        sequencer = bench.sequencer
        topic = await sequencer.create_topic(CreateTopic("wide", 100, {}))
        await sequencer.commit_offsets(
            CommitOffsets("g", -1, -1, -1, "", [OffsetPosition(topic.topic_id, 0, 5, 0, "")])
        )
        places = [(topic.topic_id, number % 100) for number in range(2_000)]
        delete = DeleteOffsets("g", places, request_id=UUID(int=1))
        first = await sequencer.delete_offsets(delete)
        assert await sequencer.delete_offsets(delete) == first
        assert bench.opened.store is not None
        (row,) = [row for row in await _kept_answers(bench.opened.store) if row.request_id == UUID(int=1)]
        assert len(row.answer) < 100


async def test_an_agent_that_drains_is_not_taken_back_by_a_late_renewal(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        mine = bench.agent
        renewals = [RenewAgent(mine.broker_id, mine.epoch, draining=is_last) for is_last in (False, True)]
        for renewal in (*renewals, renewals[0]):
            await bench.sequencer.renew_agent(renewal)
        (member,) = (await bench.sequencer.metadata(MetadataRequest(-1))).ring.members
        assert member.draining


async def test_a_late_copy_costs_nobody_a_lease_that_was_taken(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        take = TakeLease("compactor", "me", 0, 60_000, UUID(int=1))
        first = await bench.sequencer.take_lease(take)
        assert (await bench.sequencer.take_lease(take)).epoch == first.epoch
        await bench.sequencer.take_lease(TakeLease("compactor", "me", first.epoch, 60_000))


async def test_a_late_copy_pins_no_table_that_was_released(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        pin = PinTable(bench.topic.topic_id, request_id=UUID(int=1))
        await bench.sequencer.pin_table(pin)
        await bench.sequencer.release_table(ReleaseTable(bench.topic.topic_id))
        await bench.sequencer.pin_table(pin)
        assert (await bench.sequencer.table_pins(TablePinsRequest())).pins == []


async def test_a_late_copy_releases_no_table_that_was_pinned_again(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        release = ReleaseTable(bench.topic.topic_id, request_id=UUID(int=1))
        await bench.sequencer.pin_table(PinTable(bench.topic.topic_id))
        await bench.sequencer.release_table(release)
        pin = await bench.sequencer.pin_table(PinTable(bench.topic.topic_id))
        await bench.sequencer.release_table(release)
        assert (await bench.sequencer.table_pins(TablePinsRequest())).pins == [pin]


async def test_a_late_copy_of_an_agents_registration_ends_neither_its_lease_nor_its_sessions(
    factory: Factory,
) -> None:
    async with opened_bench(factory) as bench:
        register = msgspec.structs.replace(info("b"), request_id=UUID(int=1))
        mine = await bench.sequencer.register_agent(register)
        session = await bench.sequencer.open_session(OpenSession(mine.broker_id, mine.epoch))
        assert await bench.sequencer.register_agent(register) == mine
        await bench.sequencer.renew_agent(RenewAgent(mine.broker_id, mine.epoch))
        await bench.sequencer.renew_session(SessionRef(session.session_id))
        again = await bench.sequencer.register_agent(
            msgspec.structs.replace(register, request_id=UUID(int=2))
        )
        assert (again.broker_id, again.epoch) == (mine.broker_id, mine.epoch + 1), (
            "another call is another one"
        )


async def test_a_late_copy_of_a_registration_doesnt_bring_an_agent_back_that_another_replaced(
    factory: Factory,
) -> None:
    async with opened_bench(factory) as bench:
        ended, living = (
            msgspec.structs.replace(info("b"), instance=UUID(int=number), request_id=UUID(int=number))
            for number in (1, 2)
        )
        await bench.sequencer.register_agent(ended)
        mine = await bench.sequencer.register_agent(living)
        await bench.sequencer.register_agent(ended)
        await bench.sequencer.renew_agent(RenewAgent(mine.broker_id, mine.epoch))
        ring = (await bench.sequencer.metadata(MetadataRequest(-1))).ring
        assert [each.info.instance for each in ring.members if each.info.host == "b"] == [living.instance]
        assert {each.info.request_id for each in ring.members} == {None}, "it is the call's"


async def test_the_feed_tells_every_commit_once_in_order_and_tiling(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        start = await bench.find_number()
        for size in (1, 2, 3):
            await bench.commit(batch(size))
        place = (bench.topic.topic_id, 0)
        answer = await bench.sequencer.feed(FeedRequest(start, [place], 0))
        assert (answer.reset, answer.commit_number) == (False, start + 3)
        assert [(one.base_offset, one.end_offset) for one in answer.updates[0].runs] == [
            (0, 1),
            (1, 3),
            (3, 6),
        ]
        assert [one.commit_number for one in answer.updates[0].runs] == [start + 1, start + 2, start + 3]
        part = await bench.sequencer.feed(FeedRequest(start + 2, [], 0))
        assert [one.base_offset for one in part.updates[0].runs] == [3]
        elsewhere = await bench.sequencer.feed(FeedRequest(start, [(bench.topic.topic_id, 1)], 0))
        assert (elsewhere.updates, elsewhere.commit_number) == ([], start + 3)
        assert (await bench.sequencer.feed(FeedRequest(start + 99, [place], 0))).reset


async def test_a_feed_is_woken_by_its_partition_and_beats_otherwise(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        start = await bench.find_number()
        place = (bench.topic.topic_id, 1)
        following = asyncio.create_task(bench.sequencer.feed(FeedRequest(start, [place], 500)))
        await settle()
        await bench.commit(batch(), partition=0)
        await settle()
        assert not following.done()
        await bench.commit(batch(), partition=1)
        assert [one.partition for one in (await following).updates] == [1]
        beat = asyncio.create_task(bench.sequencer.feed(FeedRequest(start + 2, [place], 500)))
        await settle()
        await bench.advance(500)
        assert ((await beat).commit_number, (await beat).updates) == (start + 2, [])


async def test_a_feed_that_asks_for_what_is_forgotten_is_reset(factory: Factory) -> None:
    async with opened_bench(factory, SequencerSettings(max_feed_commits=3)) as bench:
        start = await bench.find_number()
        for _ in range(4):
            await bench.commit(batch())
        assert (await bench.sequencer.feed(FeedRequest(start, [], 0))).reset
        assert not (await bench.sequencer.feed(FeedRequest(start + 1, [], 0))).reset


async def test_a_watcher_gets_every_change_of_its_partition_once_until_it_is_deleted(
    factory: Factory,
) -> None:
    async with opened_bench(factory) as bench:
        swap = await prepare_swap(bench)
        place = (bench.topic.topic_id, 0)
        began = await bench.sequencer.watch(WatchRequest(UUID(int=5), 1, 0, [place], [], 0))
        (start,) = began.changes
        assert (start.is_start, start.high_watermark, start.commit_number) == (True, 6, began.commit_number)
        waiting = asyncio.create_task(bench.sequencer.watch(WatchRequest(UUID(int=5), 1, 1, [], [], 5_000)))
        await settle()
        await bench.commit(batch(2))
        (added,) = (await waiting).changes
        assert [(one.base_offset, one.end_offset) for one in added.runs] == [(6, 8)]
        assert added.runs == (await bench.find(6)).runs
        await bench.commit(batch(1), partition=1)
        await bench.sequencer.swap(swap)
        await bench.sequencer.delete_records(DeleteRecords([DeleteRecordsPartition(*place, 7)]))
        await bench.sequencer.delete_topic(DeleteTopic(bench.topic.topic_id))
        after = await bench.sequencer.watch(WatchRequest(UUID(int=5), 1, 2, [], [], 0))
        assert [one.replaced_below for one in after.changes] == [6, -1, -1]
        assert [one.log_start_offset for one in after.changes] == [0, 7, -1]
        assert [one.is_gone for one in after.changes] == [False, False, True]
        assert after.epoch == began.epoch and after.commit_number == await bench.find_number()
        assert (await bench.sequencer.watch(WatchRequest(UUID(int=6), 2, 0, [], [], 0))).is_reset


async def test_limits_are_named_when_they_are_reached(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        with pytest.raises(LimitReached, match="max_partitions_per_topic"):
            await bench.sequencer.create_partitions(CreatePartitions(bench.topic.topic_id, 101))
        with pytest.raises(LimitReached, match="max_topics"):
            for number in range(30):
                await bench.sequencer.create_topic(CreateTopic(f"more{number}", 1, {}))


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_failed_write_shows_nothing_and_can_be_retried(factory: Factory, when: str) -> None:
    async with opened_bench(factory) as bench:
        store = bench.store
        await bench.commit(batch(1))
        request = bench.request(batch(2))
        store.fail_next_write("before" if when == "before" else "after")
        with pytest.raises(SequencerUnavailable):
            await bench.sequencer.commit(request)
        assert outcomes(await bench.sequencer.commit(request)) == [(STORED, 1)]
        assert (await bench.find()).high_watermark == 3


async def test_an_early_commit_outlives_a_failed_write_and_is_applied_once(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        store = bench.store
        first, second = bench.request(batch(1)), bench.request(batch(2))
        early = asyncio.create_task(bench.sequencer.commit(second))
        await settle()
        store.fail_next_write("after")
        with pytest.raises(SequencerUnavailable):
            await bench.sequencer.commit(first)
        with pytest.raises(SequencerUnavailable):
            await early
        assert outcomes(await bench.sequencer.commit(second)) == [(STORED, 1)]
        assert outcomes(await bench.sequencer.commit(first)) == [(STORED, 0)]
        assert (await bench.find()).high_watermark == 3


async def test_readers_do_not_reload_while_a_write_runs(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        store = bench.store
        for _ in range(3):
            store.hold_writes()
            writing = asyncio.create_task(bench.commit(batch(1)))
            await settle()
            reading = [asyncio.create_task(bench.find()) for _ in range(3)]
            store.release_writes()
            await asyncio.gather(writing, *reading)
        assert (await bench.find()).high_watermark == 3


async def test_nothing_is_visible_before_it_is_durable_and_what_waits_is_one_transaction(
    factory: Factory,
) -> None:
    async with opened_bench(factory) as bench:
        store = bench.store
        start = await bench.find_number()
        store.hold_writes()
        first = asyncio.create_task(bench.commit(batch(2)))
        await settle()
        assert (await bench.find()).high_watermark == 0
        assert (await bench.sequencer.feed(FeedRequest(start, [], 0))).updates == []
        rest = [asyncio.create_task(bench.commit(batch(2))) for _ in range(5)]
        await settle()
        written = store.writes
        store.release_writes()
        await asyncio.gather(first, *rest)
        assert store.writes == written + 2
        assert await bench.find_number() == start + 2
        runs = (await bench.find()).runs
        assert [one.base_offset for one in runs] == [0, 2, 4, 6, 8, 10]


async def test_another_committer_takes_over_with_all_that_was_answered(factory: Factory) -> None:
    async with opened_bench(factory) as bench:
        store = bench.store
        request = bench.request(batch(2, producer=5, sequence=0))
        answer = await bench.sequencer.commit(request)
        second = Committer(store, bench.opened.clock, SeededEntropy(2), SETTINGS)
        with pytest.raises(SequencerUnavailable):
            await second.start()
        await bench.sequencer.close()
        await second.start()
        assert await second.commit(request) == answer
        again = await second.commit(bench.request(batch(2, producer=5, sequence=0)))
        assert outcomes(again) == [(BatchError.DUPLICATE, 0)]
        await second.close()


async def test_agents_long_gone_are_forgotten_and_their_ids_given_to_nobody(
    factory: Factory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sequencer.rules.leases.MAX_GONE_AGENTS", 3)

    async with opened_bench(factory) as bench:
        names = ["bb", "ccc", "dddd", "eeeee", "ffffff"]
        leases = [await bench.sequencer.register_agent(info(name)) for name in names]
        for lease in leases:
            await bench.sequencer.release_agent(AgentRef(lease.broker_id, lease.epoch))
        await bench.sequencer.apply_retention(Empty())
        again = await bench.sequencer.register_agent(info("ffffff"))
        assert (again.broker_id, again.epoch) == (leases[-1].broker_id, leases[-1].epoch + 1)
        stranger = await bench.sequencer.register_agent(info("bb"))
        assert stranger.broker_id > leases[-1].broker_id
