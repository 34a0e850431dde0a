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

from sequencer.store.rows import GroupOffsetRow, ProducerRow, Row

Key = tuple[object, ...]

MOST: dict[type[Row], int] = {ProducerRow: 100_000, GroupOffsetRow: 250_000}
"""Limit of rows per kind: a producer row takes about a kilobyte, a position row 400 bytes."""


class RecentRows:
    """See the module."""

    __slots__ = ("_kind", "_rows", "get")

    def __init__(self, kind: type[Row]) -> None:
        self._kind = kind
        self._rows: OrderedDict[Key, Row] = OrderedDict()
        self.get: Callable[[Key], Row | None] = self._rows.get
        """Returns the row under a key, if it is here."""

    def __contains__(self, key: object) -> bool:
        return key in self._rows

    def missing(self, keys: Iterable[Key]) -> list[Key]:
        """Return those of the keys whose rows are not here."""
        mine = self._rows
        return [key for key in keys if key not in mine]

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows.values())

    def __len__(self) -> int:
        return len(self._rows)

    def apply(self, rows: Mapping[Key, Row | None]) -> None:
        """Take over what a transaction wrote, and drop the rows that were written longest ago."""
        mine, most = self._rows, MOST[self._kind]
        for key, row in rows.items():
            if row is None:
                mine.pop(key, None)
            else:
                mine[key] = row
                mine.move_to_end(key)
        while len(mine) > most:
            mine.popitem(last=False)
