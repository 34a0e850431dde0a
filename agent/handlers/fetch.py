"""Fetch: finds the runs, waits for enough bytes, reads them, and answers by Kafka's rules.

A partition's bounds (log start, high watermark, last stable offset) and its runs come from its window
(agent.fetch.windows) or from one answer of the sequencer, so they belong to one commit number. Only the sequencer
decides OFFSET_OUT_OF_RANGE: the agent asks it about an offset that is not in the window.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from operator import attrgetter
from uuid import UUID

import structlog

from agent.catalog import KnownTopic, has
from agent.errors import EXPECTED, PARTITION_CODES, fetch_code_of
from agent.fetch.alignment import NO_END, aligned_ends
from agent.fetch.fetch_memory import FetchGrant
from agent.fetch.fetch_sessions import FetchContext, PartitionKey
from agent.fetch.partition_fetch import (
    PARTITIONS_IN_A_TURN,
    FetchSums,
    PartitionFetch,
    end_of_batch_at,
    ends_of,
    fetch_sums,
)
from agent.handlers.current_topics import UNKNOWN_CODES
from agent.memory_budget import Grant, release
from agent.services import HeldResponse, RequestContext, Services
from agent.topic_counters import TopicCounts
from cache.mixed_reader import BATCHES_IN_A_TURN as FRAMED_AT_ONCE
from cache.mixed_reader import RUN_AS_BATCHES
from cache.read_batches import ReadBatches, ReadRequest
from cache.reader import BatchReader
from sequencer.api.errors import SequencerError
from sequencer.api.reads import FindPartition, FindRequest, FoundPartition, PartitionError
from tailrace.background_tasks import cancel_and_wait
from tailrace.ids import TopicPartition
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from tailrace.object_store.api import ObjectMissing
from tailrace.turns import PacedStarts, Turns, in_parts, in_turns

log = structlog.get_logger("agent.fetch")

FIRST_TOPIC_ID_VERSION = 13
BATCHES_IN_A_TURN = 10_000
"""Runs, and rows of batch tables, that are processed in one turn of the loop."""
COPIED_IN_A_TURN = 4 * 1024 * 1024
"""Bytes of records copied in one turn of the loop, when they may not stay views of their chunks."""
READ_IN_A_TURN = 100
"""Partitions, and views of kept batches, that are read in one turn of the loop."""
RUNS_AS_A_VIEW = 16
"""Reading this many joined runs takes as long as reading one view."""
PARTITIONS_OF_LEADERS = 1_000
"""How many partitions have their leader checked: an agent that leads any of the rest leads some of these."""
LOOK_UP_AS_BATCHES = 8
"""The cost of looking up a partition, in runs."""
ASKED_AT_ONCE = 5_000
"""The most partitions in one call to the sequencer."""
READ_COMMITTED = 1
MAX_PLANS = 3
"""How often a fetch is planned again if an object was deleted (compacted, collected) between plan and read."""

MEMORY_WAIT_SECONDS = 5.0
"""How long a fetch waits for memory, at least. Then it is answered without records, and its client retries."""


async def handle(
    services: Services, context: RequestContext, request: FetchRequest
) -> FetchResponse | HeldResponse:
    """Serve one fetch; see the module."""
    names_ids = context.api_version >= FIRST_TOPIC_ID_VERSION
    beginning = services.sessions.begin(
        request, context.client_id, context.access.tenant, names_ids=names_ids
    )
    fetch = await in_turns(beginning, Turns(PARTITIONS_IN_A_TURN))
    if isinstance(fetch, ErrorCode):
        return FetchResponse(error_code=fetch, session_id=0)
    if context.charge is not None:
        if context.charge.is_over():
            return FetchResponse(session_id=fetch.session_id)
        request.max_bytes = int(min(request.max_bytes, context.charge.window_bytes))
    partitions, grant = await _filled(services, context, request, fetch)
    try:
        if context.zone != services.identity.zone:
            await _count_cross_zone(services, partitions)
        response = await _response(fetch, partitions)
    except BaseException:
        release(grant)
        raise
    return response if grant is None else HeldResponse(response, grant.release)


async def _filled(
    services: Services, context: RequestContext, request: FetchRequest, fetch: FetchContext
) -> tuple[list[PartitionFetch], Grant | None]:
    """Read the partitions. Return them and their records' memory. If nothing can be read, all have an error."""
    grant: Grant | None = None
    read_committed = request.isolation_level == READ_COMMITTED
    before = services.catalog.snapshot
    try:
        partitions = await _partitions(services, context, fetch, read_committed)
        if _is_sent_away(services, context, partitions):
            return await _failed(fetch, ErrorCode.NOT_LEADER_OR_FOLLOWER), None
        grant = await fill(services, request, partitions, is_aligned=True)
        if await _any(partitions, _is_unknown) and await services.catalog.has_moved_on(before):
            release(grant)
            partitions = await _partitions(services, context, fetch, read_committed)
            grant = await fill(services, request, partitions, is_aligned=True)
    except SequencerError as error:
        release(grant)
        code = fetch_code_of(error)
        log.warning("a fetch got no answer from the sequencer", error=str(error))
        services.telemetry.fetch_failures.labels(code.name).inc(len(fetch.partitions))
        return await _failed(fetch, code), None
    except BaseException:  # the client may be gone
        release(grant)
        raise
    return partitions, grant


async def _count_cross_zone(services: Services, partitions: list[PartitionFetch]) -> None:
    async for some in Turns(PARTITIONS_IN_A_TURN).parts(partitions):
        for partition in some:
            if partition.read_bytes:
                _counts_of(services, partition).cross_zone_bytes += partition.read_bytes


async def _failed(fetch: FetchContext, code: ErrorCode) -> list[PartitionFetch]:
    failed: list[PartitionFetch] = []
    async for some in Turns(PARTITIONS_IN_A_TURN).parts(fetch.partitions):
        for requested in some:
            row = PartitionData(partition_index=requested.key.partition, error_code=code, high_watermark=-1)
            failed.append(PartitionFetch(requested, topic=None, row=row, read_committed=False))
    return failed


async def _partitions(
    services: Services, context: RequestContext, fetch: FetchContext, read_committed: bool
) -> list[PartitionFetch]:
    by_id = context.api_version >= FIRST_TOPIC_ID_VERSION

    def topic_of(key: PartitionKey) -> KnownTopic | None:
        return snapshot.by_id.get(key.topic_id) if by_id else snapshot.by_name.get(key.topic_name)

    snapshot = services.catalog.snapshot
    turns = Turns(PARTITIONS_IN_A_TURN)
    async for some in turns.parts(fetch.partitions):
        if not all(has(topic_of(requested.key), requested.key.partition + 1) for requested in some):
            snapshot = await services.catalog.refresh()
            break
    partitions: list[PartitionFetch] = []
    for requested in fetch.partitions:
        if turns.fills():
            await turns.give()
        row = PartitionData(partition_index=requested.key.partition, high_watermark=-1)
        row.aborted_transactions = [] if read_committed else None
        topic = topic_of(requested.key)
        if topic is None:
            row.error_code = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif not 0 <= requested.key.partition < topic.topic.partitions:
            row.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if context.access.acls is not None and not (topic is None and by_id):
            name = requested.key.topic_name if topic is None else topic.topic.name
            if not context.access.may_read("Fetch", name):
                row.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        partitions.append(PartitionFetch(requested, topic, row, read_committed))
    return partitions


def _is_sent_away(services: Services, context: RequestContext, partitions: list[PartitionFetch]) -> bool:
    """Whether to tell the consumer to look for the new leader."""
    identity = services.identity
    return identity.is_leaving or context.leadership.sends_away(
        replicas=services.catalog.snapshot.replicas,
        broker_id=identity.broker_id,
        zone=context.zone,
        now=services.clock.monotonic(),
        partitions=(
            partition.topic_partition
            for partition in partitions[:PARTITIONS_OF_LEADERS]
            if partition.topic is not None
        ),
    )


async def _any(partitions: list[PartitionFetch], is_such: Callable[[PartitionFetch], bool]) -> bool:
    """Whether one of the partitions is such; looked for in turns of the loop."""
    async for some in Turns(PARTITIONS_IN_A_TURN).parts(partitions):
        if any(map(is_such, some)):
            return True
    return False


def _is_unknown(partition: PartitionFetch) -> bool:
    return partition.row.error_code in UNKNOWN_CODES


async def fill(
    services: Services, request: FetchRequest, partitions: list[PartitionFetch], *, is_aligned: bool = False
) -> Grant | None:
    """Wait until there is enough to send, then read it. Plan again if an object was deleted meanwhile.

    Returns the memory taken for the records, if any.

    Args:
        is_aligned: hold back partitions that would get too far ahead of others (agent.fetch.alignment).
    """
    settings = services.settings
    max_wait = min(max(request.max_wait_ms, 0), settings.fetch_max_wait_ms) / 1000
    deadline = services.clock.monotonic() + max_wait
    max_bytes = min(max(request.max_bytes, 0), settings.fetch_max_bytes)
    min_bytes = min(request.min_bytes, max_bytes)
    plans = 0
    while readable := [partition for partition in partitions if not partition.row.error_code]:
        is_last = services.clock.monotonic() >= deadline
        await _find(
            services, readable, max_bytes, is_new_plan=plans > 0, is_last=is_last, is_aligned=is_aligned
        )
        sums = await fetch_sums(services.reader, readable)
        remaining_s = deadline - services.clock.monotonic()
        is_enough = sums.available_bytes >= min_bytes or sums.is_cut
        has_failed = sums.has_failed or len(readable) < len(partitions)
        if not is_enough and remaining_s > 0 and not has_failed:
            await services.tail.wait(await _seen(readable), remaining_s)
            continue
        plans += 1
        grant = await _grant(services, readable, sums, max_bytes=max_bytes, remaining_s=remaining_s)
        if grant is None:
            return None
        try:
            if await _any(readable, _is_not_found):
                await _find(services, readable, max_bytes, is_aligned=is_aligned)
            is_read = await _read(services, readable, grant, is_last_plan=plans >= MAX_PLANS)
            if is_read and await _waits_for_failed(readable):
                is_read = is_aligned = False
            if is_read:
                grant.resize(sum(partition.read_bytes for partition in readable))
                return grant
        except BaseException:
            grant.release()
            raise
        grant.release()
    return None


def _is_not_found(partition: PartitionFetch) -> bool:
    return partition.found is None


async def _waits_for_failed(readable: list[PartitionFetch]) -> bool:
    """Whether a partition is held back though another failed: it may wait for one that can't be read."""
    return await _any(readable, attrgetter("is_failed")) and await _any(readable, attrgetter("is_held_back"))


async def _align(services: Services, readable: list[PartitionFetch]) -> None:
    """Hold back the partitions that would get too far ahead of the others that read old runs."""
    reader, request_sizes = services.reader, services.request_sizes
    turns = Turns(PARTITIONS_IN_A_TURN)
    old: list[PartitionFetch] = []
    async for some in turns.parts(readable):
        for partition in some:
            if _reads_old_runs(reader, partition):
                old.append(partition)
            elif request_sizes:
                request_sizes.given_all(partition.topic_partition, partition.requested.max_bytes)
    found = [partition.found.runs for partition in old if partition.found is not None]
    for partition, end in zip(old, aligned_ends(found, reader.reach_bytes), strict=True):
        if end < partition.end_limit:
            partition.aligned_end = end
            partition.count_available(reader)
            request_sizes.held_back(partition.topic_partition, partition.available_bytes)
            await turns.did()
        elif request_sizes:
            request_sizes.given_all(partition.topic_partition, partition.requested.max_bytes)


def _reads_old_runs(reader: BatchReader, partition: PartitionFetch) -> bool:
    found = partition.found
    if found is None or partition.is_failed or not partition.available_bytes:
        return False
    return bool(found.runs) and reader.is_old(found.runs[0])


async def _keep(partition: PartitionFetch, grant: FetchGrant, copies: Turns) -> None:
    """Count the buffers that the partition's records keep in memory. Copy the records that may keep none."""
    if isinstance(records := partition.row.records, list):
        for number in grant.pin(records):
            records[number] = bytes(records[number])
            await copies.did(len(records[number]))


async def _seen(readable: list[PartitionFetch]) -> dict[TopicPartition, int]:
    """Return the commit number as of which each partition was looked up."""
    seen: dict[TopicPartition, int] = {}
    async for some in Turns(PARTITIONS_IN_A_TURN).parts(readable):
        seen.update((partition.topic_partition, partition.commit_number) for partition in some)
    return seen


async def _grant(
    services: Services, readable: list[PartitionFetch], sums: FetchSums, max_bytes: int, remaining_s: float
) -> FetchGrant | None:
    """Take memory for the records. Return None if it isn't free in time. If it has to wait, drop the found rows."""
    bytes_wanted, first_batch = min(max_bytes, sums.expected_bytes), sums.first_batch_bytes
    grant = services.fetch_memory.try_grant(bytes_wanted, first_batch)
    if grant is None:
        async for some in Turns(PARTITIONS_IN_A_TURN).parts(readable):
            for partition in some:
                partition.found = None  # don't keep the rows while waiting
        patience = max(remaining_s, MEMORY_WAIT_SECONDS)
        grant = await services.fetch_memory.grant(bytes_wanted, patience, first_batch)
        if grant is None:
            services.telemetry.deferred_fetches.inc()
    return grant


async def _find(
    services: Services,
    readable: list[PartitionFetch],
    max_bytes: int,
    *,
    is_new_plan: bool = False,
    is_last: bool = True,
    is_aligned: bool,
) -> None:
    """Fill in the partitions' bounds and runs from their windows, else from the sequencer. A new plan asks the
    sequencer about all partitions, because a window whose object was deleted is out of date. `is_last`: the fetch waits
    no longer. `is_aligned`: see `fill`."""
    turns = Turns(BATCHES_IN_A_TURN)
    to_ask: list[PartitionFetch] = []
    for partition in readable:
        room, offset = partition.room(max_bytes), partition.requested.fetch_offset
        known = None
        if not is_new_plan:
            known = services.tail.find(partition.topic_partition, offset, room, is_last=is_last)
        work = LOOK_UP_AS_BATCHES
        if known is None:
            to_ask.append(partition)
        else:
            work += _take_found(services, partition, *known)
        if turns.fills(work):
            await turns.give()
    for some in in_parts(to_ask, ASKED_AT_ONCE):
        await _ask(services, some, max_bytes, turns)
        max_bytes = max(0, max_bytes - sum(partition.available_bytes for partition in some))
    if is_aligned:
        await _align(services, readable)


async def _ask(
    services: Services, partitions: Sequence[PartitionFetch], max_bytes: int, turns: Turns
) -> None:
    """Fill in the partitions' bounds and runs from the sequencer."""
    asked_at = services.clock.monotonic()
    wanted: list[FindPartition] = []
    for partition in partitions:
        size = services.request_sizes.of(partition.topic_partition, partition.room(max_bytes))
        wanted.append(
            FindPartition(partition.topic_id, partition.number, partition.requested.fetch_offset, size)
        )
        if turns.fills(LOOK_UP_AS_BATCHES):
            await turns.give()
    answer = await services.sequencer.find_batches(FindRequest(wanted, max_bytes))
    for partition, found in zip(partitions, answer.partitions, strict=True):
        work = LOOK_UP_AS_BATCHES + _take_found(services, partition, found, answer.commit_number)
        if found.error is not PartitionError.UNKNOWN_TOPIC_OR_PARTITION:
            is_at_end = not partition.is_failed and partition.found_end >= found.high_watermark
            services.tail.note_found(
                partition.topic_partition, partition.requested.fetch_offset, found,
                number=answer.commit_number, asked_at=asked_at, is_at_end=is_at_end,
            )  # fmt: skip
        if turns.fills(work):
            await turns.give()


def _take_found(
    services: Services, partition: PartitionFetch, found: FoundPartition, commit_number: int
) -> int:
    """Record what was found of a partition. Return how many runs, and rows of batch tables, were processed."""
    partition.found, partition.commit_number, partition.aligned_end = found, commit_number, NO_END
    partition.row.error_code = code = PARTITION_CODES[found.error]
    if code == ErrorCode.OFFSET_OUT_OF_RANGE:
        services.telemetry.fetch_failures.labels(code.name).inc()
    if found.error is not PartitionError.UNKNOWN_TOPIC_OR_PARTITION:
        partition.row.high_watermark = found.high_watermark
        partition.row.last_stable_offset = found.last_stable_offset
        partition.row.log_start_offset = found.log_start_offset
    partition.count_available(services.reader)
    return 1 + len(found.runs) + sum(len(run.batches) for run in ends_of(found.runs))


async def _read(
    services: Services, readable: list[PartitionFetch], grant: FetchGrant, *, is_last_plan: bool
) -> bool:
    """Fill in the records, sharing the granted bytes in order. Return False if the plan is stale and must be made
    again.

    The buffers that records keep in memory are counted while other partitions are still read: each partition may keep a
    whole chunk or row group, and there may be thousands.
    """
    remaining_bytes, minimum_one = grant.bytes, True
    turns, passes, copies = Turns(READ_IN_A_TURN), Turns(PARTITIONS_IN_A_TURN), Turns(COPIED_IN_A_TURN)
    waiting: list[tuple[PartitionFetch, ReadRequest]] = []
    for partition in readable:
        available_bytes = 0 if partition.is_failed else partition.available_bytes
        if remaining_bytes <= 0 and not minimum_one:
            break
        if not available_bytes:
            if passes.fills():
                await passes.give()
            continue
        found = partition.found
        assert found is not None, "what is available was found"
        request = ReadRequest(
            offset=partition.requested.fetch_offset,
            max_bytes=min(partition.requested.max_bytes, max(remaining_bytes, 0)),
            leader_epoch=found.leader_epoch,
            minimum_one=minimum_one,
            end_limit=partition.end_limit,
        )
        remaining_bytes -= available_bytes
        minimum_one = False
        read = services.reader.read_held(found.runs, request)
        if read is not None:
            _take(services, partition, read)
            await _keep(partition, grant, copies)
        else:
            waiting.append((partition, request))
        views = 0 if read is None else len(read.parts)
        await turns.did(1 + views + len(found.runs) // RUNS_AS_A_VIEW)
    if not waiting:
        return True
    outcomes = await _read_waiting(services, waiting, grant, copies)
    if not is_last_plan and any(isinstance(outcome, ObjectMissing) for outcome in outcomes):
        return False
    for (partition, _), outcome in zip(waiting, outcomes, strict=True):
        if isinstance(outcome, BaseException):
            _refuse(services, partition, outcome)
    return True


async def _read_waiting(
    services: Services,
    waiting: Sequence[tuple[PartitionFetch, ReadRequest]],
    grant: FetchGrant,
    copies: Turns,
) -> list[BaseException | None]:
    """Read partitions concurrently. Return the error of each, or None."""
    starts, ended = PacedStarts(FRAMED_AT_ONCE), asyncio.Queue[asyncio.Task[None]]()
    reading = {
        asyncio.create_task(_read_partition(services, partition, request, starts)): partition
        for partition, request in waiting
    }
    for task in reading:
        task.add_done_callback(ended.put_nowait)
    try:
        for _ in waiting:
            await _keep(reading[await ended.get()], grant, copies)
        return [task.exception() for task in reading]
    except BaseException:
        await cancel_and_wait(*reading)
        raise


def _refuse(services: Services, partition: PartitionFetch, error: BaseException) -> None:
    """Answer a partition whose records can't be read with the error's code. Raises unexpected errors."""
    if not isinstance(error, EXPECTED):
        raise error
    partition.row.error_code = code = fetch_code_of(error)
    services.telemetry.fetch_failures.labels(code.name).inc()
    offset, corrupt = partition.requested.fetch_offset, {}
    if code is ErrorCode.CORRUPT_MESSAGE and partition.found is not None:
        corrupt = {"next_offset": end_of_batch_at(partition.found.runs, offset)}
    log.error(
        "records can't be read now",
        topic=partition.topic.topic.name if partition.topic else "", partition=partition.number,
        offset=offset, **corrupt, error=str(error),
    )  # fmt: skip


async def _read_partition(
    services: Services, partition: PartitionFetch, request: ReadRequest, starts: PacedStarts
) -> None:
    assert partition.found is not None, "only what was found is read"
    runs = partition.found.runs
    await starts.begin(sum(RUN_AS_BATCHES + len(run.batches) for run in runs))
    is_fresh = not runs or services.reader.is_fresh(runs[0])
    read = await services.reader.read(runs, request)
    _take(services, partition, read)
    if not is_fresh:
        _counts_of(services, partition).missed_bytes += read.bytes


def _take(services: Services, partition: PartitionFetch, read: ReadBatches) -> None:
    """Put the records that were read into the partition's row of the response."""
    assert partition.found is not None, "only what was found is read"
    partition.row.records = read.parts
    partition.read_bytes, partition.read_end = read.bytes, read.end_offset
    services.telemetry.fetched_bytes.inc(read.bytes)
    services.telemetry.fetched_records.inc(read.record_count)
    _counts_of(services, partition).fetched_bytes += read.bytes
    if partition.read_committed:
        offset = partition.requested.fetch_offset
        partition.row.aborted_transactions = [
            AbortedTransaction(producer_id=aborted.producer_id, first_offset=aborted.first_offset)
            for aborted in sorted(partition.found.aborted, key=attrgetter("first_offset", "last_offset"))
            if aborted.first_offset < read.end_offset and aborted.last_offset >= offset
        ]


def _counts_of(services: Services, partition: PartitionFetch) -> TopicCounts:
    assert partition.topic is not None, "only partitions of known topics are read"
    return services.telemetry.topics.of(partition.topic.topic.name)


async def _response(fetch: FetchContext, partitions: list[PartitionFetch]) -> FetchResponse:
    response = FetchResponse(session_id=fetch.session_id)
    topics: dict[tuple[str, UUID], FetchableTopicResponse] = {}
    turns = Turns(PARTITIONS_IN_A_TURN)
    for partition in partitions:
        if turns.fills():
            await turns.give()
        if not fetch.include_in_response(partition.requested, partition.row):
            continue
        fetch.note_sent(partition.requested, partition.row)
        if partition.row.records is None:
            partition.row.records = b""
        name, topic_id, _ = partition.requested.key
        topic = topics.get((name, topic_id))
        if topic is None:
            topic = topics[name, topic_id] = FetchableTopicResponse(topic=name, topic_id=topic_id)
            response.responses.append(topic)
        topic.partitions.append(partition.row)
    return response
