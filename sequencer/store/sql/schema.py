"""The tables: one per kind of row, and `cluster`, which says which database this is and who commits to it.

Written for two databases. A UUID is 16 bytes on SQLite and `uuid` on PostgreSQL; text is ordered by bytes
(collation C: the order of keys is part of the interface, and an update of the system's locales can't break an
index). Configs are JSON, for people; other nested values are MessagePack.

Run rows are the scarce resource: no surrogate keys, no foreign keys, no index without a query that needs it.
The tables that are updated with every commit leave room on their pages (fillfactor): PostgreSQL then updates
rows in place of their indexes (HOT), and are vacuumed early.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from sequencer.store.rows import (
    AbortedRow,
    AgentRow,
    AnswerRow,
    BrokerConfigRow,
    CommitRow,
    CounterRow,
    GroupOffsetRow,
    GroupRow,
    LeaseRow,
    ObjectRow,
    OpenRangeRow,
    PartitionRow,
    PendingOffsetRow,
    ProducerRow,
    Row,
    RunRow,
    SessionRow,
    SwapRow,
    TopicRow,
    TransactionRow,
)

SCHEMA_VERSION = 6
"""The number of the newest migration."""

metadata = sa.MetaData()

_uuid = sa.LargeBinary(16).with_variant(postgresql.UUID(as_uuid=True), "postgresql")
_text = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")
_updated: dict[str, Any] = {
    "fillfactor": 70,
    "autovacuum_vacuum_scale_factor": 0.05,
    "autovacuum_vacuum_threshold": 500,
}
_removed: dict[str, Any] = {"autovacuum_vacuum_scale_factor": 0.05, "autovacuum_analyze_scale_factor": 0.05}


def _key(name: str, kind: Any) -> sa.Column[Any]:
    return sa.Column(name, kind, primary_key=True, autoincrement=False, nullable=False)


def _value(name: str, kind: Any, *, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=nullable)


def _table(name: str, *parts: Any, storage: dict[str, Any] | None = None) -> sa.Table:
    return sa.Table(name, metadata, *parts, sqlite_with_rowid=False, postgresql_with=storage or {})


cluster = _table(
    "cluster",
    _key("id", sa.SmallInteger),
    _value("cluster_id", _text),
    _value("incarnation", sa.BigInteger),
    _value("schema_version", sa.Integer),
    _value("committer_holder", _text),
    _value("committer_address", _text),
    _value("committer_epoch", sa.BigInteger),
    _value("committer_expires_ms", sa.BigInteger),
    sa.CheckConstraint("id = 1", name="cluster_is_one_row"),
    storage=_updated,
)

counters = _table(
    "counters",
    _key("name", _text),
    _value("value", sa.BigInteger),
    storage=_updated,
)

topics = _table(
    "topics",
    _key("topic_id", _uuid),
    _value("name", _text),
    _value("partitions", sa.Integer),
    _value("configs", _text),
    _value("created_ms", sa.BigInteger),
    _value("replication_factor", sa.Integer),
)

partitions = _table(
    "partitions",
    _key("topic_id", _uuid),
    _key("partition", sa.Integer),
    _value("log_start_offset", sa.BigInteger),
    _value("end_offset", sa.BigInteger),
    _value("running_max_timestamp", sa.BigInteger),
    _value("epochs", sa.LargeBinary),
    storage=_updated,
)

sessions = _table(
    "sessions",
    _key("session_id", _uuid),
    _value("broker_id", sa.BigInteger),
    _value("prefix", _text),
    _value("predecessor", _uuid, nullable=True),
    _value("next_number", sa.BigInteger),
    _value("expires_ms", sa.BigInteger),
    _value("closed_ms", sa.BigInteger, nullable=True),
    _value("empty_sweeps", sa.Integer),
    _value("swept_ms", sa.BigInteger),
    storage=_updated,
)

commits = _table(
    "commits",
    _key("session_id", _uuid),
    _key("number", sa.BigInteger),
    _value("answer", sa.LargeBinary),
    storage=_removed,
)

agents = _table(
    "agents",
    _key("broker_id", sa.BigInteger),
    _value("epoch", sa.BigInteger),
    _value("info", sa.LargeBinary),
    _value("expires_ms", sa.BigInteger),
    _value("draining", sa.Boolean),
    storage=_updated,
)

producers = _table(
    "producers",
    _key("topic_id", _uuid),
    _key("partition", sa.Integer),
    _key("producer_id", sa.BigInteger),
    _value("producer_epoch", sa.Integer),
    _value("recent", sa.LargeBinary),
    _value("last_timestamp", sa.BigInteger),
    _value("updated_ms", sa.BigInteger),
    storage=_updated,
)

groups = _table(
    "groups",
    _key("group_id", _text),
    _value("owner", sa.BigInteger),
    _value("owner_epoch", sa.BigInteger),
    _value("generation", sa.BigInteger),
    _value("state", _text),
    _value("protocol_type", _text),
    _value("members", sa.LargeBinary),
    _value("blob", sa.LargeBinary),
    _value("updated_ms", sa.BigInteger),
    _value("term", sa.BigInteger),
    _value("turn", sa.BigInteger),
    storage=_updated,
)

group_offsets = _table(
    "group_offsets",
    _key("group_id", _text),
    _key("topic_id", _uuid),
    _key("partition", sa.Integer),
    _value("offset", sa.BigInteger),
    _value("leader_epoch", sa.Integer),
    _value("metadata", _text),
    _value("commit_ms", sa.BigInteger),
    _value("expires_ms", sa.BigInteger, nullable=True),
    _value("turn", sa.BigInteger),
    storage=_updated,
)

transactions = _table(
    "transactions",
    _key("transactional_id", _text),
    _value("producer_id", sa.BigInteger),
    _value("producer_epoch", sa.Integer),
    _value("number", sa.BigInteger),
    _value("state", _text),
    _value("timeout_ms", sa.BigInteger),
    _value("started_ms", sa.BigInteger),
    _value("partitions", sa.LargeBinary),
    _value("groups", sa.LargeBinary),
    _value("previous_id", sa.BigInteger),
    _value("previous_epoch", sa.Integer),
    _value("ended_id", sa.BigInteger),
    _value("ended_epoch", sa.Integer),
    _value("ended_number", sa.BigInteger),
    _value("ended_is_commit", sa.Boolean),
    _value("answered_id", sa.BigInteger),
    _value("answered_epoch", sa.Integer),
    _value("updated_ms", sa.BigInteger),
    storage=_updated,
)

open_ranges = _table(
    "open_ranges",
    _key("topic_id", _uuid),
    _key("partition", sa.Integer),
    _key("producer_id", sa.BigInteger),
    _value("first_offset", sa.BigInteger),
    storage=_removed,
)

aborted_ranges = _table(
    "aborted_ranges",
    _key("topic_id", _uuid),
    _key("partition", sa.Integer),
    _key("producer_id", sa.BigInteger),
    _key("first_offset", sa.BigInteger),
    _value("last_offset", sa.BigInteger),
    storage=_removed,
)

pending_offsets = _table(
    "pending_offsets",
    _key("group_id", _text),
    _key("topic_id", _uuid),
    _key("partition", sa.Integer),
    _key("producer_id", sa.BigInteger),
    _value("offset", sa.BigInteger),
    _value("leader_epoch", sa.Integer),
    _value("metadata", _text),
    _value("commit_ms", sa.BigInteger),
    _value("expires_ms", sa.BigInteger, nullable=True),
    storage=_removed,
)

broker_configs = _table("broker_configs", _key("name", _text), _value("configs", _text))

leases = _table(
    "leases",
    _key("name", _text),
    _value("holder", _text),
    _value("epoch", sa.BigInteger),
    _value("expires_ms", sa.BigInteger),
    storage=_updated,
)

swaps = _table(
    "swaps",
    _key("swap_id", _uuid),
    _value("commit_number", sa.BigInteger),
    _value("created_ms", sa.BigInteger),
)

answers = _table(
    "answers",
    _key("request_id", _uuid),
    _value("answer", sa.LargeBinary),
    _value("created_ms", sa.BigInteger),
    storage=_removed,
)

objects = _table(
    "objects",
    _key("object_id", _uuid),
    _value("kind", sa.SmallInteger),
    _value("key", _text),
    _value("size", sa.BigInteger),
    _value("crc", sa.BigInteger),
    _value("index_start", sa.BigInteger),
    _value("created_ms", sa.BigInteger),
    _value("format_version", sa.Integer),
    _value("live_runs", sa.BigInteger),
    _value("retired_ms", sa.BigInteger, nullable=True),
    _value("index_crc", sa.BigInteger),
    sa.Index("objects_by_key", "key", unique=True),
    sa.Index("objects_by_retirement", "retired_ms"),
    storage={**_removed, "fillfactor": 85},
)

runs = _table(
    "runs",
    _key("topic_id", _uuid),
    _key("partition", sa.Integer),
    _key("base_offset", sa.BigInteger),
    _value("end_offset", sa.BigInteger),
    _value("object_id", _uuid),
    _value("start", sa.BigInteger),
    _value("length", sa.BigInteger),
    _value("max_timestamp", sa.BigInteger),
    _value("running_max_timestamp", sa.BigInteger),
    _value("commit_number", sa.BigInteger),
    _value("created_ms", sa.BigInteger),
    _value("kind", sa.SmallInteger),
    _value("batches", sa.LargeBinary),
    _value("markers", sa.LargeBinary),
    sa.Index("runs_by_time", "topic_id", "partition", "running_max_timestamp", "base_offset"),
    sa.Index("runs_by_object", "object_id"),
    # Holds all that `partition_bytes` and `statistics` sum up: they never touch the table.
    sa.Index("runs_by_form", "topic_id", "partition", "kind", "length", "created_ms"),
    storage=_removed,
)

TABLES: dict[type[Row], sa.Table] = {
    CounterRow: counters,
    TopicRow: topics,
    PartitionRow: partitions,
    SessionRow: sessions,
    CommitRow: commits,
    AgentRow: agents,
    ProducerRow: producers,
    GroupRow: groups,
    GroupOffsetRow: group_offsets,
    TransactionRow: transactions,
    OpenRangeRow: open_ranges,
    AbortedRow: aborted_ranges,
    PendingOffsetRow: pending_offsets,
    BrokerConfigRow: broker_configs,
    LeaseRow: leases,
    SwapRow: swaps,
    AnswerRow: answers,
    ObjectRow: objects,
    RunRow: runs,
}
"""The table of each kind of row; its columns are the row's fields, in their order."""
