"""A topic's table, as the compactor sees it: which files it names, and the exchange that makes it name others.

`change_of` and `expired` are pure. `Tables` and `TopicTable` are what a kind of table implements: Iceberg
(compactor.tables.iceberg), or the reference in memory that the tests have.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol
from uuid import UUID

import pyarrow as pa

from compactor.tables.live import RowRange
from tailrace.columns import Columns

LEAST_RENEWAL_MS = 60_000
"""The least time between snapshots of an unchanged table."""


class TableConflict(Exception):
    """Another writer changed the table since it was opened. Nothing was changed: open it again."""


class Named(NamedTuple):
    """What a table says of one data file: `deletes` names the rows that are not live; None: all are."""

    path: str
    deletes: str | None


class StoredFile(NamedTuple):
    """A Parquet file's size in bytes, and its footer, a `pyarrow.parquet.FileMetaData`."""

    size: int
    metadata: Any


@dataclass(frozen=True, slots=True)
class NewFile:
    """A file to be named, or named with other deletes. `description`: what `TopicTable.describe` gave."""

    named: Named
    description: Any
    dead: tuple[RowRange, ...]


@dataclass(frozen=True, slots=True)
class TableChange:
    """One atomic exchange of files."""

    added: frozenset[str]
    """Data files."""
    removed: frozenset[str]
    covered: frozenset[Named]
    """Deletes to add, and the data files that they are of."""
    uncovered: frozenset[Named]

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.covered or self.uncovered)


def change_of(named: Mapping[str, str | None], wanted: Mapping[str, str | None]) -> TableChange:
    """The change from `named` (deletes by data file) to `wanted`."""

    def deletes(of: Mapping[str, str | None], other: Mapping[str, str | None]) -> frozenset[Named]:
        return frozenset(
            Named(path, name) for path, name in of.items() if name is not None and other.get(path) != name
        )

    return TableChange(
        added=frozenset(wanted.keys() - named.keys()),
        removed=frozenset(named.keys() - wanted.keys()),
        covered=deletes(wanted, named),
        uncovered=deletes(named, wanted),
    )


class TableSnapshot(NamedTuple):
    """`listed_ms`: the database's time before its files were listed."""

    snapshot_id: int
    listed_ms: int


def expired(snapshots: Sequence[TableSnapshot], now_ms: int, life_ms: int) -> list[TableSnapshot]:
    """The snapshots, oldest first in `snapshots`, whose life is over: it begins when the next one replaces them."""
    pairs = itertools.pairwise(snapshots)
    return [snapshot for snapshot, following in pairs if following.listed_ms + life_ms <= now_ms]


def is_stale(snapshots: Sequence[TableSnapshot], now_ms: int, life_ms: int) -> bool:
    """Whether the current snapshot is to be replaced though the table is right.

    What was retired since it was listed is kept for it, also files that it does not name: they left the log before.
    """
    return bool(snapshots) and snapshots[-1].listed_ms + max(life_ms, LEAST_RENEWAL_MS) <= now_ms


class TopicTable(Protocol):
    """One state of a table. Calls block."""

    def named(self) -> dict[str, str | None]:
        """The name of each data file's deletes."""
        ...

    def snapshots(self) -> list[TableSnapshot]:
        """Oldest first; the last is the current one."""
        ...

    def columns(self) -> str | None:
        """The columns beside those of the log, as `tailrace.columns` writes them; None before the first `grow`."""
        ...

    def schema(self) -> pa.Schema:
        """All columns, as data files with columns of their own are to have them."""
        ...

    def grow(self, columns: Columns) -> None:
        """Have these columns beside those of the log; they hold all that are there. Raises TableConflict."""
        ...

    def replays(self) -> int:
        """How often `replay` was called."""
        ...

    def replay(self) -> None:
        """Have what is in the quarantine tried again by the next comparison. Raises TableConflict."""
        ...

    def describe(self, path: str, file: StoredFile) -> Any:
        """What the table keeps of a data file."""
        ...

    def exchange(
        self, change: TableChange, files: Mapping[str, NewFile], properties: Mapping[str, str]
    ) -> None:
        """Carry a change out as one snapshot; `files` has those to add or to cover, by path. Raises TableConflict."""
        ...

    def expire(self, snapshot_ids: Sequence[int]) -> None:
        """Forget snapshots, with the metadata that only they need. Raises TableConflict."""
        ...

    def searched_ms(self) -> int:
        """When `begin_search` was last called, or files first exchanged, by the database's time; 0: neither."""
        ...

    def begin_search(self, now_ms: int) -> None:
        """Note that the table's folder is searched, in a snapshot that changes nothing and was listed now: writers that
        opened the table before can't exchange files any more. Raises TableConflict."""
        ...

    def paths(self) -> set[str]:
        """All files that the table needs: those of its snapshots, and its metadata."""
        ...


class Tables(Protocol):
    """All tables of a catalog. `name`: the topic's. Calls block."""

    def open(
        self, topic_id: UUID, name: str, *, create: bool, is_quarantine: bool = False
    ) -> TopicTable | None:
        """The topic's table, or its quarantine, as it is now.

        A table that has its name, of a topic that had it before, is renamed. Raises TableConflict for one of another
        cluster, or not one of Tailrace's.
        """
        ...

    def drop(self, topic_id: UUID, name: str, *, is_quarantine: bool = False) -> None:
        """Remove a table that names no files."""
        ...
