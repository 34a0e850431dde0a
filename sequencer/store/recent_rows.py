"""The rows of one kind that were written most recently, bounded in number.

All others are in the database alone. A decision that needs one has it looked up first (sequencer.engine.group_commit).

Invariants (decisions 51 and 65):
- a row here is the durable one, as of the transaction that the state shows: only transactions that are shown put and
  delete rows here, never a look-up;
- a key without a row here says nothing: there may be a row in the database.

So nothing is lost when a row is dropped from here, and none can be out of date.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping

from sequencer.store.rows import GroupOffsetRow, ProducerRow, Row

Key = tuple[object, ...]

MOST: dict[type[Row], int] = {ProducerRow: 100_000, GroupOffsetRow: 250_000}
"""How many rows of a kind are kept: a producer's takes about a kilobyte, a position's 400 bytes."""


class RecentRows:
    """See the module."""

    __slots__ = ("_kind", "_rows")

    def __init__(self, kind: type[Row]) -> None:
        self._kind = kind
        self._rows: OrderedDict[Key, Row] = OrderedDict()

    def get(self, key: Key) -> Row | None:
        """The row, if it is here."""
        return self._rows.get(key)

    def __contains__(self, key: object) -> bool:
        return key in self._rows

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows.values())

    def __len__(self) -> int:
        return len(self._rows)

    def apply(self, rows: Mapping[Key, Row | None]) -> None:
        """Take over what a transaction wrote, and drop the rows that were written the longest ago."""
        mine, most = self._rows, MOST[self._kind]
        for key, row in rows.items():
            mine.pop(key, None)
            if row is not None:
                mine[key] = row
        while len(mine) > most:
            mine.popitem(last=False)
