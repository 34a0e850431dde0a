"""The accepted batches of a produce request, and the answer that says what became of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from agent.errors import produce_code
from agent.produce.active_buffer import BatchResult
from agent.services import Deferred, Services
from sequencer.api.commits import BatchError
from tailrace.batches.mixed_object import BatchCoordinates
from tailrace.buffers import Buffer
from tailrace.configs.topic_config import Latency
from tailrace.ids import TopicPartition
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from tailrace.turns import Turns

_STORED = BatchError.NONE
_DUPLICATE = BatchError.DUPLICATE
_FORGOTTEN = BatchError.UNKNOWN_PRODUCER_ID
_UNKNOWN = BatchError.UNKNOWN_TOPIC_OR_PARTITION
PARTITIONS_IN_A_TURN = 1_000
"""Partitions whose batches are checked or answered in one turn of the loop, when a request has to wait anyway."""


class AcceptedBatch(msgspec.Struct, gc=False):
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


def refuse(services: Services, row: PartitionProduceResponse, code: ErrorCode, message: str) -> None:
    """Give the row of the answer an error, and count the batch as refused."""
    row.error_code = code
    row.base_offset = -1
    services.telemetry.refused_batches.labels(code.name).inc()
    if message:
        row.error_message = message
    if code is ErrorCode.INVALID_RECORD:
        row.record_errors = [BatchIndexAndErrorMessage(batch_index=0, batch_index_error_message=message)]


def refuse_all(services: Services, accepted: Sequence[AcceptedBatch], code: ErrorCode) -> None:
    """Refuse all batches of the request, as Kafka does."""
    for batch in accepted:
        refuse(services, batch.row, code, "")


def answer_of(
    services: Services,
    version: int,
    answer: ProduceResponse,
    accepted: list[AcceptedBatch],
    results: list[BatchResult | None],
) -> ProduceResponse | Deferred:
    """Return the answer with the results of all accepted batches."""
    is_unknown = _fill_all(services, version, accepted, results)
    return _once_catalog_is_current(services, answer) if is_unknown else answer


async def answer_in_turns(
    services: Services,
    version: int,
    answer: ProduceResponse,
    accepted: list[AcceptedBatch],
    results: list[BatchResult | None],
) -> ProduceResponse:
    """As `answer_of`, made in several turns of the loop."""
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
    services: Services, version: int, accepted: Sequence[AcceptedBatch], results: Sequence[BatchResult | None]
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
        refuse(services, row, code, result.failure.message)
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
            refuse(services, row, code, "")
            return
    if row.error_code == ErrorCode.NONE and row.base_offset < 0:
        row.base_offset = result.base_offset
    row.log_append_time_ms = log_append_ms
