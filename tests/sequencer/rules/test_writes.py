"""Writes of jobs: whole or not at all, once an epoch, and nothing that was uploaded is collected before its commit."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

import msgspec
import pytest

from sequencer.api.commits import (
    ObjectDescription,
    ObjectKind,
    OpenSession,
    RunProposal,
    SessionGrant,
    SessionRef,
    WriteRequest,
    WrittenObject,
)
from sequencer.api.errors import InvalidRequest, LimitReached, SequencerError, SessionClosed, UnknownPartition
from sequencer.api.retention import GarbageRequest
from sequencer.api.topics import DeleteTopic
from sequencer.api.values import Empty
from sequencer.rules.upload_sessions import WRITER_BROKER_ID
from sequencer.settings import SequencerSettings
from tailrace.batches.mixed_object import coordinates, seal
from tailrace.batches.record_batch import read_header
from tailrace.ids import TopicPartition
from tests.support.clocks import ManualClock
from tests.support.compaction import Log, batch_of, memory_log

QUERY = UUID(int=500)
LEASE_MS = 60_000


class Job:
    """A job that uploads objects and commits them."""

    def __init__(self, log: Log, clock: ManualClock) -> None:
        self.log, self.clock = log, clock

    async def session(self, name: int = 1) -> SessionGrant:
        asked = OpenSession(WRITER_BROKER_ID, 0, name=UUID(int=name))
        return await self.log.sequencer.open_session(asked)

    async def upload(self, *batches: tuple[str, int, bytes], name: int = 1) -> WrittenObject:
        session = await self.session(name)
        object_id = self.log.entropy.uuid()
        sealed = seal(
            [
                (
                    TopicPartition(self.log.topics[name].topic_id, partition),
                    name,
                    [(coordinates(read_header(data)), [data])],
                )
                for name, partition, data in batches
            ],
            object_id=object_id,
            session_id=session.session_id,
            number=0,
            created_ms=self.clock.wall_ms(),
        )
        key = f"{session.prefix}{object_id}"
        await self.log.store.put(key, sealed.parts)
        described = ObjectDescription(
            object_id, ObjectKind.MIXED, key, sealed.size, sealed.crc, sealed.footer.data_length, 0
        )
        runs = [
            RunProposal(run.topic_id, run.partition, run.start, run.length, run.batches)
            for run in sealed.footer.runs
        ]
        return WrittenObject(session.session_id, described, runs)

    async def commit(self, epoch: int, *objects: WrittenObject, is_stream: bool = True) -> bool:
        """Whether it was stored now."""
        request = WriteRequest(QUERY, epoch, is_stream, list(objects))
        return not (await self.log.sequencer.commit_write(request)).is_repeat

    async def values(self, topic: str, partition: int = 0) -> list[bytes | None]:
        return [record.value for record in await self.log.records(topic, partition)]


@asynccontextmanager
async def opened_job(**settings: int) -> AsyncIterator[Job]:
    async with memory_log(SequencerSettings(writer_lease_ms=LEASE_MS, **settings)) as (log, clock):
        await log.topic("a", 2)
        await log.topic("b")
        yield Job(log, clock)


async def test_all_objects_of_a_write_become_visible_in_one_commit() -> None:
    async with opened_job() as job:
        first = await job.upload(("a", 0, batch_of([b"1", b"2"])), ("b", 0, batch_of([b"3"])))
        second = await job.upload(("a", 0, batch_of([b"4"])), ("a", 1, batch_of([b"5"])), name=2)
        assert await job.commit(0, first, second)
        assert await job.values("a") == [b"1", b"2", b"4"]
        assert await job.values("a", 1) == [b"5"] and await job.values("b") == [b"3"]
        runs = [*await job.log.runs("a"), *await job.log.runs("a", 1), *await job.log.runs("b")]
        assert len({run.commit_number for run in runs}) == 1


async def test_a_retried_stream_epoch_stores_nothing_though_its_objects_differ() -> None:
    async with opened_job() as job:
        assert await job.commit(4, await job.upload(("a", 0, batch_of([b"1"]))))
        again = await job.upload(("a", 0, batch_of([b"1"])))
        assert not await job.commit(4, again)
        assert not await job.commit(3, again)
        assert await job.values("a") == [b"1"]
        assert await job.commit(6, again)
        assert await job.values("a") == [b"1", b"1"]


async def test_a_refused_write_stores_nothing_of_any_object_and_can_be_retried() -> None:
    async with opened_job() as job:
        good = await job.upload(("a", 0, batch_of([b"1"])))
        gone = await job.upload(("b", 0, batch_of([b"2"])))
        await job.log.sequencer.delete_topic(DeleteTopic(job.log.topics["b"].topic_id))
        with pytest.raises(UnknownPartition, match="nothing was written"):
            await job.commit(0, good, gone)
        assert await job.log.runs("a") == []
        assert await job.commit(0, good)
        assert await job.values("a") == [b"1"]


async def test_a_write_of_more_records_than_a_checkpoint_reserves_offsets_is_refused_for_good() -> None:
    async with opened_job(checkpoint_reservation=3) as job:
        two = batch_of([b"1", b"2"])
        objects = [await job.upload(("a", partition, two)) for partition in (0, 1, 0)]
        with pytest.raises(LimitReached, match=r"4 records at once .* reserves 3 offsets"):
            await job.commit(0, *objects)
        assert await job.commit(0, *objects[:2])


@pytest.mark.parametrize(
    ("epoch", "change", "error"),
    [
        (-1, {}, InvalidRequest),
        (0, {"session_id": UUID(int=404)}, SessionClosed),
        (0, {"twice": True}, InvalidRequest),
        (0, {"kind": ObjectKind.PARQUET}, InvalidRequest),
        (0, {"key": "elsewhere/1"}, InvalidRequest),
        (0, {"producer": True}, InvalidRequest),
        (0, {"many": True}, LimitReached),
    ],
)
async def test_objects_that_no_job_can_have_uploaded_are_refused(
    epoch: int, change: dict[str, object], error: type[SequencerError]
) -> None:
    async with opened_job(max_runs_per_commit=3) as job:
        batch = batch_of([b"1"])
        if "producer" in change:
            batch = batch_of([b"1"], producer=await job.log.producer("id"))
        uploaded = await job.upload(("a", 0, batch), ("a", 1, batch))
        replaced = msgspec.structs.replace
        if "session_id" in change:
            uploaded = replaced(uploaded, session_id=change["session_id"])
        described = {name: change[name] for name in ("kind", "key") if name in change}
        uploaded = replaced(uploaded, object=replaced(uploaded.object, **described))
        objects = [uploaded] * (2 if "twice" in change else 1)
        if "many" in change:
            objects.append(await job.upload(("a", 0, batch), ("b", 0, batch)))
        with pytest.raises(error):
            await job.commit(epoch, *objects)
        assert await job.log.runs("a") == []


async def test_an_object_is_in_one_write_only() -> None:
    async with opened_job() as job:
        uploaded = await job.upload(("a", 0, batch_of([b"1"])))
        assert await job.commit(0, uploaded)
        with pytest.raises(InvalidRequest, match="stored already"):
            await job.commit(1, uploaded)
        assert await job.values("a") == [b"1"]


async def test_uploaded_objects_wait_for_their_commit_until_the_writers_lease_ends() -> None:
    async with opened_job() as job:
        log, seconds = job.log, LEASE_MS / 1000
        uploaded = await job.upload(("a", 0, batch_of([b"1"])))
        job.clock.advance(seconds * 0.9)
        await job.session()  # another task of the job uploads: the lease begins anew
        job.clock.advance(seconds * 0.9)
        await log.sequencer.apply_retention(Empty())
        assert (await log.sequencer.garbage(GarbageRequest(10))).sessions == []
        assert await job.commit(0, uploaded)
        late = await job.upload(("a", 0, batch_of([b"2"])))
        job.clock.advance(seconds)
        assert (await job.session()).session_id != late.session_id, "though nothing has closed it yet"
        await log.sequencer.apply_retention(Empty())
        assert len((await log.sequencer.garbage(GarbageRequest(10))).sessions) == 1
        with pytest.raises(SessionClosed):
            await job.commit(1, late)


async def test_the_last_epoch_of_a_stream_is_kept_for_long_and_that_of_a_batch_job_for_repeats_of_the_call() -> (
    None
):
    async with opened_job(request_answers_ms=10_000, stream_epochs_ms=100_000) as job:
        for name, is_stream in ((1, True), (2, False)):
            first = await job.upload(("a", 0, batch_of([b"1"])), name=name)
            again = await job.upload(("a", 0, batch_of([b"1"])), name=name)
            assert await job.commit(0, first, is_stream=is_stream)
            job.clock.advance(20)
            await job.log.sequencer.apply_retention(Empty())
            assert await job.commit(0, again, is_stream=is_stream) is not is_stream
            job.clock.advance(100)
            await job.log.sequencer.apply_retention(Empty())


async def test_jobs_that_write_at_once_are_bounded() -> None:
    async with opened_job(max_writers=2) as job:
        first, _ = await job.session(1), await job.session(2)
        assert await job.session(1) == first
        with pytest.raises(LimitReached, match="max_writers"):
            await job.session(3)
        await job.log.sequencer.close_session(SessionRef(first.session_id))
        await job.session(3)
        with pytest.raises(InvalidRequest):
            await job.log.sequencer.open_session(OpenSession(WRITER_BROKER_ID, 0))
