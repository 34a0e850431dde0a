"""Erasing records by key: what is found for how many bytes, what is left, and what survives a crash."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compactor import rewrite as rewrite_module
from compactor.erasure.erase import (
    REWRITTEN_AT_ONCE,
    EraseFailed,
    EraseRequest,
    Erasure,
    ErasureWork,
    bytes_left,
    erase_keys,
    find_keys,
    together,
)
from compactor.erasure.record import (
    MAX_RECORDS,
    ErasureRecord,
    hash_key,
    read_records,
    write_record,
)
from compactor.erasure.rewrite import RewriteContext, rewrite_without
from compactor.erasure.search import FileHits, SearchKeys
from compactor.lease import LEASE_MS
from compactor.rewrite import RewriteFailed
from compactor.spark_source.log_index import SequencerIndex
from compactor.spark_source.log_reader import LogPartition, LogReader, OffsetRange
from compactor.tables.live import LiveFile, list_live_files
from sequencer import bounds
from sequencer.api.commits import ObjectDescription, ObjectKind
from sequencer.api.compaction import SwapRequest, TakeLease
from sequencer.api.errors import LeaseLost
from sequencer.api.reads import Run
from sequencer.api.retention import DeleteRecords, DeleteRecordsPartition
from sequencer.api.topics import MetadataRequest
from sequencer.collector import collect
from sequencer.rules.upload_sessions import COMPACTOR_LEASE
from sequencer.settings import SequencerSettings
from tailrace.batches.compression import compress, decompress
from tailrace.batches.record_batch import HEADER_BYTES, Compression, assemble_like, read_header
from tailrace.batches.records import NewRecord, Record, decode_records, encode_batch
from tailrace.object_store.memory import MemoryStore
from tests.support.clocks import ManualClock
from tests.support.compaction import T0, Log, batch_of, compacted_here, memory_log

PATIENT = SequencerSettings(session_lease_ms=86_400_000, agent_lease_ms=86_400_000)


def keyed(*records: tuple[bytes, bytes], codec: Compression = Compression.NONE) -> bytes:
    made = [NewRecord(key, value) for key, value in records]
    return encode_batch(made, timestamps=[T0 + number for number in range(len(made))], compression=codec)


def work(log: Log) -> ErasureWork:
    return ErasureWork(log.sequencer, log.store, log.clock, log.entropy)


def asked(log: Log, *keys: bytes, name: str = "t", reads_all: bool = False) -> EraseRequest:
    return EraseRequest(
        log.topics[name], SearchKeys.of(keys), by="alice", reason="request 17", reads_all=reads_all
    )


def pairs(records: Sequence[Record]) -> list[tuple[int, bytes | None]]:
    return [(record.offset, record.key) for record in records]


def advanced(log: Log, seconds: float) -> None:
    assert isinstance(log.clock, ManualClock)
    log.clock.advance(seconds)


async def erased(log: Log, *keys: bytes, of: ErasureWork | None = None, name: str = "t") -> Erasure:
    """An erasure while time goes by."""
    async with going_on(log):
        return await erase_keys(of or work(log), asked(log, *keys, name=name))


@asynccontextmanager
async def going_on(log: Log) -> AsyncIterator[None]:
    """Time goes by."""

    async def tick() -> None:
        while True:
            advanced(log, 0.02)
            await asyncio.sleep(0)

    ticking = asyncio.create_task(tick())
    try:
        yield
    finally:
        ticking.cancel()


class Interrupted(Exception):
    pass


class DiesBeforeSwap:
    """A sequencer whose caller dies before its `last`th swap."""

    def __init__(self, sequencer: object, last: int) -> None:
        self._sequencer = sequencer
        self._left = last

    def __getattr__(self, name: str) -> object:
        return getattr(self._sequencer, name)

    async def swap(self, request: SwapRequest) -> object:
        self._left -= 1
        if self._left <= 0:
            raise Interrupted
        return await self._sequencer.swap(request)  # type: ignore[attr-defined]


async def three_files(log: Log) -> None:
    """Topic t, two partitions: three Parquet objects and a tail; in each is one record of b"mine"."""
    await log.topic("t", 2)
    for number in range(4):
        codec = Compression.ZSTD if number % 2 else Compression.NONE
        plain = keyed(*[(b"p%d-%d" % (number, each), b"v" * 30) for each in range(5)])
        mixed = keyed((b"mine", b"secret-%d" % number), (b"a%d" % number, b"x"), (b"b", b"y"), codec=codec)
        await log.produce(("t", number % 2, mixed), ("t", 1 - number % 2, plain))
        if number < 3:
            await compacted_here(log)


async def test_only_the_keys_records_go_and_all_offsets_stay() -> None:
    async with memory_log(PATIENT) as (log, _):
        await three_files(log)
        before = [pairs(await log.consumed("t", partition)) for partition in (0, 1)]
        found = await find_keys(work(log), asked(log, b"mine"))
        assert [hits.records for hits in found.hits] == [1, 1, 1]
        assert found.unread == {0: 5, 1: 3}
        done = await erased(log, b"mine", b"nobody's")
        assert (done.erased_records, len(done.objects), done.unread) == (4, 4, {})
        for partition in (0, 1):
            left = [pair for pair in before[partition] if pair[1] != b"mine"]
            assert pairs(await log.consumed("t", partition)) == left
            assert (await log.runs("t", partition))[-1].end_offset == before[partition][-1][0] + 1
        again = await erased(log, b"mine")
        assert (again.erased_records, again.objects) == (0, [])


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.ZSTD])
async def test_header_keys_that_are_not_utf_8_stay_as_they_were_sent(codec: Compression) -> None:
    def raw(*records: tuple[bytes, bytes]) -> bytes:
        made = [NewRecord(key, value, [("k\xe9y", key), ("plain", None)]) for key, value in records]
        batch = encode_batch(made, timestamps=[T0] * len(made)).replace("k\xe9y".encode(), b"k\xff\xe9y")
        return recompressed(batch, codec)

    async def headers(log: Log) -> list[object]:
        reader = LogReader(SequencerIndex(log.sequencer), log.store, ["offset", "headers"])
        end = (await log.found("t")).last_stable_offset
        partition = LogPartition("t", log.topics["t"].topic_id, 0)
        parts = [batch.to_pylist() async for batch in reader.read(OffsetRange(partition, 0, end))]
        return [(row["offset"], [each["key"] for each in row["headers"]]) for part in parts for row in part]

    async def unpacked(log: Log) -> list[bytes]:
        return [
            bytes(recompressed(batch, Compression.NONE)[HEADER_BYTES:]) for batch in await log.replay("t")
        ]

    async with memory_log(PATIENT) as (log, _):
        await log.topic("t")
        for number in range(3):
            await log.produce(("t", 0, raw((b"mine", b"x"), (b"a", b"%d" % number), (b"b", b"y"))))
        sent = await unpacked(log)
        assert await headers(log) == [(offset, ["k\ufffd\ufffdy", "plain"]) for offset in range(9)]
        for merges in (False, True):
            await compacted_here(log, merges=merges)
            assert await unpacked(log) == sent
        assert all(run.kind is ObjectKind.PARQUET for run in await log.runs("t"))
        assert await headers(log) == [(offset, ["k\ufffd\ufffdy", "plain"]) for offset in range(9)]
        await erased(log, b"mine")
        left = b"".join(await unpacked(log))
        assert (left.count(b"k\xff\xe9y"), left.count(b"plain"), left.count(b"mine")) == (6, 6, 0)


def recompressed(batch: bytes, codec: Compression) -> bytes:
    """The batch with another codec."""
    header = read_header(batch)
    records = decompress(header.compression, batch[HEADER_BYTES:], max_bytes=1 << 20)
    changed = msgspec.structs.replace(header, attributes=int(codec))
    return assemble_like(changed, compress(codec, records), header.record_count)


async def test_a_partition_of_which_nothing_is_left_keeps_its_end() -> None:
    async with memory_log(PATIENT) as (log, _):
        await log.topic("t")
        await log.produce(("t", 0, keyed((b"mine", b"1"), (b"mine", b"2"))))
        assert (await erased(log, b"mine")).erased_records == 2
        assert await log.consumed("t") == []
        assert (await log.found("t")).high_watermark == 2


async def test_an_erasure_that_dies_between_two_swaps_is_ended_by_the_next_one() -> None:
    async with memory_log(PATIENT) as (log, _):
        await three_files(log)
        before = [pairs(await log.consumed("t", partition)) for partition in (0, 1)]
        dying = ErasureWork(DiesBeforeSwap(log.sequencer, 3), log.store, log.clock, log.entropy)  # type: ignore[arg-type]
        with pytest.raises(Interrupted):
            await erased(log, b"mine", of=dying)
        between = [pairs(await log.consumed("t", partition)) for partition in (0, 1)]
        lost = [pair for partition in (0, 1) for pair in before[partition] if pair not in between[partition]]
        assert [key for _, key in lost] == [b"mine"], "the first swap of the tail, and one of an object"
        assert (await erased(log, b"mine")).erased_records == 3
        for partition in (0, 1):
            left = [pair for pair in before[partition] if pair[1] != b"mine"]
            assert pairs(await log.consumed("t", partition)) == left


async def test_objects_are_written_again_side_by_side_a_few_at_a_time_and_one_that_fails_keeps_no_other_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with memory_log(PATIENT) as (log, _):
        await log.topic("t")
        for number in range(2 * REWRITTEN_AT_ONCE):
            await log.produce(("t", 0, keyed((b"mine", b"secret"), (b"k%d" % number, b"v"))))
            await compacted_here(log)
        found = await find_keys(work(log), asked(log, b"mine"))
        bad = found.hits[0].file.object.object_id
        running: set[UUID] = set()
        most = 0

        async def watched(keys: SearchKeys, name: str, runs: Sequence[Run], of: RewriteContext) -> Any:
            nonlocal most
            running.add(runs[0].object_id)
            most = max(most, len(running))
            try:
                for _ in range(10):  # the others come so far, too
                    await asyncio.sleep(0)
                if runs[0].object_id == bad:
                    raise RewriteFailed("it is corrupt")
                return await rewrite_without(keys, name, runs, of)
            finally:
                running.remove(runs[0].object_id)

        with monkeypatch.context() as patched:
            patched.setattr("compactor.erasure.erase.rewrite_without", watched)
            with pytest.raises(EraseFailed, match="it is corrupt"):
                await erased(log, b"mine")
        assert most == REWRITTEN_AT_ONCE
        left = len((await find_keys(work(log), asked(log, b"mine"))).hits)
        assert left == 1, "the corrupt one"


def parquet_of(size: int) -> ObjectDescription:
    return ObjectDescription(UUID(int=1), ObjectKind.PARQUET, "k", size, 0, 0, 0)


@settings(deadline=None)
@given(st.lists(st.integers(1, 300), max_size=12))
def test_objects_that_are_written_again_together_have_few_bytes_unless_one_alone_has_more(
    sizes: list[int],
) -> None:
    hits = [FileHits(LiveFile(parquet_of(size), (), is_cut=False), 1) for size in sizes]
    groups = list(together(hits, most=3, max_bytes=256))
    assert [hit for group in groups for hit in group] == hits
    for group in groups:
        assert len(group) == 1 or sum(hit.file.object.size for hit in group) <= 256
        assert 1 <= len(group) <= 3


async def test_two_erasures_at_once_wait_for_each_other() -> None:
    async with memory_log(PATIENT) as (log, _):
        await three_files(log)
        async with going_on(log):
            done = await asyncio.gather(
                erase_keys(work(log), asked(log, b"mine")), erase_keys(work(log), asked(log, b"b", b"mine"))
            )
        assert sum(each.erased_records for each in done) == 8
        left = [key for partition in (0, 1) for _, key in pairs(await log.consumed("t", partition))]
        assert not {b"mine", b"b"} & set(left) and len(left) == 24


async def test_an_erasure_keeps_its_lease_however_long_an_object_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A compactor that stands by asks for the lease every second."""

    async with memory_log(PATIENT) as (log, _):
        await three_files(log)
        standing_by: list[asyncio.Task[None]] = []

        async def stand_by() -> None:
            while True:
                with pytest.raises(LeaseLost):
                    await log.sequencer.take_lease(TakeLease(COMPACTOR_LEASE, "standby", 0, LEASE_MS))
                await log.clock.sleep(1)

        calls: list[str] = []

        async def in_a_thread(call: Callable[[], Any]) -> Any:
            standing_by.append(asyncio.create_task(stand_by()))
            await log.clock.sleep(3 * LEASE_MS / 1000)
            with monkeypatch.context() as patched:
                for name in ("write_parquet", "verify"):
                    patched.setattr(rewrite_module, name, noted(getattr(rewrite_module, name)))
                return call()

        def noted(slow: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                calls.append(slow.__name__)
                return slow(*args, **kwargs)

            return call

        of = ErasureWork(log.sequencer, log.store, log.clock, log.entropy, run=in_a_thread)
        done = await erased(log, b"mine", of=of)
        assert (done.erased_records, len(done.objects)) == (4, 4)
        assert sorted(calls) == ["verify"] * 4 + ["write_parquet"] * 4
        assert not any(task.done() for task in standing_by)
        for task in standing_by:
            task.cancel()


async def test_rows_below_the_log_start_go_too() -> None:
    async with memory_log(PATIENT) as (log, _):
        await three_files(log)
        place = DeleteRecordsPartition(log.topics["t"].topic_id, 0, 2)
        await log.sequencer.delete_records(DeleteRecords([place]))
        done = await erased(log, b"mine")
        assert (len(done.objects), done.erased_records) == (4, 4)
        records = [record for batch in await log.replay("t", 0, 2) for record in decode_records(batch)]
        assert next(pair for pair in pairs(records) if pair[0] >= 2) == (2, b"b")
        assert not [record for record in records if record.key == b"mine"]


async def test_an_object_that_was_deleted_meanwhile_ends_no_search() -> None:
    async with memory_log(PATIENT) as (log, _):
        await three_files(log)
        files = await list_live_files(log.sequencer, log.topics["t"].topic_id)
        await log.store.delete([files.files[0].object.key])
        found = await find_keys(work(log), asked(log, b"mine"))
        assert (len(found.hits), found.cost.gone) == (2, 1)


@pytest.mark.parametrize("is_index", [True, False])
async def test_a_corrupt_object_is_named_and_keeps_the_keys_in_no_other(is_index: bool) -> None:
    async with memory_log(PATIENT) as (log, _):
        await three_files(log)
        first = (await find_keys(work(log), asked(log, b"mine"))).hits[0].file.object
        sound = bytes(await log.store.get_range(first.key, 0, first.size))
        at = first.index_start if is_index else first.index_start // 2
        await log.store.delete([first.key])
        await log.store.put(first.key, [sound[:at], bytes([sound[at] ^ 1]), sound[at + 1 :]])
        with pytest.raises(EraseFailed, match=f"'t' are corrupt.*{first.key}"):
            await erased(log, b"mine")
        found = await find_keys(work(log), asked(log, b"mine"))
        assert {hits.file.object.key for hits in found.hits} | set(found.corrupt) == {first.key}
        await log.store.delete([first.key])
        await log.store.put(first.key, [sound])
        assert (await erased(log, b"mine")).erased_records == 1


async def test_records_of_an_open_transaction_are_reported_as_not_erased() -> None:
    async with memory_log(PATIENT) as (log, _):
        await three_files(log)
        producer = await log.producer("open")
        await log.produce(("t", 0, batch_of([b"late"], key=b"mine", producer=producer)))
        with pytest.raises(EraseFailed, match=r"1 offsets of 't' are in no Parquet object \(.*0: 1\)"):
            await erased(log, b"mine")
        await log.finish(producer, is_commit=True)
        assert (await erased(log, b"mine")).erased_records == 1


async def test_unerased_offsets_are_reported_for_all_partitions_however_small_an_answer_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bounds, "MAX_ANSWER_RUNS", 1)

    async with memory_log(PATIENT) as (log, _):
        await log.topic("t", 4)
        for _ in range(2):
            await log.produce(*[("t", partition, keyed((b"mine", b"secret"))) for partition in range(4)])
        found = await find_keys(work(log), asked(log, b"mine"))
        assert found.unread == {0: 2, 1: 2, 2: 2, 3: 2}


async def test_the_log_of_an_erasure_is_in_the_store_without_the_key() -> None:
    async with memory_log(PATIENT) as (log, _):
        await three_files(log)
        await erased(log, b"mine")
        (record,) = await read_records(log.store, await cluster_id(log), "t")
        assert record.key_hashes == [hash_key(log.topics["t"].topic_id, b"mine")]
        assert (record.by, record.reason, record.erased_records) == ("alice", "request 17", 4)
        assert record.begun_ms < record.ended_ms
        keys = [info.key async for info in log.store.list("") if "/erasures/" in info.key]
        assert len(keys) == 2
        assert not [key for key in keys if b"mine" in await log.store.get(key)]


async def test_a_topics_erasures_are_listed_however_many_other_topics_have() -> None:
    store = MemoryStore(ManualClock())
    topics = ["mine", *["other"] * (MAX_RECORDS + 1), "mine"]
    for number, topic in enumerate(topics):
        begun = ErasureRecord(
            erasure_id=UUID(int=number),
            topic=topic,
            topic_id=UUID(int=1),
            key_hashes=[],
            by="",
            reason="",
            begun_ms=number + 1,
        )
        for ended_ms in (0, number + 2) if number else (0,):
            await write_record(store, "c", msgspec.structs.replace(begun, ended_ms=ended_ms))
    listed = await read_records(store, "c", "mine")
    assert [(record.begun_ms, record.ended_ms) for record in listed] == [
        (1, 0),
        (MAX_RECORDS + 3, MAX_RECORDS + 4),
    ]
    assert len(await read_records(store, "c", "other")) == MAX_RECORDS


async def test_the_bytes_are_gone_after_the_grace_and_the_collector_reports_it() -> None:
    async with memory_log(PATIENT) as (log, _):
        await three_files(log)
        await log.topic("other")
        await log.produce(("t", 0, keyed((b"mine", b"1"))), ("other", 0, keyed((b"k", b"v"))))
        began_ms = log.clock.wall_ms()
        await erased(log, b"mine")
        (left,) = await bytes_left(log.sequencer, "t", [began_ms])
        assert (left.live_mixed, left.retired) == (1, 8), "the object that it shares with `other` is live"
        advanced(log, 120)
        await compacted_here(log)
        advanced(log, 120)
        await collect(log.sequencer, log.store, log.clock, pause_s=0)
        (left,) = await bytes_left(log.sequencer, "t", [began_ms])
        assert (left.live_mixed, left.retired) == (0, 0)
        async for info in log.store.list(""):
            if "/mixed/" in info.key or "/parquet/" in info.key:
                assert info.key.endswith(".parquet")
        found = await find_keys(work(log), asked(log, b"mine", reads_all=True))
        assert not found.hits


async def cluster_id(log: Log) -> str:
    return (await log.sequencer.metadata(MetadataRequest())).cluster_id


async def test_a_key_is_found_for_less_than_two_hundredths_of_the_bytes() -> None:
    """Records as JSON of which a third does not compress, in producers' batches of 16 KiB. What is read of an object
    grows with its row groups and its batches, as the object does: the share stays. Where the key is, the keys of a row
    group are read, too."""

    async with memory_log(PATIENT) as (log, _):
        await log.topic("t")
        luck = random.Random(8)
        for number in range(4):
            batches = [
                keyed(*[(b"user-%d" % luck.getrandbits(60), json_like(luck)) for _ in range(17)])
                for _ in range(250)
            ]
            if number == 2:
                batches[100] = keyed((b"user-3-mine", json_like(luck)))
            await log.produce(*[("t", 0, batch) for batch in batches])
            await compacted_here(log)
        absent = (await find_keys(work(log), asked(log, b"user-3-nobody"))).cost
        assert (absent.row_groups, absent.without_by_filter) == (4, 4)
        assert absent.file_bytes > 4_000_000
        assert absent.read_bytes < 0.02 * absent.file_bytes
        found = await find_keys(work(log), asked(log, b"user-3-mine"))
        assert [hits.records for hits in found.hits] == [1]
        assert (found.cost.requests, found.cost.false_alarms) == (absent.requests + 1, 0)


def json_like(luck: random.Random) -> bytes:
    """940 bytes, of which about a third do not compress."""
    return b'{"carrier": "UA", "origin": "EWR", "noise": "%s"}' % (
        luck.randbytes(220).hex().encode() + b" " * 450
    )
