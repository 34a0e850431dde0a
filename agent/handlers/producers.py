"""InitProducerId and DescribeProducers."""

from __future__ import annotations

from agent.answer_memory import ENTRY_BYTES, restartable
from agent.catalog import KnownTopic
from agent.errors import (
    EXPECTED,
    PARTITION_CODES,
    AnswerTooLarge,
    code_of,
    producer_id_code,
    transaction_code,
    unknown_topic_code,
)
from agent.services import RequestContext, Services
from sequencer.api.producers import InitProducer, ProducerQuery, ProducersAnswer
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from tailrace.kafka.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tailrace.limits import is_name
from tailrace.turns import Turns

FIRST_FENCED_VERSION = 4
PARTITIONS_IN_A_TURN = 100


async def init_producer_id(
    services: Services, context: RequestContext, request: InitProducerIdRequest
) -> InitProducerIdResponse:
    """Return a producer id and epoch. A transactional id's previous producer is fenced and its transaction aborted."""
    is_transactional = request.transactional_id is not None
    has_id, has_epoch = request.producer_id >= 0, request.producer_epoch >= 0
    is_named = request.transactional_id is None or is_name(request.transactional_id)
    if not is_named or has_id is not has_epoch:
        return InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST, producer_epoch=-1)
    try:
        grant = await services.sequencer.init_producer(
            InitProducer(
                request.producer_id,
                request.producer_epoch,
                request.transactional_id,
                request.transaction_timeout_ms,
            )
        )
    except EXPECTED as error:
        code = producer_id_code(error)
        if is_transactional:
            code = transaction_code(error, knows_fenced=context.api_version >= FIRST_FENCED_VERSION)
        return InitProducerIdResponse(error_code=code, producer_epoch=-1)
    if request.transactional_id is not None:
        services.copy_queue.transaction(request.transactional_id)
    return InitProducerIdResponse(producer_id=grant.producer_id, producer_epoch=grant.producer_epoch)


@restartable
async def describe_producers(
    services: Services, context: RequestContext, request: DescribeProducersRequest
) -> DescribeProducersResponse:
    """Describe the producers that the sequencer remembers, once for each requested partition."""
    turns = Turns(PARTITIONS_IN_A_TURN)
    asked: dict[str, dict[int, None]] = {}
    for topic in request.topics:
        asked.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
        await turns.did()
    response = DescribeProducersResponse()
    lookup = services.catalog.of_one_request()
    for name, indexes in asked.items():
        known = await lookup.by_name(name)
        answer = TopicResponse(name=name)
        response.topics.append(answer)
        for index in indexes:
            row = await _producers_of(services, context, known, index)
            if known is None:
                row.error_code = unknown_topic_code(name)
            answer.partitions.append(row)
            await turns.did()
    return response


async def _producers_of(
    services: Services, context: RequestContext, known: KnownTopic | None, index: int
) -> PartitionResponse:
    row = PartitionResponse(partition_index=index)
    if known is None or not 0 <= index < known.topic.partitions:
        row.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        row.error_message = "there is no such partition"
        return row
    try:
        asked = ProducerQuery(known.topic.topic_id, index)
        pages = await context.reservation.listing(services.sequencer.describe_producers, asked, _bytes_of)
    except (*EXPECTED, AnswerTooLarge) as error:
        row.error_code, row.error_message = code_of(error), str(error)
        return row
    row.error_code = PARTITION_CODES[pages[-1].error]
    row.active_producers = [
        ProducerState(
            producer.producer_id,
            producer.producer_epoch,
            producer.last_sequence,
            producer.last_timestamp,
            current_txn_start_offset=producer.transaction_start_offset,
        )
        for page in pages
        for producer in page.producers
    ]
    return row


def _bytes_of(page: ProducersAnswer) -> int:
    return ENTRY_BYTES * (1 + len(page.producers))
