"""How far each partition was compacted by key."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

_uuid = sa.LargeBinary(16).with_variant(postgresql.UUID(as_uuid=True), "postgresql")


def upgrade() -> None:
    op.create_table(
        "cleaned_partitions",
        sa.Column("topic_id", _uuid, nullable=False),
        sa.Column("partition", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("clean_end", sa.BigInteger(), nullable=False),
        sa.Column("clean_bytes", sa.BigInteger(), nullable=False),
        sa.Column("cleaned_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("topic_id", "partition"),
        sqlite_with_rowid=False,
        postgresql_with={
            "fillfactor": 70,
            "autovacuum_vacuum_scale_factor": 0.05,
            "autovacuum_vacuum_threshold": 500,
        },
    )


def downgrade() -> None:
    op.drop_table("cleaned_partitions")
