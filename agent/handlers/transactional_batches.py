"""A transactional batch is bound to its transaction on receipt, so that one that arrives late is refused instead of
joining the next transaction.

Clients of transaction version 2 (Produce 12 and above) end every transaction with a new epoch, so the batch's epoch
identifies it. For older clients the agent asks the sequencer for the number of the transaction that is open now.
"""

from __future__ import annotations

from collections.abc import Sequence

from agent.errors import EXPECTED, code_of, produce_code
from agent.handlers.accepted_batches import PARTITIONS_IN_A_TURN, AcceptedBatch, refuse, refuse_all
from agent.produce.current_transactions import QUERIES_IN_A_CALL
from agent.services import Services
from sequencer.api.commits import ANY_TRANSACTION, BatchError
from sequencer.api.transactions import CurrentTransactionQuery
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages.produce import ProduceRequest
from tailrace.turns import Turns, in_parts

FIRST_VERSION_OF_TRANSACTIONS_2 = 12
"""From this version on the first batch begins a transaction, and every end bumps the epoch (KIP-890)."""


async def bound_to_transactions(
    services: Services, request: ProduceRequest, version: int, accepted: list[AcceptedBatch]
) -> list[AcceptedBatch]:
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
            refuse_all(services, some, code)
        return []
    assert request.transactional_id is not None, "without one it is refused"
    services.copy_queue.transaction(request.transactional_id)
    kept: list[AcceptedBatch] = []
    for some in in_parts(accepted, QUERIES_IN_A_CALL):
        kept += await _in_open_transactions(services, version, some)
        await turns.did(len(some))
    return kept


async def _in_open_transactions(
    services: Services, version: int, accepted: Sequence[AcceptedBatch]
) -> Sequence[AcceptedBatch]:
    """As `bound_to_transactions`, for a part of a transaction's batches."""
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
            refuse(services, batch.row, code_of(error), str(error))
        return [batch for batch in accepted if not batch.coordinates.is_transactional]
    refused: set[int] = set()
    for batch, transaction in zip(transactional, current, strict=True):
        batch.transaction = transaction.number
        if transaction.error is not BatchError.NONE:
            refused.add(id(batch))
            refuse(services, batch.row, produce_code(transaction.error, version, is_transactional=True), "")
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
