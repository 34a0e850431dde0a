"""Answers requests that name topics from the current topics, even if this agent's catalog is out of date.

Another agent may have created, grown, deleted or re-created a topic a moment ago. If a handler answers "unknown topic
or partition" and the topics have changed since, it runs again. All requests handled this way may be carried out twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

from agent.services import Handler, RequestContext, Services
from tailrace.kafka.error_codes import ErrorCode
from tailrace.turns import Turns

UNKNOWN_CODES = frozenset((ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID))
CODES_IN_A_TURN = 10_000


def with_current_topics(handler: Handler, codes: Callable[[Any], Iterable[int]]) -> Handler:
    """Wrap the handler to run it again if needed. `codes` returns the error codes of a response's partitions."""

    async def handle(services: Services, context: RequestContext, request: Any) -> Any:
        before = services.catalog.snapshot
        response = await handler(services, context, request)
        if await _has_unknown(codes(response)) and await services.catalog.has_moved_on(before):
            response = await handler(services, context, request)
        return response

    return handle


async def _has_unknown(codes: Iterable[int]) -> bool:
    remaining, turns = iter(codes), Turns(CODES_IN_A_TURN)
    while some := list(islice(remaining, CODES_IN_A_TURN)):
        if not UNKNOWN_CODES.isdisjoint(some):
            return True
        await turns.did(len(some))
    return False


def of_partitions(response: Any) -> Iterable[int]:
    """Return the codes of a response whose topics have partitions."""
    return (row.error_code for topic in response.topics for row in topic.partitions)


def of_added_partitions(response: Any) -> Iterable[int]:
    """Return the codes of AddPartitionsToTxn, in both shapes of its response."""
    topics = list(response.results_by_topic_v3_and_below)
    for transaction in response.results_by_transaction:
        topics += transaction.topic_results
    return (row.partition_error_code for topic in topics for row in topic.results_by_partition)


def of_markers(response: Any) -> Iterable[int]:
    """Return the codes of WriteTxnMarkers."""
    return (
        row.error_code for marker in response.markers for topic in marker.topics for row in topic.partitions
    )
