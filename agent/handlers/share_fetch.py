"""ShareFetch and ShareAcknowledge: the members of a share group read a partition's records together (KIP-932).

The agent first reads records, as for any fetch, from the offsets that the sequencer reported as available. Then one
call to the sequencer acknowledges and asks which of the records this member acquires. The answer contains only acquired
records. Any agent serves any partition, so NOT_LEADER_OR_FOLLOWER is never answered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

from agent.catalog import KnownTopic, has
from agent.errors import EXPECTED, code_of
from agent.fetch.alignment import NO_END
from agent.fetch.dead_letter_queue import UndeliverableRecords
from agent.fetch.fetch_sessions import FINAL_EPOCH, INITIAL_EPOCH, PartitionKey, RequestedPartition
from agent.fetch.partition_fetch import PartitionFetch
from agent.fetch.share_sessions import AcquirableOffsets, ShareSession
from agent.fetch.share_spans import acknowledged_of, span_of
from agent.groups.coordinator import GroupRefusal
from agent.handlers import list_offsets
from agent.handlers.fetch import fill
from agent.memory_budget import Grant, release
from agent.services import HeldResponse, RequestContext, Services
from agent.telemetry import AgentTelemetry
from sequencer.api.errors import SequencerError
from sequencer.api.share_groups import (
    Acknowledged,
    ShareError,
    ShareLimits,
    ShareOutcome,
    ShareRequest,
    ShareWork,
)
from sequencer.bounds import MAX_EDGES, MAX_WORKS, edges_of
from tailrace.grouping import in_groups
from tailrace.ids import TopicPartition
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.fetch import FetchRequest, PartitionData
from tailrace.kafka.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tailrace.kafka.messages.share_acknowledge import (
    AcknowledgedPartition,
    AcknowledgedTopic,
    AcknowledgePartition,
    AcknowledgeTopic,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
)
from tailrace.kafka.messages.share_fetch import (
    AcknowledgementBatch,
    ShareAcquiredRecords,
    ShareFetchableTopicResponse,
    ShareFetchPartition,
    ShareFetchRequest,
    ShareFetchResponse,
    ShareFetchTopic,
    SharePartitionData,
)
from tailrace.limits import is_name
from tailrace.turns import Turns, in_turns

log = structlog.get_logger("agent.share")

PARTITIONS_IN_A_TURN = 1_000
COUNTED_IN_A_TURN = 500
"""Partitions whose acknowledgements are counted in one turn of the loop."""
MAX_WAIT_S = 1.0
"""The longest wait for new records. Records that other members release are found only by the next request."""
MAX_ROUNDS = 8
"""How often a request reads, at most: it reads again if other members acquired what it had read."""
BEHIND_A_HOLE_BYTES = 1 << 20
"""Bytes of a read for the batch after offsets that compaction has left empty."""
FIRST_VERSION_OF_LOCK_TIMEOUT = 2
"""From this version on, ShareAcknowledge returns how long records are locked (KIP-1222)."""
RECORD_LIMIT = 1
"""The acquire mode in which `max_records` is not exceeded, even within a batch (KIP-1206)."""
_SHARE_CODES = {
    ShareError.NONE: ErrorCode.NONE,
    ShareError.INVALID_RECORD_STATE: ErrorCode.INVALID_RECORD_STATE,
    ShareError.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ShareError.LIMIT_REACHED: ErrorCode.KAFKA_STORAGE_ERROR,
}
_SHARE_MESSAGES = {
    ShareError.INVALID_RECORD_STATE: "the member does not hold all of these records",
    ShareError.UNKNOWN_TOPIC_OR_PARTITION: "there is no such partition",
    ShareError.LIMIT_REACHED: "the state of these records can't be kept now",
}
_CODES_OF_READS = (ErrorCode.CORRUPT_MESSAGE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NONE)
"""Java's consumer accepts few other codes for a partition. All other failures of a read are sent as
KAFKA_STORAGE_ERROR."""


@dataclass(slots=True)
class _Part:
    """A requested partition. `acquirable`: None if the partition is only acknowledged. `acknowledged` is emptied once
    the sequencer has it. `read`: what this round read. `start_offset`: where a group that has never read the partition
    begins; -1 for the log's start or end."""

    topic_partition: TopicPartition
    row: SharePartitionData
    topic: KnownTopic | None
    acquirable: AcquirableOffsets | None
    acknowledged: list[Acknowledged] = field(default_factory=list)
    is_acknowledged: bool = False
    read: PartitionFetch | None = None
    start_offset: int = -1

    @property
    def is_failed(self) -> bool:
        return self.row.error_code != ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class _Member:
    """The requesting member, its session, and its group's settings. `is_final`: the request ends the session."""

    group_id: str
    member_id: str
    session: ShareSession
    limits: ShareLimits
    is_final: bool


# --- ShareFetch


async def fetch(
    services: Services, context: RequestContext, request: ShareFetchRequest
) -> ShareFetchResponse | HeldResponse:
    """Acknowledge records, acquire new ones, and wait briefly if there are none."""
    grant: Grant | None = None
    try:
        _check_names(request)
        _check_fetch(request)
        member = _member_of(services, request, await _session_of(services, context, request))
        parts = await _parts(services, context, request, member.session)
        await _begin_by_time(services, context, member, parts)
        _keep_within_quota(context, request)
        grant = await _serve(services, request, member, parts)
    except GroupRefusal as refused:
        if refused.code is ErrorCode.SHARE_SESSION_LIMIT_REACHED:
            await services.clock.sleep(_wait_s(request))  # the client retries as soon as it gets the answer
        return ShareFetchResponse(error_code=refused.code, error_message=str(refused))
    except SequencerError as error:
        log.warning("a share fetch got no answer from the sequencer", error=str(error))
        return ShareFetchResponse(error_code=code_of(error), error_message=str(error))
    try:
        response = await _response(request, member, parts)
    except BaseException:
        release(grant)
        raise
    return response if grant is None else HeldResponse(response, grant.release)


def _keep_within_quota(context: RequestContext, request: ShareFetchRequest) -> None:
    """Fetch nothing for a client that is above its quota, and not more than it could ever wait for."""
    charge = context.charge
    if charge is not None:
        request.max_bytes = 0 if charge.is_over() else int(min(request.max_bytes, charge.window_bytes))


def _check_names(request: ShareFetchRequest | ShareAcknowledgeRequest) -> None:
    if not is_name(request.group_id or "") or not is_name(request.member_id or ""):
        raise GroupRefusal(ErrorCode.INVALID_REQUEST, "GroupId or MemberId is missing or too long")


def _member_of(
    services: Services,
    request: ShareFetchRequest | ShareAcknowledgeRequest,
    session: ShareSession | ErrorCode,
) -> _Member:
    if isinstance(session, ErrorCode):
        raise GroupRefusal(session)
    group_id, member_id = request.group_id or "", request.member_id or ""
    return _Member(
        group_id,
        member_id,
        session=session,
        limits=services.groups.configs.share_limits(group_id),
        is_final=request.share_session_epoch == FINAL_EPOCH,
    )


def _check_fetch(request: ShareFetchRequest) -> None:
    has_acknowledged = any(
        partition.acknowledgement_batches for topic in request.topics for partition in topic.partitions
    )
    sizes = (request.max_wait_ms, request.min_bytes, request.max_bytes, request.max_records)
    if request.share_session_epoch == INITIAL_EPOCH and has_acknowledged:
        raise GroupRefusal(ErrorCode.INVALID_REQUEST, "the first request of a session must not acknowledge")
    if request.is_renew_ack and any(size > 0 for size in sizes):
        raise GroupRefusal(ErrorCode.INVALID_REQUEST, "a request with renewals must not fetch")


async def _session_of(
    services: Services, context: RequestContext, request: ShareFetchRequest
) -> ShareSession | ErrorCode:
    turns = Turns(PARTITIONS_IN_A_TURN)
    added = [
        TopicPartition(topic.topic_id, partition.partition_index)
        async for topic in turns.over(request.topics)
        async for partition in turns.over(topic.partitions)
    ]
    forgotten = [
        TopicPartition(topic.topic_id, number)
        async for topic in turns.over(request.forgotten_topics_data)
        async for number in turns.over(topic.partitions)
    ]
    key = request.group_id or "", request.member_id or ""
    taking = services.share_sessions.fetch(
        key, request.share_session_epoch, added, forgotten, context.connection
    )
    return await in_turns(taking, turns)


async def _parts(
    services: Services, context: RequestContext, request: ShareFetchRequest, session: ShareSession
) -> list[_Part]:
    """Return the session's partitions, followed by those that are only acknowledged."""
    turns = Turns(PARTITIONS_IN_A_TURN)
    named = await _named(request, turns)
    # The session's partitions come first, in the order in which they are served.
    acquirables: dict[TopicPartition, AcquirableOffsets | None] = {}
    async for partition in turns.over(list(session.partitions)):
        acquirables[partition] = session.partitions.get(partition)
    async for partition in turns.over(list(named)):
        acquirables.setdefault(partition, None)
    parts = await _parts_of(services, context, "ShareFetch", acquirables)
    await _take_acknowledged(parts, named, may_renew=request.is_renew_ack)
    return list(parts.values())


async def _named(
    request: ShareFetchRequest | ShareAcknowledgeRequest, turns: Turns
) -> dict[TopicPartition, list[AcknowledgementBatch]]:
    """Return the partitions of a request, and what it acknowledges of each."""
    named: dict[TopicPartition, list[AcknowledgementBatch]] = {}
    topics: Sequence[ShareFetchTopic | AcknowledgeTopic] = request.topics
    async for topic in turns.over(topics):
        partitions: Sequence[ShareFetchPartition | AcknowledgePartition] = topic.partitions
        async for part in turns.over(partitions):
            named[TopicPartition(topic.topic_id, part.partition_index)] = part.acknowledgement_batches
    return named


async def _parts_of(
    services: Services,
    context: RequestContext,
    api: str,
    acquirables: Mapping[TopicPartition, AcquirableOffsets | None],
) -> dict[TopicPartition, _Part]:
    """Return these partitions. Those that can't be served have an error."""
    by_id = services.catalog.snapshot.by_id
    turns = Turns(PARTITIONS_IN_A_TURN)
    async for some in turns.parts(list(acquirables)):
        if not all(has(by_id.get(partition.topic_id), partition.partition + 1) for partition in some):
            by_id = (await services.catalog.refresh()).by_id
            break
    parts: dict[TopicPartition, _Part] = {}
    async for partition, acquirable in turns.over(list(acquirables.items())):
        topic = by_id.get(partition.topic_id)
        part = parts[partition] = _Part(partition, SharePartitionData(partition.partition), topic, acquirable)
        if topic is None:
            part.row.error_code = ErrorCode.UNKNOWN_TOPIC_ID
        elif not context.access.may_read(api, topic.topic.name):
            part.row.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif not 0 <= partition.partition < topic.topic.partitions:
            part.row.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return parts


async def _take_acknowledged(
    parts: dict[TopicPartition, _Part],
    named: dict[TopicPartition, list[AcknowledgementBatch]],
    *,
    may_renew: bool,
) -> None:
    """Note what the request acknowledges of each partition, or the error."""
    turns = Turns(PARTITIONS_IN_A_TURN)
    for partition, batches in named.items():
        if batches:
            _take_batches(parts[partition], batches, may_renew=may_renew)
        await turns.did(1 + len(batches))


def _take_batches(part: _Part, batches: Sequence[AcknowledgementBatch], *, may_renew: bool) -> None:
    part.is_acknowledged = True
    if part.is_failed:
        part.row.acknowledge_error_code = part.row.error_code
        return
    try:
        part.acknowledged += acknowledged_of(batches, may_renew=may_renew)
    except ValueError as error:
        part.row.acknowledge_error_code = ErrorCode.INVALID_REQUEST
        part.row.acknowledge_error_message = str(error)


async def _begin_by_time(
    services: Services, context: RequestContext, member: _Member, parts: list[_Part]
) -> None:
    """Look up the start offsets of a group that begins at some time, for partitions that are new to the session."""
    seconds = services.groups.configs.reset_seconds(member.group_id)
    if seconds is None:
        return
    new = await _those(parts, _is_new)
    if not new:
        return
    since_ms = services.clock.wall_ms() - round(seconds * 1000)
    topics: dict[str, ListOffsetsTopic] = {}
    turns = Turns(PARTITIONS_IN_A_TURN)
    async for part in turns.over(new):
        assert part.topic is not None, "it did not fail"
        topic = topics.setdefault(part.topic.topic.name, ListOffsetsTopic(part.topic.topic.name))
        topic.partitions.append(
            ListOffsetsPartition(part.topic_partition.partition, timestamp=max(since_ms, 0))
        )
    answer = await list_offsets.handle(services, context, ListOffsetsRequest(topics=list(topics.values())))
    found = {
        (topic.name, row.partition_index): row
        for topic in answer.topics
        async for row in turns.over(topic.partitions)
    }
    async for part in turns.over(new):
        assert part.topic is not None, "as above"
        row = found[part.topic.topic.name, part.topic_partition.partition]
        part.row.error_code = _code_of_read(row.error_code)
        part.start_offset = row.offset if row.offset >= 0 else NO_END - 1


async def _serve(
    services: Services, request: ShareFetchRequest, member: _Member, parts: list[_Part]
) -> Grant | None:
    """Serve all partitions that can be served. Return the memory taken for records, if any."""
    able = await _those(parts, lambda part: not part.is_failed and _has_work(part, member))
    fetched = await _those(able, lambda part: part.acquirable is not None) if _fetches(request) else []
    deadline = services.clock.monotonic() + _wait_s(request)
    for number in range(MAX_ROUNDS):
        remaining_s = max(0.0, deadline - services.clock.monotonic())
        grant = await _read(
            services=services,
            request=request,
            member=member,
            fetched=fetched,
            wait_s=remaining_s if number else 0.0,
        )
        try:
            if number == 0 or await _those(fetched, _has_read):
                await _ask(services, request, member, able, is_first=number == 0)
            if await _those(fetched, lambda part: part.row.acquired_records):
                return grant
        except BaseException:
            release(grant)
            raise
        release(grant)
        is_failed = bool(await _those(fetched, lambda part: part.is_failed))
        if not fetched or is_failed or services.clock.monotonic() >= deadline:
            break
    return None


async def _those(parts: Sequence[_Part], is_such: Callable[[_Part], object]) -> list[_Part]:
    """Return the partitions that are such; looked for in turns."""
    found: list[_Part] = []
    async for some in Turns(PARTITIONS_IN_A_TURN).parts(parts):
        found += filter(is_such, some)
    return found


def _is_new(part: _Part) -> bool:
    """Whether it can be served, and nothing of it was ever available to the session."""
    return part.acquirable is not None and part.acquirable.is_new and not part.is_failed


def _wait_s(request: ShareFetchRequest) -> float:
    return min(max(request.max_wait_ms, 0) / 1000, MAX_WAIT_S)


def _has_work(part: _Part, member: _Member) -> bool:
    return bool(part.acknowledged) or part.acquirable is not None or member.is_final


def _fetches(request: ShareFetchRequest) -> bool:
    is_over = request.share_session_epoch == FINAL_EPOCH or request.is_renew_ack
    return not is_over and request.max_records > 0 and request.max_bytes > 0


async def _read(
    services: Services, request: ShareFetchRequest, member: _Member, fetched: list[_Part], wait_s: float
) -> Grant | None:
    """Read the available records. Each partition may use the whole request's limits. Wait if there are none yet."""
    turns = Turns(PARTITIONS_IN_A_TURN)
    async for part in turns.over(fetched):
        part.read = None
        if part.acquirable is not None and part.acquirable.available is not None:
            part.read = _planned(
                part=part,
                acquirable=part.acquirable,
                available=part.acquirable.available,
                request=request,
                member=member,
            )
    reads = [part.read for part in fetched if part.read is not None]
    if not reads:
        await services.clock.sleep(wait_s)
        return None
    bounds = FetchRequest(max_wait_ms=round(wait_s * 1000), min_bytes=1, max_bytes=request.max_bytes)
    grant = await fill(services, bounds, reads)
    try:
        async for part in turns.over(fetched):
            if part.acquirable is not None and part.read is not None:
                part.acquirable.is_hole = _is_hole(part.read)
    except BaseException:
        release(grant)
        raise
    return grant


def _planned(
    part: _Part,
    acquirable: AcquirableOffsets,
    available: tuple[int, int],
    request: ShareFetchRequest,
    member: _Member,
) -> PartitionFetch:
    """Return the read of a partition. After a read that found nothing before its limit, read past the hole."""
    first, end = available
    is_committed = member.limits.read_committed
    return PartitionFetch(
        RequestedPartition(
            PartitionKey("", *part.topic_partition),
            first,
            min(request.max_bytes, BEHIND_A_HOLE_BYTES) if acquirable.is_hole else request.max_bytes,
            -1,
            -1,
        ),
        part.topic,
        PartitionData(part.topic_partition.partition, aborted_transactions=[] if is_committed else None),
        is_committed,
        limit=NO_END if acquirable.is_hole else min(end, first + request.max_records),
    )


def _is_hole(read: PartitionFetch) -> bool:
    """Whether the read found nothing, but the log continues after its limit."""
    if read.is_failed or read.read_bytes or read.found is None:
        return False
    log_end = read.found.last_stable_offset if read.read_committed else read.found.high_watermark
    return read.limit < log_end


def _has_read(part: _Part) -> bool:
    """Whether there are records to acquire, or the available records could not be read."""
    return part.read is not None and (part.read.read_bytes > 0 or part.read.is_failed)


async def _ask(
    services: Services, request: ShareFetchRequest, member: _Member, able: list[_Part], *, is_first: bool
) -> None:
    """Ask the sequencer: in the first round about all partitions, then about those of which something was read."""
    asking = able if is_first else await _those(able, _has_read)
    works = await _works(request, member, asking)
    turns = Turns(COUNTED_IN_A_TURN)
    for some in _chunks(list(zip(asking, works, strict=True))):
        share = ShareRequest(
            member.group_id,
            member.member_id,
            member.limits,
            [work for _, work in some],
            session=member.session.number,
        )
        answer = await services.sequencer.share_records(share)
        for (part, work), outcome in zip(some, answer.partitions, strict=True):
            _take(part, work, outcome)
            if outcome.refused and part.topic is not None:
                services.dead_letters.take(
                    UndeliverableRecords(
                        group_id=member.group_id,
                        member_id=member.member_id,
                        limits=member.limits,
                        topic=part.topic,
                        topic_partition=part.topic_partition,
                        records=outcome.refused,
                    )
                )
        async for (part, work), outcome in turns.over(list(zip(some, answer.partitions, strict=True))):
            _count(services.telemetry, part, work, outcome)


def _chunks(works: list[tuple[_Part, ShareWork]]) -> Iterator[list[tuple[_Part, ShareWork]]]:
    """Split the works into groups that fit into one call to the sequencer."""
    return in_groups(works, lambda work: edges_of(work[1]), MAX_EDGES, MAX_WORKS)


async def _works(request: ShareFetchRequest, member: _Member, parts: list[_Part]) -> list[ShareWork]:
    """Return the work for each partition. `max_records` goes to the first partitions that have records."""
    left = request.max_records
    works: list[ShareWork] = []
    async for part in Turns(PARTITIONS_IN_A_TURN).over(parts):
        acquire = None
        if part.read is not None and part.read.read_bytes and left > 0:
            assert part.acquirable is not None and part.acquirable.available is not None, (
                "it was read from there"
            )
            first, end = part.acquirable.available
            is_strict = request.share_acquire_mode == RECORD_LIMIT
            acquire = span_of(part.read, min(left, end - first), is_strict=is_strict)
            left -= acquire.max_records
            part.acquirable.is_acquired = True
        works.append(
            ShareWork(
                *part.topic_partition,
                part.acknowledged,
                member.is_final,
                acquire=acquire,
                refused=True,
                start_offset=part.start_offset,
            )
        )
    return works


def _take(part: _Part, work: ShareWork, outcome: ShareOutcome) -> None:
    """Put the outcome into the partition's row of the response."""
    row, read = part.row, part.read
    if outcome.error is not ShareError.INVALID_RECORD_STATE:
        row.error_code = _SHARE_CODES[outcome.error]
    if work.acknowledged:
        row.acknowledge_error_code = _SHARE_CODES[outcome.error]
        row.acknowledge_error_message = _SHARE_MESSAGES.get(outcome.error)
        part.acknowledged = []
    if part.acquirable is not None:
        part.acquirable.available = outcome.available
        part.acquirable.is_new = part.acquirable.is_new and outcome.available is None
    if read is not None and read.is_failed and read.row.error_code != ErrorCode.OFFSET_OUT_OF_RANGE:
        row.error_code = _code_of_read(read.row.error_code)
    if outcome.acquired and read is not None:
        row.records = read.row.records or b""
        row.acquired_records = [
            ShareAcquiredRecords(records.first_offset, records.last_offset, records.deliveries)
            for records in outcome.acquired
        ]


def _code_of_read(code: int) -> ErrorCode:
    return ErrorCode(code) if code in _CODES_OF_READS else ErrorCode.KAFKA_STORAGE_ERROR


def _count(telemetry: AgentTelemetry, part: _Part, work: ShareWork, outcome: ShareOutcome) -> None:
    for records in outcome.acquired:
        length = records.last_offset - records.first_offset + 1
        telemetry.share_acquired.inc(length)
        telemetry.share_redelivered.inc(length if records.deliveries > 1 else 0)
    code = part.row.error_code or _SHARE_CODES[outcome.error]
    if code:
        telemetry.share_failures.labels(ErrorCode(code).name).inc()
        return
    for said in work.acknowledged:
        for kind in said.types:
            length = said.last_offset - said.first_offset + 1 if len(said.types) == 1 else 1
            telemetry.share_acknowledged.labels(kind.name.lower()).inc(length)


async def _response(
    request: ShareFetchRequest, member: _Member, parts: Sequence[_Part]
) -> ShareFetchResponse:
    """Return all partitions in a session's first answer, then only those with records, errors or acknowledgements."""
    response = ShareFetchResponse(acquisition_lock_timeout_ms=member.limits.lock_ms)
    is_whole = request.share_session_epoch == INITIAL_EPOCH
    topics: dict[Any, ShareFetchableTopicResponse] = {}
    async for part in Turns(PARTITIONS_IN_A_TURN).over(parts):
        row, topic_id = part.row, part.topic_partition.topic_id
        if row.acquired_records and part.topic_partition in member.session.partitions:
            member.session.partitions.move_to_end(part.topic_partition)
        if is_whole or row.acquired_records or row.error_code or part.is_acknowledged:
            topic = topics.get(topic_id)
            if topic is None:
                topic = topics[topic_id] = ShareFetchableTopicResponse(topic_id)
                response.responses.append(topic)
            topic.partitions.append(row)
    return response


# --- ShareAcknowledge


async def acknowledge(
    services: Services, context: RequestContext, request: ShareAcknowledgeRequest
) -> ShareAcknowledgeResponse:
    """Acknowledge a member's records. Epoch -1 ends the session and releases all other records that it acquired."""
    try:
        _check_names(request)
        if request.share_session_epoch == INITIAL_EPOCH:
            raise GroupRefusal(ErrorCode.INVALID_SHARE_SESSION_EPOCH, "ShareFetch opens sessions")
        key = request.group_id or "", request.member_id or ""
        member = _member_of(services, request, services.share_sessions.turn(key, request.share_session_epoch))
        named = await _named(request, Turns(PARTITIONS_IN_A_TURN))
        partitions = [*named, *(member.session.partitions if member.is_final else ())]
        parts = await _parts_of(services, context, "ShareAcknowledge", dict.fromkeys(partitions))
        await _take_acknowledged(parts, named, may_renew=request.is_renew_ack)
        able = await _those(list(parts.values()), lambda part: not part.is_failed and _has_work(part, member))
        await _ask(services, ShareFetchRequest(), member, able, is_first=True)
    except GroupRefusal as refused:
        return ShareAcknowledgeResponse(error_code=refused.code, error_message=str(refused))
    except EXPECTED as error:
        return ShareAcknowledgeResponse(error_code=code_of(error), error_message=str(error))
    response = await _acknowledged(request, parts)
    if context.api_version >= FIRST_VERSION_OF_LOCK_TIMEOUT:
        response.acquisition_lock_timeout_ms = member.limits.lock_ms
    return response


async def _acknowledged(
    request: ShareAcknowledgeRequest, parts: dict[TopicPartition, _Part]
) -> ShareAcknowledgeResponse:
    response = ShareAcknowledgeResponse()
    turns = Turns(PARTITIONS_IN_A_TURN)
    async for topic in turns.over(request.topics):
        rows = [
            parts[TopicPartition(topic.topic_id, partition.partition_index)].row
            async for partition in turns.over(topic.partitions)
        ]
        response.responses.append(
            AcknowledgedTopic(
                topic.topic_id,
                [
                    AcknowledgedPartition(
                        row.partition_index,
                        row.error_code or row.acknowledge_error_code,
                        row.acknowledge_error_message,
                    )
                    for row in rows
                ],
            )
        )
    return response
