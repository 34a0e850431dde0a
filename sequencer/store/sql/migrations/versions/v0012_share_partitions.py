"""Partitions as share groups have them (KIP-932)."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

_uuid = sa.LargeBinary(16).with_variant(postgresql.UUID(as_uuid=True), "postgresql")
_text = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")
_STORAGE = {
    "fillfactor": 70,
    "autovacuum_vacuum_scale_factor": 0.05,
    "autovacuum_vacuum_threshold": 500,
}


def upgrade() -> None:
    op.create_table(
        "share_partitions",
        sa.Column("group_id", _text, nullable=False),
        sa.Column("topic_id", _uuid, nullable=False),
        sa.Column("partition", sa.Integer(), nullable=False),
        sa.Column("start_offset", sa.BigInteger(), nullable=False),
        sa.Column("spans", sa.LargeBinary(), nullable=False),
        sa.Column("locks", sa.LargeBinary(), nullable=False),
        sa.Column("answered", sa.LargeBinary(), nullable=False),
        sa.Column("updated_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("group_id", "topic_id", "partition"),
        sqlite_with_rowid=False,
        postgresql_with=_STORAGE,
    )


def downgrade() -> None:
    op.drop_table("share_partitions")
