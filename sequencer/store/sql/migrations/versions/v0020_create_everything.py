"""Create the tables of the first release.

The tables are written out, not derived from the row types, so that this migration makes the same tables in every later
version. Schemas 0001 to 0019 were never released. A database that was migrated from them to schema 0020 has the same
tables.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0020"
down_revision = None
branch_labels = None
depends_on = None

_TYPES: dict[str, Any] = {
    "uuid": sa.LargeBinary(16).with_variant(postgresql.UUID(as_uuid=True), "postgresql"),
    "text": sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql"),
    "text_of_locale": sa.Text(),  # in the database's collation
    "bytes": sa.LargeBinary(),
    "bool": sa.Boolean(),
    "int16": sa.SmallInteger(),
    "int32": sa.Integer(),
    "int64": sa.BigInteger(),
}
_UPDATED = {"fillfactor": 70, "autovacuum_vacuum_scale_factor": 0.05, "autovacuum_vacuum_threshold": 500}
_REMOVED = {"autovacuum_vacuum_scale_factor": 0.05, "autovacuum_analyze_scale_factor": 0.05}

_TABLES = {
    "cluster": (
        "id",
        "id int16, cluster_id text, incarnation int64, schema_version int32, committer_holder text,"
        " committer_address text, committer_epoch int64, committer_expires_ms int64",
        _UPDATED,
    ),
    "counters": ("name", "name text, value int64", _UPDATED),
    "topics": (
        "topic_id",
        "topic_id uuid, name text, partitions int32, configs text, created_ms int64, replication_factor int32",
        {},
    ),
    "partitions": (
        "topic_id partition",
        "topic_id uuid, partition int32, log_start_offset int64, end_offset int64, running_max_timestamp int64,"
        " epochs bytes",
        _UPDATED,
    ),
    "sessions": (
        "session_id",
        "session_id uuid, broker_id int64, prefix text, predecessor uuid null, next_number int64,"
        " expires_ms int64, closed_ms int64 null, empty_sweeps int32, swept_ms int64",
        _UPDATED,
    ),
    "commits": ("session_id number", "session_id uuid, number int64, answer bytes", _REMOVED),
    "agents": (
        "broker_id",
        "broker_id int64, epoch int64, info bytes, expires_ms int64, draining bool",
        _UPDATED,
    ),
    "producers": (
        "topic_id partition producer_id",
        "topic_id uuid, partition int32, producer_id int64, producer_epoch int32, recent bytes,"
        " last_timestamp int64, updated_ms int64",
        _UPDATED,
    ),
    "groups": (
        "group_id",
        "group_id text, owner int64, owner_epoch int64, generation int64, state text, protocol_type text,"
        " members bytes, blob bytes, updated_ms int64, term int64, turn int64, type text_of_locale,"
        " positions int64, has_expiries bool",
        _UPDATED,
    ),
    "group_offsets": (
        "group_id topic_id partition",
        "group_id text, topic_id uuid, partition int32, offset int64, leader_epoch int32, metadata text,"
        " commit_ms int64, expires_ms int64 null, turn int64",
        _UPDATED,
    ),
    "share_partitions": (
        "group_id topic_id partition",
        "group_id text, topic_id uuid, partition int32, start_offset int64, spans bytes, locks bytes,"
        " answered bytes, updated_ms int64",
        _UPDATED,
    ),
    "transactions": (
        "transactional_id",
        "transactional_id text, producer_id int64, producer_epoch int32, number int64, state text,"
        " timeout_ms int64, started_ms int64, partitions bytes, groups bytes, previous_id int64,"
        " previous_epoch int32, ended_id int64, ended_epoch int32, ended_number int64, ended_is_commit bool,"
        " answered_id int64, answered_epoch int32, updated_ms int64",
        _UPDATED,
    ),
    "open_ranges": (
        "topic_id partition producer_id",
        "topic_id uuid, partition int32, producer_id int64, first_offset int64",
        _REMOVED,
    ),
    "aborted_ranges": (
        "topic_id partition producer_id first_offset",
        "topic_id uuid, partition int32, producer_id int64, first_offset int64, last_offset int64",
        _REMOVED,
    ),
    "pending_offsets": (
        "group_id topic_id partition producer_id",
        "group_id text, topic_id uuid, partition int32, producer_id int64, offset int64, leader_epoch int32,"
        " metadata text, commit_ms int64, expires_ms int64 null, turn int64",
        _REMOVED,
    ),
    "broker_configs": ("name", "name text, configs text", {}),
    "scram_credentials": (
        "user_name mechanism",
        "user_name text, mechanism int32, salt bytes, stored_key bytes, server_key bytes, iterations int32",
        {},
    ),
    "acls": (
        "resource_type resource_name pattern_type principal host operation permission",
        "resource_type int32, resource_name text, pattern_type int32, principal text, host text,"
        " operation int32, permission int32, created_ms int64",
        {},
    ),
    "client_configs": ("scope name", "scope int32, name text, configs text", {}),
    "delegation_tokens": (
        "fingerprint",
        "fingerprint text, token_id text, owner text, requester text, renewers bytes, issued_ms int64,"
        " expires_ms int64, max_ms int64",
        {},
    ),
    "leases": ("name", "name text, holder text, epoch int64, expires_ms int64", _UPDATED),
    "table_pins": ("topic_id", "topic_id uuid, topic_name text, kept_from_ms int64", {}),
    "small_objects": (
        "topic_id object_id",
        "topic_id uuid, object_id uuid, ended_ms int64, size int64",
        _REMOVED,
    ),
    "cleaned_partitions": (
        "topic_id partition",
        "topic_id uuid, partition int64, clean_end int64, clean_bytes int64, cleaned_ms int64",
        _UPDATED,
    ),
    "swaps": ("swap_id", "swap_id uuid, commit_number int64, created_ms int64", {}),
    "writes": ("write_id", "write_id uuid, epoch int64, commit_number int64, expires_ms int64", _UPDATED),
    "answers": ("request_id", "request_id uuid, answer bytes, created_ms int64", _REMOVED),
    "objects": (
        "object_id",
        "object_id uuid, kind int16, key text, size int64, crc int64, index_start int64, created_ms int64,"
        " format_version int32, live_runs int64, retired_ms int64 null, index_crc int64",
        {**_REMOVED, "fillfactor": 85},
    ),
    "runs": (
        "topic_id partition base_offset",
        "topic_id uuid, partition int32, base_offset int64, end_offset int64, object_id uuid, start int64,"
        " length int64, max_timestamp int64, running_max_timestamp int64, commit_number int64, created_ms int64,"
        " kind int16, batches bytes, markers bytes",
        _REMOVED,
    ),
    "journal": ("number", "number int64, chain int64, changes bytes", _REMOVED),
}
"""By table: its key, its columns, its storage."""

_DEFAULTS: dict[tuple[str, str], Any] = {
    ("groups", "type"): "classic",
    ("groups", "positions"): "0",
    ("groups", "has_expiries"): sa.false(),
    ("pending_offsets", "turn"): "0",
}
"""Defaults of columns that schemas 0008 to 0020 added. No insert relies on them."""


def _column(table: str, declared: str) -> sa.Column[Any]:
    name, kind, *null = declared.split()
    default = _DEFAULTS.get((table, name))
    return sa.Column(name, _TYPES[kind], autoincrement=False, nullable=bool(null), server_default=default)


def upgrade() -> None:
    for table, (key, columns, storage) in _TABLES.items():
        included = ["kind", "length", "created_ms"] if table == "runs" else None
        op.create_table(
            table,
            *(_column(table, declared) for declared in columns.split(", ")),
            sa.PrimaryKeyConstraint(*key.split(), postgresql_include=included),
            *([sa.CheckConstraint("id = 1", name="cluster_is_one_row")] if table == "cluster" else []),
            postgresql_with=storage,
            sqlite_with_rowid=False,
        )
    op.create_index("group_offsets_by_topic", "group_offsets", ["topic_id"])
    op.create_index("objects_by_key", "objects", ["key"], unique=True)
    op.create_index("objects_by_retirement", "objects", ["retired_ms"])
    op.create_index("runs_by_object", "runs", ["object_id"])
