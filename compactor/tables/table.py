"""The compactor's interface to a topic's table: the files that it refers to, and the exchange that replaces them.

`change_of` and `expired` are pure. Each kind of table implements `Tables` and `TopicTable`: Iceberg
(compactor.tables.iceberg), and the reference in memory in the tests.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol
from uuid import UUID

import pyarrow as pa

from compactor.tables.live import RowRange
from tailrace.configs.columns import Columns
from tailrace.limits import INT64_MAX

LEAST_RENEWAL_MS = 60_000
"""The least time between snapshots of an unchanged table."""


class TableConflict(Exception):
    """Another writer has changed the table since it was opened. This call changed nothing; open the table again."""


class CatalogUnavailable(Exception):
    """There is no answer, or it is not the catalog's, so it says nothing about a table. The message says what to do."""


class CatalogSilent(CatalogUnavailable):
    """The catalog did not answer in time."""


class ReferencedFile(NamedTuple):
    """A data file in a table. `deletes`: the name of the deletes with the rows that are not live; None if all are."""

    path: str
    deletes: str | None


class StoredFile(NamedTuple):
    """A Parquet file's size in bytes and its footer, a `pyarrow.parquet.FileMetaData`."""

    size: int
    metadata: Any


@dataclass(frozen=True, slots=True)
class NewFile:
    """A file to add, or to add deletes for. `description`: the result of `TopicTable.describe`."""

    named: ReferencedFile
    description: Any
    dead: tuple[RowRange, ...]


@dataclass(frozen=True, slots=True)
class TableChange:
    """One atomic exchange of files."""

    added: frozenset[str]
    """The data files to add."""
    removed: frozenset[str]
    covered: frozenset[ReferencedFile]
    """The deletes to add, with their data files."""
    uncovered: frozenset[ReferencedFile]

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.covered or self.uncovered)


def change_of(named: Mapping[str, str | None], wanted: Mapping[str, str | None]) -> TableChange:
    """Return the change from `named` to `wanted`. Both map data files to their deletes."""

    def deletes(of: Mapping[str, str | None], other: Mapping[str, str | None]) -> frozenset[ReferencedFile]:
        return frozenset(
            ReferencedFile(path, name)
            for path, name in of.items()
            if name is not None and other.get(path) != name
        )

    return TableChange(
        added=frozenset(wanted.keys() - named.keys()),
        removed=frozenset(named.keys() - wanted.keys()),
        covered=deletes(wanted, named),
        uncovered=deletes(named, wanted),
    )


class TableSnapshot(NamedTuple):
    """A snapshot of a table. `listed_ms`: the database's time before its files were listed. `has_reference`: a tag or
    branch refers to it."""

    snapshot_id: int
    listed_ms: int
    has_reference: bool = False


def expired(snapshots: Sequence[TableSnapshot], now_ms: int, life_ms: int) -> list[TableSnapshot]:
    """Return the snapshots whose life is over. A snapshot's life begins when the next one replaces it. A tag or branch
    keeps its snapshot.

    `snapshots` has the oldest first.
    """
    return [
        snapshot
        for snapshot, following in itertools.pairwise(snapshots)
        if following.listed_ms + life_ms <= now_ms and not snapshot.has_reference
    ]


def is_stale(snapshots: Sequence[TableSnapshot], now_ms: int, life_ms: int) -> bool:
    """Whether the current snapshot must be replaced although the table is correct.

    Objects that were retired after the snapshot's listing are kept for it, even those that it does not refer to.
    """
    return bool(snapshots) and snapshots[-1].listed_ms + max(life_ms, LEAST_RENEWAL_MS) <= now_ms


def next_change_ms(snapshots: Sequence[TableSnapshot], life_ms: int) -> int:
    """Return the first time at which `expired` names one of these snapshots, or `is_stale` is true."""
    ends = [
        following.listed_ms + life_ms
        for snapshot, following in itertools.pairwise(snapshots)
        if not snapshot.has_reference
    ]
    if snapshots:
        ends.append(snapshots[-1].listed_ms + max(life_ms, LEAST_RENEWAL_MS))
    return min(ends, default=INT64_MAX)


class TopicTable(Protocol):
    """One state of a topic's table. Calls block."""

    def named(self) -> dict[str, str | None]:
        """Return the table's data files with the names of their deletes, None without deletes."""

    def snapshots(self) -> list[TableSnapshot]:
        """Return the snapshots, oldest first. The last is the current one."""

    def columns(self) -> str | None:
        """Return the typed columns as text of `tailrace.columns`; None before the first `grow`."""

    def schema(self) -> pa.Schema:
        """Return all columns, as data files with typed columns must have them."""

    def grow(self, columns: Columns) -> None:
        """Set the typed columns. They must include all existing ones. Raises TableConflict."""

    def replays(self) -> int:
        """Return how often `replay` was called."""

    def replay(self) -> None:
        """Make the next comparison retry the records in the quarantine. Raises TableConflict."""

    def describe(self, path: str, file: StoredFile) -> Any:
        """Return the table's entry for a data file."""

    def exchange(
        self, change: TableChange, files: Mapping[str, NewFile], properties: Mapping[str, str]
    ) -> None:
        """Execute a change as one snapshot. `files` has those to add or to cover, by path. Raises TableConflict."""

    def expire(self, snapshot_ids: Sequence[int]) -> None:
        """Expire snapshots and delete the metadata that only they need. Raises TableConflict."""

    def searched_ms(self) -> int:
        """Return when `begin_search` was last called, or files were first exchanged, by the database's time; else 0."""

    def begin_search(self, now_ms: int) -> None:
        """Record a search of the table's folder in a new snapshot that changes no files.

        After that, writers that opened the table before can't exchange files. Raises TableConflict.
        """

    def paths(self) -> set[str]:
        """Return all files that the table needs: those of its snapshots, and its metadata."""


class Tables(Protocol):
    """All tables of a catalog. `name`: the topic's name. Calls block."""

    def open(
        self, topic_id: UUID, name: str, *, create: bool, is_quarantine: bool = False
    ) -> TopicTable | None:
        """Open the current state of the topic's table or its quarantine; None if it is missing and not `create`.

        A table of that name, of another topic that had the name before, is renamed. Raises TableConflict for a table of
        another cluster, or one that Tailrace did not create.
        """

    def drop(self, topic_id: UUID, name: str, *, is_quarantine: bool = False) -> None:
        """Drop a table that has no files."""
