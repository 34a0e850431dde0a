"""Tables in memory: the reference for tests, which may hold any snapshot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pyarrow as pa

from compactor.columns.arrays import table_fields
from compactor.columns.derive import QUARANTINE
from compactor.tables.live import RowRange
from compactor.tables.table import NewFile, StoredFile, TableChange, TableConflict, TableSnapshot
from tailrace.configs.columns import Columns, columns_text, parse_columns
from tailrace.parquet_object.schema import LOG_SCHEMA


@dataclass(frozen=True, slots=True)
class HeldSnapshot:
    """Data files by path: the object's key, the name of its deletes, and the rows that these delete."""

    snapshot: TableSnapshot
    files: Mapping[str, tuple[str, str | None, tuple[RowRange, ...]]]


@dataclass(slots=True)
class _Held:
    version: int = 0
    snapshots: list[HeldSnapshot] = field(default_factory=list)
    columns: str | None = None
    replays: int = 0
    searched_ms: int = 0


class MemoryTables:
    """Tables by topic id, and by the name of the topic or of its quarantine."""

    def __init__(self) -> None:
        self.held: dict[tuple[UUID, str], _Held] = {}

    def open(
        self, topic_id: UUID, name: str, *, create: bool, is_quarantine: bool = False
    ) -> MemoryTable | None:
        """Open the topic's table, or its quarantine."""
        name += QUARANTINE if is_quarantine else ""
        if create:
            self.held.setdefault((topic_id, name), _Held())
        held = self.held.get((topic_id, name))
        return None if held is None else MemoryTable(held)

    def drop(self, topic_id: UUID, name: str, *, is_quarantine: bool = False) -> None:
        """Forget the table."""
        del self.held[topic_id, name + (QUARANTINE if is_quarantine else "")]


class MemoryTable:
    """A table as it was when it was opened."""

    def __init__(self, held: _Held) -> None:
        self._held = held
        self._version = held.version
        self._snapshots = list(held.snapshots)
        self._columns = held.columns
        self._replays = held.replays
        self._searched_ms = held.searched_ms

    @property
    def current(self) -> HeldSnapshot | None:
        """The newest snapshot."""
        return self._snapshots[-1] if self._snapshots else None

    def named(self) -> dict[str, str | None]:
        """See TopicTable."""
        return {} if self.current is None else {path: each[1] for path, each in self.current.files.items()}

    def snapshots(self) -> list[TableSnapshot]:
        """See TopicTable."""
        return [held.snapshot for held in self._snapshots]

    def columns(self) -> str | None:
        """See TopicTable."""
        return self._columns

    def schema(self) -> pa.Schema:
        """See TopicTable."""
        return pa.schema([*LOG_SCHEMA, *table_fields(parse_columns(self._columns) if self._columns else ())])

    def grow(self, columns: Columns) -> None:
        """See TopicTable."""
        self._replace(self._snapshots)
        self._held.columns = self._columns = columns_text(columns)

    def replays(self) -> int:
        """See TopicTable."""
        return self._replays

    def replay(self) -> None:
        """See TopicTable."""
        self._replace(self._snapshots)
        self._held.replays = self._replays = self._replays + 1

    def describe(self, path: str, file: StoredFile) -> Any:
        """See TopicTable."""
        return path

    def exchange(
        self, change: TableChange, files: Mapping[str, NewFile], properties: Mapping[str, str]
    ) -> None:
        """See TopicTable."""
        after = {} if self.current is None else dict(self.current.files)
        for path in change.removed:
            del after[path]
        for path, deletes in change.uncovered - {each for each in change.uncovered if each.path not in after}:
            assert after[path][1] == deletes, "what is taken off is there"
            after[path] = (after[path][0], None, ())
        for path in change.added | {each.path for each in change.covered}:
            new = files[path]
            after[path] = (new.description, new.named.deletes, new.dead)
        number = self._held.version + 1
        snapshot = TableSnapshot(number, int(properties["tailrace.listed-ms"]))
        self._replace([*self._snapshots, HeldSnapshot(snapshot, after)])
        self._held.searched_ms = self._searched_ms = self._searched_ms or snapshot.listed_ms

    def expire(self, snapshot_ids: Sequence[int]) -> None:
        """See TopicTable."""
        self._replace(
            [held for held in self._snapshots if held.snapshot.snapshot_id not in set(snapshot_ids)]
        )

    def searched_ms(self) -> int:
        """See TopicTable."""
        return self._searched_ms

    def begin_search(self, now_ms: int) -> None:
        """See TopicTable."""
        files = {} if self.current is None else self.current.files
        snapshot = TableSnapshot(self._held.version + 1, now_ms)
        self._replace([*self._snapshots, HeldSnapshot(snapshot, files)])
        self._held.searched_ms = self._searched_ms = now_ms

    def paths(self) -> set[str]:
        """See TopicTable. This table has no metadata files."""
        return {path for held in self._snapshots for path in held.files}

    def _replace(self, snapshots: list[HeldSnapshot]) -> None:
        if self._version != self._held.version:
            raise TableConflict("the table was changed since")
        self._held.snapshots = self._snapshots = snapshots
        self._held.version += 1
        self._version = self._held.version
