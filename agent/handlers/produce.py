"""Produce: validates each partition's batch, puts it into the active buffer and answers after its commit. For a topic
with `tailrace.flush=async` it answers once the batch is in the buffer.

The admission (all that happens before the handler returns) keeps the order of a connection's requests. The answer is
deferred until the last batch of the request has its outcome. With acks=0 the dispatcher drops it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from agent.catalog import KnownTopic, RequestTopics, has
from agent.errors import code_of
from agent.handlers.accepted_batches import (
    PARTITIONS_IN_A_TURN,
    AcceptedBatch,
    answer_in_turns,
    answer_of,
    refuse,
    refuse_all,
)
from agent.handlers.current_leaders import FIRST_VERSION_OF_LEADERS, name_leaders
from agent.handlers.transactional_batches import bound_to_transactions
from agent.produce.active_buffer import BufferedBatch, Submission
from agent.services import MUST_WAIT, Deferred, LongAnswer, MustWait, RequestContext, Services
from sequencer.api.errors import SequencerError
from tailrace.batches.compression import MAX_LOOKED_INTO_BYTES
from tailrace.batches.mixed_object import BatchCoordinates, coordinates
from tailrace.batches.produced_batch import plain_batch
from tailrace.batches.record_batch import (
    COMPRESSION_MASK,
    TRANSACTIONAL_FLAG,
    Compression,
    InvalidBatch,
    UnknownCompression,
    read_header,
    validate_produced,
    with_log_append_time,
)
from tailrace.batches.records import LOOKED_AT_TOGETHER, InvalidRecords, keyless_records
from tailrace.buffers import Buffer
from tailrace.configs.topic_config import Flush, TopicSettings
from tailrace.ids import TopicPartition
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from tailrace.turns import Steps, ThreadTurns, Turns, at_once, in_turns

_COMPACT = "compact"
FIRST_TOPIC_ID_VERSION = 13
FIRST_ZSTD_VERSION = 7
"""Before this version Kafka refuses zstd batches: consumers as old as the producer may be unable to read them."""
MAX_RECORD_ERRORS = 100


async def handle(
    services: Services, context: RequestContext, request: ProduceRequest
) -> Deferred | ProduceResponse:
    """Admit a produce request; see the module."""
    version = context.api_version
    refusal = _refusal_of(services, context, request)
    topics: list[KnownTopic | ErrorCode] = []
    lookup = services.catalog.of_one_request()
    async for topic_data in Turns(PARTITIONS_IN_A_TURN).over(request.topic_data):
        known = refusal or _topic_known(services, topic_data, version)
        topics.append(await _topic_of(lookup, topic_data, version) if known is None else known)
    validating = _validated(services, context, request, topics)
    response, accepted = await in_turns(validating, Turns(PARTITIONS_IN_A_TURN))
    if _gets_current_leaders(context, request) and _is_sent_away(services, context):
        name_leaders(services, context, response, topics)
    if any(batch.needs_keys for batch in accepted):
        accepted = await _with_keys(services, accepted)
    if any(batch.coordinates.is_transactional for batch in accepted):
        accepted = await bound_to_transactions(services, request, version, accepted)
    if len(accepted) > PARTITIONS_IN_A_TURN:
        return await _submitted_in_turns(services, context, response=response, accepted=accepted)
    return _submitted(services, context, response, accepted)


def handle_at_once(
    services: Services, context: RequestContext, request: ProduceRequest
) -> Deferred | ProduceResponse | MustWait:
    """As `handle`, for known topics, without transactions or a check of keys; otherwise MUST_WAIT."""
    if request.transactional_id is not None:
        return MUST_WAIT
    topics: list[KnownTopic | ErrorCode] = []
    for topic_data in request.topic_data:
        topic = _topic_known(services, topic_data, context.api_version)
        if topic is None or _COMPACT in topic.settings.cleanup_policy:
            return MUST_WAIT
        topics.append(topic)
    refusal = _refusal_of(services, context, request)
    if refusal is not None:
        topics = [refusal] * len(topics)
    response, accepted = at_once(_validated(services, context, request, topics))
    for batch in accepted:
        if batch.coordinates.flags & TRANSACTIONAL_FLAG:
            refuse_all(services, accepted, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
            return _submitted(services, context, response, [])
    return _submitted(services, context, response, accepted)


def _validated(
    services: Services,
    context: RequestContext,
    request: ProduceRequest,
    topics: Sequence[KnownTopic | ErrorCode],
) -> Steps[tuple[ProduceResponse, list[AcceptedBatch]]]:
    """Return the response with a row for each partition, and the accepted batches. `topics`: for each topic of the
    request, the known topic or the error that refuses it."""
    response = ProduceResponse()
    accepted: list[AcceptedBatch] = []
    for topic_data, topic in zip(request.topic_data, topics, strict=True):
        rows: list[PartitionProduceResponse] = []
        response.responses.append(
            TopicProduceResponse(name=topic_data.name, topic_id=topic_data.topic_id, partition_responses=rows)
        )
        if isinstance(topic, KnownTopic) and topic.is_internal:
            topic = ErrorCode.INVALID_TOPIC_EXCEPTION
        for partition_data in topic_data.partition_data:
            row = PartitionProduceResponse(index=partition_data.index, base_offset=-1)
            rows.append(row)
            if isinstance(topic, ErrorCode):
                refuse(services, row, topic, "")
            else:
                partition = TopicPartition(topic.topic.topic_id, partition_data.index)
                context.leadership.note(partition)
                _admit(
                    services,
                    topic=topic,
                    partition=partition,
                    partition_data=partition_data,
                    version=context.api_version,
                    row=row,
                    accepted=accepted,
                    is_answered=request.acks != 0,
                )
            yield 1
    return response, accepted


def _submitted(
    services: Services, context: RequestContext, response: ProduceResponse, accepted: list[AcceptedBatch]
) -> Deferred | ProduceResponse:
    """Put the batches into the lanes' buffers and return the answer."""
    if not accepted:
        return response
    _copy_if_mostly_refused(accepted)
    deferred = Deferred(partial(answer_of, services, context.api_version, response, accepted))
    _submit(services, context, accepted, first=0, submission=Submission(len(accepted), deferred.is_ready))
    return deferred


async def _submitted_in_turns(
    services: Services, context: RequestContext, response: ProduceResponse, accepted: list[AcceptedBatch]
) -> Deferred:
    """As `_submitted`, for very many batches: each turn of the loop handles a part of them, and later a part of the
    answer.

    The end of the connection does not stop it: earlier parts are in the buffers already, and only a deferred answer
    holds the request's charge until they have left the buffers.
    """
    viewed = frame = 0
    turns = Turns(PARTITIONS_IN_A_TURN)
    async for some in turns.parts(accepted):
        of_some, of_frame = _viewed(some)
        viewed, frame = viewed + of_some, max(frame, of_frame)
    making = partial(answer_in_turns, services, context.api_version, response, accepted)
    deferred = Deferred(lambda results: LongAnswer(making(results)))
    submission = Submission(len(accepted), deferred.is_ready)
    for first in range(0, len(accepted), PARTITIONS_IN_A_TURN):
        some = accepted[first : first + PARTITIONS_IN_A_TURN]
        if 2 * viewed < frame:
            _copy_views(some)
        _submit(services, context, some, first=first, submission=submission)
        with suppress(asyncio.CancelledError):
            await turns.did(len(some))
    return deferred


def _submit(
    services: Services,
    context: RequestContext,
    accepted: Sequence[AcceptedBatch],
    first: int,
    submission: Submission,
) -> None:
    """Put batches into the lanes' buffers. `first`: the index of the first of them in the submission."""
    telemetry = services.telemetry
    is_from_elsewhere = context.zone != services.identity.zone
    batches = []
    for index, batch in enumerate(accepted, first):
        telemetry.produced_bytes.inc(batch.coordinates.length)
        telemetry.produced_records.inc(batch.coordinates.record_count)
        if is_from_elsewhere:
            telemetry.topics.of(batch.topic_name).cross_zone_bytes += batch.coordinates.length
        buffered = BufferedBatch(
            coordinates=batch.coordinates,
            data=batch.data,
            submission=submission,
            index=index,
            transaction=batch.transaction,
            latency=batch.latency,
            is_answered_on_receipt=batch.is_answered_on_receipt,
        )
        batches.append((batch.partition, batch.topic_name, buffered))
    services.lanes.submit(batches)


def _copy_if_mostly_refused(accepted: Sequence[AcceptedBatch]) -> None:
    """Copy the accepted batches if they are less than half of their frame. Views would keep the whole frame in memory,
    in the buffer and later in the cache, which both count only the batches."""
    viewed, frame = _viewed(accepted)
    if 2 * viewed < frame:
        _copy_views(accepted)


def _viewed(accepted: Sequence[AcceptedBatch]) -> tuple[int, int]:
    """Return the bytes of the batches that are views of the request's frame, and the frame's bytes; 0 and 0 if none is.
    A batch stamped with LogAppendTime was copied, so it is no view."""
    viewed = 0
    frame: Any = b""
    for batch in accepted:
        if isinstance(batch.data, memoryview):
            viewed += batch.coordinates.length
            frame = batch.data.obj
    return viewed, len(frame)


def _copy_views(accepted: Sequence[AcceptedBatch]) -> None:
    for batch in accepted:
        if isinstance(batch.data, memoryview):
            batch.data = bytes(batch.data)


def _refusal_of(services: Services, context: RequestContext, request: ProduceRequest) -> ErrorCode | None:
    if request.acks not in (-1, 0, 1):
        return ErrorCode.INVALID_REQUIRED_ACKS
    if context.api_version < 3:
        return ErrorCode.UNSUPPORTED_VERSION
    if _may_be_refused(context, request) and _is_sent_away(services, context):
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    return None


def _may_be_refused(context: RequestContext, request: ProduceRequest) -> bool:
    """Whether a refusal may be used to tell the producer to look for the new leader.

    A producer with acks=0 gets no answer, so it can't be refused. librdkafka in a transaction must not be refused: if
    it is aborting when the refusal arrives, it keeps the batch for a retry that it never makes, and `abort_transaction`
    times out. Other clients in a transaction are refused only if none of their requests waits for its answer.
    """
    if request.transactional_id is None:
        return request.acks != 0
    return request.acks != 0 and context.is_first_waiting and not context.is_librdkafka


def _gets_current_leaders(context: RequestContext, request: ProduceRequest) -> bool:
    """Whether the answer names the current leaders instead of a refusal."""
    is_in_transaction = request.transactional_id is not None
    return is_in_transaction and context.is_librdkafka and context.api_version >= FIRST_VERSION_OF_LEADERS


def _is_sent_away(services: Services, context: RequestContext) -> bool:
    """Whether the client does not know the current leader yet. Call it once per request."""
    identity = services.identity
    return identity.is_leaving or context.leadership.sends_away(
        services.catalog.snapshot.replicas, identity.broker_id, context.zone, services.clock.monotonic()
    )


async def _with_keys(services: Services, accepted: list[AcceptedBatch]) -> list[AcceptedBatch]:
    """Return the batches that may be stored: a batch of a compacted topic needs a key in every record.

    A thread of the decoding pool inspects the records, because they may be compressed and very many.
    """
    async for batch in Turns(PARTITIONS_IN_A_TURN).over(accepted):
        if batch.needs_keys:
            await _refuse_if_keyless(services, batch)
    return await _not_refused(accepted)


async def _not_refused(accepted: list[AcceptedBatch]) -> list[AcceptedBatch]:
    """Return the batches whose rows have no error."""
    kept: list[AcceptedBatch] = []
    async for some in Turns(PARTITIONS_IN_A_TURN).parts(accepted):
        kept += [batch for batch in some if batch.row.error_code == ErrorCode.NONE]
    return kept


async def _refuse_if_keyless(services: Services, batch: AcceptedBatch) -> None:
    loop = asyncio.get_running_loop()
    try:
        count, indexes = await loop.run_in_executor(services.decoding, _keyless, batch.data)
    except InvalidRecords as error:
        refuse(services, batch.row, ErrorCode.INVALID_RECORD, str(error))
        return
    if count:
        _refuse_keyless(services, batch, count, indexes)


def _keyless(batch: Buffer) -> tuple[int, list[int]]:
    turns = ThreadTurns(LOOKED_AT_TOGETHER)
    return keyless_records(batch, most=MAX_RECORD_ERRORS, max_bytes=MAX_LOOKED_INTO_BYTES, did=turns.did)


def _refuse_keyless(services: Services, batch: AcceptedBatch, count: int, indexes: list[int]) -> None:
    """Refuse a batch in which `count` records have no key, first those at these indexes."""
    refuse(services, batch.row, ErrorCode.INVALID_RECORD, "")
    batch.row.error_message = f"{count} records have no key, which a compacted topic needs"
    batch.row.record_errors = [
        BatchIndexAndErrorMessage(index, f"topic {batch.topic_name} is compacted: the record needs a key")
        for index in indexes
    ]


def _topic_known(services: Services, topic_data: TopicProduceData, version: int) -> KnownTopic | None:
    """Return the topic from the catalog's snapshot if all requested partitions are known."""
    known = services.catalog.snapshot
    if version >= FIRST_TOPIC_ID_VERSION:
        topic = known.by_id.get(topic_data.topic_id)
    else:
        topic = known.by_name.get(topic_data.name)
    return topic if has(topic, _partitions_of(topic_data)) else None


def _partitions_of(topic_data: TopicProduceData) -> int:
    """Return how many partitions the topic must have for this request."""
    highest = -1
    for partition in topic_data.partition_data:
        if partition.index > highest:
            highest = partition.index
    return 1 + highest


async def _topic_of(
    lookup: RequestTopics, topic_data: TopicProduceData, version: int
) -> KnownTopic | ErrorCode:
    """Return the topic, or the error code if it can't be found."""
    partitions = _partitions_of(topic_data)
    try:
        if version >= FIRST_TOPIC_ID_VERSION:
            return await lookup.by_id(topic_data.topic_id, partitions) or ErrorCode.UNKNOWN_TOPIC_ID
        topic = await lookup.by_name(topic_data.name, partitions)
        return topic or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    except SequencerError as error:
        return code_of(error)


def _admit(
    services: Services,
    topic: KnownTopic,
    partition: TopicPartition,
    partition_data: PartitionProduceData,
    version: int,
    row: PartitionProduceResponse,
    accepted: list[AcceptedBatch],
    *,
    is_answered: bool,
) -> None:
    if not 0 <= partition_data.index < topic.topic.partitions:
        refuse(services, row, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "")
        return
    try:
        taken = _checked(services, topic.settings, partition_data.records)
        if version < FIRST_ZSTD_VERSION:
            _refuse_zstd([described for described, _, _ in taken], version)
    except InvalidBatch as error:
        refuse(services, row, code_of(error), str(error))
        return
    needs_keys = _COMPACT in topic.settings.cleanup_policy
    is_async = is_answered and topic.settings.flush is Flush.ASYNC
    for described, batch, log_append_ms in taken:
        accepted.append(
            AcceptedBatch(
                partition=partition,
                topic_name=topic.topic.name,
                coordinates=described,
                data=batch,
                row=row,
                log_append_ms=log_append_ms,
                needs_keys=needs_keys,
                latency=topic.settings.latency,
                is_answered_on_receipt=is_async and not described.is_transactional,
            )
        )


def _refuse_zstd(batches: Sequence[BatchCoordinates], version: int) -> None:
    """Raise UnknownCompression if a batch is compressed with zstd."""
    if any(batch.flags & COMPRESSION_MASK == Compression.ZSTD for batch in batches):
        raise UnknownCompression(
            f"zstd in a produce request of version {version}; it needs version {FIRST_ZSTD_VERSION} or later"
        )


def _checked(
    services: Services, settings: TopicSettings, records: memoryview | None
) -> list[tuple[BatchCoordinates, Buffer, int]]:
    """Return each batch's coordinates, its bytes as they are stored, and its LogAppendTime, or -1. Raises
    InvalidBatch."""
    now = services.clock.wall_ms()
    oldest, newest = now - settings.timestamp_before_max_ms, now + settings.timestamp_after_max_ms
    most = settings.max_message_bytes
    records = memoryview(b"") if records is None else records
    if settings.log_append_time:
        batches = validate_produced(records, max_message_bytes=most, log_append_time=True)
        stamped = [with_log_append_time(view, now) for _, view in batches]
        return [(coordinates(read_header(batch)), batch, now) for batch in stamped]
    plain = plain_batch(records, max_message_bytes=most, oldest_timestamp=oldest, newest_timestamp=newest)
    if plain is not None:
        return [(plain, records, -1)]
    batches = validate_produced(
        records, max_message_bytes=most, oldest_timestamp=oldest, newest_timestamp=newest
    )
    return [(coordinates(header), view, -1) for header, view in batches]
