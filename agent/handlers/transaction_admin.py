"""DescribeTransactions, ListTransactions, WriteTxnMarkers: requests of admin tools about transactions."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from agent.answer_memory import ENTRY_BYTES, restartable
from agent.catalog import Snapshot
from agent.errors import EXPECTED, PARTITION_CODES, AnswerTooLarge, code_of, transaction_code
from agent.groups.topic_pattern import InvalidPattern, TopicPattern
from agent.services import RequestContext, Services
from sequencer.api.transactions import (
    AbortProducer,
    TransactionDescription,
    TransactionDescriptions,
    TransactionsRequest,
)
from tailrace.kafka.error_codes import ErrorCode
from tailrace.kafka.messages import describe_transactions as described
from tailrace.kafka.messages import list_transactions as listed
from tailrace.kafka.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from tailrace.kafka.messages.list_transactions import (
    TRANSACTION_STATES,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from tailrace.kafka.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from tailrace.turns import Turns

PARTITIONS_IN_A_TURN = 2_000
"""Partitions of transactions described in one turn of the loop. Each transaction counts as one more."""
PARTITION_BYTES = 200
"""Estimated bytes of a transaction's partition, as object and encoded."""
AGENTS_IN_A_TURN = 20_000
"""Agents compared in one turn of the loop, to place transactional ids."""
TRANSACTION_AS_AGENTS = 10
"""The cost of listing a transaction, in compared agents, in addition to those to which it is compared."""
TRANSACTIONS_IN_A_TURN = 2_000
"""Transactions filtered, or matched with a pattern, in one turn of the loop."""


@restartable
async def describe_transactions(
    services: Services, context: RequestContext, request: DescribeTransactionsRequest
) -> DescribeTransactionsResponse:
    """Describe each transactional id once: its state and, while its transaction is open, its partitions."""
    named = list(dict.fromkeys(request.transactional_ids))
    wanted = [transactional_id for transactional_id in named if transactional_id]
    try:
        await context.reservation.needs(ENTRY_BYTES * len(named))
        pages = await context.reservation.listing(
            services.sequencer.transactions, TransactionsRequest(wanted), _bytes_of
        )
        transactions = [transaction for page in pages for transaction in page.transactions]
        snapshot = await _with_topics_of(services, transactions)
    except (*EXPECTED, AnswerTooLarge) as error:
        code = transaction_code(error, knows_fenced=True)
        rows = [described.TransactionState(code, transactional_id) for transactional_id in named]
        return DescribeTransactionsResponse(transaction_states=rows)
    by_id = {transaction.transactional_id: transaction for transaction in transactions}
    response = DescribeTransactionsResponse()
    turns = Turns(PARTITIONS_IN_A_TURN)
    for transactional_id in named:
        transaction = by_id.get(transactional_id)
        response.transaction_states.append(_description(snapshot, transactional_id, transaction))
        await turns.did(1 if transaction is None else 1 + len(transaction.partitions))
    return response


def _bytes_of(page: TransactionDescriptions) -> int:
    return sum(ENTRY_BYTES + PARTITION_BYTES * len(row.partitions) for row in page.transactions)


async def _with_topics_of(services: Services, transactions: list[TransactionDescription]) -> Snapshot:
    snapshot = services.catalog.snapshot
    if all(
        topic_id in snapshot.by_id for transaction in transactions for topic_id, _ in transaction.partitions
    ):
        return snapshot
    return await services.catalog.refresh()


def _description(
    snapshot: Snapshot, transactional_id: str, transaction: TransactionDescription | None
) -> described.TransactionState:
    if not transactional_id:
        return described.TransactionState(ErrorCode.INVALID_REQUEST, transactional_id)
    if transaction is None:
        return described.TransactionState(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, transactional_id)
    topics: dict[str, described.TopicData] = {}
    for topic_id, partition in sorted(transaction.partitions):
        known = snapshot.by_id.get(topic_id)
        if known is not None:
            name = known.topic.name
            topics.setdefault(name, described.TopicData(name)).partitions.append(partition)
    return described.TransactionState(
        transactional_id=transactional_id,
        transaction_state=transaction.state,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_start_time_ms=transaction.started_ms,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        topics=list(topics.values()),
    )


@restartable
async def list_transactions(
    services: Services, context: RequestContext, request: ListTransactionsRequest
) -> ListTransactionsResponse:
    """List the transactional ids that the ring places on this agent: tools ask every agent and merge the answers."""
    response = ListTransactionsResponse(
        unknown_state_filters=[state for state in request.state_filters if state not in TRANSACTION_STATES]
    )
    try:
        snapshot = await services.catalog.refresh()
        pages = await context.reservation.listing(
            services.sequencer.transactions, TransactionsRequest(None), _bytes_of
        )
        transactions = [transaction for page in pages for transaction in page.transactions]
    except EXPECTED:
        response.error_code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS  # tools retry after this code
        return response
    passes = _filter(request, services.clock.wall_ms())
    turns = Turns(TRANSACTIONS_IN_A_TURN)
    chosen = [transaction async for transaction in turns.over(transactions) if passes(transaction)]
    if request.transactional_id_pattern:
        try:
            wanted = TopicPattern(request.transactional_id_pattern)
        except InvalidPattern:
            response.error_code = ErrorCode.INVALID_REGULAR_EXPRESSION
            return response
        names: set[str] = set()
        async for some in turns.parts(chosen):
            names |= wanted.matches(transaction.transactional_id for transaction in some)
        chosen = [transaction for transaction in chosen if transaction.transactional_id in names]
    placed = Turns(AGENTS_IN_A_TURN)
    for transaction in chosen:
        await placed.did(TRANSACTION_AS_AGENTS + len(snapshot.ring.members))
        if snapshot.replicas.coordinator(transaction.transactional_id) == services.identity.broker_id:
            response.transaction_states.append(
                listed.TransactionState(
                    transaction.transactional_id, transaction.producer_id, transaction.state
                )
            )
    return response


def _filter(request: ListTransactionsRequest, now: int) -> Callable[[TransactionDescription], bool]:
    """Return a function that tells whether a transaction matches all filters except the name's."""
    states, producers = set(request.state_filters), set(request.producer_id_filters)

    def passes(transaction: TransactionDescription) -> bool:
        if states and transaction.state not in states:
            return False
        if producers and transaction.producer_id not in producers:
            return False
        if request.duration_filter < 0:
            return True
        return transaction.started_ms >= 0 and now - transaction.started_ms > request.duration_filter

    return passes


async def write_txn_markers(
    services: Services, context: RequestContext, request: WriteTxnMarkersRequest
) -> WriteTxnMarkersResponse:
    """Abort a producer's open transaction in partitions, at an operator's request (kafka-transactions abort)."""
    response = WriteTxnMarkersResponse()
    for marker in request.markers:
        response.markers.append(await _aborted(services, marker))
    return response


async def _aborted(services: Services, marker: WritableTxnMarker) -> WritableTxnMarkerResult:
    result = WritableTxnMarkerResult(marker.producer_id)
    partitions: list[tuple[UUID, int]] = []
    rows: list[WritableTxnMarkerPartitionResult] = []
    lookup = services.catalog.of_one_request()
    for topic in marker.topics:
        answer = WritableTxnMarkerTopicResult(topic.name)
        result.topics.append(answer)
        known = services.catalog.snapshot.by_name.get(topic.name)
        if known is None:
            try:
                known = await lookup.by_name(topic.name)
            except EXPECTED as error:
                answer.partitions = [
                    WritableTxnMarkerPartitionResult(index, code_of(error))
                    for index in topic.partition_indexes
                ]
                continue
        for index in topic.partition_indexes:
            row = WritableTxnMarkerPartitionResult(index)
            answer.partitions.append(row)
            if known is None or not 0 <= index < known.topic.partitions:
                row.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif marker.transaction_result:
                # Only EndTxn commits: a commit in only some partitions would split the transaction.
                row.error_code = ErrorCode.INVALID_REQUEST
            else:
                partitions.append((known.topic.topic_id, index))
                rows.append(row)
    if not partitions:
        return result
    try:
        done = await services.sequencer.abort_producer(
            AbortProducer(marker.producer_id, marker.producer_epoch, partitions)
        )
    except EXPECTED as error:
        for row in rows:
            row.error_code = code_of(error)
        return result
    for row, problem in zip(rows, done.errors, strict=True):
        row.error_code = PARTITION_CODES[problem]
    return result
