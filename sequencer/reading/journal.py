"""The journal: the hot rows that each transaction changed, in the database, for servers that follow the committer.

Every transaction of a committer that keeps a journal adds one row with the next number, and drops the oldest rows
beyond a limit. A server whose copy reflects number n applies the later rows in order; then its copy reflects the last
one. Either all servers of a database keep a journal, or none does.

Invariants:
- a row is written in the transaction whose changes it contains, so the journal never contains an unwritten change;
- numbers have no gaps. The last number and chain are counters among the hot rows themselves, so a copy knows exactly
  which part of the journal it reflects;
- a chain is a checksum of all changes since the journal began. Two databases that diverged (an older copy was promoted)
  have different chains at the same number, so a copy of one is never continued from the other.

Pure: the caller reads and writes the rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
from fastcrc.crc32 import iscsi as crc32c

from sequencer.checkpoint.format import InvalidCheckpoint, Table, decode_table, encode_changes
from sequencer.store.draft import Draft
from sequencer.store.rows import JOURNALED, Changes, CounterRow, JournalRow
from sequencer.store.state import COMMIT_NUMBER, JOURNAL_NUMBER, HotState
from tailrace.turns import Steps

CHAIN = "journal_chain"
"""This counter and `JOURNAL_NUMBER` record the journal's position."""
MAX_ROWS = 10_000
MAX_BYTES = 64 << 20
"""Bounds of the journal: a follower that misses more must load everything."""
DROPPED_AT_ONCE = 64
"""Limit of rows that one transaction drops: more than it adds."""
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Table])
_KINDS = frozenset(JOURNALED)


class LastNumbers(NamedTuple):
    """The newest transactions of a state: its last commit number, and its last journal number (0 without a journal),
    which also counts the changes that no reader sees, such as a granted producer id."""

    commit: int = 0
    journal: int = 0

    @classmethod
    def of(cls, state: HotState) -> LastNumbers:
        """Return the numbers of a state."""
        return cls(state.counter(COMMIT_NUMBER), state.counter(JOURNAL_NUMBER))

    def newest(self, other: LastNumbers) -> LastNumbers:
        """Return the larger number of each kind."""
        return LastNumbers(*map(max, self, other))

    def lacks(self, known: LastNumbers) -> bool:
        """Whether a database at these numbers has lost transactions that were known."""
        return any(mine < theirs for mine, theirs in zip(self, known, strict=True))


NOTHING_KNOWN = LastNumbers()


class JournalGap(Exception):
    """The journal does not continue a copy: it does not go back far enough, or it has another history."""


class Journal:
    """The committer's side of the journal, for one loaded state. Call `add` as the last step of every transaction's
    decisions.

    Args:
        sizes: the sizes of the rows in the database, by number, in order.
        next_number: the number of the next row.
    """

    def __init__(self, sizes: Mapping[int, int], next_number: int) -> None:
        self._first = self._end = next(iter(sizes), next_number)
        self._last = 0
        """`_first`: the oldest row in the database. The transaction with number `_last`, which may not have been
        written, drops the rows before `_end`."""
        self._sizes = deque(sizes.items())
        self._bytes = sum(sizes.values())

    def add(self, draft: Draft) -> Steps[None]:
        """Add the draft's changes to the journal, and drop rows that are too old."""
        self._settle(draft.durable.counter(JOURNAL_NUMBER))
        number = draft.durable.counter(JOURNAL_NUMBER) + 1
        draft.put(CounterRow(name=JOURNAL_NUMBER, value=number))
        tables = yield from encode_changes(draft.changes, _KINDS)
        changes = _encoder.encode(tables)
        chain = crc32c(changes, draft.durable.counter(CHAIN))
        draft.put(CounterRow(name=CHAIN, value=chain))
        draft.put(JournalRow(number=number, chain=chain, changes=changes))
        self._last = number
        self._sizes.append((number, len(changes)))
        self._bytes += len(changes)
        self._end = self._end_of_dropped(number)
        for dropped in range(self._first, self._end):
            draft.delete(JournalRow, dropped)

    def _settle(self, written: int) -> None:
        """Confirm the rows that the last transaction added and dropped, or undo them if it was not written."""
        if self._last <= written:
            self._first = self._end
            while self._sizes and self._sizes[0][0] < self._first:
                self._bytes -= self._sizes.popleft()[1]
        elif self._sizes:
            self._bytes -= self._sizes.pop()[1]

    def _end_of_dropped(self, number: int) -> int:
        end, kept = number + 1 - MAX_ROWS, self._bytes
        for oldest, size in self._sizes:
            if kept <= MAX_BYTES or oldest == number:
                break
            kept -= size
            end = max(end, oldest + 1)
        return max(self._first, min(end, self._first + DROPPED_AT_ONCE))


def continuing(state: HotState, rows: Sequence[JournalRow]) -> Sequence[JournalRow]:
    """Return the journal rows after this copy, of rows that were read from its number on. Raises JournalGap."""
    number, chain = state.counter(JOURNAL_NUMBER), state.counter(CHAIN)
    if number == 0 and rows and rows[0].number == 1:
        return rows
    if not rows or (rows[0].number, rows[0].chain) != (number, chain):
        found = "nothing" if not rows else f"{rows[0].number} of chain {rows[0].chain:#010x}"
        raise JournalGap(f"this copy is as of {number} of chain {chain:#010x}; the journal has {found}")
    return rows[1:]


def changes_of(row: JournalRow, state: HotState) -> Steps[Changes]:
    """Decode the changes of one journal row. Raises JournalGap if it is not the copy's next row."""
    number, chain = state.counter(JOURNAL_NUMBER) + 1, crc32c(row.changes, state.counter(CHAIN))
    if (row.number, row.chain) != (number, chain):
        raise JournalGap(
            f"{row.number} of chain {row.chain:#010x} in the journal, {number} of chain {chain:#010x} would be next"
        )
    changes = Changes()
    try:
        for table in _decoder.decode(row.changes):
            kind, puts, deletes = decode_table(table)
            if kind not in _KINDS:
                raise JournalGap(f"number {row.number} has rows of kind {kind.__name__}")
            for key in deletes:
                changes.delete(kind, key)
            for put in puts:
                changes.put(put)
            yield len(puts) + len(deletes)
    except (msgspec.DecodeError, InvalidCheckpoint) as error:
        raise JournalGap(f"number {row.number} can't be read: {error}") from error
    changes.put(CounterRow(name=CHAIN, value=chain))
    return changes
