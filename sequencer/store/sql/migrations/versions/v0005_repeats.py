"""Answers by request, for repeats; the order of a group's states and positions."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_ORDERED = (("groups", "term"), ("groups", "turn"), ("group_offsets", "turn"))


def upgrade() -> None:
    op.create_table(
        "answers",
        sa.Column(
            "request_id",
            sa.LargeBinary(16).with_variant(postgresql.UUID(as_uuid=True), "postgresql"),
            primary_key=True,
            autoincrement=False,
            nullable=False,
        ),
        sa.Column("answer", sa.LargeBinary(), nullable=False),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sqlite_with_rowid=False,
        postgresql_with={"autovacuum_vacuum_scale_factor": 0.05, "autovacuum_analyze_scale_factor": 0.05},
    )
    for table, column in _ORDERED:
        op.add_column(
            table, sa.Column(column, sa.BigInteger(), nullable=False, server_default=sa.text("0"))
        )
    op.execute("update cluster set schema_version = 5")


def downgrade() -> None:
    for table, column in _ORDERED:
        op.drop_column(table, column)
    op.drop_table("answers")
    op.execute("update cluster set schema_version = 4")
