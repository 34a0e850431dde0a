"""The remaining rows of deleted topics: found from the rows alone, and removed in bounded steps.

Invariants:
- nothing is added to a topic without a row, and its id is never reused, so everything that was found remains to be
  removed;
- a partition's row is deleted last, after its runs and all other rows under its topic's id. As long as it exists
  without a topic, other rows may remain.

The search runs concurrently with the committer's work and takes as many turns as it needs. The steps then change a
draft, in one bounded transaction each. A new committer finds what the previous one left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import takewhile
from typing import cast
from uuid import UUID

from sequencer.rules.positions import delete_positions
from sequencer.store.draft import Draft
from sequencer.store.ordered import NO_PARTITION_KEYS, PartitionKey
from sequencer.store.required_rows import Needs, RequiredRows
from sequencer.store.row_store import RowStore
from sequencer.store.rows import (
    LOOKED_UP,
    AbortedRow,
    CleanedRow,
    GroupOffsetRow,
    OpenRangeRow,
    PartitionRow,
    PendingOffsetRow,
    PositionKey,
    ProducerRow,
    Row,
    ShareRow,
    TopicRow,
    key_of,
)
from sequencer.store.state import HotState, Key
from tailrace.turns import Steps, Turns

RowKey = tuple[type[Row], Key]

TOPIC_IN_KEY: Mapping[type[Row], int] = {
    ShareRow: 1,
    OpenRangeRow: 0,
    AbortedRow: 0,
    PendingOffsetRow: 1,
    CleanedRow: 0,
}
"""The kinds of in-memory rows under a topic's id, apart from partitions, and the position of the id in the key."""
TOPIC_IN_ANY_KEY: Mapping[type[Row], int] = {
    **TOPIC_IN_KEY,
    PartitionRow: 0,
    ProducerRow: 0,
    GroupOffsetRow: 1,
}
"""The same for all kinds but runs, also those that are looked up."""
KEYS_IN_A_TURN = 10_000
"""Keys that are compared in one turn of the event loop."""
LOOKED_UP_AT_ONCE = 1_000
"""Producers, or positions of groups, that one query reads."""
PARTITIONS_AT_ONCE = 200
"""Partitions whose runs one query reads."""


async def deleted_topics(state: HotState) -> dict[UUID, int]:
    """Return the deleted topics that may have remaining rows, with the number of their partitions."""
    turns = Turns(KEYS_IN_A_TURN)
    topics: dict[UUID, int] = {}
    for topic_id, partition in cast("list[tuple[UUID, int]]", state.keys(PartitionRow)):
        if state.get(TopicRow, topic_id) is None:
            topics[topic_id] = max(partition + 1, topics.get(topic_id, 0))
        await turns.did()
    return topics


async def has_partitions(state: HotState, topic_id: UUID, count: int) -> bool:
    """Whether one of a deleted topic's partitions still has a row, so that other rows may remain, too."""
    turns = Turns(KEYS_IN_A_TURN)
    for number in range(count):
        if state.get(PartitionRow, topic_id, number) is not None:
            return True
        await turns.did()
    return False


async def rows_of(state: HotState, topics: Mapping[UUID, int]) -> list[RowKey]:
    """Return all rows under the ids of these topics, except partitions, runs, and rows that are not in memory.
    `topics`: with the number of their partitions.

    Share groups are looked through with one look-up each. Only positions of open transactions are all compared.
    """
    rows: list[RowKey] = []
    turns = Turns(KEYS_IN_A_TURN)
    for topic_id, count in topics.items():
        for number in range(count):
            before = len(rows)
            if state.get(CleanedRow, topic_id, number) is not None:
                rows.append((CleanedRow, (topic_id, number)))
            open_ranges = state.open_ranges.get(topic_id, number) or ()
            rows += ((OpenRangeRow, (topic_id, number, producer_id)) for producer_id in open_ranges)
            rows += ((AbortedRow, key_of(aborted)) for aborted in state.aborted_from(topic_id, number, 0))
            await turns.did(1 + len(rows) - before)
        for group_id in list(state.shares_of):
            following = state.shares_of.get(group_id, NO_PARTITION_KEYS).after((topic_id, -1))
            before = len(rows)
            rows += ((ShareRow, key) for key in takewhile(partial(_is_of, topic_id), following))
            await turns.did(1 + len(rows) - before)
    for key in state.keys(PendingOffsetRow):
        if key[TOPIC_IN_KEY[PendingOffsetRow]] in topics:
            rows.append((PendingOffsetRow, key))
        await turns.did()
    return rows


def _is_of(topic_id: UUID, key: PartitionKey) -> bool:
    return key[1] == topic_id


def topic_of(row: RowKey) -> UUID:
    """Return the id of the topic under which a row of these kinds is."""
    kind, key = row
    return cast("UUID", key[TOPIC_IN_ANY_KEY[kind]])


async def producers_of(store: RowStore, topic_id: UUID) -> list[RowKey]:
    """Return the first producers in partitions of a topic; producers are not all in memory."""
    page = await store.rows_after(ProducerRow, (topic_id, -1, -1), LOOKED_UP_AT_ONCE)
    return [(ProducerRow, row.key) for row in page if row.topic_id == topic_id]


async def positions_of(store: RowStore, topic_id: UUID) -> list[RowKey]:
    """Return some positions of groups in a topic; positions are not all in memory."""
    page = await store.positions_on(topic_id, LOOKED_UP_AT_ONCE)
    return [(GroupOffsetRow, row.key) for row in page]


async def emptied_partitions(state: HotState, store: RowStore, topics: Mapping[UUID, int]) -> list[RowKey]:
    """Return the partitions of these topics that have no runs left. `topics`: with the number of their partitions."""
    rows: list[RowKey] = []
    turns = Turns(KEYS_IN_A_TURN)
    asked: list[tuple[UUID, int, int, int]] = []
    for topic_id, count in topics.items():
        for number in range(count):
            row = state.get(PartitionRow, topic_id, number)
            if row is not None and row.end_offset == 0:
                rows.append((PartitionRow, key_of(row)))
            elif row is not None:
                asked.append((topic_id, number, 0, 1))
            await turns.did()
    for first in range(0, len(asked), PARTITIONS_AT_ONCE):
        part = asked[first : first + PARTITIONS_AT_ONCE]
        runs_of = await store.runs_from_many(part, 1, with_batches=False)
        rows += [(PartitionRow, where[:2]) for where, runs in zip(part, runs_of, strict=True) if not runs]
    return rows


def needs(rows: Sequence[RowKey]) -> Needs:
    """Return what `remove` reads."""
    needed = RequiredRows({kind: [key for row_kind, key in rows if row_kind is kind] for kind in LOOKED_UP})
    return lambda state: needed


def remove(draft: Draft, rows: Sequence[RowKey]) -> Steps[None]:
    """Delete these rows; ignore those that do not exist any more."""
    for kind, key in rows:
        if kind is not GroupOffsetRow and draft.get(kind, *key) is not None:
            draft.delete(kind, *key)
    positions = [cast("PositionKey", key) for kind, key in rows if kind is GroupOffsetRow]
    yield from delete_positions(draft, positions)
