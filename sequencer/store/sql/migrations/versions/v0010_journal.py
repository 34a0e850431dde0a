"""The journal of changed rows, which other servers follow."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "journal",
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("chain", sa.BigInteger(), nullable=False),
        sa.Column("changes", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("number"),
        sqlite_with_rowid=False,
        postgresql_with={"autovacuum_vacuum_scale_factor": 0.05, "autovacuum_analyze_scale_factor": 0.05},
    )


def downgrade() -> None:
    op.drop_table("journal")
