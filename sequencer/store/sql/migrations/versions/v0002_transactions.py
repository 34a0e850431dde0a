"""Transactions: their rows, and runs of markers that stand in no object."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_uuid = sa.LargeBinary(16).with_variant(postgresql.UUID(as_uuid=True), "postgresql")
_text = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")
_updated = {"fillfactor": 70, "autovacuum_vacuum_scale_factor": 0.05, "autovacuum_vacuum_threshold": 500}
_removed = {"autovacuum_vacuum_scale_factor": 0.05, "autovacuum_analyze_scale_factor": 0.05}
_MIXED, _PARQUET, _MARKERS = 0, 1, 2


def upgrade() -> None:
    op.create_table(
        "transactions",
        sa.Column("transactional_id", _text, autoincrement=False, nullable=False),
        sa.Column("producer_id", sa.BigInteger(), nullable=False),
        sa.Column("producer_epoch", sa.Integer(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("state", _text, nullable=False),
        sa.Column("timeout_ms", sa.BigInteger(), nullable=False),
        sa.Column("started_ms", sa.BigInteger(), nullable=False),
        sa.Column("partitions", sa.LargeBinary(), nullable=False),
        sa.Column("groups", sa.LargeBinary(), nullable=False),
        sa.Column("previous_id", sa.BigInteger(), nullable=False),
        sa.Column("previous_epoch", sa.Integer(), nullable=False),
        sa.Column("ended_id", sa.BigInteger(), nullable=False),
        sa.Column("ended_epoch", sa.Integer(), nullable=False),
        sa.Column("ended_number", sa.BigInteger(), nullable=False),
        sa.Column("ended_is_commit", sa.Boolean(), nullable=False),
        sa.Column("answered_id", sa.BigInteger(), nullable=False),
        sa.Column("answered_epoch", sa.Integer(), nullable=False),
        sa.Column("updated_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("transactional_id"),
        postgresql_with=_updated,
        sqlite_with_rowid=False,
    )
    op.create_table(
        "open_ranges",
        sa.Column("topic_id", _uuid, autoincrement=False, nullable=False),
        sa.Column("partition", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("producer_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("first_offset", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("topic_id", "partition", "producer_id"),
        postgresql_with=_removed,
        sqlite_with_rowid=False,
    )
    op.create_table(
        "aborted_ranges",
        sa.Column("topic_id", _uuid, autoincrement=False, nullable=False),
        sa.Column("partition", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("producer_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("first_offset", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("last_offset", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("topic_id", "partition", "producer_id", "first_offset"),
        postgresql_with=_removed,
        sqlite_with_rowid=False,
    )
    op.create_table(
        "pending_offsets",
        sa.Column("group_id", _text, autoincrement=False, nullable=False),
        sa.Column("topic_id", _uuid, autoincrement=False, nullable=False),
        sa.Column("partition", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("producer_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("offset", sa.BigInteger(), nullable=False),
        sa.Column("leader_epoch", sa.Integer(), nullable=False),
        sa.Column("metadata", _text, nullable=False),
        sa.Column("commit_ms", sa.BigInteger(), nullable=False),
        sa.Column("expires_ms", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("group_id", "topic_id", "partition", "producer_id"),
        postgresql_with=_removed,
        sqlite_with_rowid=False,
    )
    op.add_column(
        "runs", sa.Column("kind", sa.SmallInteger(), nullable=False, server_default=sa.text(str(_MIXED)))
    )
    empty = "''::bytea" if op.get_bind().dialect.name == "postgresql" else "x''"
    op.add_column(
        "runs", sa.Column("markers", sa.LargeBinary(), nullable=False, server_default=sa.text(empty))
    )
    op.execute(f"update runs set kind = {_PARQUET} where is_parquet")
    op.drop_index("runs_by_form", "runs")
    op.drop_column("runs", "is_parquet")
    op.create_index("runs_by_form", "runs", ["topic_id", "partition", "kind", "length", "created_ms"])
    op.execute("update cluster set schema_version = 2")


def downgrade() -> None:
    """Only where no transaction was ever written: markers have no place in the first version."""
    is_marked = sa.text(f"select count(*) from runs where kind = {_MARKERS}")
    if op.get_bind().execute(is_marked).scalar():
        raise RuntimeError("there are runs of markers, which schema 0001 can't hold: stay with this one")
    op.add_column("runs", sa.Column("is_parquet", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.execute(f"update runs set is_parquet = (kind = {_PARQUET})")
    op.drop_index("runs_by_form", "runs")
    op.drop_column("runs", "markers")
    op.drop_column("runs", "kind")
    op.create_index("runs_by_form", "runs", ["topic_id", "partition", "is_parquet", "length", "created_ms"])
    op.drop_table("pending_offsets")
    op.drop_table("aborted_ranges")
    op.drop_table("open_ranges")
    op.drop_table("transactions")
    op.execute("update cluster set schema_version = 1")
