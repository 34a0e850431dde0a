"""The producers' rows that were written most recently, bounded in number.

All others are in the database alone. A decision that needs one has it looked up first (sequencer.engine.group_commit).

Invariants (decision 51):
- a row here is the durable one, as of the transaction that the state shows: only transactions that are shown put and
  delete rows here, never a look-up;
- a key without a row here says nothing: there may be a row in the database.

So nothing is lost when a row is dropped from here, and none can be out of date.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

from sequencer.store.rows import ProducerKey, ProducerRow, Row

MAX_ROWS = 100_000
"""About a kilobyte each."""


class RecentProducers:
    """See the module."""

    __slots__ = ("_rows",)

    def __init__(self) -> None:
        self._rows: OrderedDict[ProducerKey, ProducerRow] = OrderedDict()

    def get(self, key: ProducerKey) -> ProducerRow | None:
        """The row, if it is here."""
        return self._rows.get(key)

    def __contains__(self, key: object) -> bool:
        return key in self._rows

    def __iter__(self) -> Iterator[ProducerRow]:
        return iter(self._rows.values())

    def __len__(self) -> int:
        return len(self._rows)

    def apply(self, rows: Mapping[tuple[object, ...], Row | None]) -> None:
        """Take over what a transaction wrote, and drop the rows that were written the longest ago."""
        mine = self._rows
        key: Any
        row: Any
        for key, row in rows.items():
            mine.pop(key, None)
            if row is not None:
                mine[key] = row
        while len(mine) > MAX_ROWS:
            mine.popitem(last=False)
