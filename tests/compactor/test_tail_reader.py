"""The tail reader returns each stable record once, in parts of bounded size."""

from __future__ import annotations

import json

import duckdb
import pytest

from compactor.spark_source.columns import COLUMNS
from compactor.spark_source.log_index import SequencerIndex
from compactor.spark_source.log_reader import DataLost, LogReader
from compactor.tables import query
from compactor.tables.live import list_live_files
from compactor.tables.query import TailTooLarge, add_functions, add_records, add_topic, named_tables
from compactor.tables.tail_reader import (
    TailReader,
    TopicGone,
    after_files,
    before_last,
    last_records,
)
from sequencer.api.retention import DeleteRecords, DeleteRecordsPartition
from sequencer.api.topics import CreatePartitions, DeleteTopic, Metadata, MetadataRequest
from tailrace.parquet_object.schema import GREATEST_TIME_MS, LEAST_TIME_MS
from tests.support.compaction import T0, Log, batch_of, compacted_here, memory_log, unreadable_batch


def newest(log: Log, positions: dict[object, int]) -> TailReader:
    return TailReader(SequencerIndex(log.sequencer), log.store, log.topics["t"], positions)  # type: ignore[arg-type]


async def values(records: TailReader, max_bytes: int = 1 << 20) -> list[bytes] | None:
    part = await records.part(max_bytes)
    return None if part is None else part.column("value").to_pylist()


async def test_very_small_runs_are_one_record_batch() -> None:
    """Arrow takes 12 KB for each, which its `nbytes` does not tell."""

    async with memory_log() as (log, _):
        topic = await log.topic("t", 2)
        for number in range(20):
            await log.produce(("t", number % 2, batch_of([b"a"])))
        part = await newest(log, {}).part()
        assert part is not None and len(part) == 20 and part.column("value").num_chunks == 1
        reader = LogReader(SequencerIndex(log.sequencer), log.store, list(COLUMNS))
        files = await list_live_files(log.sequencer, topic.topic_id)
        tail = await query._tail(reader, "t", files)
        assert len(tail) == 20 and tail.column("value").num_chunks == 1


async def test_topics_are_sent_again_only_after_a_change() -> None:
    async with memory_log() as (log, _):
        await log.topic("t", 1)
        index, sent = SequencerIndex(log.sequencer), 0
        ask = log.sequencer.metadata

        async def counted(request: MetadataRequest) -> Metadata:
            nonlocal sent
            answer = await ask(request)
            sent += answer.topics is not None
            return answer

        log.sequencer.metadata = counted  # type: ignore[method-assign]
        assert [topic.name for topic in await index.topics()] == ["t"]
        assert [topic.name for topic in await index.topics()] == ["t"]
        assert sent == 1
        await log.topic("u", 1)
        assert sorted(topic.name for topic in await index.topics()) == ["t", "u"]
        assert sent == 2


async def test_each_stable_record_is_in_one_part_across_compaction() -> None:
    async with memory_log() as (log, _):
        await log.topic("t", 2)
        records = newest(log, {})
        assert await values(records) is None
        await log.produce(("t", 0, batch_of([b"a", b"b"])), ("t", 1, batch_of([b"c"])))
        assert await values(records) == [b"c", b"a", b"b"]
        producer = await log.producer("p")
        await log.produce(("t", 1, batch_of([b"open"], producer=producer)), ("t", 0, batch_of([b"d"])))
        assert await values(records) == [b"d"]
        await log.finish(producer, is_commit=True)
        await compacted_here(log)
        assert await values(records) == [b"open"]
        assert await values(records) is None


async def test_a_batch_that_cannot_be_decoded_hides_no_other_from_queries() -> None:
    async with memory_log() as (log, _):
        topic = await log.topic("t")
        bad = ("t", 0, unreadable_batch([b"x", b"y"]))
        await log.produce(("t", 0, batch_of([b"a"])), bad, ("t", 0, batch_of([b"b"])), bad)
        records = newest(log, {})
        assert await values(records) == [b"a", b"b"]
        assert await values(records) is None
        database = duckdb.connect()
        await add_topic(
            database, "t", topic.topic_id, sequencer=log.sequencer, store=log.store, store_url="memory://"
        )
        assert database.execute('select "offset" from t order by 1').fetchall() == [(0,), (3,)]


async def test_a_part_is_bounded_and_the_next_one_continues_where_it_ended() -> None:
    async with memory_log() as (log, _):
        await log.topic("t")
        for number in range(4):
            await log.produce(("t", 0, batch_of([b"%d" % number * 1_000])))
        records = newest(log, {})
        parts = [await values(records, 1_500) for _ in range(3)]
        assert [len(part or []) for part in parts] == [2, 2, 0]


async def test_the_last_records_are_the_newest_offsets_of_each_partition() -> None:
    async with memory_log() as (log, _):
        topic = await log.topic("t", 2)
        await log.produce(("t", 0, batch_of([b"a", b"b", b"c"])), ("t", 1, batch_of([b"d"])))
        await compacted_here(log)
        await log.produce(("t", 0, batch_of([b"e"])))
        index = SequencerIndex(log.sequencer)
        last = newest(log, await before_last(index, log.store, topic, 2))  # type: ignore[arg-type]
        table = await last_records(last, 1 << 20)
        assert sorted(table.column("value").to_pylist()) == [b"c", b"d", b"e"]
        none = newest(log, await before_last(index, log.store, topic, 0))  # type: ignore[arg-type]
        assert (await last_records(none, 1 << 20)).num_rows == 0
        with pytest.raises(TailTooLarge, match="--last"):
            await last_records(newest(log, {}), 10)


async def test_a_change_that_a_follower_cannot_apply_is_an_error() -> None:
    async with memory_log() as (log, _):
        topic = await log.topic("t")
        await log.produce(("t", 0, batch_of([b"a", b"b", b"c"])))
        records = newest(log, await before_last(SequencerIndex(log.sequencer), log.store, topic, 3))  # type: ignore[arg-type]
        place = DeleteRecordsPartition(topic.topic_id, 0, 2)
        await log.sequencer.delete_records(DeleteRecords([place]))
        with pytest.raises(DataLost, match="offsets 0 to 1 are lost"):
            await records.part()
        await log.sequencer.create_partitions(CreatePartitions(topic.topic_id, 2))
        await log.produce(("t", 1, batch_of([b"new"])))
        at_end = newest(log, await before_last(SequencerIndex(log.sequencer), log.store, topic, 0))  # type: ignore[arg-type]
        assert await values(at_end) == [b"new"], "a partition that came later is read from its start"
        await log.sequencer.delete_topic(DeleteTopic(topic.topic_id))
        with pytest.raises(TopicGone):
            await at_end.part()


async def test_sql_filters_on_key_time_header_and_paths_in_json() -> None:
    async with memory_log() as (log, _):
        topic = await log.topic("t")
        made = [json.dumps({"carrier": {"code": code}}).encode() for code in ("UA", "DL")]
        await log.produce(("t", 0, batch_of(made, key=b"alice")), ("t", 0, batch_of(made[:1], key=b"bob")))
        database = duckdb.connect()
        add_functions(database)
        files = await add_topic(
            database, "t", topic.topic_id, sequencer=log.sequencer, store=log.store, store_url="unused"
        )
        assert list(after_files(topic, files).values()) == [3]
        for condition, count in (
            ("key = 'alice'::blob", 2),
            ("decode(value)->>'$.carrier.code' = 'UA'", 2),
            ("field(value, '$.carrier.code') = 'UA'", 2),
            ("header(headers, 'h') = '{\"c'", 3),
            ("header(headers, 'other') is null", 3),
            (f"epoch_ms(timestamp) > {T0}", 1),
        ):
            found = database.execute(f"select count(*) from t where {condition}").fetchall()
            assert found == [(count,)], condition
        records = newest(log, {})
        part = await records.part()
        add_records(database, "t", part.slice(0, 1))  # type: ignore[union-attr]
        assert database.execute("select count(*) from t").fetchall() == [(1,)]


async def test_a_time_that_microseconds_do_not_hold_is_the_nearest_one() -> None:
    async with memory_log() as (log, _):
        topic = await log.topic("t")
        await log.produce(("t", 0, batch_of([b"1"], at=-(2**62))), ("t", 0, batch_of([b"2"], at=2**62)))
        database = duckdb.connect()
        await add_topic(
            database, "t", topic.topic_id, sequencer=log.sequencer, store=log.store, store_url="unused"
        )
        times = database.execute('select epoch_us(timestamp) from t order by "offset"').fetchall()
        assert times == [(LEAST_TIME_MS * 1000,), (GREATEST_TIME_MS * 1000,)]


def test_bytes_that_are_no_text_and_no_json_fail_no_query() -> None:
    database = duckdb.connect()
    add_functions(database)
    values = ["\\xff", "", "x", '{"a": 1', "[7]", '{"a": {"b": 7}}']
    database.execute(
        "create table t as select unnest($values)::blob as value, [{'key': 'h', 'value': '\\xff'::blob}] as headers",
        {"values": values},
    )
    found = database.execute(
        "select field(value, '$.a.b') f, header(headers, 'h') from t where f is null or f > '6'"
    )
    assert found.fetchall() == [(None, "?")] * 5 + [("7", "?")]
    assert database.execute("select field(null::blob, '$.a')").fetchall() == [(None,)]


def test_a_query_opens_the_topics_that_it_names() -> None:
    names = ["t", "a b", "x", "u"]
    database = duckdb.connect()
    assert named_tables(database, 'select * from t join "a b" x on true', names) == ["t", "a b"]
    joined = "select * from t join u using (key)"
    assert named_tables(database, joined, [*names, "k", "sing"]) == ["t", "u"], "whole words"
    with pytest.raises(duckdb.ParserException):
        named_tables(database, "selec 1 from t", names)
