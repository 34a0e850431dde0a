"""The interface between `SqlRowStore` and a database: a few kinds of transactions.

Statements are written once for both databases, with parameters `$1`, `$2`, ... and `{now}` for the database's clock in
milliseconds. Arguments and results are the driver's plain values (see row_codec).
"""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, Protocol
from uuid import UUID

from sequencer.store.rows import Changes, Row
from sequencer.store.sql.row_codec import Dialect, RowCodec
from sequencer.store.sql.schema import TABLES

Values = Sequence[Any]
Lane = Literal["lease", "commits", "reads"]
"""The connections that a transaction uses. No lane waits for the connections of another."""


class Database(Protocol):
    """One database. Every method is one transaction.

    Raises SequencerUnavailable if the database can't be reached, does not answer in time or is full; it is then unknown
    whether the transaction was applied. Raises RequestFailed if it refuses the values; nothing was applied.
    """

    @property
    def dialect(self) -> Dialect: ...

    def on(self, lane: Lane) -> Database:
        """Return the same database over the connections of this lane ('commits' is the default)."""

    async def start(self, *, migrate: bool) -> None:
        """Connect, and create or migrate the tables."""

    async def now_ms(self) -> int:
        """Return the time of the database's clock."""

    async def execute(self, statement: str, *arguments: Any) -> list[Values]:
        """Run a statement that writes; return its RETURNING rows."""

    async def fetch(self, statement: str, *arguments: Any) -> list[Values]:
        """Run a query."""

    async def fetch_where_in(
        self, statement: str, kind: Literal["uuid", "text"], values: Values
    ) -> list[Values]:
        """Run a query in which `{in_values}` means: is one of `values`. A large set may take several queries."""

    async def fetch_by_keys(self, kind: type[Row], keys: Sequence[tuple[object, ...]]) -> list[Values]:
        """Return the columns of those rows under these keys that exist."""

    def fetch_pages(
        self, statements: Sequence[str], rows: int
    ) -> AsyncGenerator[tuple[int, Sequence[Values]], None]:
        """Run queries on one snapshot, taken after all writes that have begun. Yield pages of at most `rows` rows, each
        with the index of its statement. Each page has a time limit, the whole has none."""

    async def fetch_runs(
        self, queries: Sequence[tuple[UUID, int, int, int]], max_runs: int, *, with_batches: bool
    ) -> list[list[Values]]:
        """Return RUN_COLUMNS (or RUN_COLUMNS_WITHOUT_BATCHES) of the runs that each query (topic_id, partition, offset,
        max_bytes) asks for."""

    async def write(self, changes: Changes, committer_epoch: int) -> None:
        """Apply the changes if `cluster` still has this committer epoch."""

    async def stop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class TableStatements:
    """A table's names, quoted for statements."""

    codec: RowCodec
    name: str
    columns: str
    key: str
    assignments: str  # they set a conflicting row's values to the new ones

    @property
    def select_all(self) -> str:
        return f"select {self.columns} from {self.name}"


def _assignment(table: str, column: str) -> str:
    """Return the assignment of the new value to a conflicting row. An object's key is set to null if it differs, which
    the database refuses: a commit does not look its object up, so the database must refuse an id that another object
    has."""
    if (table, column) != ("objects", "key"):
        return f'"{column}" = excluded."{column}"'
    return """"key" = case when "objects"."key" = excluded."key" then excluded."key" end"""


@functools.cache
def table_statements(dialect: Dialect) -> Mapping[type[Row], TableStatements]:
    """Return the statements per kind of row, in the order of writes. Computed once, because each Spark task may open a
    store."""
    statements = {}
    for kind, table in TABLES.items():
        codec = RowCodec(kind, dialect)
        key = {column.name for column in codec.key}
        statements[kind] = TableStatements(
            codec=codec,
            name=f'"{table.name}"',
            columns=", ".join(f'"{column.name}"' for column in codec.columns),
            key=", ".join(f'"{column.name}"' for column in codec.key),
            assignments=", ".join(
                _assignment(table.name, column.name) for column in codec.columns if column.name not in key
            ),
        )
    return MappingProxyType(statements)


def split_changes(
    changes: Changes, statements: Mapping[type[Row], TableStatements]
) -> list[tuple[TableStatements, list[tuple[object, ...]], list[Row]]]:
    """Return the keys to delete and the rows to put per table, in the order of writes."""
    parts = []
    for kind, table in statements.items():
        by_key = changes.by_kind.get(kind)
        if by_key:
            deleted = [key for key, row in by_key.items() if row is None]
            parts.append((table, deleted, [row for row in by_key.values() if row is not None]))
    return parts
