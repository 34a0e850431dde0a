"""Short requests with large answers do not block the loop for others."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Iterable
from typing import Any, cast
from uuid import UUID

import pytest

from agent.dispatch import Dispatcher
from sequencer.store.row_store import RowStore
from sequencer.store.rows import Changes, GroupOffsetRow, GroupRow, Row, TransactionRow
from sequencer.store.state import replace_row
from tailrace.kafka import ApiKey, encode_request
from tailrace.kafka.messages.list_groups import ListGroupsRequest
from tailrace.kafka.messages.list_transactions import ListTransactionsRequest
from tailrace.kafka.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from tests.support.agents import AgentBench, agent_bench, connection, made
from tests.support.short_turns import HELD_SECONDS
from tests.support.turns import least_of_three, measured_turns

TOPICS = 20
PARTITIONS = 10_000
"""Of each topic; max_partitions is 200,000."""
NAMES = 40_000


@least_of_three
async def test_positions_in_200_000_partitions_are_answered_in_many_turns() -> None:
    async with agent_bench() as bench:
        topics = [await bench.topic(f"t{number}", PARTITIONS) for number in range(TOPICS)]
        has(bench, [replace_row(group("g"), positions=TOPICS * PARTITIONS)])
        kept = KeptPositions(sorted(topic.topic_id for topic in topics))
        bench.sequencer.inner._view.positions._store = cast(RowStore, kept)
        asked = OffsetFetchRequest(groups=[OffsetFetchRequestGroup("g", topics=None)])
        assert await answer_bytes(bench, ApiKey.OFFSET_FETCH, 8, asked) > 16 * TOPICS * PARTITIONS


@pytest.mark.parametrize(
    ("key", "version", "asked"),
    [
        (ApiKey.LIST_GROUPS, 4, ListGroupsRequest()),
        (ApiKey.LIST_TRANSACTIONS, 1, ListTransactionsRequest()),
        (ApiKey.LIST_TRANSACTIONS, 2, ListTransactionsRequest(transactional_id_pattern="n.*[0-9]")),
    ],
)
@least_of_three
async def test_40_000_names_are_listed_in_many_turns(key: ApiKey, version: int, asked: Any) -> None:
    async with agent_bench() as bench:
        names = [f"name {number * 7_919 % NAMES}" for number in range(NAMES)]
        has(bench, map(group, names))
        has(bench, (transaction(name, number) for number, name in enumerate(names)))
        assert await answer_bytes(bench, key, version, asked) > 6 * NAMES


class KeptPositions:
    """The positions of group "g" as a database has them: a page costs as much as it holds."""

    def __init__(self, topic_ids: list[UUID]) -> None:
        self._rows = [
            GroupOffsetRow("g", topic_id, partition, 7, 0, "", 0, None)
            for topic_id in topic_ids
            for partition in range(PARTITIONS)
        ]

    async def positions_of(
        self, group_id: str, after: tuple[UUID, int] | None, limit: int
    ) -> list[GroupOffsetRow]:
        first = 0 if after is None else bisect_right(self._rows, after, key=lambda row: row.key[1:])
        return self._rows[first : first + limit]


def has(bench: AgentBench, rows: Iterable[Row]) -> None:
    """Have the sequencer know these rows."""
    changes = Changes()
    for row in rows:
        changes.put(row)
    bench.sequencer.inner._view.state.apply(changes)


def group(group_id: str) -> GroupRow:
    return GroupRow(group_id, -1, -1, 1, "Empty", "consumer", [], b"", 0)


def transaction(name: str, producer_id: int) -> TransactionRow:
    return TransactionRow.new(name, producer_id=producer_id, timeout_ms=60_000, now_ms=0)


async def answer_bytes(bench: AgentBench, key: ApiKey, version: int, asked: Any) -> int:
    """The length of the answer, of whose turns none is long."""
    sent = b"".join(encode_request(7, key, version, asked))
    with measured_turns() as turns:
        reply = await asyncio.create_task(
            Dispatcher(bench.services)(memoryview(sent)[4:], connection()), name=key.name
        )
        parts = await made(reply)
    turns.check(HELD_SECONDS)
    return sum(map(len, parts or ()))
