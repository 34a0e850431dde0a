"""The tables: one per kind of row, and `cluster`, which holds the database's identity and the committer's lease.

A table's columns are the fields of its row, in order, and their types follow from the row's annotations.

The schema is for two databases. A UUID is 16 bytes on SQLite and `uuid` on PostgreSQL. Text is ordered by bytes
(collation C): the order of keys is part of the interface, and an update of the system's locales can't break an index.
Configs are JSON, for people; other nested values are MessagePack.

Run rows are the most numerous, so they are kept small: no surrogate keys, no foreign keys, no index without a query
that needs it. The tables that are updated with every commit leave room on their pages (fillfactor), so that PostgreSQL
updates rows without touching their indexes (HOT), and are vacuumed early.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from sequencer.api.commits import ObjectKind
from sequencer.api.transactions import TransactionState
from sequencer.store import rows
from sequencer.store.sql.row_codec import RowField, fields_of

SCHEMA_VERSION = 20
"""The number of the newest migration."""

metadata = sa.MetaData()

_uuid = sa.LargeBinary(16).with_variant(postgresql.UUID(as_uuid=True), "postgresql")
_text = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")
_TYPES: dict[Any, Any] = {
    UUID: _uuid,
    str: _text,
    TransactionState: _text,
    dict: _text,
    int: sa.BigInteger,
    rows.Int32: sa.Integer,
    ObjectKind: sa.SmallInteger,
    bool: sa.Boolean,
    bytes: sa.LargeBinary,
    list: sa.LargeBinary,
}

_UPDATED: dict[str, Any] = {
    "fillfactor": 70,
    "autovacuum_vacuum_scale_factor": 0.05,
    "autovacuum_vacuum_threshold": 500,
}
"""Storage of a table whose rows are updated repeatedly."""
_REMOVED: dict[str, Any] = {"autovacuum_vacuum_scale_factor": 0.05, "autovacuum_analyze_scale_factor": 0.05}
"""Storage of a table whose rows are written once and deleted."""


def _column(field: RowField, *, is_key: bool) -> sa.Column[Any]:
    column_type = _TYPES[field.origin]
    if is_key:
        return sa.Column(field.name, column_type, primary_key=True, autoincrement=False, nullable=False)
    return sa.Column(field.name, column_type, nullable=field.is_optional)


def _table(name: str, *parts: Any, storage: dict[str, Any] | None = None) -> sa.Table:
    return sa.Table(name, metadata, *parts, sqlite_with_rowid=False, postgresql_with=storage or {})


def _rows(
    name: str, kind: type[rows.Row], storage: dict[str, Any] | None = None, *indexes: sa.Index
) -> sa.Table:
    columns = [_column(field, is_key=field.name in rows.KEYS[kind]) for field in fields_of(kind)]
    return _table(name, *columns, *indexes, storage=storage)


cluster = _table(
    "cluster",
    sa.Column("id", sa.SmallInteger, primary_key=True, autoincrement=False),
    sa.Column("cluster_id", _text, nullable=False),
    sa.Column("incarnation", sa.BigInteger, nullable=False),
    sa.Column("schema_version", sa.Integer, nullable=False),  # no code reads it; the next migration drops it
    sa.Column("committer_holder", _text, nullable=False),
    sa.Column("committer_address", _text, nullable=False),
    sa.Column("committer_epoch", sa.BigInteger, nullable=False),
    sa.Column("committer_expires_ms", sa.BigInteger, nullable=False),
    sa.CheckConstraint("id = 1", name="cluster_is_one_row"),
    storage=_UPDATED,
)

TABLES: dict[type[rows.Row], sa.Table] = {
    rows.CounterRow: _rows("counters", rows.CounterRow, _UPDATED),
    rows.TopicRow: _rows("topics", rows.TopicRow),
    rows.PartitionRow: _rows("partitions", rows.PartitionRow, _UPDATED),
    rows.SessionRow: _rows("sessions", rows.SessionRow, _UPDATED),
    rows.CommitRow: _rows("commits", rows.CommitRow, _REMOVED),
    rows.AgentRow: _rows("agents", rows.AgentRow, _UPDATED),
    rows.ProducerRow: _rows("producers", rows.ProducerRow, _UPDATED),
    rows.GroupRow: _rows("groups", rows.GroupRow, _UPDATED),
    rows.GroupOffsetRow: _rows(
        "group_offsets", rows.GroupOffsetRow, _UPDATED, sa.Index("group_offsets_by_topic", "topic_id")
    ),
    rows.ShareRow: _rows("share_partitions", rows.ShareRow, _UPDATED),
    rows.TransactionRow: _rows("transactions", rows.TransactionRow, _UPDATED),
    rows.OpenRangeRow: _rows("open_ranges", rows.OpenRangeRow, _REMOVED),
    rows.AbortedRow: _rows("aborted_ranges", rows.AbortedRow, _REMOVED),
    rows.PendingOffsetRow: _rows("pending_offsets", rows.PendingOffsetRow, _REMOVED),
    rows.BrokerConfigRow: _rows("broker_configs", rows.BrokerConfigRow),
    rows.ScramRow: _rows("scram_credentials", rows.ScramRow),
    rows.AclRow: _rows("acls", rows.AclRow),
    rows.ClientConfigRow: _rows("client_configs", rows.ClientConfigRow),
    rows.DelegationTokenRow: _rows("delegation_tokens", rows.DelegationTokenRow),
    rows.LeaseRow: _rows("leases", rows.LeaseRow, _UPDATED),
    rows.TablePinRow: _rows("table_pins", rows.TablePinRow),
    rows.SmallObjectRow: _rows("small_objects", rows.SmallObjectRow, _REMOVED),
    rows.CleanedRow: _rows("cleaned_partitions", rows.CleanedRow, _UPDATED),
    rows.SwapRow: _rows("swaps", rows.SwapRow),
    rows.WriteRow: _rows("writes", rows.WriteRow, _UPDATED),
    rows.AnswerRow: _rows("answers", rows.AnswerRow, _REMOVED),
    rows.ObjectRow: _rows(
        "objects",
        rows.ObjectRow,
        {**_REMOVED, "fillfactor": 85},
        sa.Index("objects_by_key", "key", unique=True),
        sa.Index("objects_by_retirement", "retired_ms"),
    ),
    rows.RunRow: _rows(
        "runs",
        rows.RunRow,
        _REMOVED,
        # On PostgreSQL the primary key's index includes kind, length and created_ms, which `partition_bytes` sums up.
        sa.Index("runs_by_object", "object_id"),
    ),
    rows.JournalRow: _rows("journal", rows.JournalRow, _REMOVED),
}
"""The table of each kind of row."""
