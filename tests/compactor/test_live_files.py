"""The live files of a topic, and their live rows."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.tables.live import RowRange, count_rows, dead_rows, list_live_files
from sequencer.api.errors import SequencerUnavailable, UnknownTopic
from sequencer.api.interface import Sequencer
from sequencer.api.objects import LiveFiles, LiveFilesRequest
from sequencer.api.retention import DeleteRecords, DeleteRecordsPartition
from sequencer.api.topics import DeleteTopic
from sequencer.reading import live_files as page_module
from tailrace.batches.records import NewRecord, encode_batch
from tailrace.parquet_object.header import ParquetHeader
from tests.support.compaction import T0, Log, batch_of, compacted_here, memory_log


async def test_the_live_rows_of_all_files_are_the_stable_log() -> None:
    async with memory_log() as (log, _):
        topic = await log.topic("a", 3)
        for number in range(3):
            for partition in range(3):
                await log.produce(("a", partition, batch_of([b"%d" % number] * 5)))
            await compacted_here(log)
        await log.sequencer.delete_records(DeleteRecords([DeleteRecordsPartition(topic.topic_id, 1, 7)]))
        await log.produce(("a", 2, batch_of([b"tail"])))
        found = await list_live_files(log.sequencer, topic.topic_id)
        counted = await count_rows(log.store, found)
        assert [each.rows for each in counted] == [15, 15, 15]
        assert sum(each.live_count for each in counted) == 45 - 7
        assert sorted(len(each.dead) for each in counted) == [0, 1, 1]
        assert [each.uncompacted_offsets for each in found.partitions] == [0, 0, 1]
        assert [each.is_cut for each in found.files].count(True) == 1


async def test_a_batch_that_lost_records_by_their_keys_is_live_as_a_whole() -> None:
    """Only its rows say which offsets are left."""

    async with memory_log() as (log, _):
        configs = {"cleanup.policy": "compact,delete", "min.cleanable.dirty.ratio": "0"}
        topic = await log.topic("a", 1, configs)
        made = [NewRecord(key, b"v") for key in (b"1", b"2", b"3")]
        await log.produce(("a", 0, encode_batch(made, timestamps=[T0] * 3)))
        await log.produce(("a", 0, batch_of([b"v"], key=b"2")))
        await compacted_here(log)
        assert [record.offset for record in await log.consumed("a")] == [0, 2, 3]
        for before_offset, live in ((0, 3), (1, 3), (3, 1)):
            await log.sequencer.delete_records(
                DeleteRecords([DeleteRecordsPartition(topic.topic_id, 0, before_offset)])
            )
            counted = await count_rows(log.store, await list_live_files(log.sequencer, topic.topic_id))
            assert sum(each.live_count for each in counted) == live


async def test_a_listing_of_many_pages_has_each_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_module, "PARTITIONS_A_PAGE", 2)

    async with memory_log() as (log, _):
        topic = await log.topic("a", 7)
        await log.produce(*(("a", partition, batch_of([b"v"] * 2)) for partition in range(0, 7, 3)))
        await compacted_here(log)
        found = await list_live_files(log.sequencer, topic.topic_id)
        assert [each.partition for each in found.partitions] == list(range(7))
        assert [(each.partition, each.end) for each in found.files[0].ranges] == [(0, 2), (3, 2), (6, 2)]


class SwapsBetweenPages:
    """A sequencer on which a compaction runs after the first page of a listing, `times` times."""

    def __init__(self, log: Log, times: int) -> None:
        self._log = log
        self._left = times

    async def live_files(self, request: LiveFilesRequest) -> LiveFiles:
        page = await self._log.sequencer.live_files(request)
        if request.after is None and self._left:
            self._left -= 1
            await self._log.produce(*(("a", partition, batch_of([b"v"])) for partition in range(3)))
            await compacted_here(self._log)
        return page


@pytest.mark.parametrize("times", [1, 100])
async def test_a_swap_between_two_pages_begins_the_listing_again(
    times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_module, "PARTITIONS_A_PAGE", 1)

    async with memory_log() as (log, _):
        topic = await log.topic("a", 3)
        swapping: Sequencer = SwapsBetweenPages(log, times)  # type: ignore[assignment]
        if times > 1:
            with pytest.raises(SequencerUnavailable, match="during each of 10 listings"):
                await list_live_files(swapping, topic.topic_id)
        else:
            found = await list_live_files(swapping, topic.topic_id)
            (file,) = await count_rows(log.store, found)
            assert (file.rows, file.live_count) == (3, 3)


async def test_a_deleted_topic_has_no_files() -> None:
    async with memory_log() as (log, _):
        topic = await log.topic("a")
        await log.sequencer.delete_topic(DeleteTopic(topic.topic_id))
        with pytest.raises(UnknownTopic):
            await list_live_files(log.sequencer, topic.topic_id)


@given(st.lists(st.booleans(), max_size=40))
def test_live_and_dead_rows_tile_the_file(is_live: list[bool]) -> None:
    live: list[RowRange] = []
    for row, alive in enumerate(is_live):
        if alive and live and live[-1].end == row:
            live[-1] = RowRange(live[-1].start, row + 1)
        elif alive:
            live.append(RowRange(row, row + 1))
    header = ParquetHeader(1, "c", UUID(int=1), 0, len(is_live), [], [], b"", [], b"")
    dead = {row for rows in dead_rows(header, live) for row in range(rows.start, rows.end)}
    assert dead == {row for row, alive in enumerate(is_live) if not alive}
