"""The Spark sink, step by step, without a JVM: rows to batches, tasks, and the driver's commit."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import pytest

pytest.importorskip("pyspark")

import msgspec
import numpy as np
import pyarrow as pa
from kafka.partitioner.default import murmur2 as kafkas_murmur2

from compactor.spark_sink import encode as encode_module
from compactor.spark_sink import rows as rows_module
from compactor.spark_sink.encode import encode_rows
from compactor.spark_sink.murmur2 import murmur2
from compactor.spark_sink.options import SinkOptions
from compactor.spark_sink.rows import InvalidRow, Target, rows_of
from compactor.spark_sink.sink import Uploaded, parts_of
from compactor.spark_sink.task import UploadFailed, WriteTask, chunks
from compactor.spark_source.options import SourceOptions
from sequencer.api.commits import SessionRef, WriteRequest, WrittenObject
from sequencer.api.topics import Topic
from sequencer.settings import SequencerSettings
from sequencer.store_check import WrongStore
from tailrace.batches.mixed_object import audit
from tailrace.batches.record_batch import Compression, TimestampType, read_header
from tailrace.batches.records import decode_records
from tailrace.configs.topic_config import topic_settings
from tailrace.object_store.memory import MemoryStore
from tests.support.clocks import ManualClock, SeededEntropy
from tests.support.compaction import T0, Log, memory_log
from tests.support.faulty_store import FaultPlan, Faults, FaultyStore

GIVEN = {"store": "/s", "sequencer": "127.0.0.1:1"}
QUERY = UUID(int=9)


def target(name: str, partitions: int, **configs: str) -> Target:
    named = {key.replace("_", "."): value for key, value in configs.items()}
    topic = Topic(UUID(int=len(name) * 1000 + partitions), name, partitions, named, 0)
    return Target(topic, topic_settings(named))


def table(values: Sequence[bytes], **columns: Any) -> pa.Table:
    headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    types = {"key": pa.binary(), "topic": pa.string(), "partition": pa.int32(), "headers": headers}
    given = {name: pa.array(column, types[name]) for name, column in columns.items()}
    return pa.table({"value": pa.array(values, pa.binary()), **given})


def written(given: pa.Table, *targets: Target, codec: Compression = Compression.NONE) -> dict[Any, list[Any]]:
    """Each partition's batches."""
    by_name = {each.topic.name: each for each in targets}
    rows, _ = rows_of(given, by_name, topic="", first=100, sticky=0)
    return {
        (name, partition.partition): [b"".join(parts) for _, parts in batches]
        for partition, name, batches in encode_rows(rows, codec, T0)
    }


def records(batches: Sequence[bytes]) -> list[Any]:
    return [record for batch in batches for record in decode_records(batch)]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"compresion": "lz4"}, "compresion are unknown"),
        ({"database": "sqlite:///x"}, "needs a running sequencer"),
        ({"kafka.bootstrap.servers": "b:1"}, "not a broker"),
        ({"compression": "brotli"}, "allowed are none, gzip"),
        ({"objectBytes": "0"}, "objectBytes"),
        ({"objectBytes": str(1 << 40)}, "at most"),
        ({"atomic": "maybe"}, "true or false"),
        ({"sequencer": ""}, "give the options"),
        ({"sequencer": "127.0.0.1:1,s.example:1"}, "'s.example:1' is on another machine.*make a secret"),
    ],
)
def test_an_option_that_is_unknown_or_wrong_is_refused(options: dict[str, str], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        SinkOptions.of(GIVEN | options)


def test_a_sequencer_on_another_machine_is_asked_with_a_secret_or_a_certificate() -> None:
    far = {"store": "/s", "sequencer": "s.example:1"}
    for option in ("rpc_secret", "rpc_secret_file", "rpc_cert_file"):
        assert SinkOptions.of(far | {option: "x"}).security.is_closed
        assert SourceOptions.of(far | {option: "x", "subscribe": "t"}).security.is_closed
    with pytest.raises(ValueError, match="make a secret"):
        SourceOptions.of(far | {"subscribe": "t"})


def test_columns_are_those_of_sparks_kafka_sink() -> None:
    options = SinkOptions.of(GIVEN | {"TOPIC": "t", "compression": "zstd", "checkpointLocation": "/c"})
    assert (options.topic, options.compression) == ("t", Compression.ZSTD)
    options.check_columns({"value": "string", "key": "binary", "offset": "bigint"})
    for types, error in (
        ({"key": "string"}, "no column 'value'"),
        ({"value": "int"}, "column 'value' is int"),
        ({"value": "string", "partition": "bigint"}, "column 'partition'"),
    ):
        with pytest.raises(ValueError, match=error):
            options.check_columns(types)
    with pytest.raises(ValueError, match="option 'topic' or a column"):
        SinkOptions.of(GIVEN).check_columns({"value": "string"})


def test_a_key_goes_to_the_partition_that_kafkas_clients_choose() -> None:
    random = np.random.default_rng(1)
    keys = [random.bytes(length) for length in range(40) for _ in range(5)]
    hashes = np.empty(len(keys), np.uint32)
    offsets = np.cumsum([0, *map(len, keys)], dtype=np.int32)
    murmur2(offsets, np.frombuffer(b"".join(keys), np.uint8), hashes)
    assert hashes.tolist() == [kafkas_murmur2(key) & 0xFFFFFFFF for key in keys]
    batches = written(table(keys, key=keys, topic=["t"] * len(keys)), target("t", 7))
    for (_, partition), stored in batches.items():
        of_here = [key for key in keys if (kafkas_murmur2(key) & 0x7FFFFFFF) % 7 == partition]
        assert [record.key for record in records(stored)] == of_here


@pytest.mark.parametrize("gathered_bytes", [0, 1 << 30])
def test_records_keep_their_order_in_their_partition_and_all_that_they_have(
    gathered_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encode_module, "GATHERED_BYTES", gathered_bytes)
    values = [b"%d" % number for number in range(6)]
    given = table(
        [*values[:5], None],  # type: ignore[list-item]
        key=[b"k", None, b"", b"k", b"k", b"k"],
        topic=["a", "b", "a", "b", "a", "a"],
        partition=[1, 0, 1, 0, 0, 1],
        headers=[None, [], [("h", b"1"), ("h", None)], None, [("é", b"")], None],
    )
    batches = written(given, target("a", 2), target("b", 1, message_timestamp_type="LogAppendTime"))
    assert list(batches) == [("a", 0), ("a", 1), ("b", 0)]
    assert [(each.key, each.value, tuple(each.headers)) for each in records(batches["a", 1])] == [
        (b"k", b"0", ()), (b"", b"2", (("h", b"1"), ("h", None))), (b"k", None, ())
    ]  # fmt: skip
    [only] = records(batches["a", 0])
    assert (only.timestamp, only.headers) == (T0, (("é", b""),))
    assert [each.key for each in records(batches["b", 0])] == [None, b"k"]
    assert read_header(batches["b", 0][0]).timestamp_type is TimestampType.LOG_APPEND_TIME
    assert read_header(batches["a", 0][0]).timestamp_type is TimestampType.CREATE_TIME


@pytest.mark.parametrize("gathered_bytes", [0, 1 << 30])
@pytest.mark.parametrize("codec", list(Compression))
def test_batches_are_cut_at_their_size_and_hold_every_record(
    codec: Compression, gathered_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encode_module, "GATHERED_BYTES", gathered_bytes)
    monkeypatch.setattr(encode_module, "BATCH_BYTES", 2_000)
    values = [b"value %d " % number * 10 for number in range(300)]
    given = table(values, topic=["t"] * 300, partition=[number % 3 for number in range(300)])
    batches = written(given, target("t", 3), codec=codec)
    for (_, partition), stored in batches.items():
        assert [each.value for each in records(stored)] == values[partition::3]
        assert all(len(batch) <= 2_100 for batch in stored)
        assert 5 < len(stored) < 12
        assert {read_header(batch).compression for batch in stored} == {codec}


def test_records_that_a_topic_refuses_are_reported_with_their_row() -> None:
    small = target("small", 1, max_message_bytes="200")
    compacted = target("kept", 1, cleanup_policy="compact")
    for given, error in (
        (
            table([b"a", b"x" * 300], topic=["small"] * 2),
            "row 101 .* max.message.bytes of topic 'small' is 200",
        ),
        (table([b"a", b"b"], topic=["kept"] * 2, key=[b"k", None]), "row 101 .* no key"),
        (
            table([b"a", b"b"], topic=["small"] * 2, partition=[0, 1]),
            "row 101 .* partition 1; its topic has 1",
        ),
        (table([b"a"], topic=["small"], partition=[-1]), "row 100 .* partition -1"),
        (table([b"a", b"b"], topic=["small", None]), "row 101 .* no topic"),
        (table([b"a"], topic=["gone"]), "topic 'gone' .* does not exist"),
    ):
        with pytest.raises(InvalidRow, match=error):
            written(given, small, compacted)
    with pytest.raises(InvalidRow, match="header without a key"):
        written(table([b"a"], topic=["small"], headers=[[(None, b"v")]]), small)
    packed = written(
        table([b"x" * 300], topic=["small"]), small, codec=Compression.ZSTD
    )  # judged as it is stored, as by an agent
    assert len(records(packed["small", 0])) == 1


def test_records_without_a_key_go_to_one_partition_until_it_has_a_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rows_module, "STICKY_BYTES", 1_000)
    by_name = {"t": target("t", 3)}
    rows, sticky = rows_of(table([b"x" * 100] * 30), by_name, topic="t", first=0, sticky=1)
    changes = np.flatnonzero(np.diff(rows.partitions)).tolist()
    assert (int(rows.partitions[0]), changes, sticky) == (1, [8, 18, 28], 5)
    assert Counter(rows.partitions.tolist()) == {1: 10, 2: 10, 0: 10}
    rows, _ = rows_of(table([b"x"] * 5), by_name, topic="t", first=0, sticky=sticky)
    assert set(rows.partitions.tolist()) == {5 % 3}


def test_rows_are_taken_in_chunks_and_a_large_batch_is_divided() -> None:
    batches = table([b"x" * 1_000] * 64).to_batches(max_chunksize=16)
    sizes = [sum(each.num_rows for each in chunk) for chunk in chunks(batches, 20_000)]
    assert sum(sizes) == 64 and max(sizes) <= 32
    sizes = [sum(each.num_rows for each in chunk) for chunk in chunks(batches[:1], 3_000)]
    assert sum(sizes) == 16 and max(sizes) <= 4
    assert list(chunks([], 1)) == []


class Job:
    """Tasks of one job over a sequencer and a store in memory."""

    def __init__(self, log: Log, clock: ManualClock, store: Any = None) -> None:
        self.log, self.clock = log, clock
        self.store = store or log.store
        self.options = SinkOptions.of(GIVEN | {"topic": "t"})

    def task(self) -> WriteTask:
        return WriteTask(self.log.sequencer, self.store, self.options, QUERY, self.clock, self.log.entropy)

    async def uploaded(self, *chunks_of_values: list[bytes]) -> list[WrittenObject]:
        task = self.task()
        for values in chunks_of_values:
            await task.write(table(values, key=values).to_batches())
        return task.objects

    async def commit(self, epoch: int, objects: list[WrittenObject]) -> bool:
        request = WriteRequest(QUERY, epoch, True, Uploaded(QUERY, epoch, objects).objects)
        return not (await self.log.sequencer.commit_write(request)).is_repeat

    async def values(self) -> list[bytes | None]:
        found = [await self.log.records("t", partition) for partition in range(2)]
        return sorted(record.value or b"" for records in found for record in records)


@asynccontextmanager
async def opened_job() -> AsyncIterator[Job]:
    async with memory_log() as (log, clock):
        await log.topic("t", 2)
        yield Job(log, clock)


async def test_uploads_of_tasks_become_visible_once_with_the_drivers_commit() -> None:
    async with opened_job() as job:
        first = await job.uploaded([b"1", b"2"], [b"3"])
        second = await job.uploaded([b"4"])
        failed_attempt = await job.uploaded([b"4"])
        assert [len(first), len(second)] == [2, 1] and await job.values() == []
        assert await job.commit(0, first + second)
        assert not await job.commit(0, first + failed_attempt), "the stream was started again"
        assert await job.values() == [b"1", b"2", b"3", b"4"]
        for each in first + second:
            assert audit(await job.log.store.get(each.object.key)) == []
        assert len({each.session_id for each in first + second + failed_attempt}) == 1


async def test_a_job_whose_session_was_closed_continues_in_another() -> None:
    async with opened_job() as job:
        [before] = await job.uploaded([b"1"])
        await job.log.sequencer.close_session(SessionRef(before.session_id))
        [after] = await job.uploaded([b"1"])
        assert after.session_id != before.session_id
        assert await job.commit(0, [after])
        assert await job.values() == [b"1"]


async def test_an_object_that_cannot_be_stored_in_time_fails_its_task() -> None:
    async with opened_job() as job:
        broken = FaultyStore(
            job.log.store, job.clock, SeededEntropy(3), FaultPlan(put=Faults(fails_before=1.0))
        )
        job.store = broken
        uploading = asyncio.ensure_future(job.uploaded([b"1"]))
        while not uploading.done():
            job.clock.advance(0.1)  # the committer renews its lease meanwhile
            for _ in range(10):
                await asyncio.sleep(0)
        with pytest.raises(UploadFailed, match="was not stored in 60 s: "):
            await uploading


async def test_a_task_whose_store_is_not_the_clusters_writes_nothing() -> None:
    async with opened_job() as job:
        await job.commit(0, await job.uploaded([b"1"]))
        job.store = MemoryStore(job.clock)
        with pytest.raises(WrongStore):
            await job.uploaded([b"2"])
        assert [info.key async for info in job.store.list("")] == []


async def test_a_batch_job_that_need_not_be_atomic_is_committed_in_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("compactor.spark_sink.sink.PART_RUNS", 2)

    async with opened_job() as job:
        objects = await job.uploaded(*([b"%d" % number] for number in range(5)))
        parts = list(parts_of(objects))
        assert [len(part) for part in parts] == [2, 2, 1]
        assert [each for part in parts for each in part] == objects
        for epoch, part in enumerate(parts):
            assert await job.commit(epoch, part)
        assert await job.values() == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize(("batches", "records"), [(64, 64), (1, 600_000)])
async def test_each_part_of_a_batch_job_is_within_the_limits_of_a_commit(batches: int, records: int) -> None:
    async with opened_job() as job:
        [written] = await job.uploaded([b"1"])
        [run] = written.runs
        batch = msgspec.structs.replace(run.batches[0], record_count=records // batches)
        run = msgspec.structs.replace(run, batches=[batch] * batches)
        objects = [msgspec.structs.replace(written, runs=[run])] * 4_000
        parts = list(parts_of(objects))
        assert [each for part in parts for each in part] == objects
        limits = SequencerSettings()
        most = max(map(len, parts))
        assert most * batches <= limits.max_batches_per_commit
        assert most * records <= limits.max_offsets_at_once
        assert len(parts) <= 400


async def test_a_put_does_not_start_when_the_sessions_lease_could_end_before_it() -> None:
    async with opened_job() as job:
        task = job.task()
        task.put_seconds = 7 * 3600.0
        with pytest.raises(UploadFailed, match="no try was made"):
            await task.write(table([b"1"]).to_batches())
