"""Produce: validates each partition's batch, puts it into the active buffer and answers after its commit. For a topic
with `tailrace.flush=async` it answers once the batch is in the buffer.

The admission (all that happens before the handler returns) keeps the order of a connection's requests. The answer is
deferred until the last batch of the request has its outcome. With acks=0 the dispatcher drops it.

A transactional batch is bound to its transaction on receipt. Clients of transaction version 2 (Produce 12 and above)
end every transaction with a new epoch, so the batch's epoch identifies it. For older clients the agent asks the
sequencer for the number of the transaction that is open now. A batch that arrives late is then refused instead of
joining the next transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from agent.catalog import KnownTopic, RequestTopics, has
from agent.errors import EXPECTED, code_of, produce_code
from agent.handlers.current_leaders import FIRST_VERSION_OF_LEADERS, name_leaders
from agent.produce.active_buffer import BatchResult, BufferedBatch, Submission
from agent.produce.current_transactions import QUERIES_IN_A_CALL
from agent.services import MUST_WAIT, Deferred, LongAnswer, MustWait, RequestContext, Services
from sequencer.api.commits import ANY_TRANSACTION, BatchError
from sequencer.api.errors import SequencerError
from sequencer.api.transactions import CurrentTransactionQuery
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
from tailrace.configs.topic_config import Flush, Latency, TopicSettings
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
from tailrace.turns import Steps, ThreadTurns, Turns, at_once, in_parts, in_turns

_STORED = BatchError.NONE
_DUPLICATE = BatchError.DUPLICATE
_FORGOTTEN = BatchError.UNKNOWN_PRODUCER_ID
_UNKNOWN = BatchError.UNKNOWN_TOPIC_OR_PARTITION
_COMPACT = "compact"
FIRST_TOPIC_ID_VERSION = 13
FIRST_ZSTD_VERSION = 7
"""Before this version Kafka refuses zstd batches: consumers as old as the producer may be unable to read them."""
PARTITIONS_IN_A_TURN = 1_000
"""Partitions whose batches are checked in one turn of the loop, when a request has to wait anyway."""
MAX_RECORD_ERRORS = 100
FIRST_VERSION_OF_TRANSACTIONS_2 = 12
"""From this version on the first batch begins a transaction, and every end bumps the epoch (KIP-890)."""


class _Accepted(msgspec.Struct, gc=False):
    """A batch to put into the buffer, and the response row that its result fills."""

    partition: TopicPartition
    topic_name: str
    coordinates: BatchCoordinates
    data: Buffer
    row: PartitionProduceResponse
    log_append_ms: int
    transaction: int = 0
    needs_keys: bool = False
    latency: Latency = Latency.BALANCED
    is_answered_on_receipt: bool = False


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
        accepted = await _bound_to_transactions(services, request, version, accepted)
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
            _refuse_all(services, accepted, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
            return _submitted(services, context, response, [])
    return _submitted(services, context, response, accepted)


def _validated(
    services: Services,
    context: RequestContext,
    request: ProduceRequest,
    topics: Sequence[KnownTopic | ErrorCode],
) -> Steps[tuple[ProduceResponse, list[_Accepted]]]:
    """Return the response with a row for each partition, and the accepted batches. `topics`: for each topic of the
    request, the known topic or the error that refuses it."""
    response = ProduceResponse()
    accepted: list[_Accepted] = []
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
                _refuse(services, row, topic, "")
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
    services: Services, context: RequestContext, response: ProduceResponse, accepted: list[_Accepted]
) -> Deferred | ProduceResponse:
    """Put the batches into the lanes' buffers and return the answer."""
    if not accepted:
        return response
    _copy_if_mostly_refused(accepted)
    deferred = Deferred(partial(_answer, services, context.api_version, response, accepted))
    _submit(services, context, accepted, first=0, submission=Submission(len(accepted), deferred.is_ready))
    return deferred


async def _submitted_in_turns(
    services: Services, context: RequestContext, response: ProduceResponse, accepted: list[_Accepted]
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
    making = partial(_answer_in_turns, services, context.api_version, response, accepted)
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
    accepted: Sequence[_Accepted],
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


def _copy_if_mostly_refused(accepted: Sequence[_Accepted]) -> None:
    """Copy the accepted batches if they are less than half of their frame. Views would keep the whole frame in memory,
    in the buffer and later in the cache, which both count only the batches."""
    viewed, frame = _viewed(accepted)
    if 2 * viewed < frame:
        _copy_views(accepted)


def _viewed(accepted: Sequence[_Accepted]) -> tuple[int, int]:
    """Return the bytes of the batches that are views of the request's frame, and the frame's bytes; 0 and 0 if none is.
    A batch stamped with LogAppendTime was copied, so it is no view."""
    viewed = 0
    frame: Any = b""
    for batch in accepted:
        if isinstance(batch.data, memoryview):
            viewed += batch.coordinates.length
            frame = batch.data.obj
    return viewed, len(frame)


def _copy_views(accepted: Sequence[_Accepted]) -> None:
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


async def _with_keys(services: Services, accepted: list[_Accepted]) -> list[_Accepted]:
    """Return the batches that may be stored: a batch of a compacted topic needs a key in every record.

    A thread of the decoding pool inspects the records, because they may be compressed and very many.
    """
    async for batch in Turns(PARTITIONS_IN_A_TURN).over(accepted):
        if batch.needs_keys:
            await _refuse_if_keyless(services, batch)
    return await _not_refused(accepted)


async def _not_refused(accepted: list[_Accepted]) -> list[_Accepted]:
    """Return the batches whose rows have no error."""
    kept: list[_Accepted] = []
    async for some in Turns(PARTITIONS_IN_A_TURN).parts(accepted):
        kept += [batch for batch in some if batch.row.error_code == ErrorCode.NONE]
    return kept


async def _refuse_if_keyless(services: Services, batch: _Accepted) -> None:
    loop = asyncio.get_running_loop()
    try:
        count, indexes = await loop.run_in_executor(services.decoding, _keyless, batch.data)
    except InvalidRecords as error:
        _refuse(services, batch.row, ErrorCode.INVALID_RECORD, str(error))
        return
    if count:
        _refuse_keyless(services, batch, count, indexes)


def _keyless(batch: Buffer) -> tuple[int, list[int]]:
    turns = ThreadTurns(LOOKED_AT_TOGETHER)
    return keyless_records(batch, most=MAX_RECORD_ERRORS, max_bytes=MAX_LOOKED_INTO_BYTES, did=turns.did)


def _refuse_keyless(services: Services, batch: _Accepted, count: int, indexes: list[int]) -> None:
    """Refuse a batch in which `count` records have no key, first those at these indexes."""
    _refuse(services, batch.row, ErrorCode.INVALID_RECORD, "")
    batch.row.error_message = f"{count} records have no key, which a compacted topic needs"
    batch.row.record_errors = [
        BatchIndexAndErrorMessage(index, f"topic {batch.topic_name} is compacted: the record needs a key")
        for index in indexes
    ]


async def _bound_to_transactions(
    services: Services, request: ProduceRequest, version: int, accepted: list[_Accepted]
) -> list[_Accepted]:
    """Return the batches that may be stored, the transactional ones with their transaction; refuse the others."""
    turns = Turns(PARTITIONS_IN_A_TURN)
    producers: set[tuple[int, int]] = set()
    async for some in turns.parts(accepted):
        producers.update(
            (batch.coordinates.producer_id, batch.coordinates.producer_epoch)
            for batch in some
            if batch.coordinates.is_transactional
        )
    try:
        code = await _refusal_of_transaction(services, request.transactional_id, producers)
    except EXPECTED as error:
        code = code_of(error)
    if code is not None:
        async for some in turns.parts(accepted):
            _refuse_all(services, some, code)
        return []
    assert request.transactional_id is not None, "without one it is refused"
    services.copy_queue.transaction(request.transactional_id)
    kept: list[_Accepted] = []
    for some in in_parts(accepted, QUERIES_IN_A_CALL):
        kept += await _in_open_transactions(services, version, some)
        await turns.did(len(some))
    return kept


async def _in_open_transactions(
    services: Services, version: int, accepted: Sequence[_Accepted]
) -> Sequence[_Accepted]:
    """As `_bound_to_transactions`, for a part of a transaction's batches."""
    transactional = [batch for batch in accepted if batch.coordinates.is_transactional]
    if not transactional:
        return accepted
    if version >= FIRST_VERSION_OF_TRANSACTIONS_2:
        for batch in transactional:
            batch.transaction = ANY_TRANSACTION
        return accepted
    queries = [
        CurrentTransactionQuery(
            topic_id=batch.partition.topic_id,
            partition=batch.partition.partition,
            producer_id=batch.coordinates.producer_id,
            producer_epoch=batch.coordinates.producer_epoch,
        )
        for batch in transactional
    ]
    try:
        current = await services.current_transactions.of(queries)
    except EXPECTED as error:
        for batch in transactional:
            _refuse(services, batch.row, code_of(error), str(error))
        return [batch for batch in accepted if not batch.coordinates.is_transactional]
    refused: set[int] = set()
    for batch, transaction in zip(transactional, current, strict=True):
        batch.transaction = transaction.number
        if transaction.error is not BatchError.NONE:
            refused.add(id(batch))
            _refuse(services, batch.row, produce_code(transaction.error, version, is_transactional=True), "")
    return [batch for batch in accepted if id(batch) not in refused]


async def _refusal_of_transaction(
    services: Services, transactional_id: str | None, producers: set[tuple[int, int]]
) -> ErrorCode | None:
    """Return why the batches of these producers (id, epoch) can't belong to one transaction of this id, or None. Raises
    the sequencer's errors."""
    if transactional_id is None:
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if not transactional_id or len(producers) > 1:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    ((producer_id, _),) = producers
    is_its = await services.transactional_producers.has(transactional_id, producer_id)
    return None if is_its else ErrorCode.INVALID_PRODUCER_ID_MAPPING


def _refuse_all(services: Services, accepted: Sequence[_Accepted], code: ErrorCode) -> None:
    """Refuse all batches of the request, as Kafka does."""
    for batch in accepted:
        _refuse(services, batch.row, code, "")


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
    accepted: list[_Accepted],
    *,
    is_answered: bool,
) -> None:
    if not 0 <= partition_data.index < topic.topic.partitions:
        _refuse(services, row, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "")
        return
    try:
        taken = _checked(services, topic.settings, partition_data.records)
        if version < FIRST_ZSTD_VERSION:
            _refuse_zstd([described for described, _, _ in taken], version)
    except InvalidBatch as error:
        _refuse(services, row, code_of(error), str(error))
        return
    needs_keys = _COMPACT in topic.settings.cleanup_policy
    is_async = is_answered and topic.settings.flush is Flush.ASYNC
    for described, batch, log_append_ms in taken:
        accepted.append(
            _Accepted(
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


def _answer(
    services: Services,
    version: int,
    answer: ProduceResponse,
    accepted: list[_Accepted],
    results: list[BatchResult | None],
) -> ProduceResponse | Deferred:
    is_unknown = _fill_all(services, version, accepted, results)
    return _once_catalog_is_current(services, answer) if is_unknown else answer


async def _answer_in_turns(
    services: Services,
    version: int,
    answer: ProduceResponse,
    accepted: list[_Accepted],
    results: list[BatchResult | None],
) -> ProduceResponse:
    """As `_answer`, made in several turns of the loop."""
    is_unknown = False
    turns = Turns(PARTITIONS_IN_A_TURN)
    for first in range(0, len(accepted), PARTITIONS_IN_A_TURN):
        end = first + PARTITIONS_IN_A_TURN
        is_unknown |= _fill_all(services, version, accepted[first:end], results[first:end])
        await turns.did(PARTITIONS_IN_A_TURN)
    if is_unknown:
        await services.catalog.refresh_if_possible()
    return answer


def _fill_all(
    services: Services, version: int, accepted: Sequence[_Accepted], results: Sequence[BatchResult | None]
) -> bool:
    """Fill in the rows of the answer. Return whether a partition turned out to be unknown."""
    is_unknown = False
    for batch, result in zip(accepted, results, strict=True):
        assert result is not None, "a submission is done when every batch has its result"
        _fill(
            services,
            version,
            batch.row,
            result,
            is_transactional=batch.coordinates.is_transactional,
            log_append_ms=batch.log_append_ms,
        )
        is_unknown = is_unknown or result.error is _UNKNOWN
    return is_unknown


def answer_of_one(
    services: Services, version: int, topic: TopicProduceData, index: int, result: BatchResult
) -> ProduceResponse | Deferred:
    """Return the answer to a request of one non-transactional batch to the partition `index`."""
    row = PartitionProduceResponse(index=index, base_offset=-1)
    _fill(services, version, row, result)
    rows = TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=[row])
    answer = ProduceResponse(responses=[rows])
    return _once_catalog_is_current(services, answer) if result.error is _UNKNOWN else answer


def _once_catalog_is_current(services: Services, answer: ProduceResponse) -> Deferred:
    """Return an answer that waits for a refresh of the catalog: the topic was deleted or re-created through another
    agent.

    The agent doesn't retry the batch, because later batches would overtake it. The client retries, and then the catalog
    is current.
    """
    deferred = Deferred(lambda _: answer)
    asyncio.ensure_future(services.catalog.refresh_if_possible()).add_done_callback(
        lambda _: deferred.is_ready()
    )
    return deferred


def _fill(
    services: Services,
    version: int,
    row: PartitionProduceResponse,
    result: BatchResult,
    *,
    is_transactional: bool = False,
    log_append_ms: int = -1,
) -> None:
    if result.failure is not None:
        code = (
            ErrorCode.KAFKA_STORAGE_ERROR if result.failure.kind == "storage" else ErrorCode.REQUEST_TIMED_OUT
        )
        _refuse(services, row, code, result.failure.message)
        return
    if result.error in (
        _STORED,
        _DUPLICATE,
        _FORGOTTEN,
    ):  # Java's producer recovers from the last by the log start
        row.log_start_offset = result.log_start_offset
    if result.error is not _STORED:
        code = produce_code(
            result.error,
            version,
            is_transactional=is_transactional,
            is_alone=len(services.catalog.snapshot.ring.members) < 2,
        )
        if code is not ErrorCode.NONE:
            _refuse(services, row, code, "")
            return
    if row.error_code == ErrorCode.NONE and row.base_offset < 0:
        row.base_offset = result.base_offset
    row.log_append_time_ms = log_append_ms


def _refuse(services: Services, row: PartitionProduceResponse, code: ErrorCode, message: str) -> None:
    row.error_code = code
    row.base_offset = -1
    services.telemetry.refused_batches.labels(code.name).inc()
    if message:
        row.error_message = message
    if code is ErrorCode.INVALID_RECORD:
        row.record_errors = [BatchIndexAndErrorMessage(batch_index=0, batch_index_error_message=message)]
