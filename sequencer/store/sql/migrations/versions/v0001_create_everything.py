"""Everything: the tables of the first version."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_uuid = sa.LargeBinary(16).with_variant(postgresql.UUID(as_uuid=True), "postgresql")
_text = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")
_updated = {"fillfactor": 70, "autovacuum_vacuum_scale_factor": 0.05, "autovacuum_vacuum_threshold": 500}
_removed = {"autovacuum_vacuum_scale_factor": 0.05, "autovacuum_analyze_scale_factor": 0.05}


def upgrade() -> None:
    op.create_table(
        "agents",
        sa.Column("broker_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("info", sa.LargeBinary(), nullable=False),
        sa.Column("expires_ms", sa.BigInteger(), nullable=False),
        sa.Column("draining", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("broker_id"),
        postgresql_with=_updated,
        sqlite_with_rowid=False,
    )
    op.create_table(
        "broker_configs",
        sa.Column("name", _text, autoincrement=False, nullable=False),
        sa.Column("configs", _text, nullable=False),
        sa.PrimaryKeyConstraint("name"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "cluster",
        sa.Column("id", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("cluster_id", _text, nullable=False),
        sa.Column("incarnation", sa.BigInteger(), nullable=False),
        sa.Column("schema_version", sa.Integer(), nullable=False),
        sa.Column("committer_holder", _text, nullable=False),
        sa.Column("committer_address", _text, nullable=False),
        sa.Column("committer_epoch", sa.BigInteger(), nullable=False),
        sa.Column("committer_expires_ms", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("id = 1", name="cluster_is_one_row"),
        sa.PrimaryKeyConstraint("id"),
        postgresql_with=_updated,
        sqlite_with_rowid=False,
    )
    op.create_table(
        "commits",
        sa.Column("session_id", _uuid, autoincrement=False, nullable=False),
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("answer", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("session_id", "number"),
        postgresql_with=_removed,
        sqlite_with_rowid=False,
    )
    op.create_table(
        "counters",
        sa.Column("name", _text, autoincrement=False, nullable=False),
        sa.Column("value", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
        postgresql_with=_updated,
        sqlite_with_rowid=False,
    )
    op.create_table(
        "group_offsets",
        sa.Column("group_id", _text, autoincrement=False, nullable=False),
        sa.Column("topic_id", _uuid, autoincrement=False, nullable=False),
        sa.Column("partition", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("offset", sa.BigInteger(), nullable=False),
        sa.Column("leader_epoch", sa.Integer(), nullable=False),
        sa.Column("metadata", _text, nullable=False),
        sa.Column("commit_ms", sa.BigInteger(), nullable=False),
        sa.Column("expires_ms", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("group_id", "topic_id", "partition"),
        postgresql_with=_updated,
        sqlite_with_rowid=False,
    )
    op.create_table(
        "groups",
        sa.Column("group_id", _text, autoincrement=False, nullable=False),
        sa.Column("owner", sa.BigInteger(), nullable=False),
        sa.Column("owner_epoch", sa.BigInteger(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("state", _text, nullable=False),
        sa.Column("protocol_type", _text, nullable=False),
        sa.Column("members", sa.LargeBinary(), nullable=False),
        sa.Column("blob", sa.LargeBinary(), nullable=False),
        sa.Column("updated_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("group_id"),
        postgresql_with=_updated,
        sqlite_with_rowid=False,
    )
    op.create_table(
        "leases",
        sa.Column("name", _text, autoincrement=False, nullable=False),
        sa.Column("holder", _text, nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("expires_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
        postgresql_with=_updated,
        sqlite_with_rowid=False,
    )
    op.create_table(
        "objects",
        sa.Column("object_id", _uuid, autoincrement=False, nullable=False),
        sa.Column("kind", sa.SmallInteger(), nullable=False),
        sa.Column("key", _text, nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("crc", sa.BigInteger(), nullable=False),
        sa.Column("index_start", sa.BigInteger(), nullable=False),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.Column("format_version", sa.Integer(), nullable=False),
        sa.Column("live_runs", sa.BigInteger(), nullable=False),
        sa.Column("retired_ms", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("object_id"),
        postgresql_with={
            "autovacuum_vacuum_scale_factor": 0.05,
            "autovacuum_analyze_scale_factor": 0.05,
            "fillfactor": 85,
        },
        sqlite_with_rowid=False,
    )
    op.create_index("objects_by_key", "objects", ["key"], unique=True)
    op.create_index("objects_by_retirement", "objects", ["retired_ms"], unique=False)
    op.create_table(
        "partitions",
        sa.Column("topic_id", _uuid, autoincrement=False, nullable=False),
        sa.Column("partition", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("log_start_offset", sa.BigInteger(), nullable=False),
        sa.Column("end_offset", sa.BigInteger(), nullable=False),
        sa.Column("running_max_timestamp", sa.BigInteger(), nullable=False),
        sa.Column("epochs", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("topic_id", "partition"),
        postgresql_with=_updated,
        sqlite_with_rowid=False,
    )
    op.create_table(
        "producers",
        sa.Column("topic_id", _uuid, autoincrement=False, nullable=False),
        sa.Column("partition", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("producer_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("producer_epoch", sa.Integer(), nullable=False),
        sa.Column("recent", sa.LargeBinary(), nullable=False),
        sa.Column("last_timestamp", sa.BigInteger(), nullable=False),
        sa.Column("updated_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("topic_id", "partition", "producer_id"),
        postgresql_with=_updated,
        sqlite_with_rowid=False,
    )
    op.create_table(
        "runs",
        sa.Column("topic_id", _uuid, autoincrement=False, nullable=False),
        sa.Column("partition", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("base_offset", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("end_offset", sa.BigInteger(), nullable=False),
        sa.Column("object_id", _uuid, nullable=False),
        sa.Column("start", sa.BigInteger(), nullable=False),
        sa.Column("length", sa.BigInteger(), nullable=False),
        sa.Column("max_timestamp", sa.BigInteger(), nullable=False),
        sa.Column("running_max_timestamp", sa.BigInteger(), nullable=False),
        sa.Column("commit_number", sa.BigInteger(), nullable=False),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.Column("is_parquet", sa.Boolean(), nullable=False),
        sa.Column("batches", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("topic_id", "partition", "base_offset"),
        postgresql_with=_removed,
        sqlite_with_rowid=False,
    )
    op.create_index(
        "runs_by_form", "runs", ["topic_id", "partition", "is_parquet", "length", "created_ms"], unique=False
    )
    op.create_index("runs_by_object", "runs", ["object_id"], unique=False)
    op.create_index(
        "runs_by_time",
        "runs",
        ["topic_id", "partition", "running_max_timestamp", "base_offset"],
        unique=False,
    )
    op.create_table(
        "sessions",
        sa.Column("session_id", _uuid, autoincrement=False, nullable=False),
        sa.Column("broker_id", sa.BigInteger(), nullable=False),
        sa.Column("prefix", _text, nullable=False),
        sa.Column("predecessor", _uuid, nullable=True),
        sa.Column("next_number", sa.BigInteger(), nullable=False),
        sa.Column("expires_ms", sa.BigInteger(), nullable=False),
        sa.Column("closed_ms", sa.BigInteger(), nullable=True),
        sa.Column("empty_sweeps", sa.Integer(), nullable=False),
        sa.Column("swept_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("session_id"),
        postgresql_with=_updated,
        sqlite_with_rowid=False,
    )
    op.create_table(
        "swaps",
        sa.Column("swap_id", _uuid, autoincrement=False, nullable=False),
        sa.Column("commit_number", sa.BigInteger(), nullable=False),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("swap_id"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "topics",
        sa.Column("topic_id", _uuid, autoincrement=False, nullable=False),
        sa.Column("name", _text, nullable=False),
        sa.Column("partitions", sa.Integer(), nullable=False),
        sa.Column("configs", _text, nullable=False),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("topic_id"),
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    op.drop_table("topics")
    op.drop_table("swaps")
    op.drop_table("sessions")
    op.drop_table("runs")
    op.drop_table("producers")
    op.drop_table("partitions")
    op.drop_table("objects")
    op.drop_table("leases")
    op.drop_table("groups")
    op.drop_table("group_offsets")
    op.drop_table("counters")
    op.drop_table("commits")
    op.drop_table("cluster")
    op.drop_table("broker_configs")
    op.drop_table("agents")
