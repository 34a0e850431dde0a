"""The last epoch of each write, so that a repeat changes nothing."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

_uuid = sa.LargeBinary(16).with_variant(postgresql.UUID(as_uuid=True), "postgresql")


def upgrade() -> None:
    op.create_table(
        "writes",
        sa.Column("write_id", _uuid, nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("commit_number", sa.BigInteger(), nullable=False),
        sa.Column("expires_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("write_id"),
        sqlite_with_rowid=False,
        postgresql_with={
            "fillfactor": 70,
            "autovacuum_vacuum_scale_factor": 0.05,
            "autovacuum_vacuum_threshold": 500,
        },
    )


def downgrade() -> None:
    op.drop_table("writes")
