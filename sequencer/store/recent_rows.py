"""The rows of one kind that were written most recently, limited in number.

All other rows are only in the database. A decision that needs one has it looked up first
(sequencer.engine.group_commit).

Invariants (decisions 51 and 65):
- a row here is the durable one, as of the transaction that the state shows: only shown transactions put and delete rows
  here, never a look-up;
- if a key has no row here, there may still be one in the database.

So nothing is lost when a row is dropped from here, and no row here can be out of date.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from uuid import UUID

from sequencer.store.rows import GroupOffsetRow, ProducerRow, Row

Key = tuple[object, ...]

MOST: dict[type[Row], int] = {ProducerRow: 100_000, GroupOffsetRow: 250_000}
"""Limit of rows per kind: a producer row takes about a kilobyte, a position row 400 bytes."""


def _key_of_producer(key: Any) -> Key:
    topic_id, partition, producer_id = key
    return topic_id.int, partition, producer_id


def _key_of_position(key: Any) -> Key:
    group_id, topic_id, partition = key
    return group_id, topic_id.int, partition


_KEYS: dict[type[Row], Callable[[Any], Key]] = {
    ProducerRow: _key_of_producer,
    GroupOffsetRow: _key_of_position,
}
"""Keys with the topic id as an integer, because hashing and comparing a UUID runs Python code at each look-up of a
row."""


class RecentRows:
    """See the module."""

    __slots__ = ("_kind", "_stored_key", "_rows")

    def __init__(self, kind: type[Row]) -> None:
        self._kind = kind
        self._stored_key = _KEYS[kind]
        self._rows: OrderedDict[Key, Row] = OrderedDict()

    def get(self, key: Key) -> Row | None:
        """Return the row, if it is here."""
        return self._rows.get(self._stored_key(key))

    def __contains__(self, key: object) -> bool:
        return self._stored_key(key) in self._rows

    def missing(self, keys: Iterable[Key]) -> list[Key]:
        """Return those of the keys whose rows are not here."""
        stored_key, mine = self._stored_key, self._rows
        return [key for key in keys if stored_key(key) not in mine]

    def producers_on(self, topic_id: UUID, partition: int) -> Callable[[int], Row | None]:
        """Return a function that returns the row of a producer in this partition, if it is here. Only for producer
        rows."""
        get, topic = self._rows.get, topic_id.int
        return lambda producer_id: get((topic, partition, producer_id))

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows.values())

    def __len__(self) -> int:
        return len(self._rows)

    def apply(self, rows: Mapping[Key, Row | None]) -> None:
        """Take over what a transaction wrote, and drop the rows that were written longest ago."""
        mine, most, stored_key = self._rows, MOST[self._kind], self._stored_key
        for key, row in rows.items():
            at = stored_key(key)
            if row is None:
                mine.pop(at, None)
            else:
                mine[at] = row
                mine.move_to_end(at)
        while len(mine) > most:
            mine.popitem(last=False)
