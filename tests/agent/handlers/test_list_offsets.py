"""ListOffsets: every special time, by every version that knows it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

import agent.handlers.list_offsets as list_offsets
from sequencer.api.retention import DeleteRecords, DeleteRecordsPartition
from tailrace.batches.record_batch import HEADER_BYTES, assemble_like, read_header
from tailrace.batches.records import NewRecord, encode_batch
from tailrace.kafka import ApiKey
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tests.agent.handlers.test_produce import produce
from tests.support.agents import AgentBench, agent_bench, batch

T0 = 1_700_000_000_000


async def asked(
    bench: AgentBench, timestamp: int, version: int = 9, name: str = "t", partition: int = 0
) -> Any:
    request = ListOffsetsRequest(
        topics=[ListOffsetsTopic(name, [ListOffsetsPartition(partition, timestamp=timestamp)])]
    )
    response = await bench.ask(ApiKey.LIST_OFFSETS, version, request)
    return response.topics[0].partitions[0]


@pytest.mark.parametrize(
    ("timestamp", "offset", "at"),
    [
        (-1, 5, -1), (-2, 0, -1), (-4, 0, -1), (-3, 4, T0 + 100), (-5, -1, -1),
        (0, 0, T0), (T0 + 1, 1, T0 + 1), (T0 + 3, 3, T0 + 99), (T0 + 100, 4, T0 + 100), (T0 + 101, -1, -1),
    ],
)  # fmt: skip
async def test_each_time_has_its_offset(timestamp: int, offset: int, at: int) -> None:
    async with agent_bench() as bench:
        await bench.topic()
        await produce(bench, (0, batch(b"1", b"2", b"3", at=T0)))
        await produce(bench, (0, batch(b"4", b"5", at=T0 + 99)))
        row = await asked(bench, timestamp)
        assert (row.error_code, row.offset, row.timestamp) == (0, offset, at)


@pytest.mark.parametrize("timestamp", [-7, -100])
async def test_a_time_without_a_meaning_is_of_an_unsupported_version(timestamp: int) -> None:
    """By this a client learns that the broker does not know what it asks for."""

    async with agent_bench() as bench:
        await bench.topic()
        for partition in (0, 99):
            row = await asked(bench, timestamp, version=11, partition=partition)
            assert (row.error_code, row.offset) == (ErrorCode.UNSUPPORTED_VERSION, -1)


@pytest.mark.parametrize(
    ("timestamp", "has_epoch"), [(-1, True), (-2, True), (-3, True), (T0, True), (T0 + 1, False)]
)
async def test_an_offset_has_an_epoch_and_none_has_none(timestamp: int, has_epoch: bool) -> None:
    async with agent_bench() as bench:
        await bench.topic()
        await produce(bench, (0, batch(b"1", at=T0)))
        assert ((await asked(bench, timestamp)).leader_epoch >= 0) is has_epoch


def at_times(*times_ms: int) -> bytes:
    """A batch with a record at each of these times after T0."""
    return encode_batch([NewRecord(b"k", b"v")] * len(times_ms), timestamps=[T0 + each for each in times_ms])


@pytest.mark.parametrize(
    ("later", "timestamp", "offset", "at"),
    [
        (20, T0 + 5, 5, 20), (20, T0 + 2, 1, 3), (20, T0 + 21, -1, None), (20, -3, 5, 20),
        (1, T0 + 5, -1, None), (1, -3, 3, 4), (3, -3, 3, 4), (4, -3, 3, 4), (5, -3, 5, 5),
    ],
)  # fmt: skip
async def test_the_latest_record_of_a_run_counts_for_nothing_below_log_start(
    later: int, timestamp: int, offset: int, at: int | None
) -> None:
    async with agent_bench() as bench:
        topic = await bench.topic()
        await produce(bench, (0, at_times(10, 3, 1, 4, 2)))
        await produce(bench, (0, at_times(later)))
        await bench.sequencer.delete_records(DeleteRecords([DeleteRecordsPartition(topic.topic_id, 0, 1)]))
        row = await asked(bench, timestamp)
        assert (row.error_code, row.offset, row.timestamp) == (0, offset, -1 if at is None else T0 + at)


@pytest.mark.parametrize(
    ("log_start", "timestamp", "most_looks", "offset"),
    [
        (0, T0 + 500, 3, 9), (0, T0 + 2, 1, 1), (1, T0 + 500, 3, 9), (0, T0 + 1001, 0, -1),
        (0, -3, 3, 2), (1, -3, 3, 2),
    ],
)  # fmt: skip
async def test_a_look_up_by_time_looks_into_some_runs_at_most_whatever_their_headers_say(
    log_start: int, timestamp: int, most_looks: int, offset: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(list_offsets, "RUNS_LOOKED_INTO", 3)

    async with agent_bench() as bench:
        topic = await bench.topic()
        for number in range(5):
            await produce(bench, (0, saying(T0 + 1000 - number, at_times(1, 2, 3))))
        await bench.sequencer.delete_records(
            DeleteRecords([DeleteRecordsPartition(topic.topic_id, 0, log_start)])
        )
        calls = counted(monkeypatch, bench.sequencer.inner, "list_offsets")
        looks = counted(monkeypatch, bench.services.reader, "find_timestamp")
        row = await asked(bench, timestamp)
        assert (row.error_code, row.offset) == (0, offset)
        assert len(calls) <= 1 + 2 * most_looks
        assert len(looks) <= most_looks


async def test_a_run_without_what_its_header_says_hides_no_later_one() -> None:
    async with agent_bench() as bench:
        await bench.topic()
        sound = at_times(1, 2, 3)
        await produce(bench, (0, assemble_like(read_header(sound), b"\xff" * 30, 3)))
        await produce(bench, (0, saying(T0 + 1000, sound)))
        await produce(bench, (0, sound))
        row = await asked(bench, T0 + 3)
        assert (row.offset, row.timestamp) == (5, T0 + 3)
        assert (await asked(bench, T0 + 4)).offset == -1


@pytest.mark.parametrize("lying", [0, 1, 2])
async def test_a_run_without_what_its_header_says_hides_no_latest_record(lying: int) -> None:
    async with agent_bench() as bench:
        await bench.topic()
        batches = [at_times(1, 5, 3), at_times(2, 7), at_times(4, 6)]
        batches[lying] = saying(T0 + 1000, batches[lying])
        for each in batches:
            await produce(bench, (0, each))
        row = await asked(bench, -3)
        assert (row.error_code, row.offset, row.timestamp) == (0, 4, T0 + 7)


@pytest.mark.parametrize("unreadable", [0, 1, 2, 3])
async def test_a_run_that_cannot_be_read_hides_no_latest_record(unreadable: int) -> None:
    """Nor does one whose header lies beside it."""

    async with agent_bench() as bench:
        await bench.topic()
        sound = at_times(1, 9, 3)
        batches = [at_times(2, 4), saying(T0 + 500, at_times(0, 1)), at_times(4, 2)]
        batches.insert(unreadable, assemble_like(read_header(sound), b"\xff" * 30, 3))
        for each in batches:
            await produce(bench, (0, each))
        row = await asked(bench, -3)
        first = 1 if unreadable else 4
        assert (row.error_code, row.offset, row.timestamp) == (0, first, T0 + 4)


@pytest.mark.parametrize(("runs", "error"), [(2, ErrorCode.NONE), (4, ErrorCode.CORRUPT_MESSAGE)])
async def test_what_no_record_can_be_read_of_has_no_latest_record_and_beyond_a_bound_an_error(
    runs: int, error: ErrorCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(list_offsets, "RUNS_LOOKED_INTO", 3)

    async with agent_bench() as bench:
        await bench.topic()
        for _ in range(runs):
            await produce(bench, (0, assemble_like(read_header(at_times(1, 2)), b"\xff" * 30, 2)))
        row = await asked(bench, -3)
        assert (row.error_code, row.offset) == (error, -1)


def counted(monkeypatch: pytest.MonkeyPatch, of: object, name: str) -> list[Any]:
    """The first argument of each call of this method, as they come."""
    calls: list[Any] = []
    method = getattr(of, name)

    async def noted(first: Any, *more: Any) -> Any:
        calls.append(first)
        return await method(first, *more)

    monkeypatch.setattr(of, name, noted)
    return calls


def saying(max_timestamp: int, data: bytes) -> bytes:
    """The batch with another largest timestamp in its header."""
    header = structs.replace(read_header(data), max_timestamp=max_timestamp)
    return assemble_like(header, data[HEADER_BYTES:], header.record_count)


async def test_a_batch_whose_records_cannot_be_read_is_passed_over_by_time() -> None:
    async with agent_bench() as bench:
        await bench.topic()
        sound = at_times(1, 2, 3)
        unreadable = assemble_like(read_header(sound), b"\xff" * 30, 3)
        await produce(bench, (0, unreadable), (1, sound))
        partitions = [ListOffsetsPartition(each, timestamp=T0 + 2) for each in (0, 1)]
        request = ListOffsetsRequest(topics=[ListOffsetsTopic("t", partitions)])
        [topic] = (await bench.ask(ApiKey.LIST_OFFSETS, 9, request)).topics
        assert [(row.error_code, row.offset) for row in topic.partitions] == [(0, -1), (0, 1)]


async def test_an_empty_partition_starts_and_ends_at_0() -> None:
    async with agent_bench() as bench:
        await bench.topic()
        assert [(await asked(bench, each)).offset for each in (-1, -2, -3, 0)] == [0, 0, -1, -1]


@pytest.mark.parametrize(("timestamp", "first"), [(-3, 7), (-4, 8), (-5, 9), (-6, 11)])
async def test_special_times_are_refused_before_the_version_that_knows_them(
    timestamp: int, first: int
) -> None:
    async with agent_bench() as bench:
        await bench.topic()
        assert (await asked(bench, timestamp, first - 1)).error_code == ErrorCode.UNSUPPORTED_VERSION
        assert (await asked(bench, timestamp, first)).error_code == 0


async def test_old_versions_and_what_is_unknown_are_answered() -> None:
    async with agent_bench() as bench:
        await bench.topic()
        await produce(bench, (0, batch(b"1")))
        assert (await asked(bench, -1, 1)).offset == 1
        assert (await asked(bench, -1, name="nowhere")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await asked(bench, -1, partition=2)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        bench.sequencer.is_away = True
        assert (await asked(bench, -1)).error_code == ErrorCode.REQUEST_TIMED_OUT
