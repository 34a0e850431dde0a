"""The interface between `SqlRowStore` and a database: a few kinds of transactions.

Statements are written once for both, with parameters `$1`, `$2`, ... and `{now}` for the database's clock in
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
"""Which connections a transaction uses. No lane waits for the connections of another."""


class Database(Protocol):
    """One database. Every method is one transaction.

    Raises SequencerUnavailable when the database can't be reached, does not answer in time or is full: it is unknown
    whether the transaction was applied. Raises RequestFailed when it refuses the values: nothing was applied.
    """

    @property
    def dialect(self) -> Dialect: ...

    def on(self, lane: Lane) -> Database:
        """The same database over the connections of this lane ('commits' is the default)."""
        ...

    async def start(self, *, migrate: bool) -> None:
        """Connect, and make or migrate the tables."""
        ...

    async def now_ms(self) -> int:
        """The time of the database's clock."""
        ...

    async def execute(self, statement: str, *arguments: Any) -> list[Values]:
        """Run a statement that writes; its RETURNING rows."""
        ...

    async def fetch(self, statement: str, *arguments: Any) -> list[Values]:
        """Run a query."""
        ...

    async def fetch_where_in(
        self, statement: str, kind: Literal["uuid", "text"], values: Values
    ) -> list[Values]:
        """Run a query in which `{in_values}` means: is one of `values`. A large set may take several queries."""
        ...

    async def fetch_by_keys(self, kind: type[Row], keys: Sequence[tuple[object, ...]]) -> list[Values]:
        """The columns of the rows under these keys, as far as they exist."""
        ...

    def fetch_pages(
        self, statements: Sequence[str], rows: int
    ) -> AsyncGenerator[tuple[int, Sequence[Values]], None]:
        """Run queries on one snapshot, taken after all writes that have begun. Yields pages of at most `rows` rows,
        each with the index of its statement. Each page has a time limit, the whole has none."""
        ...

    async def fetch_runs(
        self, queries: Sequence[tuple[UUID, int, int, int]], max_runs: int, *, with_batches: bool
    ) -> list[list[Values]]:
        """RUN_COLUMNS of the runs from (topic_id, partition, offset, max_bytes) on, per query; or
        RUN_COLUMNS_WITHOUT_BATCHES."""
        ...

    async def write(self, changes: Changes, committer_epoch: int) -> None:
        """Apply the changes if `cluster` still has this committer epoch."""
        ...

    async def stop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class TableStatements:
    """A table's names, quoted for statements."""

    codec: RowCodec
    name: str
    columns: str
    key: str
    assignments: str  # sets a conflicting row's values to the new ones

    @property
    def select_all(self) -> str:
        return f"select {self.columns} from {self.name}"


def _assignment(table: str, column: str) -> str:
    """A conflicting row gets the new value. That of another object is no value: a commit's object is not looked up, so
    the database refuses one whose id another object has."""
    if (table, column) != ("objects", "key"):
        return f'"{column}" = excluded."{column}"'
    return """"key" = case when "objects"."key" = excluded."key" then excluded."key" end"""


@functools.cache
def table_statements(dialect: Dialect) -> Mapping[type[Row], TableStatements]:
    """Per kind of row, in the order of write. Made once: each of Spark's tasks may open a store."""
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
    """Per table, in the order of write: the keys to delete and the rows to put."""
    parts = []
    for kind, table in statements.items():
        by_key = changes.by_kind.get(kind)
        if by_key:
            deleted = [key for key, row in by_key.items() if row is None]
            parts.append((table, deleted, [row for row in by_key.values() if row is not None]))
    return parts
