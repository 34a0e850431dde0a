"""AddPartitionsToTxn, AddOffsetsToTxn, TxnOffsetCommit, EndTxn: a transaction from its first partition to its end.

Any agent may serve any transactional id: the sequencer keeps the state, and orders concurrent requests.
"""

from __future__ import annotations

from uuid import UUID

import msgspec

from agent.catalog import RequestTopics
from agent.errors import EXPECTED, PARTITION_CODES, transaction_code
from agent.groups.coordinator import GroupRefusal
from agent.handlers.group_offsets import RequestedPositions
from agent.handlers.groups import position_code
from agent.services import RequestContext, Services
from sequencer.api.errors import SequencerError
from sequencer.api.transactions import (
    AddToTransaction,
    EndTransaction,
    TransactionDescription,
    TransactionRef,
    TransactionsRequest,
    TransactionState,
)
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from tailrace.kafka.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from tailrace.kafka.messages.end_txn import EndTxnRequest, EndTxnResponse
from tailrace.kafka.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from tailrace.limits import is_name
from tailrace.turns import Turns

PARTITIONS_IN_A_TURN = 2_000
TRANSACTIONS_IN_A_TURN = 200
"""Partitions, and whole transactions, read from a request in one turn of the loop."""
FIRST_FENCED_VERSION = 2
"""From this version on, AddPartitionsToTxn, AddOffsetsToTxn and EndTxn know PRODUCER_FENCED (KIP-588)."""

FIRST_BATCHED_VERSION = 4
"""From this version on, an AddPartitionsToTxn request may name several transactions (brokers use it, not clients)."""

FIRST_VERIFIED_ABORTABLE_VERSION = 5
FIRST_BUMPING_VERSION = 5
FIRST_JOINING_VERSION = 5
FIRST_ABORTABLE_COMMIT_VERSION = 4


# --- AddPartitionsToTxn ----------------------------------------------------------------------------------


async def add_partitions(
    services: Services, context: RequestContext, request: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse:
    """Add partitions to transactions, or (verify only) tell whether they belong to them."""
    version, turns = context.api_version, Turns(TRANSACTIONS_IN_A_TURN)
    lookup = services.catalog.of_one_request()
    if version >= FIRST_BATCHED_VERSION:
        response = AddPartitionsToTxnResponse()
        async for transaction in turns.over(request.transactions):
            added = await _added(services, version, transaction, lookup)
            response.results_by_transaction.append(
                AddPartitionsToTxnResult(transaction.transactional_id, added)
            )
        return response
    only = AddPartitionsToTxnTransaction(
        request.v3_and_below_transactional_id,
        request.v3_and_below_producer_id,
        request.v3_and_below_producer_epoch,
        topics=request.v3_and_below_topics,
    )
    added = await _added(services, version, only, lookup)
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=added)


async def _added(
    services: Services, version: int, requested: AddPartitionsToTxnTransaction, lookup: RequestTopics
) -> list[AddPartitionsToTxnTopicResult]:
    results, known = await _named(requested.topics, lookup)
    rows = [row for result in results for row in result.results_by_partition]
    if not is_name(requested.transactional_id):
        _all(rows, ErrorCode.INVALID_REQUEST)
        return results
    if len(known) < len(rows):
        # As in Kafka, one missing partition prevents adding the others.
        for _, row in known:
            row.partition_error_code = ErrorCode.OPERATION_NOT_ATTEMPTED
        return results
    transaction = TransactionRef(requested.transactional_id, requested.producer_id, requested.producer_epoch)
    if requested.verify_only:
        for partition, row in known:
            code = await _add(services, version, AddToTransaction(transaction, [partition], verify_only=True))
            if code is ErrorCode.INVALID_TXN_STATE and version >= FIRST_VERIFIED_ABORTABLE_VERSION:
                code = ErrorCode.TRANSACTION_ABORTABLE
            row.partition_error_code = code
        return results
    partitions = [partition for partition, _ in known]
    _all(rows, await _add_now(services, version, AddToTransaction(transaction, partitions)))
    return results


async def _named(
    topics: list[AddPartitionsToTxnTopic], lookup: RequestTopics
) -> tuple[
    list[AddPartitionsToTxnTopicResult], list[tuple[tuple[UUID, int], AddPartitionsToTxnPartitionResult]]
]:
    """Return a row for every named partition, and the partitions that exist with their rows."""
    results: list[AddPartitionsToTxnTopicResult] = []
    known: list[tuple[tuple[UUID, int], AddPartitionsToTxnPartitionResult]] = []
    turns = Turns(PARTITIONS_IN_A_TURN)
    async for topic in turns.over(topics):
        result = AddPartitionsToTxnTopicResult(topic.name)
        results.append(result)
        try:
            topic_of_name = await lookup.by_name(topic.name)
            missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        except SequencerError as error:
            topic_of_name, missing = None, transaction_code(error, knows_fenced=True)
        async for index in turns.over(topic.partitions):
            row = AddPartitionsToTxnPartitionResult(index)
            result.results_by_partition.append(row)
            if topic_of_name is not None and topic_of_name.is_internal:
                row.partition_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif topic_of_name is None or not 0 <= index < topic_of_name.topic.partitions:
                row.partition_error_code = missing
            else:
                known.append(((topic_of_name.topic.topic_id, index), row))
    return results, known


async def _add(services: Services, version: int, request: AddToTransaction) -> ErrorCode:
    try:
        await services.sequencer.add_to_transaction(request)
    except EXPECTED as error:
        return transaction_code(error, knows_fenced=version >= FIRST_FENCED_VERSION)
    services.copy_queue.transaction(request.transaction.transactional_id)
    return ErrorCode.NONE


async def _add_now(services: Services, version: int, request: AddToTransaction) -> ErrorCode:
    """Add to the transaction that is open now, or to the next one: never to one that begins meanwhile."""
    try:
        now = await _now(services, request.transaction.transactional_id)
    except EXPECTED as error:
        return transaction_code(error, knows_fenced=version >= FIRST_FENCED_VERSION)
    if now is not None:
        number = now.number if now.state is TransactionState.ONGOING else now.number + 1
        request = msgspec.structs.replace(request, number=number)
    return await _add(services, version, request)


def _all(rows: list[AddPartitionsToTxnPartitionResult], code: ErrorCode) -> None:
    for row in rows:
        row.partition_error_code = code


# --- AddOffsetsToTxn and TxnOffsetCommit -------------------------------------------------------------------


async def add_offsets(
    services: Services, context: RequestContext, request: AddOffsetsToTxnRequest
) -> AddOffsetsToTxnResponse:
    """Add a group's offsets to a transaction."""
    if not is_name(request.transactional_id):
        return AddOffsetsToTxnResponse(error_code=ErrorCode.INVALID_REQUEST)
    if not is_name(request.group_id):
        return AddOffsetsToTxnResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    transaction = TransactionRef(request.transactional_id, request.producer_id, request.producer_epoch)
    addition = AddToTransaction(transaction, [], request.group_id)
    return AddOffsetsToTxnResponse(error_code=await _add_now(services, context.api_version, addition))


async def txn_offset_commit(
    services: Services, context: RequestContext, request: TxnOffsetCommitRequest
) -> TxnOffsetCommitResponse:
    """Store positions that the group gets when the transaction commits."""
    response = TxnOffsetCommitResponse()
    asked = RequestedPositions[TxnOffsetCommitResponsePartition](services.settings.offset_metadata_max_bytes)
    turns = Turns(PARTITIONS_IN_A_TURN)
    lookup = services.catalog.of_one_request()
    async for topic in turns.over(request.topics):
        answer = TxnOffsetCommitResponseTopic(name=topic.name)
        response.topics.append(answer)
        try:
            known = await lookup.by_name(topic.name)
            missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        except SequencerError as error:
            known, missing = None, _commit_code(error, context.api_version)
        async for partition in turns.over(topic.partitions):
            row = TxnOffsetCommitResponsePartition(partition.partition_index)
            answer.partitions.append(row)
            asked.add(known, partition, row, missing)
    if not asked.existing:
        return response
    code = await _commit(services, context.api_version, request, asked)
    if code is not ErrorCode.NONE:
        for row in asked.existing:
            row.error_code = code
    return response


async def _commit(
    services: Services,
    version: int,
    request: TxnOffsetCommitRequest,
    asked: RequestedPositions[TxnOffsetCommitResponsePartition],
) -> ErrorCode:
    """Commit the positions and fill in their rows. Return the code for all existing partitions, or NONE."""
    if not is_name(request.transactional_id):
        return ErrorCode.INVALID_REQUEST
    joins = version >= FIRST_JOINING_VERSION
    try:
        number = -1 if joins else await _number_now(services, request.transactional_id)
        done = await services.groups.commit(
            group_id=request.group_id,
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            generation=request.generation_id,
            offsets=asked.positions,
            transaction=TransactionRef(request.transactional_id, request.producer_id, request.producer_epoch),
            joins=joins,
            number=number,
        )
        services.copy_queue.transaction(request.transactional_id)
        services.copy_queue.committed(request.group_id, asked.positions)
    except GroupRefusal as error:
        return error.code
    except EXPECTED as error:
        return _commit_code(error, version)
    for row, problem in zip(asked.rows, done.errors, strict=True):
        row.error_code = PARTITION_CODES[problem]
    return ErrorCode.NONE


_OF_COORDINATOR = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
)


def _commit_code(error: Exception, version: int) -> ErrorCode:
    """Return the code for an error. A fenced producer is INVALID_PRODUCER_EPOCH in every version, as from Kafka's group
    coordinator."""
    code = position_code(error)
    if code in _OF_COORDINATOR:
        return code
    code = transaction_code(error, knows_fenced=False)
    if code is ErrorCode.INVALID_TXN_STATE and version >= FIRST_ABORTABLE_COMMIT_VERSION:
        return ErrorCode.TRANSACTION_ABORTABLE
    return code


# --- EndTxn ------------------------------------------------------------------------------------------------


async def end(services: Services, context: RequestContext, request: EndTxnRequest) -> EndTxnResponse:
    """Commit or abort; from version 5 on, return the producer's next epoch."""
    version = context.api_version
    if not is_name(request.transactional_id):
        return EndTxnResponse(error_code=ErrorCode.INVALID_REQUEST)
    bumps_epoch = version >= FIRST_BUMPING_VERSION
    try:
        number = -1 if bumps_epoch else await _number_now(services, request.transactional_id)
        grant = await services.sequencer.end_transaction(
            EndTransaction(
                TransactionRef(request.transactional_id, request.producer_id, request.producer_epoch),
                is_commit=request.committed,
                bumps_epoch=bumps_epoch,
                number=number,
            )
        )
    except EXPECTED as error:
        return EndTxnResponse(
            error_code=transaction_code(error, knows_fenced=version >= FIRST_FENCED_VERSION)
        )
    services.copy_queue.transaction(request.transactional_id)
    return EndTxnResponse(producer_id=grant.producer_id, producer_epoch=grant.producer_epoch)


async def _number_now(services: Services, transactional_id: str) -> int:
    """Return the client's transaction number: a late request must not change or end its epoch's next one."""
    now = await _now(services, transactional_id)
    return -1 if now is None else now.number


async def _now(services: Services, transactional_id: str) -> TransactionDescription | None:
    known = await services.sequencer.transactions(TransactionsRequest([transactional_id]))
    return known.transactions[0] if known.transactions else None
