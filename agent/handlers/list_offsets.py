"""ListOffsets (earliest, latest, by time, of the largest timestamp) and OffsetForLeaderEpoch.

These requests always ask the sequencer, never a cache, so the answers are correct right after an acknowledgement.

With read_committed, nothing at or above the last stable offset is found. A run may have records on both sides of that
offset, so a record found by time is compared with it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

import msgspec

from agent.errors import EXPECTED, PARTITION_CODES, code_of
from agent.services import RequestContext, Services
from cache.record_times import OffsetAndTimestamp
from sequencer.api.reads import (
    EpochQuery,
    EpochRequest,
    OffsetQuery,
    OffsetResult,
    OffsetSpec,
    PartitionError,
    Run,
)
from sequencer.pages import all_offsets
from tailrace.batches.record_batch import InvalidBatch
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from tailrace.kafka.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from tailrace.turns import Turns

PARTITIONS_IN_A_TURN = 2_000
"""Partitions read from a request, sent to the sequencer, or added to an answer, in one turn of the loop."""
RUNS_AT_ONCE = 16
"""Runs that one request reads concurrently."""
RUNS_LOOKED_INTO = 8
"""How many runs one look-up by time reads, if their records don't match their headers."""
EARLIEST_PENDING_UPLOAD = -6
NO_TIMESTAMP = EARLIEST_PENDING_UPLOAD - 1
"""This value and lower ones have no meaning yet."""
FIRST_EPOCH_VERSION = 4
_NEEDS = {
    OffsetSpec.MAX_TIMESTAMP: 7,
    OffsetSpec.EARLIEST_LOCAL: 8,
    OffsetSpec.LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}


async def handle(
    services: Services, context: RequestContext, request: ListOffsetsRequest
) -> ListOffsetsResponse:
    """Answer each requested partition."""
    response = ListOffsetsResponse()
    lookups: list[_Lookup] = []
    snapshot = services.catalog.snapshot
    if any(topic.name not in snapshot.by_name for topic in request.topics):
        snapshot = await services.catalog.refresh()
    turns = Turns(PARTITIONS_IN_A_TURN)
    async for topic in turns.over(request.topics):
        answer = ListOffsetsTopicResponse(name=topic.name)
        response.topics.append(answer)
        known = snapshot.by_name.get(topic.name)
        async for partition in turns.over(topic.partitions):
            row = ListOffsetsPartitionResponse(partition_index=partition.partition_index)
            answer.partitions.append(row)
            if partition.timestamp <= NO_TIMESTAMP or context.api_version < _NEEDS.get(
                partition.timestamp, 0
            ):
                row.error_code = ErrorCode.UNSUPPORTED_VERSION
            elif known is None or not 0 <= partition.partition_index < known.topic.partitions:
                row.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif not _is_local(partition):
                # There is no remote tier; Kafka without one gives the same answer.
                row.offset, row.timestamp = -1, -1
            else:
                lookups.append(_Lookup(_query(known.topic.topic_id, partition, request), row))
    async for some in turns.parts(lookups):
        await _look_up(services, some)
        if context.api_version < FIRST_EPOCH_VERSION:
            for lookup in some:
                lookup.row.leader_epoch = -1
    return response


@dataclass(frozen=True, slots=True)
class _Lookup:
    """A requested partition that exists: the query to the sequencer, and the row for its answer."""

    query: OffsetQuery
    row: ListOffsetsPartitionResponse


def _query(topic_id: UUID, partition: ListOffsetsPartition, request: ListOffsetsRequest) -> OffsetQuery:
    is_earliest = partition.timestamp == OffsetSpec.EARLIEST_LOCAL
    timestamp = OffsetSpec.EARLIEST if is_earliest else partition.timestamp
    return OffsetQuery(topic_id, partition.partition_index, timestamp, request.isolation_level == 1)


async def _look_up(services: Services, lookups: Sequence[_Lookup]) -> None:
    """Fill in the rows, reading RUNS_AT_ONCE runs at a time."""
    queries = [lookup.query for lookup in lookups]
    ends = _stable_ends(queries)
    try:
        answers = await all_offsets(services.sequencer, [*queries, *ends])
    except EXPECTED as error:
        for lookup in lookups:
            lookup.row.error_code = code_of(error)
        return
    stable = {
        (query.topic_id, query.partition): result.offset
        for query, result in zip(ends, answers[len(queries) :], strict=True)
    }
    results = list(zip(lookups, answers[: len(queries)], strict=True))
    for lookup, result in results:
        _fill_in(lookup, result)
    in_runs = [(lookup, result) for lookup, result in results if result.run is not None]
    for first in range(0, len(in_runs), RUNS_AT_ONCE):
        await asyncio.gather(
            *(
                _look_into_run(
                    services,
                    lookup,
                    result,
                    stable_end=stable.get((lookup.query.topic_id, lookup.query.partition)),
                )
                for lookup, result in in_runs[first : first + RUNS_AT_ONCE]
            )
        )


def _stable_ends(queries: list[OffsetQuery]) -> list[OffsetQuery]:
    """Return the queries for the last stable offsets of all partitions looked up by time with read_committed."""
    asked = {
        (query.topic_id, query.partition)
        for query in queries
        if query.read_committed and query.timestamp not in (OffsetSpec.EARLIEST, OffsetSpec.LATEST)
    }
    return [
        OffsetQuery(topic_id, partition, OffsetSpec.LATEST, True) for topic_id, partition in sorted(asked)
    ]


def _is_local(partition: ListOffsetsPartition) -> bool:
    return partition.timestamp not in (OffsetSpec.LATEST_TIERED, EARLIEST_PENDING_UPLOAD)


def _fill_in(lookup: _Lookup, result: OffsetResult) -> None:
    query, row = lookup.query, lookup.row
    row.error_code = PARTITION_CODES[result.error]
    if result.error is not PartitionError.NONE:
        return
    if query.timestamp in (OffsetSpec.EARLIEST, OffsetSpec.LATEST):
        row.offset, row.leader_epoch = result.offset, result.leader_epoch


async def _look_into_run(
    services: Services, lookup: _Lookup, result: OffsetResult, *, stable_end: int | None
) -> None:
    row = lookup.row
    try:
        record = await _found(services, lookup.query, result)
    except EXPECTED as error:
        row.error_code = code_of(error)
        return
    if record is not None and (stable_end is None or record.offset < stable_end):
        row.offset, row.timestamp = record.offset, record.timestamp
        row.leader_epoch = result.leader_epoch


async def _found(services: Services, query: OffsetQuery, result: OffsetResult) -> OffsetAndTimestamp | None:
    """Return the record that a look-up by time finds, or None."""
    if query.timestamp == OffsetSpec.MAX_TIMESTAMP:
        return await _of_largest_timestamp(services, query, result)
    return await _first_reaching(services, query, result)


async def _first_reaching(
    services: Services, query: OffsetQuery, result: OffsetResult
) -> OffsetAndTimestamp | None:
    """Return the first record at or after a time. Producers write the timestamps in headers, so they may be wrong: if a
    run has no such record, read the next run whose header claims one. After RUNS_LOOKED_INTO runs, return the start of
    the next such run: at worst that is too early, so a consumer that reads from there misses nothing."""
    run = result.run
    for _ in range(RUNS_LOOKED_INTO):
        if run is None:
            return None
        record = await services.reader.find_timestamp(run, query.timestamp, result.log_start_offset)
        if record is not None:
            return record
        run = await _next_named_run(services, query, run)
    return None if run is None else OffsetAndTimestamp(run.base_offset, query.timestamp)


async def _of_largest_timestamp(
    services: Services, query: OffsetQuery, result: OffsetResult
) -> OffsetAndTimestamp | None:
    """Return the first record of the largest timestamp. Runs are read in the order of their headers' largest timestamps
    until no other run claims a later record. Producers write these headers, so they may be wrong; if they are right,
    one run is read. The record that a header refers to may also lie below the log start; then only the rest of the run
    counts. If more than RUNS_LOOKED_INTO runs don't match their headers, return the latest record of these; raise
    InvalidBatch if they have none."""
    assert result.run is not None, "only runs are looked into"
    log_start = result.log_start_offset
    best: OffsetAndTimestamp | None = None
    parts = [_Part(result.run, log_start, query.end_offset)]
    for _ in range(RUNS_LOOKED_INTO):
        part = min(parts, key=_order)
        parts.remove(part)
        run = part.run
        if best is not None and best.timestamp > run.max_timestamp:
            return best
        record = await services.reader.find_timestamp(run, run.max_timestamp, log_start)
        if record is not None:
            return _later(best, record)
        best = _later(best, await services.reader.find_latest(run, log_start))
        for ends in ((part.from_offset, run.base_offset), (run.end_offset, part.end_offset)):
            parts += await _within(services, query, *ends)
        if not parts:
            return best
    if best is None:
        raise InvalidBatch(
            f"none of the {RUNS_LOOKED_INTO} runs with the latest timestamps has a record that can be read"
        )
    return best


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a log, and the run whose header claims the latest record in it."""

    run: Run
    from_offset: int
    end_offset: int


def _order(part: _Part) -> tuple[int, int]:
    return -part.run.max_timestamp, part.run.base_offset


async def _within(
    services: Services, query: OffsetQuery, from_offset: int, end_offset: int
) -> Sequence[_Part]:
    """Return this part of the log, or nothing if it has no run."""
    if from_offset >= end_offset:
        return ()
    asked = msgspec.structs.replace(query, from_offset=from_offset, end_offset=end_offset)
    (found,) = await all_offsets(services.sequencer, [asked])
    run = found.run
    if run is None or run.end_offset <= from_offset or run.base_offset >= end_offset:
        return ()  # an older sequencer ignores the end, and may answer with such a run
    return (_Part(run, from_offset, end_offset),)


async def _next_named_run(services: Services, query: OffsetQuery, run: Run) -> Run | None:
    """Return the next run that the sequencer names for this look-up, after `run`."""
    behind = msgspec.structs.replace(query, from_offset=run.end_offset)
    (following,) = await all_offsets(services.sequencer, [behind])
    return following.run


def _later(first: OffsetAndTimestamp | None, second: OffsetAndTimestamp | None) -> OffsetAndTimestamp | None:
    """Return the record with the larger timestamp; if they are equal, the first in the log."""
    if first is None or second is None:
        return first or second
    return min(first, second, key=lambda record: (-record.timestamp, record.offset))


async def offset_for_leader_epoch(
    services: Services, context: RequestContext, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    """Return the end offset of each requested epoch of the log."""
    response = OffsetForLeaderEpochResponse()
    snapshot = services.catalog.snapshot
    if any(topic.topic not in snapshot.by_name for topic in request.topics):
        snapshot = await services.catalog.refresh()
    queries: list[EpochQuery] = []
    rows: list[EpochEndOffset] = []
    turns = Turns(PARTITIONS_IN_A_TURN)
    async for topic in turns.over(request.topics):
        answer = OffsetForLeaderTopicResult(topic=topic.topic)
        response.topics.append(answer)
        known = snapshot.by_name.get(topic.topic)
        async for partition in turns.over(topic.partitions):
            row = EpochEndOffset(partition=partition.partition)
            answer.partitions.append(row)
            if known is None or not 0 <= partition.partition < known.topic.partitions:
                row.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                continue
            queries.append(EpochQuery(known.topic.topic_id, partition.partition, partition.leader_epoch))
            rows.append(row)
    for first in range(0, len(queries), PARTITIONS_IN_A_TURN):
        some = rows[first : first + PARTITIONS_IN_A_TURN]
        try:
            asked = EpochRequest(queries[first : first + PARTITIONS_IN_A_TURN])
            answered = await services.sequencer.offsets_for_epochs(asked)
        except EXPECTED as error:
            for row in some:
                row.error_code = code_of(error)
            continue
        for row, result in zip(some, answered.results, strict=True):
            row.error_code = PARTITION_CODES[result.error]
            row.leader_epoch, row.end_offset = result.leader_epoch, result.end_offset
        await turns.did(len(some))
    return response
